"""Goal: the small things that a team stumbled over are as a user expects them. Method: each one with a real worker and
real commands. Those of another user's store, of two homes and of a full disk have files of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest
from celery import Celery, _state, states, uuid
from celery.exceptions import ImproperlyConfigured

import cystore
from cystore.celery.duties import app_settings
from cystore.celery.lifecycle.redaction import HIDDEN
from cystore.clock import now_ms
from tests.celery.conftest import PATIENCE_S, ROOT, Fleet, Worker, fleet_in, wait_until
from tests.celery.results.test_store_away import ready
from tests.celery.results.test_waiting import Waiter
from tests.support.celery import work
from tools.redis_server import redis_server

SECRET = "hunter2"
SIGPIPE_CODE = 141
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """An app that came from Redis and kept its options; no Redis for duties."""
    settings = {
        "result_backend_transport_options": {"global_keyprefix": "shop:", "retry_policy": {"timeout": 5.0}},
        "result_extended": True,
        "cystore_lifecycle_redact": ["password"],
        "cystore_redis_url": "",
    }
    with fleet_in(tmp_path_factory.mktemp("small"), **settings) as fleet:
        ready(fleet.start("--concurrency=2"))
        assert fleet.task(work.add).delay(1, 2).get(timeout=PATIENCE_S) == 3
        yield fleet


def run_in(fleet: Fleet, *command: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT, env={**os.environ, **fleet.environment}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == code, (command, done.stdout, done.stderr)
    return done


@pytest.fixture
def celery_cystore(fleet: Fleet) -> Run:
    """`celery -A APP cystore ...` beside the worker."""
    return lambda *words, code=0: run_in(
        fleet, "celery", "-A", "tests.support.celery.work", "cystore", *words, code=code
    )


def test_options_of_redis_stop_nothing_and_are_named_once(fleet):
    log = (fleet.folder / "worker0.log").read_text()
    assert log.count("global_keyprefix, retry_policy: ignored") == 1
    assert "Traceback" not in log


def test_a_delay_level_that_does_not_exist_is_an_error(fleet):
    with pytest.raises(cystore.MessageIllegalError, match="delay_level"):
        fleet.backend.store.put("orders", b"x", delay_level=99)
    done = subprocess.run(
        [sys.executable, "-m", "cystore", "put", str(fleet.store_path), "orders", "--delay-level", "99"],
        input="x", capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and "delay" in done.stderr


def test_states_times_and_hints(fleet, celery_cystore):
    said = celery_cystore("history", "--state", "foo", code=2).stderr
    assert "foo" in said and states.SUCCESS in said
    ago_s = now_ms() // 1000 - 3600
    for since in ("2w", str(ago_s), str(ago_s * 1000)):
        assert "tests.support.celery.work.add" in celery_cystore("history", "--since", since).stdout
    celery_cystore("history", "--until", str(ago_s), code=1)
    hint = celery_cystore("history", "--task-id", "none", code=1)
    assert "--set" not in hint.stdout + hint.stderr


def test_a_reader_of_the_output_that_goes_away(fleet):
    command = f"{sys.executable} -m celery -A tests.support.celery.work cystore history --limit 0 --json"
    done = subprocess.run(
        ["bash", "-c", f"{command} | true; exit ${{PIPESTATUS[0]}}"],
        cwd=ROOT, env={**os.environ, **fleet.environment}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode in (SIGPIPE_CODE, 0)  # 0: all was written before
    assert "Traceback" not in done.stderr and "Broken pipe" not in done.stderr


def test_info_of_a_store_in_use_warns_of_nothing(fleet):
    done = run_in(fleet, "cystore", "info", str(fleet.store_path))
    assert done.stderr == ""
    assert "in use" in done.stdout and "warning" not in done.stdout.lower()


def test_status_shows_duties_without_a_redis(fleet, celery_cystore):
    wait_until(lambda: fleet.backend.store.duties.last("clean_expired").runs, "the worker cleaned")
    assert "clean_expired" in celery_cystore("status").stdout
    duties = json.loads(celery_cystore("status", "--json").stdout)["store"]["duties"]
    assert duties["clean_expired"]["outcome"] == "done"


def test_a_second_store_is_refused_with_a_reason(fleet):
    worker = fleet.start(**{work.BACKEND: f"cystore://{fleet.folder}/other;cystore://{fleet.folder}/more"})
    assert worker.process.wait(PATIENCE_S) != 0
    assert "names more than one store" in worker.log.read_text()
    assert not list(fleet.folder.glob("other*"))


def test_redaction_covers_extended_results(fleet):
    hidden = fleet.task(work.same).apply_async(kwargs={"value": {"password": SECRET}})
    assert hidden.get(timeout=PATIENCE_S) == {"password": SECRET}, "the task itself gets it, and its caller"
    meta = fleet.backend.get_task_meta(hidden.id)
    assert meta["kwargs"] == {"value": {"password": HIDDEN}}
    assert SECRET not in json.dumps([meta["args"], meta["kwargs"]])
    events = fleet.backend.store.query("celery_events", hidden.id)
    assert events and not [one for one in events if SECRET.encode() in bytes(one.body)]


@pytest.mark.parametrize("size_bytes", [5_000_000, 60_000_000])
def test_large_results(fleet, tmp_path, size_bytes):
    """Seen: 5 MB failed where Redis took it. The limit is 64 MiB, encoded."""
    result = fleet.task(work.text_of).delay(size_bytes, str(tmp_path / "runs"))
    assert len(result.get(timeout=PATIENCE_S)) == size_bytes
    result.forget()


def test_a_result_beyond_the_limit_names_the_setting(fleet, tmp_path):
    result = fleet.task(work.text_of).delay(70_000_000, str(tmp_path / "runs"))
    with pytest.raises(Exception, match="max_message_size_bytes"):
        result.get(timeout=PATIENCE_S)
    assert (tmp_path / "runs").read_text() == "ran\n"


def test_a_pool_process_is_not_ended_because_the_log_grew(tmp_path):
    """Row 12. Seen: mapped segments counted as the child's memory, and `--max-memory-per-child` ended it."""
    with fleet_in(tmp_path) as fleet:
        probe = fleet.start("--concurrency=1")
        child = fleet.task(work.process_id).delay().get(timeout=PATIENCE_S)
        limit_kb = peak_kb(child) + 112 * 1024  # pages of 48 MiB at most, and a few copies of 2 MB
        assert probe.stop() == 0
        fleet.start("--concurrency=1", f"--max-memory-per-child={limit_kb}")
        child = fleet.task(work.process_id).delay().get(timeout=PATIENCE_S)
        runs = str(tmp_path / "runs")
        for _ in range(100):
            assert len(fleet.task(work.text_of).delay(2_000_000, runs).get(timeout=PATIENCE_S)) == 2_000_000
        assert fleet.backend.store.wrote_position > 200_000_000 > 112 * 1024**2
        assert fleet.task(work.process_id).delay().get(timeout=PATIENCE_S) == child


