"""Goal: a task's results are in the store that its message names, once, whichever host runs it, and nobody waits for
what can never come. Method: two stores for two hosts, real workers on one Redis; the home's worker consumes none of
the tasks' queues."""

from __future__ import annotations

import base64
import threading
from collections import Counter
from collections.abc import Iterator

import pytest
from celery import Celery, chain, chord, group, states
from celery.app.task import Context
from celery.exceptions import ChordError, ImproperlyConfigured
from celery.result import AsyncResult

import cystore
from cystore import StoreIsSlaveError
from cystore.celery import history, homes
from cystore.celery.base import queues, records
from cystore.celery.base.identity import known_home_of, store_id_of
from cystore.celery.chords import chord_steps
from cystore.ha.role import FLAG_SLAVE
from tests.celery.conftest import PATIENCE_S, Fleet, Worker, fleet_in, wait_until
from tests.support.celery import work

UNKNOWN_HOME = "11111111-2222-3333-4444-555555555555"


class Hosts:
    """This process and the home's worker have the home's store; a guest has another one, or none."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet, self.app = fleet, fleet.app
        self.store = fleet.backend.store
        self.home = store_id_of(self.store)
        self.guest_path = fleet.folder / "guest"

    def start_home(self, **environment: str) -> Worker:
        return self.fleet.start("--concurrency=2", "--queues=of_nobody", **environment)

    def start_guest(self, backend: str | None = None) -> Worker:
        url = f"cystore://{self.guest_path}" if backend is None else backend
        return self.fleet.start("--concurrency=2", **{work.BACKEND: url})

    def task(self, task):
        return self.fleet.task(task)

    def waiting(self) -> int:
        """Messages in the broker for the home."""
        with self.app.connection_for_read() as connection:
            return connection.default_channel.client.llen(queues.queue_of_store(self.home))

    def unacknowledged(self) -> int:
        """Messages that workers have and did not acknowledge."""
        with self.app.connection_for_read() as connection:
            return connection.default_channel.client.hlen("unacked")


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with fleet_in(tmp_path_factory.mktemp("hosts")) as fleet:
        hosts = Hosts(fleet)
        hosts.start_home()
        hosts.start_guest()
        yield hosts


def topics(path) -> set[str]:
    with cystore.open(path, read_only=True) as store:
        return set(store.topics())


def test_a_result_comes_home_and_is_nowhere_else(hosts):
    result = hosts.task(work.add).delay(2, 3)
    assert result.get(timeout=PATIENCE_S) == 5

    def found() -> Counter[str | None]:
        return Counter(t.state for t in history.transitions(hosts.store, task_id=result.id))

    both = {states.STARTED: 1, states.SUCCESS: 1}  # in any order: two processes append what comes
    wait_until(lambda: found() == both, "both records came home")
    assert not {records.RESULTS, records.CHORDS} & topics(hosts.guest_path)


def revoke(hosts: Hosts, task_id: str) -> None:
    """Both workers were told, and have answered."""
    wait_until(lambda: len(hosts.app.control.ping(timeout=1, limit=2)) == 2, "both hear commands")
    told = hosts.app.control.broadcast(
        "revoke", arguments={"task_id": task_id}, reply=True, timeout=PATIENCE_S, limit=2
    )
    assert len(told) == 2


def test_a_revoked_task_is_revoked_at_its_home_alone(hosts):
    """Seen: every worker stored REVOKED in its own store: a task that had succeeded at home was REVOKED on the other
    host."""
    ran = hosts.task(work.add).delay(2, 3)
    assert ran.get(timeout=PATIENCE_S) == 5
    waits = hosts.task(work.add).apply_async((2, 3), queue="of_nobody_else")
    for result in (ran, waits):
        revoke(hosts, result.id)
    assert (ran.state, waits.state) == (states.SUCCESS, states.REVOKED)
    assert not {records.RESULTS, records.CHORDS} & topics(hosts.guest_path)


def test_a_failure_comes_home(hosts):
    result = hosts.task(work.fail).delay("far away")
    with pytest.raises(work.SpecialError, match="far away"):
        result.get(timeout=PATIENCE_S)
    assert "raise SpecialError(text)" in result.traceback


def test_a_group_and_a_chain_come_home(hosts):
    add = hosts.task(work.add)
    assert group(add.s(n, n) for n in range(10)).apply_async().get(timeout=PATIENCE_S) == [
        2 * n for n in range(10)
    ]
    assert chain(add.s(1, 1), add.s(1)).apply_async().get(timeout=PATIENCE_S) == 3


def test_chords_end_at_home(hosts):
    add, total, same = (hosts.task(task) for task in (work.add, work.total, work.same))
    result = chord([chord([add.s(1, 1), add.s(2, 2)], total.s()), add.s(3, 3)], same.s()).apply_async()
    assert result.get(timeout=PATIENCE_S) == [6, 6]
    assert not {records.RESULTS, records.CHORDS} & topics(hosts.guest_path)
    adding = chord([hosts.task(work.adds_to_its_chord).s(1), add.s(2, 2)], total.s()).apply_async()
    assert adding.get(timeout=PATIENCE_S) == 1 + 4 + 101
    becoming = chord([hosts.task(work.becomes_a_group).s(1), add.s(2, 2)], same.s()).apply_async()
    assert becoming.get(timeout=PATIENCE_S) == [[2, 3], 4]
    failing = chord([hosts.task(work.fail).s("a part"), add.s(2, 2)], total.s()).apply_async()
    with pytest.raises(ChordError, match="a part"):
        AsyncResult(failing.id, app=hosts.app).get(timeout=PATIENCE_S)


def test_children_have_the_home_of_their_parent(hosts):
    ids = hosts.task(work.children).delay(3).get(timeout=PATIENCE_S)
    assert [AsyncResult(one, app=hosts.app).get(timeout=PATIENCE_S) for one in ids] == [0, 2, 4]


def test_a_task_waits_for_what_goes_to_another_home(hosts):
    """Seen: it got an error at once, for it would have waited for ever. Now the home's worker answers."""
    assert hosts.task(work.waits_for_its_child).delay().get(timeout=PATIENCE_S) == 2


