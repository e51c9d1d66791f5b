"""Goal: the log never stands in a task's way, and keeps no more of it than the settings allow. Method: messages sent
and tasks called in this process, on stores that refuse; the log is read back."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from celery import Celery, current_app, states
from celery.app.task import Context
from celery.exceptions import ImproperlyConfigured
from celery.signals import task_prerun
from hypothesis import given
from hypothesis import strategies as st

import cystore
from cystore.celery import history
from cystore.celery.base import events, records
from cystore.celery.base.events import Event
from cystore.celery.lifecycle import hidden_names, recorder, redaction
from cystore.celery.lifecycle.redaction import CUT, HIDDEN, shortened
from cystore.celery.stores import close_shared
from tests.celery.conftest import PATIENCE_S
from tests.support.process import Process


@pytest.fixture
def make_app(url):
    """`make_app(setting=value)`: the current app, with a task `shop.pay`, a broker in memory and its results in a new
    store."""
    previous = current_app._get_current_object()

    def make(backend: str = url, **settings: object) -> Celery:
        app = Celery("shop", broker="memory://", backend=backend)
        app.conf.update(settings)
        app.task(_pay, name="shop.pay")
        app.task(_fail, name="shop.fail")
        app.task(_pay, name="cystore.pay")
        assert app.backend
        return app

    yield make
    previous.set_current()


def _pay(*args: object, **kwargs: object) -> int:
    return len(args) + len(kwargs)


def _fail(secret: str) -> None:
    raise ValueError("no " + "x" * 5000)


def logged(app: Celery, *, name: str | None = None) -> list[Event]:
    """All events, oldest first."""
    return list(history.events(app.backend.store, name=name))[::-1]


def send(app: Celery, *args: object, name: str = "shop.pay", **kwargs: object) -> Event:
    """Sends a message and gives its event."""
    result = app.tasks[name].apply_async(args, kwargs, ignore_result=True)
    (event,) = history.events(app.backend.store, task_id=result.id)
    return event


def log_of(app: Celery) -> recorder.Lifecycle:
    """The app's log in this process."""
    found = recorder.log_of(app)
    assert found is not None
    return found


def test_a_message_that_is_sent(make_app):
    app = make_app()
    sent = send(app, 1, colour="red")
    assert (sent.event, sent.name, sent.root_id, sent.group_id) == ("SENT", "shop.pay", sent.task_id, None)
    details = sent.details
    assert (details["args"], details["kwargs"]) == ("(1,)", "{'colour': 'red'}")
    assert (details["queue"], details["v"]) == ("celery", events.VERSION)
    assert "exchange" not in details


def test_a_message_of_the_first_protocol(make_app):
    sent = send(make_app(task_protocol=1), 1, colour="red")
    assert (sent.details["args"], sent.details["kwargs"]) == ("(1,)", "{'colour': 'red'}")


def test_a_task_that_is_called(make_app):
    app = make_app()
    result = app.tasks["shop.pay"].apply((1, 2))
    assert result.get() == 2
    started, succeeded = logged(app)
    assert (started.event, succeeded.event) == (events.STARTED, events.SUCCEEDED)
    assert started.task_id == succeeded.task_id == result.id
    assert started.details["eager"] is True
    assert started.details["pid"] == os.getpid()


def test_a_log_that_is_off(make_app):
    app = make_app(cystore_lifecycle=False)
    app.tasks["shop.pay"].apply_async((1,), ignore_result=True)
    app.tasks["shop.pay"].apply((1,))
    assert recorder.log_of(app) is None
    assert logged(app) == []
    assert not history.has_events(app.backend.store)


def test_the_stores_own_tasks_are_left_out(make_app):
    app = make_app()
    app.tasks["cystore.pay"].apply_async((1,), ignore_result=True)
    app.tasks["cystore.pay"].apply((1,))
    assert logged(app) == []
    assert log_of(app).lost == 0


def test_two_apps_of_one_process_keep_apart(make_app, tmp_path):
    first, second = make_app(), make_app(f"cystore://{tmp_path}/second")
    first.tasks["shop.pay"].apply((1,))
    second.tasks["shop.pay"].apply((1,))
    second.tasks["shop.pay"].apply_async((1,), ignore_result=True)  # the current one sends
    assert [event.event for event in logged(first)] == [events.STARTED, events.SUCCEEDED]
    assert [event.event for event in logged(second)] == [events.STARTED, events.SUCCEEDED, events.SENT]