def peak_kb(pid: int) -> int:
    """What billiard compares with the limit."""
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))


def test_every_state_comes_once_and_in_order_beside_a_busy_writer(fleet):
    """Row 3, with a real worker: the state of the app's own is there, and no state of other tasks is."""
    seen: dict[str, list[str]] = {uuid(): [] for _ in range(10)}

    def wait(task_id: str, waits: threading.Event) -> object:
        told = seen[task_id]
        return fleet.app.AsyncResult(task_id).get(
            timeout=PATIENCE_S, on_message=lambda meta: told.append(meta["status"]), on_interval=waits.set
        )

    # Who asks for a result that is there gets it at once, without the states before.
    began = {task_id: threading.Event() for task_id in seen}
    waiters = [Waiter(lambda one=one: wait(*one)) for one in began.items()]
    assert all(waits.wait(PATIENCE_S) for waits in began.values())
    busy = [fleet.task(work.add).delay(n, 1) for n in range(100)]
    for task_id in seen:
        fleet.task(work.progress).apply_async(task_id=task_id)
    assert [waiter.finish() for waiter in waiters] == ["done"] * 10
    assert set(map(tuple, seen.values())) == {(states.STARTED, work.MARKED, states.SUCCESS)}
    assert [result.get(timeout=PATIENCE_S) for result in busy] == [n + 1 for n in range(100)]


# ------------------------------------------------------------------------------------------- before the first store


HOW = "`celery -A APP cystore create` makes it"
NO_STORE = "?create=false"


@pytest.mark.parametrize("command", [(), ("--pool", "threads"), ("--without-heartbeat", "--concurrency=1")])
def test_a_worker_before_its_store_exists_says_so_in_one_line(tmp_path, command):
    """Seen: a traceback, and the advice to open with create=true."""
    missing = f"cystore://{tmp_path}/not_yet{NO_STORE}"
    environment = {work.BROKER: "memory://", work.BACKEND: missing}
    worker = Worker(tmp_path / "log", *command, **environment)
    assert worker.process.wait(PATIENCE_S) == 1
    told = worker.log.read_text()
    assert [HOW in line for line in told.splitlines() if "CRITICAL" in line] == [True]
    assert "Traceback" not in told and "create=true" not in told


# ------------------------------------------------------------------------------------------- misspelt settings

