"""Goal: a result is read wherever its task was sent from or asked about, through its home; where that cannot be, an
error names the home. Method: two stores for two hosts and a client with none, real workers on one Redis, and messages
that nobody should send."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from celery import Celery, chain, chord, group, states
from celery.exceptions import ImproperlyConfigured
from celery.exceptions import TimeoutError as ResultTimeoutError
from celery.result import AsyncResult, GroupResult
from kombu.exceptions import ContentDisallowed

from cystore.celery import homes
from cystore.celery.base.duty_leases import connect
from cystore.celery.redis_urls import RedisLocation
from cystore.celery.routing import client as client_module
from cystore.celery.routing import lists, other_homes, result_look
from cystore.celery.routing.messages import Answer, Found, Request, new_request_id
from tests.celery.conftest import PATIENCE_S, ROOT, Fleet, Worker, fleet_in, wait_until
from tests.celery.routing.test_homes import UNKNOWN_HOME, Hosts
from tests.support.celery import work
from tools.redis_server import redis_server

LARGE = 9_000_000  # characters: three parts


def client_of(fleet: Fleet, backend: str = "cystore+remote://", **settings: object) -> Celery:
    """An app without a store, as a web tier has it."""
    app = work.make_app(fleet.environment[work.BROKER], backend, **settings)
    fleet.app.set_current()
    return app


def line_of(fleet: Fleet) -> lists.Line:
    return lists.Line(RedisLocation.parse(fleet.environment[work.BROKER]))


def serving(store: Path) -> int:
    """The process that answers for a store: it holds the lock."""
    inode = os.stat(store / "config" / "readService.lock").st_ino
    for line in Path("/proc/locks").read_text().splitlines():
        words = line.split()
        if words[1] == "POSIX" and words[5].endswith(f":{inode}"):
            return int(words[4])
    return 0


def serves(worker: Worker, store: Path) -> bool:
    path = store / "config" / "readService.lock"
    return path.exists() and serving(store) == worker.process.pid


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """The guest's worker runs the tasks; its pool processes are replaced all the time. The home's worker only answers
    and appends."""
    with fleet_in(tmp_path_factory.mktemp("remote")) as fleet:
        hosts = Hosts(fleet)
        home = hosts.start_home()
        fleet.start(
            "--concurrency=2",
            "--max-tasks-per-child=40",
            **{work.BACKEND: f"cystore://{hosts.guest_path}"},
        )
        wait_until(lambda: serves(home, fleet.store_path), "the home's worker answers")
        yield hosts


@pytest.fixture(scope="module")
def client(hosts: Hosts) -> Celery:
    return client_of(hosts.fleet, cystore_home=hosts.home)


def test_a_client_without_a_store_reads_results(hosts, client):
    """Seen: ResultsElsewhereError for every look of a web container."""
    add = client.tasks[work.add.name]
    result = add.delay(2, 3)
    assert result.get(timeout=PATIENCE_S) == 5
    again = AsyncResult(result.id, app=client)
    assert (again.state, again.result, again.ready(), again.successful()) == (states.SUCCESS, 5, True, True)
    with pytest.raises(work.SpecialError, match="far away"):
        client.tasks[work.fail.name].delay("far away").get(timeout=PATIENCE_S)
    assert group(add.s(n, n) for n in range(101)).apply_async().get(timeout=PATIENCE_S) == [
        2 * n for n in range(101)
    ]
    assert chain(add.s(1, 1), add.s(1)).apply_async().get(timeout=PATIENCE_S) == 3
    body = chord([add.s(n, n) for n in range(3)], client.tasks[work.total.name].s()).apply_async()
    assert body.get(timeout=PATIENCE_S) == 6
    failing = chain(client.tasks[work.fail.name].s("the first"), add.s(1)).apply_async()
    with pytest.raises(work.SpecialError, match="the first"):
        failing.get(timeout=PATIENCE_S)


def test_a_client_that_knows_no_home(hosts):
    """The worker that runs the task keeps the result, and every home is asked for it. A chord needs a home before it
    is sent."""
    app = client_of(hosts.fleet)
    add = app.tasks[work.add.name]
    result = add.delay(4, 5)
    assert result.get(timeout=PATIENCE_S) == 9
    assert homes.sent_to(app.backend, result.id) not in (None, hosts.home)
    assert AsyncResult(result.id, app=app).state == states.SUCCESS
    assert chain(add.s(1, 1), add.s(5)).apply_async().get(timeout=PATIENCE_S) == 7
    with pytest.raises(ImproperlyConfigured, match="cystore_home must name the store"):
        chord([add.s(1, 1)], app.tasks[work.total.name].s()).apply_async()


def test_groups_and_forgotten_results(hosts, client):
    add = client.tasks[work.add.name]
    group_result = group(add.s(n, n) for n in range(3)).apply_async()
    group_result.save()
    found = dict(group_result.iter_native(timeout=PATIENCE_S))
    assert {one: meta["result"] for one, meta in found.items()} == {
        one.id: 2 * n for n, one in enumerate(group_result.results)
    }
    wait_until(lambda: GroupResult.restore(group_result.id, app=client), "the saved group came home")
    restored = GroupResult.restore(group_result.id, app=client)
    assert restored.completed_count() == 3
    assert restored.get(timeout=PATIENCE_S) == [0, 2, 4]
    first = restored.results[0]
    first.forget()
    wait_until(lambda: AsyncResult(first.id, app=client).state == states.PENDING, "it is forgotten at home")


def test_many_ids_are_looked_up_in_few_requests(hosts, client):
    """As `GroupResult` and `get_many` do; 250 ids of one home are three requests, and some more where an answer is
    late."""
    ids = [f"of many {number}" for number in range(250)]
    for number, one in enumerate(ids):
        homes.remember(client.backend, one, hosts.home)
        if number % 2:
            hosts.fleet.backend.store_result(one, number, states.SUCCESS)
    with line_of(hosts.fleet) as line:
        before = line._client.info("commandstats").get("cmdstat_rpush", {"calls": 0})["calls"]
        found = dict(client.backend.get_many(ids, max_iterations=1))
        after = line._client.info("commandstats").get("cmdstat_rpush", {"calls": 0})["calls"]
    assert {one: meta["result"] for one, meta in found.items()} == {
        f"of many {n}": n for n in range(1, 250, 2)
    }
    assert after - before < len(ids) / 10, "a question and an answer for a hundred ids"


def test_a_task_that_is_not_ready(hosts, client, monkeypatch):
    """Its home is asked once and waits: that it says so is told from a home that says nothing. On a busy machine the
    home says so late."""
    for name in ("LEAST_S", "LATE_S"):
        monkeypatch.setattr(result_look, name, PATIENCE_S)
    result = client.tasks[work.add.name].apply_async((1, 2), queue="of_nobody_at_all")
    assert result.state == states.PENDING
    for timeout in (0, 0.2, 1.5):
        with pytest.raises(ResultTimeoutError) as caught:
            result.get(timeout=timeout)
        assert not isinstance(caught.value, homes.HomeAwayError)


def test_a_wait_does_not_poll(hosts, client):
    """The home waits for ids; the client sleeps in a single command meanwhile."""
    waiting = [AsyncResult(f"later-{n}", app=client) for n in range(20)]
    outcome: list[object] = []

    def get(result: AsyncResult) -> None:
        outcome.append(result.get(timeout=PATIENCE_S))

    threads = [threading.Thread(target=get, args=(one,)) for one in waiting]
    for thread in threads:
        thread.start()
    with line_of(hosts.fleet) as line:
        redis = line._client
        wait_until(lambda: redis.llen(lists.taken_key(hosts.home)) == 20, "the home waits for all of them")
        before = redis.info("commandstats")
        stored = hosts.fleet.backend
        for number, one in enumerate(waiting):
            stored.store_result(one.id, number, states.SUCCESS)
        for thread in threads:
            thread.join(PATIENCE_S)
        after = redis.info("commandstats")
    assert sorted(outcome) == list(range(20))
    asked = after["cmdstat_blpop"]["calls"] - before["cmdstat_blpop"]["calls"]
    assert asked <= 20, "each was answered by the request that waited"


def test_what_another_process_sent_elsewhere(hosts, tmp_path):
    """Seen: an id whose home is another host was PENDING for ever, but in the process that had sent it."""
    guest = f"cystore://{tmp_path}/host"
    program = (
        "import sys; from tests.support.celery import work\n"
        f"app = work.make_app({hosts.fleet.environment[work.BROKER]!r}, {guest!r}, cystore_home={hosts.home!r})\n"
        "print(app.tasks[work.add.name].delay(20, 3).id)"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    task_id = run.stdout.split()[-1]
    app = work.make_app(hosts.fleet.environment[work.BROKER], guest)
    blind = work.make_app("memory://", guest)
    hosts.app.set_current()
    result = AsyncResult(task_id, app=app)
    assert result.get(timeout=PATIENCE_S) == 23
    assert AsyncResult(task_id, app=app).state == states.SUCCESS
    homes._foreign.clear()  # as in a process that was not told
    for look in (lambda one: one.state, lambda one: one.ready(), lambda one: one.get(timeout=PATIENCE_S)):
        homes._foreign.clear()
        with pytest.raises(homes.ResultsElsewhereError, match=f"store {hosts.home} keeps.*reader=redis"):
            look(AsyncResult(task_id, app=blind))
    for one in (app, blind):
        one.backend.close()


def test_an_id_that_this_host_has_never_heard_of(hosts, tmp_path):
    """With ?reader= every home is asked, and a group may be of two homes."""
    reader = quote(hosts.fleet.environment[work.BROKER], safe="")
    app = work.make_app("memory://", f"cystore://{tmp_path}/host?reader={reader}")
    hosts.app.set_current()
    backend = hosts.fleet.backend
    backend.store_result("there", 1, states.SUCCESS)
    app.backend.store_result("here", 2, states.SUCCESS)
    assert AsyncResult("there", app=app).state == states.SUCCESS
    assert AsyncResult("nowhere", app=app).state == states.PENDING
    both = GroupResult("g", [AsyncResult("there", app=app), AsyncResult("here", app=app)], app=app)
    assert both.get(timeout=PATIENCE_S) == [1, 2]
    later = AsyncResult("there later", app=app)
    backend.store_result(later.id, None, states.STARTED)
    timer = threading.Timer(0.2, backend.store_result, (later.id, 3, states.SUCCESS))
    timer.start()
    assert later.get(timeout=PATIENCE_S) == 3
    timer.join()
    app.backend.close()


def test_an_id_that_no_store_of_this_host_knows(hosts, tmp_path, monkeypatch):
    """Seen: without ?reader= such an id was PENDING until the timeout, though the home answered through the broker."""
    monkeypatch.setattr(other_homes, "FIRST_LOOK_S", 0.1)
    app = host_without_reader(hosts, tmp_path)
    backend = hosts.fleet.backend
    backend.store_result("strange", 1, states.SUCCESS)
    app.backend.store_result("own", 2, states.SUCCESS)
    assert AsyncResult("strange", app=app).state == states.SUCCESS
    assert AsyncResult("nobody's", app=app).state == states.PENDING
    backend.store_result("strange too", 4, states.SUCCESS)
    both = GroupResult("g", [AsyncResult("strange too", app=app), AsyncResult("own", app=app)], app=app)
    assert both.get(timeout=PATIENCE_S) == [4, 2]
    both.save(backend=backend)
    assert GroupResult.restore("g", app=app).get(timeout=PATIENCE_S) == [4, 2]
    later = AsyncResult("strange later", app=app)
    backend.store_result(later.id, None, states.STARTED)
    outcome: list[object] = []
    waiting = waits_for(app, later.id, outcome)
    with line_of(hosts.fleet) as line:

        def waits() -> bool:
            taken = line._client.lrange(lists.taken_key(hosts.home), 0, -1)
            return any(Request.parse(one.partition(b" ")[2]).wait_ms for one in taken)

        wait_until(waits, "the home waits for it")
    backend.store_result(later.id, 3, states.SUCCESS)
    waiting.join(PATIENCE_S)
    assert outcome == [3]
    app.backend.close()


def test_an_id_that_this_host_knows_is_asked_of_nobody(hosts, tmp_path):
    """What this store has heard of, forgotten or let expire is its own."""
    app = host_without_reader(hosts, tmp_path)
    app.set_current()  # its lifecycle log has what it sends
    sent = app.tasks[work.add.name].apply_async((1, 1), queue="of_nobody_at_all")
    hosts.app.set_current()
    app.backend.store_result("forgotten", 1, states.SUCCESS)
    app.backend.forget("forgotten")
    app.backend.elsewhere._not_in_log.clear()  # `forget` asked the log for a home as well
    asked: list[str] = []
    app.backend.elsewhere.reader().ask_around = lambda ids, topic: asked.extend(ids) or {}
    for task_id in (sent.id, "forgotten", "strange", "strange"):
        assert AsyncResult(task_id, app=app).state == states.PENDING
    assert asked == ["strange"], "and that once in some seconds"
    app.backend.close()


def test_a_home_that_is_silent_leaves_strange_ids_pending(hosts, tmp_path, caplog):
    """It is waited for once, and the others answer."""
    app = host_without_reader(hosts, tmp_path)
    hosts.fleet.backend.store_result("beside a silent one", 1, states.SUCCESS)
    with FalseHome(hosts.fleet, lambda request: None) as silent:
        for number in range(3):
            assert AsyncResult(f"of the silent one {number}", app=app).state == states.PENDING
        result = AsyncResult("beside a silent one", app=app)
        wait_until(lambda: result.state == states.SUCCESS, "another home answers")
        assert silent.asked == 1
    assert caplog.text.count(f"store {UNKNOWN_HOME} did not answer within") == 1
    app.backend.close()


def test_a_redis_that_is_away_leaves_strange_ids_pending(tmp_path, caplog):
    app = work.make_app(
        "memory://", f"cystore://{tmp_path}/host", cystore_redis_url="redis://:hush@localhost:1/0"
    )
    for number in range(3):
        assert AsyncResult(f"strange {number}", app=app).state == states.PENDING
    assert caplog.text.count("cannot be asked for results") == 1
    assert "hush" not in caplog.text
    app.backend.close()


def waits_for(app: Celery, task_id: str, outcome: list[object]) -> threading.Thread:
    thread = threading.Thread(
        target=lambda: outcome.append(AsyncResult(task_id, app=app).get(timeout=PATIENCE_S))
    )
    thread.start()
    return thread


def host_without_reader(hosts: Hosts, tmp_path: Path) -> Celery:
    """An app with a store of its own, and the broker of the fleet."""
    app = work.make_app(hosts.fleet.environment[work.BROKER], f"cystore://{tmp_path}/host")
    hosts.app.set_current()
    return app


GREENLETS = """
from gevent import monkey; monkey.patch_all()
import sys, gevent
from celery.exceptions import TimeoutError
from cystore.celery.routing import result_look
from tests.support.celery import work
result_look.LEAST_S = result_look.LATE_S = 60.0  # on a busy machine a home says late that a task is not ready
app = work.make_app(sys.argv[1], "cystore+remote://", cystore_home=sys.argv[2])
sent = [app.tasks[work.add.name].delay(number, 1) for number in range(10)]
jobs = [gevent.spawn(one.get, timeout=60) for one in sent]
gevent.joinall(jobs)
print(sum(job.value for job in jobs))
try:
    app.AsyncResult("of nobody").get(timeout=1.2)