def test_one_backend_for_each_thread_tells_once(make_app):
    app = make_app()
    first = log_of(app)
    assert app._get_backend() is not app.backend
    assert log_of(app) is first
    app.tasks["shop.pay"].apply((1,))
    assert len(logged(app)) == 2


# ------------------------------------------------------------------------------------------- trouble


def test_a_store_that_refuses_stops_no_task_and_is_reported_once(make_app, caplog, monkeypatch):
    monkeypatch.setattr(recorder, "PAUSE_S", 0.0)
    app = make_app()
    send(app, 1)
    store = app.backend.store
    store.set_writable(False)
    with caplog.at_level(logging.WARNING, logger=recorder.log.name):
        for _ in range(5):
            app.tasks["shop.pay"].apply_async((1,), ignore_result=True)
            assert app.tasks["shop.pay"].apply((1,)).get() == 1
        (report,) = [record for record in caplog.records if record.name == recorder.log.name]
        assert str(store.path) in report.getMessage()
        assert log_of(app).lost == 15
        store.set_writable(True)
        send(app, 2)
        assert "15 events are missing" in caplog.records[-1].getMessage()
        caplog.clear()
        send(app, 3)
        assert caplog.records == []
    told = [(event.details["args"], event.details.get("lost")) for event in logged(app)]
    assert told == [("(1,)", None), ("(2,)", 15), ("(3,)", None)]


def test_a_store_that_refused_is_left_alone_for_a_while(make_app, monkeypatch):
    app, now = make_app(), 1000.0
    monkeypatch.setattr(recorder, "monotonic_s", lambda: now)
    store = app.backend.store
    store.set_writable(False)
    app.tasks["shop.pay"].apply_async((1,), ignore_result=True)
    store.set_writable(True)
    app.tasks["shop.pay"].apply_async((2,), ignore_result=True)
    assert (log_of(app).lost, logged(app)) == (2, [])
    now += recorder.PAUSE_S
    send(app, 3)


def test_a_publisher_without_a_store_sends_all_the_same(make_app, tmp_path, caplog):
    (tmp_path / "file").touch()
    app = make_app(f"cystore://{tmp_path}/file/store")
    with caplog.at_level(logging.WARNING, logger=recorder.log.name):
        for _ in range(3):
            assert app.tasks["shop.pay"].apply_async((1,), ignore_result=True).id
    assert log_of(app).lost == 3
    assert len([record for record in caplog.records if record.name == recorder.log.name]) == 1


@pytest.mark.parametrize(
    "name", ["x" * 40_000, "\U0001f600" * 9000, "shop.pay\x01", "\x02", "shop.\ud800", "größer\n"]
)
def test_any_name(make_app, name):
    """Seen: a task whose name no property can hold had no events, and its result was never stored."""
    app = make_app()
    app.send_task(name, (1,), ignore_result=True)
    app.backend.store_result("id", 7, states.SUCCESS, request=Context(task=name))
    assert app.AsyncResult("id").get(timeout=PATIENCE_S) == 7
    (sent,) = history.events(app.backend.store, name=name)
    (stored,) = history.transitions(app.backend.store, name=name)
    assert sent.event == events.SENT
    assert stored.name == sent.name == records.kept_name(sent.name)  # what is shown can be asked for
    assert list(history.events(app.backend.store, name=sent.name)) == [sent]
    assert log_of(app).lost == 0


@given(st.text(st.characters(exclude_categories=()), max_size=3000))
def test_a_kept_name_fits_into_a_property(name):
    kept = records.kept_name(name)
    assert len(kept.encode()) < 1 << 15
    assert not set(kept) & {"\x01", "\x02"}
    assert records.kept_name(kept) == kept
    assert records.queue_of(kept) == records.queue_of(name)