MISSPELT = {
    "an option": ("cystore://{}?flsh=sync", {}, "there is no setting 'flsh'; did you mean flush? (options are flush, "),
    "an option's value": ("cystore://{}?flush=sycn", {}, "flush_disk_type must be one of async, sync, not 'sycn'; did"),
    "a setting's value": (
        "cystore://{}", {"cystore_store_away": "wat"}, "must be 'exit' or 'wait', not 'wat'; did you mean wait?",
    ),
    "a setting that is read late": (
        "cystore://{}", {"cystore_send_without_store": "perhaps"}, "must be True or False, not 'perhaps'",
    ),
    "a setting of the log": (
        "cystore://{}", {"cystore_lifecycle_light_queues": "of"}, '"workflow" or "off", not \'of\'; did you mean off?',
    ),
    "the scheme": ("cystor://{}", {}, "there is no backend 'cystor'; did you mean cystore?"),
}  # fmt: skip


def test_a_time_for_claims_that_makes_no_sense(tmp_path):
    app = Celery("web", broker="memory://", backend=f"cystore://{tmp_path}/s", set_as_current=False)
    app.conf.cystore_chord_claim_s = "30 s"
    with pytest.raises(
        ImproperlyConfigured, match="cystore_chord_claim_s must be a number of seconds, not '30 s'"
    ):
        app_settings.check(app)


@pytest.mark.parametrize("what", MISSPELT)
def test_a_worker_with_a_misspelt_setting_says_so_in_one_line(tmp_path, what):
    """Seen: a traceback of forty lines, and no word of what is spelt nearly so."""
    backend, settings, told = MISSPELT[what]
    environment = {
        work.BROKER: "memory://", work.BACKEND: backend.format(tmp_path / "store"), work.SETTINGS: json.dumps(settings),
    }  # fmt: skip
    worker = Worker(tmp_path / "log", "--concurrency=1", **environment)
    assert worker.process.wait(PATIENCE_S) == 1
    log = worker.log.read_text()
    assert [told in line for line in log.splitlines() if "CRITICAL" in line] == [True], log
    assert "Traceback" not in log and "ready." not in log


def test_a_url_can_ask_for_no_services(tmp_path):
    app = Celery(
        "web", broker="memory://", backend=f"cystore://{tmp_path}/s?services=none", set_as_current=False
    )
    assert app.backend.store.config.services == ()
    app.close()
    with pytest.raises(ImproperlyConfigured, match="or 'all' or 'none'"):
        _ = Celery(backend=f"cystore://{tmp_path}/s?services=", set_as_current=False).backend


UNKNOWN = (
    "the setting cystore_lifecyle_redact has no effect: there is no cystore_lifecyle_redact; did you mean"
)


def test_an_unknown_setting_is_told_once_by_worker_and_commands(tmp_path):
    """Celery takes any name. Seen: the misspelt one hid nothing, and nobody knew."""
    with fleet_in(tmp_path, cystore_lifecyle_redact=["password"], cystore_wat=1, cystore_home=None) as fleet:
        worker = fleet.start("--concurrency=1")
        ready(worker)
        log = worker.log.read_text()
        assert log.count("has no effect") == 2
        assert log.count(f"{UNKNOWN} cystore_lifecycle_redact") == 1
        done = run_in(fleet, "celery", "-A", "tests.support.celery.work", "cystore", "status")
        assert done.stderr.count("has no effect") == 2 and done.stderr.count(UNKNOWN) == 1
        worker.stop()


def test_an_unknown_setting_in_a_namespace_is_told(tmp_path):
    """As Django has them."""
    app = Celery("web", broker="memory://", backend=f"cystore://{tmp_path}/s", set_as_current=False)
    given = {"CELERY_CYSTORE_LIFECYLE": False, "CELERY_CYSTORE_READ_SERVICE": False, "CYSTORE_OF_OTHERS": 1}
    app.config_from_object(given, namespace="CELERY")
    (line,) = app_settings.unknown(app)
    assert "CELERY_CYSTORE_LIFECYLE" in line and "did you mean cystore_lifecycle" in line
    assert not list(app_settings.unknown(app))


