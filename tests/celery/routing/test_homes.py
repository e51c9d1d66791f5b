"""Goal: a task's results are in the store that its message names, once, whichever host runs it, and nobody waits for
what can never come. Method: two stores for two hosts, real workers on one Redis; the home's worker consumes none of
the tasks' queues."""

from __future__ import annotations

import base64
import json
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
from cystore.celery.base.events import EVENTS, SENT
from cystore.celery.base.identity import known_home_of, store_id_of
from cystore.celery.chords import chord_runs, chord_steps
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


def call(backend, *arguments: object) -> int:
    """The task, as a worker calls it."""
    return backend.app.tasks[homes.HOME_RECORD].run(*arguments)


SEND_ID = "0" * 32
WRONG: dict[str, dict[str, object]] = {
    "a record is a number": {"": 3},
    "a field is missing": {"topic": None},
    "an unknown field": {"flag": 3},
    "a queue of no task": {"queue_id": 9_999_999},
    "a queue that is a truth": {"queue_id": False},
    "no key": {"keys": []},
    "keys of two tasks": {"keys": ["t", "other"]},
    "the key of a guard": {"keys": ["t", "once:shop.charge:1"]},
    "a key that is no text": {"keys": [3]},
    "half of a surrogate pair": {"keys": ["\ud800"]},
    "a key with a blank": {"keys": ["a b"]},
    "an unknown property": {"properties": {homes.SENT_MS: "1", records.LATE: "1"}},
    "a property that is no text": {"properties": {homes.SENT_MS: 1}},
    "no time": {"properties": {}},
    "a time that is none": {"properties": {homes.SENT_MS: "x"}},
    "a queue of another task": {"properties": {homes.SENT_MS: "1", "task": "shop.charge"}},
    "half of a surrogate pair as the name": {"properties": {homes.SENT_MS: "1", "task": "\ud800"}},
    "no state": {"tags": ""},
    "a state that is a number": {"tags": 3},
    "a state without a result": {"body": ""},
    "a body that is not base64": {"body": "{}"},
    "a body that is no text": {"body": None},
    "another message's unique key": {"unique_key": "1" * 32 + "-0"},
    "a step without its number": {"topic": records.CHORDS, "tags": "SIZE", "body": ""},
    "a number that is none": {
        "topic": records.CHORDS, "tags": "SIZE", "body": "", "properties": {homes.SENT_MS: "1", "size": "many"},
    },
    "a part of nobody": {"topic": records.CHORDS, "tags": "PART", "body": ""},
    "no step": {"topic": records.CHORDS, "tags": states.SUCCESS},
    "a run that is no key": {
        "topic": records.CHORDS, "tags": "OPEN", "body": "", "properties": {homes.SENT_MS: "1", "run": "1" * 32},
    },
    "a group that is a task": {"topic": records.GROUPS},
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_record_that_no_worker_sends_is_refused(backend, name):
    """Seen: KeyError and TypeError; the queue with the number 9,999,999 was made."""
    (record,) = sent("t", states.SUCCESS, 1)
    wrong = {**record, **WRONG[name]}
    fields = [3] if "" in wrong else [{k: v for k, v in wrong.items() if v is not None or k == "body"}]
    with pytest.raises(cystore.MessageIllegalError, match="a record from the broker"):
        call(backend, known_home_of(backend.store), SEND_ID, fields)
    assert list(backend.store.scan()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        (3,),
        ("HOME",),
        ("HOME", SEND_ID),
        ("HOME", 3, []),
        ("HOME", "0" * 31, sent("t", "SUCCESS", 1)),
        ("HOME", SEND_ID, []),
        ("HOME", SEND_ID, {}),
        ("HOME", SEND_ID, sent("t", "SUCCESS", 1) * 101),
        ("HOME", SEND_ID, sent("t", "SUCCESS", 1), "no"),
        ("HOME", SEND_ID, sent("t", "SUCCESS", 1), []),
        ("HOME", SEND_ID, sent("t", "SUCCESS", 1), None, 5),
    ],
)
def test_a_call_that_no_worker_makes_is_refused(backend, arguments):
    given = [known_home_of(backend.store) if one == "HOME" else one for one in arguments]
    with pytest.raises(cystore.MessageIllegalError, match="a record from the broker"):
        call(backend, *given)