@pytest.mark.parametrize("task_id", ["id with blanks", "50 %", "größer", "root:x", "\x01\x02"])
def test_any_id(make_app, task_id):
    app = make_app()
    app.tasks["shop.pay"].apply_async(
        (1,), ignore_result=True, task_id=task_id, group_id=task_id, root_id="r " + task_id
    )
    (event,) = history.events(app.backend.store, task_id=task_id)
    assert (event.task_id, event.root_id, event.group_id) == (task_id, "r " + task_id, task_id)
    assert list(history.events(app.backend.store, root_id="r " + task_id)) == [event]
    assert list(history.events(app.backend.store, group_id=task_id)) == [event]


def test_a_child_process_logs_by_itself(make_app):
    app = make_app()
    send(app, 1)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            app.tasks["shop.pay"].apply((1,))
            close_shared()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert {event.details["pid"] for event in logged(app)[1:]} == {pid}


def test_a_killed_process_leaves_what_it_logged(make_app, url):
    """Nothing is kept back to be written later."""
    app = make_app()
    with Process() as process:
        process.do(
            "import os, signal; from celery import Celery\n"
            "app = Celery('shop', broker='memory://', backend=url); app.backend\n"
            "app.send_task('shop.pay', (1,), ignore_result=True, task_id='t')",
            url=url,
        )
        process.kill()
    (event,) = history.events(app.backend.store, task_id="t")
    assert event.event == events.SENT


# ---------------------------------------------------------------------------------- what is kept of a task


def test_arguments_are_cut(make_app):
    details = send(make_app(cystore_lifecycle_args_chars=50), "x" * 500, text="y" * 500).details
    assert len(details["args"]) <= 50 and details["args"].startswith("('xxx")
    assert len(details["kwargs"]) <= 50 and details["kwargs"].startswith("{'text'")


def test_no_arguments_at_all(make_app):
    app = make_app(cystore_lifecycle_args_chars=0)
    app.tasks["shop.fail"].apply(("secret",))
    assert not {"args", "kwargs"} & set(send(app, 1).details)
    assert all("secret" not in str(event.details.get("args")) for event in logged(app))


def test_an_exception_and_its_traceback_are_cut(make_app):
    app = make_app(cystore_lifecycle_traceback_chars=400)
    app.tasks["shop.fail"].apply(("a",))
    failed = logged(app)[-1]
    assert failed.event == events.FAILED
    assert len(failed.details["exception"]) <= recorder.EXCEPTION_CHARS
    assert len(failed.traceback) == 400 and CUT in failed.traceback


def redact(name: str, args: list, kwargs: dict) -> tuple[object, object]:
    """A function of the app's own."""
    if "boom" in args:
        raise RuntimeError("secret")
    return [f"{name} of {len(args)}"], {}


PIN = 83_251_907_446  # no process, time or id has it by chance


@pytest.mark.parametrize("how", [["card", "pin"], ("card", "pin"), {"card", "pin"}])
def test_arguments_of_some_names_are_not_kept(make_app, how):
    app = make_app(cystore_lifecycle_redact=how)
    details = send(app, {"pin": PIN, "for": "tea"}, card="4711", order=8).details
    assert details["args"] == f"[{{'pin': '{HIDDEN}', 'for': 'tea'}}]"
    assert details["kwargs"] == f"{{'card': '{HIDDEN}', 'order': 8}}"
    app.tasks["shop.fail"].apply((), {"secret": [{"pin": PIN}]})
    assert all(str(PIN) not in str(event.details) for event in logged(app))


LOGIN, SECRET = "shop.login", "hunter2"


@pytest.fixture
def shop(make_app) -> Callable[..., Celery]:
    """An app with tasks that take a password."""

    def make(redact: object = ("Password",), **settings: object) -> Celery:
        app = make_app(cystore_lifecycle_redact=redact, result_extended=True, **settings)

        @app.task(name=LOGIN, shared=False)
        def login(user, password, *hints, more=None):
            if user == "unknown":
                raise ValueError(
                    f'login failed: {{"user": "u", "password": "{password}"}} PASSWORD={password}'
                )
            return user

        @app.task(name="shop.bound", bind=True, shared=False)
        def bound(self, user, password):
            return user

        return app

    return make


def kept_of(app: Celery) -> str:
    """Everything that the store has."""
    with cystore.open(app.backend.store.path, read_only=True) as store:
        return "\n".join(bytes(message.body).decode("utf-8", "replace") for message in store.scan())