except TimeoutError as error:
    print(type(error).__name__)
"""


def test_greenlets_wait_for_results_elsewhere(hosts):
    """Seen: Celery's own greenlet looked for the store that is not there, and every later get raised its error."""
    pytest.importorskip("gevent")
    command = [sys.executable, "-c", GREENLETS, hosts.fleet.environment[work.BROKER], hosts.home]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert run.stdout.split() == ["55", "TimeoutError"], run.stderr


def test_a_large_result_comes_in_parts(hosts, client):
    text = "0123456789" * (LARGE // 10)
    hosts.fleet.backend.store_result("large", text, states.SUCCESS)
    hosts.fleet.backend.store_result("large too", text, states.SUCCESS)
    assert AsyncResult("large", app=client).get(timeout=PATIENCE_S) == text
    found = client.backend.elsewhere.reader().look(["large", "large too"])
    assert [found[one].size_bytes for one in ("large", "large too")] == [
        len(one.body) for one in found.values()
    ]


def ask(line: lists.Line, request: Request) -> Answer:
    line.push(request, 20_000)
    line.take_answer([request.id], 10)
    while not line.came(10):
        pass
    name, data = line.answer_in(line.taken())
    assert name == request.id
    return Answer.parse(data, request)


def test_a_home_answers_what_makes_sense_and_nothing_else(hosts):
    """A crafted request gets no answer and harms nobody; an invented place in the log shows nothing."""
    backend, home = hosts.fleet.backend, hosts.home
    backend.store_result("mine", 1, states.SUCCESS)
    other = backend.store.put("orders", b"secret")
    at = backend.latest("mine").physical_offset
    with line_of(hosts.fleet) as line:
        redis, key = line._client, lists.requests_key(home)
        good = Request(new_request_id(), home, ("mine",)).encoded()
        soon = int(redis.time()[0]) * 1000 + 20_000
        for text in (
            b"", b"x", b" ", b"99999999999999999999 " + good, b"-5 " + good, b"1 " + good,
            str(soon + 10**9).encode() + b" " + good,
            str(soon).encode() + b" {}", str(soon).encode() + b" " + good.replace(home.encode(), UNKNOWN_HOME.encode()),
            str(soon).encode() + b" " + b"[" * 600_000, "٣".encode() + b" " + good,
        ):  # fmt: skip
            redis.rpush(key, text)
        answer = ask(line, Request(new_request_id(), home, ("mine", "of nobody")))
        assert [(one.id, one.state, one.known) for one in answer.found] == [
            ("mine", states.SUCCESS, True),
            ("of nobody", None, False),
        ]
        wait_until(lambda: redis.llen(lists.taken_key(home)) == 0, "nothing is left of them")
        for place, begin in ((at, 0), (at + 1, 0), (at, 10_000), (1 << 62, 0), (other.physical_offset, 0)):
            (found,) = ask(line, Request(new_request_id(), home, ("mine",), part=(place, begin))).found
            assert (found.state == states.SUCCESS) == ((place, begin) == (at, 0))
        assert redis.exists(lists.answer_key(json.loads(good)["request"])) == 0


def test_a_sign_costs_three_commands(hosts):
    """The lifetimes of the keys are renewed now and then."""
    line = line_of(hosts.fleet)
    with connect(RedisLocation.parse(hosts.fleet.environment[work.BROKER])) as redis:
        line.sign(UNKNOWN_HOME)
        redis.persist(lists.READERS)
        before = line.signs()
        assert line.sign(UNKNOWN_HOME, renews=False) > 0
        assert redis.ttl(lists.READERS) == -1
        line.sign(UNKNOWN_HOME)
        assert redis.ttl(lists.READERS) > 3000
        assert UNKNOWN_HOME in dict(before) and UNKNOWN_HOME in dict(line.signs())
        redis.zrem(lists.READERS, UNKNOWN_HOME)


class FalseHome:
    """Somebody who may write to this Redis, and answers for a store that is not there."""

    def __init__(self, fleet: Fleet, answer) -> None:
        self.line, self.asked = line_of(fleet), 0
        self._answer, self._ends = answer, threading.Event()
        self.line.sign(UNKNOWN_HOME)
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._ends.is_set():
            self.line.take_request(UNKNOWN_HOME, 0.2)
            while not self.line.came(1):
                pass
            taken = self.line.taken()
            if taken is None:
                continue
            self.asked += 1
            request = Request.parse(taken.partition(b" ")[2])
            answer = self._answer(request)
            if answer is not None:
                self.line.answer(request.id, UNKNOWN_HOME, answer, taken)

    def __enter__(self) -> FalseHome:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()
        self.line._client.zrem(lists.READERS, UNKNOWN_HOME)
        self.line.close()


def success(request: Request, **content: object) -> bytes:
    body = json.dumps({"status": "SUCCESS", "result": 1, "task_id": "t", **content}).encode()
    found = Found("t", "SUCCESS", True, None, 1, len(body), 0, body, "application/json", "utf-8")
    return Answer(request.id, UNKNOWN_HOME, (found,)).encoded()


def test_a_client_believes_only_what_an_answer_may_be(hosts):
    """No pickle, no other task's result, and an answer that makes no sense counts as none."""
    app = client_of(hosts.fleet, cystore_home=UNKNOWN_HOME)
    homes.remember(app.backend, "t", UNKNOWN_HOME)

    def state() -> str:
        app.backend._cache.clear()
        return AsyncResult("t", app=app).state

    with FalseHome(hosts.fleet, success):
        assert state() == states.SUCCESS
    others = FalseHome(hosts.fleet, lambda request: success(request, task_id="u"))
    with others, pytest.raises(homes.ResultsElsewhereError, match="belongs to another task"):
        state()
    pickled = FalseHome(hosts.fleet, lambda request: _as_pickle(success(request)))
    with pickled, pytest.raises(ContentDisallowed):
        state()
    with FalseHome(hosts.fleet, lambda request: b"nonsense") as false:
        with pytest.raises(homes.HomeAwayError, match=f"store {UNKNOWN_HOME} did not answer.*answer: "):
            AsyncResult("t", app=app).get(timeout=5)
        assert 1 < false.asked < 3 + 5 / result_look.AGAIN_S, "asked again, and not in a loop"


@pytest.mark.parametrize(
    "content",
    [
        {"status": "FAILURE", "result": "str"}, {"status": "FAILURE", "result": 7}, {"status": "FAILURE",
                                                                                     "result": {"a": 1}},
        {"children": "xyz"}, {"children": 7}, {"children": [[1, 2, 3]]}, b"{", b"[1]", b"\xff\xfe", b"[" * 100_000,
    ],
    ids=lambda content: str(content)[:40],
)  # fmt: skip
def test_a_result_that_is_none_is_told_with_its_home(hosts, content):
    """Seen: a raw ValueError, AttributeError or DecodeError, that named nobody."""
    app = client_of(hosts.fleet, cystore_home=UNKNOWN_HOME)
    homes.remember(app.backend, "t", UNKNOWN_HOME)

    def answer(request: Request) -> bytes:
        told = {} if isinstance(content, bytes) else content
        body = json.dumps({"status": "SUCCESS", "result": 1, "task_id": "t", **told}).encode()
        body = content if isinstance(content, bytes) else body
        state = told.get("status", "SUCCESS")
        found = Found("t", state, True, None, 1, len(body), 0, body, "application/json", "utf-8")
        return Answer(request.id, UNKNOWN_HOME, (found,)).encoded()

    match = f"the answer of store {UNKNOWN_HOME} for t is not its result"
    with FalseHome(hosts.fleet, answer):
        for look in (lambda one: one.state, lambda one: one.get(timeout=PATIENCE_S)):
            with pytest.raises(homes.ResultsElsewhereError, match=match):
                look(AsyncResult("t", app=app))
        if isinstance(content, bytes):
            with pytest.raises(homes.ResultsElsewhereError, match="for t is not its result"):
                GroupResult.restore("t", app=app)


def _as_pickle(data: bytes) -> bytes:
    """The same answer, whose result says that it is a pickle."""
    data = data.replace(b"application/json", b"application/x-python-serialize")
    header_bytes = data.index(b"]}") + 2 - 8
    return data[:4] + header_bytes.to_bytes(4, "big") + data[8:]


def test_what_a_dead_worker_left_is_not_believed(hosts):
    """Seen: a task whose message names no home had been received on one host, and ended on another: a client believed
    the first one."""
    app, task_id = client_of(hosts.fleet), "began here, ended there"
    hosts.fleet.backend.store_result(task_id, None, states.STARTED)
    body = {"status": "SUCCESS", "result": 1, "task_id": task_id}
    ends = threading.Event()

    def answer(request: Request) -> bytes:
        if not ends.is_set():
            return Answer(request.id, UNKNOWN_HOME, tuple(map(Found, request.ids))).encoded()
        text = json.dumps(body).encode()
        found = Found(task_id, "SUCCESS", True, None, 1, len(text), 0, text, "application/json", "utf-8")
        return Answer(request.id, UNKNOWN_HOME, (found,)).encoded()

    with FalseHome(hosts.fleet, answer):
        assert AsyncResult(task_id, app=app).state == states.STARTED
        ends.set()
        assert AsyncResult(task_id, app=app).state == states.SUCCESS
        homes._foreign.clear()
        app.backend._cache.clear()
        assert AsyncResult(task_id, app=app).get(timeout=PATIENCE_S) == 1


def test_a_home_that_does_not_answer_is_named(hosts, monkeypatch):
    monkeypatch.setattr(result_look, "ANSWER_S", 1.0)
    app = client_of(hosts.fleet, cystore_home=UNKNOWN_HOME)
    result = app.tasks[work.add.name].apply_async((1, 1), queue="of_nobody_at_all")
    for look in (lambda: result.get(timeout=1), lambda: result.state):
        with pytest.raises(homes.HomeAwayError, match=f"store {UNKNOWN_HOME} did not answer within"):
            look()
    assert issubclass(homes.HomeAwayError, ResultTimeoutError)


def test_a_wait_without_a_timeout_ends_when_nobody_answers(hosts, monkeypatch):
    """With a home, and without any; the patience of a real wait is 300 s."""
    monkeypatch.setattr(client_module, "SILENT_S", 1.5)
    for name, value in {"ANSWER_S": 0.5, "WAIT_MS_MOST": 500}.items():
        monkeypatch.setattr(result_look, name, value)
    app = client_of(hosts.fleet, cystore_home=UNKNOWN_HOME)
    homes.remember(app.backend, "silence", UNKNOWN_HOME)
    with pytest.raises(homes.HomeAwayError, match=f"store {UNKNOWN_HOME} did not answer"):
        AsyncResult("silence", app=app).get()
    with redis_server(own=True) as empty:
        app = client_of(hosts.fleet, f"cystore+remote://?reader={quote(empty.broker_url, safe='')}")
        with pytest.raises(homes.HomeAwayError, match="no store sent a heartbeat"):
            AsyncResult("of nobody", app=app).get()


def test_a_wait_goes_on_while_its_home_is_silent(hosts, monkeypatch, caplog):
    """Seen: a `.get(timeout=600)` ended after 45 s without an answer, while the home's workers were started anew."""
    for name, value in {"ANSWER_S": 1.5, "WAIT_MS_MOST": 200, "WARNED_S": 0.5}.items():
        monkeypatch.setattr(result_look, name, value)
    for silent_s, timeout in ((0.3, 60.0), (None, None)):
        app = client_of(hosts.fleet, cystore_home=UNKNOWN_HOME, cystore_home_silent_s=silent_s)
        homes.remember(app.backend, "silence", UNKNOWN_HOME)
        for found in app.backend.elsewhere.reader().wait(["silence"], timeout):
            assert found is None
            if "the wait for results continues" in caplog.text:
                break
        assert caplog.text.count(f"store {UNKNOWN_HOME} has not answered for ") == 1
        caplog.clear()


def test_a_redis_that_is_away_is_named_and_its_password_is_not(hosts, tmp_path):
    for backend in ("cystore+remote://:hush@localhost:1/0", "cystore://?reader=redis://:hush@localhost:1/0"):
        app = client_of(hosts.fleet, backend, cystore_home=hosts.home)
        assert "hush" not in app.backend.as_uri()
        result = AsyncResult("of a home", app=app)
        with pytest.raises(
            homes.HomeAwayError, match=f"store {hosts.home} cannot be asked.*localhost:1"
        ) as caught:
            result.get(timeout=1)
        assert "hush" not in str(caught.value)
