"""Goal: a worker whose store is gone takes no task that it cannot store the result of. Method: real workers, and a
store that is moved, replaced, or whose sync failed under them; the broker's queue is looked at from here."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from celery import Celery
from celery.exceptions import ImproperlyConfigured

import cystore
from cystore.celery.base.identity import known_home_of, store_id_of
from cystore.celery.base.store_watch import EXIT_CODE
from cystore.celery.stores import SERVER, close_shared
from cystore.layout import FLAGS
from tests.celery.conftest import PATIENCE_S, Fleet, Worker, fleet_in, wait_until
from tests.support.celery import work


def ready(worker: Worker) -> None:
    wait_until(lambda: " ready." in worker.log.read_text(), "the worker is ready")


def waiting(fleet: Fleet) -> int:
    """Messages in the broker's queue that no worker has."""
    with fleet.app.connection_for_read() as connection, connection.channel() as channel:
        return int(channel._size(work.QUEUE))


def send(fleet: Fleet, count: int) -> None:
    """Sends tasks from a process that has no store."""
    program = (
        "import sys; from celery import Celery; app = Celery(broker=sys.argv[1], backend='disabled://')\n"
        "for number in range(int(sys.argv[4])): app.send_task(sys.argv[2], (number, 1), queue=sys.argv[3])"
    )
    values = (fleet.environment[work.BROKER], work.add.name, work.QUEUE, str(count))
    subprocess.run([sys.executable, "-c", program, *values], check=True)


def sync_failed(fleet: Fleet) -> None:
    """The state of the control block after a failed sync; the disk here works."""
    control = fleet.backend.store._attached().control
    control.failed_errno = 5
    control.set_flag(FLAGS["FLAG_SYNC_FAILED"][0])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent"])
def test_a_worker_whose_store_was_moved_ends_and_leaves_the_tasks_to_the_broker(tmp_path, pool):
    """Seen: it continued taking tasks ("Pool callback raised exception"), acknowledged them, and their results were
    lost."""
    with fleet_in(tmp_path) as fleet:
        worker = fleet.start("--concurrency=1", pool=pool)
        ready(worker)
        assert fleet.task(work.add).delay(1, 2).get(timeout=PATIENCE_S) == 3
        close_shared()
        fleet.store_path.rename(tmp_path / "moved")
        send(fleet, 5)
        assert worker.process.wait(PATIENCE_S) == EXIT_CODE
        told = worker.log.read_text()
        assert "takes no more tasks" in told
        assert str(fleet.store_path) in told
        assert "Pool callback raised exception" not in told
        assert waiting(fleet) == 5
        assert not fleet.store_path.exists(), "a second store was made"


def test_tasks_that_ran_when_the_store_went_away_go_back_too(tmp_path):
    """A task acknowledged late is one that some worker can run again. Seen: it was acknowledged without a result."""
    with fleet_in(tmp_path) as fleet:
        worker = fleet.start("--concurrency=2")
        ready(worker)
        fifo, marker = tmp_path / "fifo", tmp_path / "marker"
        os.mkfifo(fifo)
        fleet.task(work.wait_unless_redelivered).delay(str(marker), str(fifo))
        wait_until(marker.exists, "the task runs")
        close_shared()
        fleet.store_path.rename(tmp_path / "moved")
        wait_until(lambda: "takes no more tasks" in worker.log.read_text(), "the worker knows")
        fifo.write_text("go on")
        assert worker.process.wait(PATIENCE_S) == EXIT_CODE
        assert waiting(fleet) == 1


def test_a_failed_sync_stops_a_worker_too(tmp_path):
    with fleet_in(tmp_path) as fleet:
        worker = fleet.start("--concurrency=1")
        ready(worker)
        sync_failed(fleet)
        send(fleet, 3)
        assert worker.process.wait(PATIENCE_S) == EXIT_CODE
        assert "read-only until every process has closed it" in worker.log.read_text()
        assert waiting(fleet) == 3


@pytest.mark.sampled(1)
@pytest.mark.sampled(1)
@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_a_worker_that_waits_goes_on_when_its_store_is_back(tmp_path, pool):
    with fleet_in(tmp_path, cystore_store_away="wait") as fleet:
        worker = fleet.start("--concurrency=1", pool=pool)
        ready(worker)
        close_shared()
        fleet.store_path.rename(tmp_path / "moved")
        send(fleet, 4)
        wait_until(lambda: "takes no more tasks" in worker.log.read_text(), "the worker knows")
        wait_until(lambda: waiting(fleet) == 4, "the tasks are the broker's")
        assert worker.process.poll() is None
        (tmp_path / "moved").rename(fleet.store_path)
        wait_until(lambda: "takes tasks again" in worker.log.read_text(), "the worker continues")
        assert fleet.task(work.add).delay(1, 2).get(timeout=PATIENCE_S) == 3
        wait_until(lambda: waiting(fleet) == 0, "nothing is left")
        # Seen: each service of each process gave the same advice, nine times.
        assert worker.log.read_text().count("was moved, deleted or replaced") == 1