CALLS: dict[str, Callable[[Celery], object]] = {
    "a position": lambda app: app.tasks[LOGIN].delay("u", SECRET),
    "a position of a bound task": lambda app: app.tasks["shop.bound"].delay("u", SECRET),
    "a position beside a name": lambda app: app.tasks[LOGIN].apply_async(("u", SECRET), {"more": 1}),
    "another case": lambda app: app.tasks[LOGIN].delay("u", "x", more={"PassWord": SECRET}),
    "a pair": lambda app: app.tasks[LOGIN].delay("u", "x", more=[("password", SECRET)]),
    "JSON": lambda app: app.tasks[LOGIN].delay("u", "x", more=json.dumps({"a": [{"Password": [SECRET]}]})),
    "JSON in JSON": lambda app: app.tasks[LOGIN].delay(
        "u", "x", more=json.dumps({"a": json.dumps({"password": f'a" {SECRET}'})})
    ),
    "bytes": lambda app: app.tasks[LOGIN].delay("u", "x", f"user=u&password={SECRET}&x=1"),
    "key=value": lambda app: app.tasks[LOGIN].delay("u", "x", f"host=h password = '{SECRET} it' dbname=d"),
    "a header": lambda app: app.tasks[LOGIN].delay("u", "x", f"Accept: any\nPassword: it is {SECRET}\nX: y"),
    "a repr": lambda app: app.tasks[LOGIN].delay("u", "x", repr({"password": {"deep": SECRET}})),
    "a callback": lambda app: app.tasks[LOGIN].apply_async(("u", "x"), link=app.tasks[LOGIN].s(SECRET)),
    "an error callback": lambda app: app.tasks[LOGIN].apply_async(
        ("u", "x"), link_error=app.tasks[LOGIN].si("u", SECRET)
    ),
    "a chain": lambda app: (app.tasks[LOGIN].s("u", SECRET) | app.tasks[LOGIN].s(SECRET)).delay(),
    "starmap": lambda app: app.tasks[LOGIN].starmap([("u", SECRET)]).delay(),
    "a signature as an argument": lambda app: app.tasks[LOGIN].delay(app.tasks[LOGIN].s("u", SECRET), "x"),
    "a failure": lambda app: app.tasks[LOGIN].apply(("unknown", SECRET), throw=False),
    "a representation by the caller": lambda app: app.tasks[LOGIN].apply_async(
        ("u", SECRET), argsrepr=f"('u', '{SECRET}')"
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_no_value_of_a_hidden_name_is_kept(shop, name):
    """Wherever it stands. Seen: only names of keyword arguments in the very same case were hidden."""
    app = shop(cystore_lifecycle_payload="message", task_eager_propagates=False, task_store_eager_result=True)
    CALLS[name](app)
    assert logged(app)
    assert SECRET not in kept_of(app)


@pytest.mark.parametrize("positions", ["known", "all"])
def test_positions_of_a_task_that_is_not_known(shop, positions):
    """A publisher that only sends by name: the setting decides."""
    app = shop(cystore_lifecycle_redact_positions=positions)
    app.send_task("elsewhere.login", ("u", SECRET), {"order": 7}, ignore_result=True)
    (event,) = logged(app)
    assert event.details["kwargs"] == "{'order': 7}"
    assert event.details["args"] == (
        f"['{HIDDEN}', '{HIDDEN}']" if positions == "all" else f"['u', '{SECRET}']"
    )


@pytest.mark.parametrize(
    "text",
    [
        "password", "the password is wrong", "password == given", "no_password=1", "passwords=2", "{", '{"a": "b"}',
        "password=", "x" * 1000, "[1, 2", "user=u, order=7",
    ],
)  # fmt: skip
def test_other_texts_stay_as_they_are(shop, text):
    assert log_of(shop()).redaction.text(text) == text


@given(text=st.text(alphabet="pasword=:'\"\\\\ {}[](),;\n\u00e9<>&", max_size=60))
def test_any_text_can_be_redacted(text):
    """It ends, changes nothing without a name, and a second time it changes nothing."""
    names = hidden_names.HiddenNames(["password"], lambda name: None, False)
    once = names.text(text)
    assert names.text(once).count(HIDDEN) >= once.count(HIDDEN)
    if "password" not in text:
        assert once == text


@pytest.mark.parametrize("key", [False, True])
def test_the_body_of_a_chord_is_encrypted_with_a_key(shop, tmp_path, caplog, key):
    """It must stay as it is, because a worker may have to send it. Without a key the log says so once."""
    if key:
        pytest.importorskip("cryptography")
        (tmp_path / "key").write_text("0123456789abcdef")
        (tmp_path / "key").chmod(0o600)
    app = shop(**({"cystore_chord_key_file": str(tmp_path / "key")} if key else {}))
    login = app.tasks[LOGIN]
    body = login.s(SECRET).on_error(login.si("u", SECRET)).set(task_id="body")
    app.backend.apply_chord(("group", [app.AsyncResult("part")]), body)
    app.backend.set_chord_size("group", 0)
    assert (SECRET in kept_of(app)) is not key
    assert ("cystore_chord_key_file" in caplog.text) is not key
    run_id = body["cystore_run"]
    assert app.backend.chords.settle("group", run_id), "the body is sent"
    sent_body = next(event for event in logged(app) if event.task_id == "body")
    assert (sent_body.event, SECRET in str(sent_body.details)) == (events.SENT, False)


@pytest.mark.parametrize("problem", ["no file", "short", "others read it"])
def test_a_key_that_cannot_be_used(shop, tmp_path, problem):
    key = tmp_path / "key"
    if problem != "no file":
        key.write_text("0123456789abcdef"[: 3 if problem == "short" else None])
        key.chmod(0o644 if problem == "others read it" else 0o600)
    app = shop(cystore_chord_key_file=str(key))
    with pytest.raises(ImproperlyConfigured, match=str(key)):
        app.backend.apply_chord(("group", [app.AsyncResult("part")]), app.tasks[LOGIN].s(SECRET))


@pytest.mark.parametrize("how", [redact, f"{__name__}:redact"])
def test_a_function_that_redacts(make_app, how):
    app = make_app(cystore_lifecycle_redact=how)
    details = send(app, "secret", pin=1).details
    assert details["args"] == "['shop.pay of 1']"
    assert "kwargs" not in details


@pytest.mark.parametrize("how", [redact, "no.such:function"])
def test_a_redaction_that_fails_keeps_nothing(make_app, how, caplog):
    app = make_app(cystore_lifecycle_redact=how)
    details = send(app, "boom", pin=1).details
    assert (details["args"], details["kwargs"]) == (HIDDEN, HIDDEN)
    send(app, "boom")
    (report,) = [record.getMessage() for record in caplog.records if record.name == redaction.log.name]
    assert "cystore_lifecycle_redact" in report and "shop.pay" in report
    assert "secret" not in report
    assert log_of(app).lost == 0


def test_a_caller_may_say_what_is_shown(make_app):
    app = make_app()
    result = app.tasks["shop.pay"].apply_async(("4711",), argsrepr="(<card>)", ignore_result=True)
    (event,) = history.events(app.backend.store, task_id=result.id)
    assert event.details["args"] == "(<card>)"


def test_nothing_is_pickled(make_app):
    app = make_app(task_serializer="pickle", accept_content=["pickle"])
    details = send(app, {1, 2}, path=Path("/x")).details
    assert details["args"] == "({1, 2},)"
    assert "/x" in details["kwargs"]


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("cystore_lifecycle_args_chars", -1),
        ("cystore_lifecycle_args_chars", "many"),
        ("cystore_lifecycle_traceback_chars", True),
        ("cystore_lifecycle_redact", 7),
        ("cystore_lifecycle_redact", [7]),
        ("cystore_lifecycle_redact_positions", "some"),
    ],
)
def test_settings_that_make_no_sense(make_app, setting, value):
    with pytest.raises(ImproperlyConfigured, match=setting):
        make_app(**{setting: value})


def test_a_handler_is_connected_once():
    receivers = [
        receiver for _, receiver in task_prerun.receivers if receiver.__module__ == recorder.__name__
    ]
    assert len(receivers) <= 1


@pytest.mark.parametrize("limit", [0, 1, 5, 6, 20, 99, 100, 101])
def test_a_text_is_cut_in_the_middle(limit):
    text = "a" * 50 + "z" * 50
    cut = shortened(text, limit)
    assert len(cut) == min(limit, 100)
    assert limit < 20 or (cut[0], cut[-1]) == ("a", "z")