@pytest.mark.parametrize("again", [states.SUCCESS, states.FAILURE, states.REVOKED])
def test_a_final_state_is_not_overwritten_by_another_one(backend, again):
    """Seen: a message to the queue of the home turned a FAILURE into a SUCCESS."""
    backend.mark_as_failure("t", ValueError("as it was"), request=Context(id="t", task="shop.charge"))
    assert call(backend, known_home_of(backend.store), SEND_ID, sent("t", again, 1 << 42)) == 1
    meta = backend.get_task_meta("t", cache=False)
    assert (meta["status"], str(meta["result"])) == (states.FAILURE, "as it was")
    assert [t.state for t in history.transitions(backend.store, task_id="t")] == [again, states.FAILURE]


def test_a_new_run_ends_a_task_anew(backend):
    """A task that failed was sent again under its id: this store has heard of it."""
    backend.mark_as_failure("t", ValueError("at first"), request=Context(id="t", task="shop.charge"))
    backend.store.put(EVENTS, b"{}", keys=("t",), tags=SENT)
    body = backend.encode({"status": states.SUCCESS, "result": 5, "task_id": "t"}).encode()
    call(backend, known_home_of(backend.store), SEND_ID, sent("t", states.SUCCESS, 1, body))
    assert backend.get_task_meta("t", cache=False)["result"] == 5


def part(state: str, value: object, send_id: str) -> list[dict]:
    """The message of another host for a part of the chord g."""
    body = json.dumps({"result": value}).encode()
    more = {"task_id": "t", "index": "0", "state": state, "content_type": "application/json",
            "content_encoding": "utf-8", homes.SENT_MS: "1"}  # fmt: skip
    record = sent("g", "PART", 1, body, send_id)[0]
    return [{**record, "topic": records.CHORDS, "queue_id": chord_runs.queue_of("", "g"), "properties": more}]


def test_a_failed_part_of_a_chord_does_not_become_a_success(backend):
    failure = {"exc_type": "ValueError", "exc_message": ["as it was"], "exc_module": "builtins"}
    home = known_home_of(backend.store)
    call(backend, home, "0" * 32, part(states.FAILURE, failure, "0" * 32))
    call(backend, home, "1" * 32, part(states.SUCCESS, 5, "1" * 32))
    run = chord_runs.read_run(backend.store, "g", "")
    assert [state for _, state in run.parts.values()] == [states.FAILURE]


@pytest.mark.parametrize(
    "body", [b"no JSON", b"[]", b'{"body": 3}', b'{"body": {}}', b'{"body": {"task": "t"}}', b""]
)
def test_a_chord_with_an_odd_body_does_not_stop_the_others(backend, body, monkeypatch):
    """The sweep met such a body at each turn, and ended no chord behind it."""
    monkeypatch.setattr(chord_steps, "FIRST_LOOK_MS", 0)
    home, odd = known_home_of(backend.store), sent("odd", "OPEN", 1, body, "0" * 32)[0]
    encoding = {"content_type": "application/json", "content_encoding": "utf-8"}
    odd |= {"topic": records.CHORDS, "properties": {**odd["properties"], **(encoding if body else {})}}
    size = {**sent("odd", "SIZE", 1, b"", "0" * 31 + "1")[0], "topic": records.CHORDS}
    size["properties"] |= {"size": "0"}
    call(backend, home, "0" * 32, [odd])
    call(backend, home, "0" * 31 + "1", [size])
    header = [AsyncResult("one", app=backend.app)]
    body = backend.app.signature("shop.total", task_id="body")
    backend.apply_chord(("good", header), body)
    backend.set_chord_size("good", 0)
    assert chord_steps.sweep(backend.app, backend.store) == 1


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