def test_commands_before_the_store_exists(fleet):
    environment = {work.BACKEND: f"cystore://{fleet.folder}/not_yet{NO_STORE}"}
    for command in ("status", "failures", "unfinished"):
        done = subprocess.run(
            [sys.executable, "-m", "celery", "-A", "tests.support.celery.work", "cystore", command],
            cwd=ROOT, env={**os.environ, **fleet.environment, **environment}, capture_output=True, text=True,
            timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert done.returncode == 2
        assert [HOW in line for line in done.stderr.splitlines() if "Error" in line] == [True]
        assert "Traceback" not in done.stderr


def test_beat_before_the_store_exists_sends_as_any_client(fleet, tmp_path):
    """Seen: it ended with a traceback, whose every line was a line of the log."""
    beat = fleet.start_beat(**{work.BACKEND: f"cystore://{tmp_path}/not_yet{NO_STORE}"})
    wait_until(lambda: "cannot be opened" in beat.log.read_text(), "beat has sent a message")
    assert HOW in beat.log.read_text() and "Traceback" not in beat.log.read_text()
    assert beat.process.poll() is None
    beat.stop()


@pytest.mark.parametrize("trouble", ["missing", "no store", "a home is named"])
@pytest.mark.parametrize("sends", [True, False])
def test_one_rule_for_a_message_without_a_store(tmp_path, caplog, monkeypatch, trouble, sends):
    """It is sent without a home, or the call raises: by setting."""
    # Those of tests before, whose logs would speak too.
    monkeypatch.setattr(_state._tls, "current_app", None)
    monkeypatch.setattr(_state, "default_app", None)
    path = tmp_path / "store"
    if trouble == "no store":
        path.mkdir()
        (path / "other").write_text("this directory is not a store")
    app = Celery("web", broker="memory://", backend=f"cystore://{path}{NO_STORE}", set_as_current=False)
    app.conf.cystore_send_without_store = sends
    if trouble == "a home is named":
        app.conf.cystore_home = "11111111-2222-3333-4444-555555555555"
    if sends or trouble == "a home is named":
        app.send_task("shop.pay", queue="of_web")
        app.send_task("shop.pay", queue="of_web", ignore_result=True)
        with app.connection_for_read() as connection:
            sent = connection.SimpleQueue("of_web")
            homes = [sent.get(block=False).headers.get("cystore_home") for _ in range(2)]
        assert homes[0] == app.conf.get("cystore_home")
        assert caplog.text.count("tasks are sent without a home") == 1
    else:
        with pytest.raises(cystore.StoreFormatError):
            app.send_task("shop.pay", queue="of_web")
    assert "Traceback" not in caplog.text


def test_a_rule_that_makes_no_sense(tmp_path):
    app = Celery("web", broker="memory://", backend=f"cystore://{tmp_path}/s", set_as_current=False)
    app.conf.cystore_send_without_store = "perhaps"
    with pytest.raises(ImproperlyConfigured, match="cystore_send_without_store"):
        app.send_task("shop.pay")


# --------------------------------------------------------------------------------------------------- passwords


def test_no_report_of_celery_shows_a_password_from_a_file(tmp_path):
    """`celery report`, `inspect conf`, `cystore status` and the worker's log; and the worker uses the password."""
    password = tmp_path / "password"
    password.write_text(SECRET)
    password.chmod(0o600)
    with redis_server("--requirepass", SECRET, own=True) as closed:
        settings = {
            "cystore_redis_url": closed.url,
            "cystore_redis_password_file": str(password),
            "cystore_reader_password_file": str(password),
        }
        reader = f"reader={closed.url}"
        with fleet_in(tmp_path, f"?{reader}", **settings) as fleet:
            worker = fleet.start("--concurrency=1", **{work.DUTIES: "1"})
            ready(worker)
            result = fleet.task(work.add).delay(2, 3)
            remote = work.make_app(
                fleet.environment[work.BROKER],
                f"cystore+remote://?{reader}",
                cystore_reader_password_file=str(password),
            )
            assert remote.AsyncResult(result.id).get(timeout=PATIENCE_S) == 5
            shown = [str(fleet.app.control.inspect(timeout=PATIENCE_S, limit=1).conf())]
            wait_until(
                lambda: "live" in run_in(fleet, *WORK, "cystore", "status").stdout,
                "the worker has a heartbeat",
            )
            for words in (("report",), ("cystore", "status"), ("cystore", "status", "--json")):
                done = run_in(fleet, *WORK, *words)
                shown += [done.stdout, done.stderr]
            shown.append(worker.log.read_text())
    assert "cystore_redis_url" in shown[0] and str(password) not in shown[0]
    assert SECRET not in "".join(shown)


def test_a_worker_says_that_a_setting_shows_a_password(tmp_path):
    with redis_server("--requirepass", SECRET, own=True) as closed:
        url = closed.url.replace("unix://", f"unix://:{SECRET}@")
        with fleet_in(tmp_path, f"?reader={url}", cystore_redis_url=url) as fleet:
            worker = fleet.start("--concurrency=1")
            ready(worker)
            told = worker.log.read_text()
    for name in ("cystore_redis_password_file", "cystore_reader_password_file"):
        assert told.count(name) == 1
    assert SECRET not in told


WORK = ("celery", "-A", "tests.support.celery.work")