def storeless(hosts, home: str | None) -> Celery:
    app = work.make_app(hosts.app.conf.broker_url, "cystore://")
    app.conf.cystore_home = home
    hosts.app.set_current()
    return app


def test_a_publisher_without_a_store(hosts):
    """Its results are read through the broker; where that is no Redis, the error says what helps."""
    app = storeless(hosts, hosts.home)
    sent = app.tasks[work.add.name].delay(1, 2)
    assert sent.get(timeout=PATIENCE_S) == 3
    task = app.tasks[work.total.name]
    body = chord([app.tasks[work.add.name].s(n, n) for n in range(3)], task.s()).apply_async()
    assert body.get(timeout=PATIENCE_S) == 6
    assert AsyncResult(body.id, app=hosts.app).get(timeout=PATIENCE_S) == 6
    blind = work.make_app("memory://", "cystore://", cystore_home=hosts.home)
    hosts.app.set_current()
    result = AsyncResult("any", app=blind)
    for look in (lambda: result.get(timeout=PATIENCE_S), result.get, lambda: result.state, result.ready):
        with pytest.raises(
            homes.ResultsElsewhereError, match=r"setting cystore_home.*cystore:///path.*\?reader="
        ):
            look()


def test_a_publisher_that_does_not_know_its_home_sends_nothing(hosts):
    with pytest.raises(ImproperlyConfigured, match="the setting cystore_home must name the store"):
        storeless(hosts, None).tasks[work.add.name].delay(1, 2)
    with pytest.raises(ImproperlyConfigured, match="must be the id of a store"):
        storeless(hosts, "nonsense").tasks[work.add.name].delay(1, 2)


def test_a_home_that_is_down_for_a_while(tmp_path):
    """Messages wait in the broker; the guest here has no store at all."""
    with fleet_in(tmp_path) as fleet:
        hosts = Hosts(fleet)
        hosts.start_guest("cystore://")
        add, total = hosts.task(work.add), hosts.task(work.total)
        single = add.delay(1, 1)
        body = chord([add.s(n, n) for n in range(4)], total.s()).apply_async()
        # STARTED and the end of each of five tasks.
        wait_until(lambda: hosts.waiting() == 10, "all records wait in the broker")
        assert not single.ready()
        assert not body.ready()
        hosts.start_home()
        assert single.get(timeout=PATIENCE_S) == 2
        assert body.get(timeout=PATIENCE_S) == 12


@pytest.mark.slow
def test_a_home_that_goes_and_comes_again(tmp_path):
    with fleet_in(tmp_path) as fleet:
        hosts = Hosts(fleet)
        hosts.start_guest()
        add = hosts.task(work.add)
        for number in range(3):
            home = hosts.start_home()
            assert add.delay(number, 0).get(timeout=PATIENCE_S) == number
            home.stop()
            result = add.delay(number, 1)
            wait_until(lambda: hosts.waiting() >= 2, "the records wait in the broker")
            assert not result.ready()
        hosts.start_home()
        assert result.get(timeout=PATIENCE_S) == 3


def test_a_worker_killed_after_it_appended_appends_nothing_twice(tmp_path):
    """Killed before the message was acknowledged: it comes again, and its records are found there."""
    marker = tmp_path / "killed"
    with fleet_in(tmp_path) as fleet:
        hosts = Hosts(fleet)
        hosts.start_guest()
        hosts.start_home(
            **{work.DIE_IN: "cystore.celery.chords.chord_steps:Chords.settle_records", work.DIED: str(marker)}
        )
        add = hosts.task(work.add)
        result = chord([add.s(1, 1), add.s(2, 2)], hosts.task(work.total).s()).apply_async()
        assert result.get(timeout=PATIENCE_S) == 6
        wait_until(
            lambda: marker.exists() and not hosts.waiting() and not hosts.unacknowledged(),
            "all records came home",
        )
        keys = [m.unique_key for m in hosts.store.scan() if m.unique_key]
        assert len(keys) >= 2 * 3
        assert len(keys) == len(set(keys))