def test_a_worker_that_waits_goes_on_with_a_restored_backup(tmp_path):
    """Seen: it waited for the directory that was moved away, and stored its results there when that was back."""
    with fleet_in(tmp_path, cystore_store_away="wait") as fleet:
        worker = fleet.start("--concurrency=1")
        ready(worker)
        assert fleet.task(work.add).delay(1, 2).get(timeout=PATIENCE_S) == 3
        close_shared()
        snapshot = [sys.executable, "-m", "cystore", "snapshot"]
        subprocess.run([*snapshot, str(fleet.store_path), str(tmp_path / "backup")], check=True)
        fleet.store_path.rename(tmp_path / "moved")
        send(fleet, 4)
        wait_until(lambda: "takes no more tasks" in worker.log.read_text(), "the worker knows")
        wait_until(lambda: waiting(fleet) == 4, "the tasks are the broker's")
        subprocess.run([*snapshot, str(tmp_path / "backup"), str(fleet.store_path)], check=True)
        wait_until(lambda: "takes tasks again" in worker.log.read_text(), "the worker continues")
        assert fleet.task(work.add).delay(3, 4).get(timeout=PATIENCE_S) == 7
        wait_until(lambda: waiting(fleet) == 0, "nothing is left")
        assert worker.process.poll() is None


def test_an_unknown_setting_is_refused(tmp_path):
    with fleet_in(tmp_path, cystore_store_away="weight") as fleet:
        worker = fleet.start("--concurrency=1")
        assert worker.process.wait(PATIENCE_S) != 0
        assert "cystore_store_away must be 'exit' or 'wait', not 'weight'" in worker.log.read_text()


@pytest.mark.parametrize("there", ["nothing", "an empty folder"])
def test_with_create_false_a_missing_store_is_an_error_that_names_it(tmp_path, there):
    """Seen: a client of a store that was moved made a second one, and waited there for results."""
    path = tmp_path / "gone"
    if there == "an empty folder":
        path.mkdir()
    app = Celery("away", broker="memory://", backend=f"cystore://{path}?create=false", set_as_current=False)
    with pytest.raises(cystore.StoreFormatError, match=r"no store.*create.*" + str(path)):
        app.backend.store_result("id", 1, "SUCCESS")
    assert not path.exists() or not list(path.iterdir())


def test_a_worker_with_create_false_refuses_to_start_without_its_store(tmp_path):
    with fleet_in(tmp_path, "?create=false") as fleet:
        worker = fleet.start("--concurrency=1")
        assert worker.process.wait(PATIENCE_S) != 0
        assert str(fleet.store_path) in worker.log.read_text()
        assert not fleet.store_path.exists()


def test_servers_make_no_store_by_themselves(tmp_path):
    app = Celery("away", broker="memory://", backend=f"cystore://{tmp_path}/s", set_as_current=False)
    app.conf.result_backend_transport_options = SERVER
    with pytest.raises(cystore.StoreError, match="no store"):
        app.backend.store_result("id", 1, "SUCCESS")


def test_a_forked_child_makes_no_second_store(tmp_path):
    """Seen: a pool process that was started after the move made the directory anew."""
    store = cystore.open(tmp_path / "s", mapped_file_size_commit_log_bytes=1 << 20)
    store.put("T", b"x")
    (tmp_path / "s").rename(tmp_path / "moved")
    child = os.fork()
    if not child:
        try:
            store.put("T", b"y")
        except cystore.StoreError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert not (tmp_path / "s").exists()
    (tmp_path / "moved").rename(tmp_path / "s")
    store.close()


def test_no_id_is_made_where_a_store_is_no_more(tmp_path):
    """Seen: a pool process that did not know the id yet made a directory at the old place, for a new id. So the store
    that `mv` gave back landed within that directory, and a worker with `cystore_store_away = "wait"` waited for
    ever."""
    path = tmp_path / "s"
    store = cystore.open(path, mapped_file_size_commit_log_bytes=1 << 20)
    try:
        path.rename(tmp_path / "moved")
        with pytest.raises(cystore.StoreMovedError):
            store_id_of(store)
        assert not path.exists()
        (tmp_path / "moved").rename(path)
        assert store_id_of(store) == known_home_of(store)
    finally:
        store.close()


def test_a_message_about_options_names_create(tmp_path):
    app = Celery(
        "away", broker="memory://", backend=f"cystore://{tmp_path}/s?create=perhaps", set_as_current=False
    )
    with pytest.raises(ImproperlyConfigured, match="create"):
        assert app.backend


def test_the_command_makes_the_store_that_nobody_else_may_make(tmp_path):
    url = f"cystore://{tmp_path}/s?create=false"
    command = [
        sys.executable,
        "-m",
        "celery",
        "--broker",
        "memory://",
        "--result-backend",
        url,
        "cystore",
        "create",
    ]
    for told in ("made", "was there already, and did not change"):  # what is there stays
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        assert done.stdout.endswith(f" at {tmp_path / 's'}: {told}\n")
    app = Celery("away", broker="memory://", backend=url, set_as_current=False)
    app.backend.store_result("id", 1, "SUCCESS")
    assert app.AsyncResult("id").state == "SUCCESS"
    close_shared()