# ---------------------------------------------------------------------------------------------- single steps


def sent(task_id: str, state: str, sent_ms: int, body: bytes = b"{}", send_id: str = "0" * 32) -> list[dict]:
    """The message of another host for one transition."""
    return [
        {
            "topic": records.RESULTS,
            "body": base64.b64encode(body).decode(),
            "queue_id": 0,
            "keys": [records.key_of(task_id)],
            "tags": state,
            "properties": {homes.SENT_MS: str(sent_ms)},
            "unique_key": f"{send_id}-0",
        }
    ]


def test_a_message_that_comes_again_is_appended_once(backend):
    fields = sent("t", states.SUCCESS, 1)
    assert homes.append_once(backend, "0" * 32, fields, None) == 1
    assert homes.append_once(backend, "0" * 32, fields, None) == 0
    assert len(list(backend.store.scan())) == 1


def test_a_replica_does_not_take_a_message_for_appended(backend):
    fields = sent("t", states.SUCCESS, 1)
    assert homes.append_once(backend, "0" * 32, fields, None) == 1
    backend.store._attached().control.set_flag(FLAG_SLAVE)
    with pytest.raises(StoreIsSlaveError):
        homes.append_once(backend, "0" * 32, fields, None)


def test_two_deliveries_at_one_moment_are_appended_once(backend):
    fields, new = sent("t", states.SUCCESS, 1), []
    gate = threading.Barrier(8)

    def deliver() -> None:
        gate.wait()
        new.append(homes.append_once(backend, "0" * 32, fields, None))

    threads = [threading.Thread(target=deliver) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(new) == [0] * 7 + [1]
    assert len(list(backend.store.scan())) == 1


def test_a_begin_that_comes_after_the_end_changes_nothing(backend):
    """Messages overtake each other; the history shows what came."""
    homes.append_once(backend, "1" * 32, sent("t", states.FAILURE, 20, send_id="1" * 32), None)
    homes.append_once(backend, "2" * 32, sent("t", states.STARTED, 10, send_id="2" * 32), None)
    assert backend.latest("t").tags == states.FAILURE
    found = [t.state for t in history.transitions(backend.store, task_id="t")]
    assert found == [states.STARTED, states.FAILURE]
    homes.append_once(backend, "3" * 32, sent("t", states.STARTED, 30, send_id="3" * 32), None)
    assert backend.latest("t").tags == states.STARTED


def test_records_for_another_store_are_refused(backend):
    task = backend.app.tasks[homes.HOME_RECORD]
    with pytest.raises(
        ImproperlyConfigured, match=f"records for store {UNKNOWN_HOME} reached a worker of store"
    ):
        task.run(UNKNOWN_HOME, "0" * 32, sent("t", states.SUCCESS, 1))


def test_a_chord_that_was_opened_elsewhere_is_held_from_its_first_record_on(backend):
    own = known_home_of(backend.store)
    opened = {**sent("g", "OPEN", 1)[0], "topic": records.CHORDS, "body": ""}
    assert backend.app.tasks[homes.HOME_RECORD].run(own, "0" * 32, [opened]) == 1
    (message,) = backend.store.scan()
    assert backend.store.holds()[chord_steps.HOLD].physical_offset <= message.physical_offset


def test_only_the_topics_of_results_come_through_the_broker(backend):
    other = [{**sent("t", states.SUCCESS, 1)[0], "topic": "orders"}]
    with pytest.raises(cystore.MessageIllegalError, match="topic: must be one of"):
        homes.append_once(backend, "0" * 32, other, None)
    assert "orders" not in backend.store.topics()


def test_who_says_where_home_is(make_backend):
    """The home by the running task, else the setting, else the own store."""
    backend, other = make_backend(), make_backend(cystore_home=UNKNOWN_HOME)
    own = known_home_of(backend.store)
    assert homes.home_of(backend) == own
    assert homes.home_of(other) == UNKNOWN_HOME
    assert homes.home_of(other, Context(id="t", cystore_home=own)) == own
    with homes.at(own):
        assert homes.home_of(other) == own


def test_every_message_names_its_home(backend):
    app: Celery = backend.app
    app.send_task("any.task", queue="named")
    app.send_task("any.task", queue="named", headers={homes.HOME: UNKNOWN_HOME})
    with app.connection_for_read() as connection:
        queue = connection.SimpleQueue("named")
        seen = [queue.get(block=False).headers[homes.HOME] for _ in range(2)]
    assert seen == [known_home_of(backend.store), UNKNOWN_HOME]


def test_what_was_sent_to_another_home_is_not_waited_for(make_backend):
    result = make_backend(cystore_home=UNKNOWN_HOME).app.send_task("any.task", queue="elsewhere")
    for look in (result.get, result.ready, lambda: result.state):
        with pytest.raises(homes.ResultsElsewhereError, match=UNKNOWN_HOME):
            look()


def test_a_damaged_store_id_is_named(backend):
    store_id_of(backend.store)
    (backend.store.path / "config" / "storeId").write_text("no id")
    with pytest.raises(cystore.StoreFormatError, match="storeId"):
        known_home_of(backend.store)
