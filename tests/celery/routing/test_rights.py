"""Goal: who may ask for results can do nothing else, and who may write answers without the secret of a home is not
believed. Method: a real Redis with exactly the rights of docs/remote.md; every command that Redis has, tried by its own
check; a thief with all rights who takes requests, forges answers and gives old ones again."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import redis as redis_py
from celery import Celery, states
from celery.result import AsyncResult
from redis.exceptions import NoPermissionError

from cystore.celery import homes, registry
from cystore.celery.base.duty_leases import coordination_of, lease_key
from cystore.celery.base.identity import store_id_of
from cystore.celery.duties import duty_runs
from cystore.celery.duties.answering import ReadHost
from cystore.celery.duties.duty_runs import ALL
from cystore.celery.routing import lists, result_look
from cystore.celery.routing.messages import Answer, Found, Request, new_request_id
from tests.celery.conftest import PATIENCE_S, ROOT, wait_until
from tests.celery.routing.test_homes import UNKNOWN_HOME
from tools.redis_server import Redis, redis_server

PASSWORD = "a-password-of-ours"
LARGE = 9_000_000  # characters: three parts
REFUSED = r"executing the script can't|ermission|not allowed"


@pytest.fixture
def server() -> Iterator[Redis]:
    with redis_server(own=True) as redis:
        yield redis


@pytest.fixture
def admin(server: Redis) -> Iterator[redis_py.Redis]:
    with redis_py.Redis.from_url(server.url) as client:
        if int(client.info("server")["redis_version"].partition(".")[0]) < 7:
            pytest.skip("rights by direction need Redis 7")
        yield client


def documented(admin: redis_py.Redis, server: Redis, user: str) -> str:
    """Makes a user with the lines of docs/remote.md; its URL."""
    lines = re.findall(rf"^ACL SETUSER {user} .*$", (ROOT / "docs" / "remote.md").read_text(), re.MULTILINE)
    for line in lines:
        words = re.findall(r"\(.*?\)|\S+", line.replace("PASSWORD", PASSWORD))  # a selector is one word
        admin.execute_command(*words)
    assert lines
    return server.url.replace("unix://", f"unix://{user}:{PASSWORD}@") + "?db=1"


def app_on(redis_url: str, backend: str, **settings: object) -> Celery:
    app = Celery("rights", broker="memory://", backend=backend, set_as_current=False)
    app.conf.update(result_backend_thread_safe=True, cystore_redis_url=redis_url, **settings)
    return app


@contextmanager
def answering(home: Celery) -> Iterator[None]:
    """The home's worker answers."""
    service = ReadHost()
    service.start(SimpleNamespace(app=home))
    try:
        yield
    finally:
        service.shutdown(None)


def secret_file(folder: Path, content: str = "a secret of this home") -> str:
    path = folder / content.replace(" ", "-")
    path.write_text(content)
    path.chmod(0o600)
    return str(path)


# ------------------------------------------------------------------------------------------------ rights


def test_a_web_tier_and_workers_need_no_more_than_documented(admin, server, url):
    web_url, workers_url = (documented(admin, server, user) for user in ("web", "workers"))
    home = app_on(workers_url, url)
    store, there = home.backend.store, coordination_of(home)
    home.backend.store_result("a", 1, states.SUCCESS)
    home.backend.store_result("large", "x" * LARGE, states.SUCCESS)
    with answering(home):
        web = app_on(web_url, "cystore+remote://")
        wait_until(lambda: web.AsyncResult("a").state == states.SUCCESS, "the home answers")
        assert len(web.AsyncResult("large").get(timeout=PATIENCE_S)) == LARGE
        assert web.AsyncResult("of nobody").state == states.PENDING
        later = threading.Timer(0.5, home.backend.store_result, ("later", 7, states.SUCCESS))
        later.start()
        homes.remember(web.backend, "later", store_id_of(store))
        assert web.AsyncResult("later").get(timeout=PATIENCE_S) == 7
        later.join()
    for duty in ALL.values():
        assert duty_runs.run(home, duty) is not None
    store_id = store_id_of(store)
    there.call(lambda client: registry.heartbeat(client, store_id, store, "w"))
    assert there.call(lambda client: registry.due_ticks(client, [store_id], {"reput": 1.0}, 0))
    (status,) = there.call(registry.fleet)
    assert status.live
    assert not [refused["object"] for refused in admin.acl_log()]


# What a web tier may do, by kinds of keys. LLEN and the like tell no content: Redis wants no direction for them.
MAY = {
    ("zrevrangebyscore", "readers"),
    ("rpush", "requests"), ("pexpire", "requests"), ("llen", "requests"),
    ("blpop", "answer"),
}  # fmt: skip


def test_a_web_tier_may_do_nothing_else(admin, server, url):
    """Each command of this Redis that has a key, on each kind of key, as Redis itself judges."""
    documented(admin, server, "web")
    home = store_id_of(app_on(server.url, url).backend.store)
    keys = {
        "readers": lists.READERS, "requests": lists.requests_key(home), "taken": lists.taken_key(home),
        "answer": lists.answer_key(new_request_id()), "replica's": lists.requests_key(lists.replica_of(home)),
        "lease": lease_key(home, "reput"), "old lease": lease_key(home, "reput", "cystore:"),
        "token": f"cystore:duties:{home}:token:reput", "old token": f"cystore:{home}:token:reput",
        "stores": registry.STORES, "seen": registry.store_key(home), "another's": "celery",
    }  # fmt: skip
    granted = set()
    for name, command in admin.command().items():
        first, arity = command["first_key_pos"], abs(command["arity"])
        if first < 1:
            continue
        for kind, key in keys.items():
            words = ["1"] * max(arity - 1, first)
            words[first - 1] = key
            if admin.execute_command("ACL", "DRYRUN", "web", name, *words) in (b"OK", "OK"):
                granted.add((name, kind))
    replicas = {(command, "replica's") for command, kind in MAY if kind == "requests"}
    assert granted == MAY | replicas


def test_a_web_tier_cannot_attack(admin, server, url):
    """The same as commands and within scripts, which may name keys as KEYS or not."""
    web = redis_py.Redis.from_url(documented(admin, server, "web"))
    workers_url = documented(admin, server, "workers")
    app = app_on(workers_url, url)
    home = store_id_of(app.backend.store)
    requests, answer = lists.requests_key(home), lists.answer_key("0" * 32)
    with redis_py.Redis.from_url(workers_url) as workers:
        workers.rpush(requests, b"1 another's request")
        assert duty_runs.run(app, ALL["reput"]) is not None
        names = [f"{before}{home}:token:reput" for before in ("cystore:duties:", "cystore:")]
        tokens = {name: workers.get(name) for name in names}
        assert all(tokens.values())
        attacks = [
            ("BLPOP", requests, 1), ("LPOP", requests), ("LRANGE", requests, 0, -1), ("DEL", requests),
            ("LMOVE", requests, answer, "LEFT", "LEFT"), ("BLMOVE", requests, answer, "LEFT", "LEFT", 1),
            ("BLPOP", requests, answer, 1), ("RENAME", requests, answer), ("COPY", requests, answer),
            ("RPUSH", answer, "forged"), ("SET", answer, "forged"), ("RPUSH", lists.taken_key(home), "x"),
            ("ZADD", lists.READERS, 1, home), ("PEXPIRE", lists.READERS, 1),
            *[(word, key) for key in tokens for word in ("GET", "DEL", "UNLINK", "GETDEL", "DUMP", "EXISTS")],
            *[("PEXPIRE", key, 1) for key in tokens], *[("SET", key, 1) for key in tokens],
            *[(word, lease_key(home, "reput", before), *rest)
              for before in ("cystore:duties:", "cystore:")
              for word, *rest in (("DEL",), ("HGETALL",), ("HSET", "holder", "mine"), ("PEXPIRE", 1))],
            ("KEYS", "*"), ("SCAN", 0), ("MONITOR",), ("FLUSHALL",), ("CONFIG", "GET", "*"), ("ACL", "LIST"),
            ("CLIENT", "LIST"), ("SORT", requests, "BY", "nosort"), ("FUNCTION", "LIST"),
        ]  # fmt: skip
        for words in attacks:
            with pytest.raises(NoPermissionError):
                web.execute_command(*words)
            script = "return redis.call(unpack(ARGV))"
            with pytest.raises(redis_py.ResponseError, match=REFUSED):
                web.eval(script, 0, *words)
            with pytest.raises(redis_py.ResponseError, match=REFUSED):
                web.eval(script, 1, requests, *words)
        assert workers.llen(requests) == 1
        assert {key: workers.get(key) for key in tokens} == tokens
    web.close()


# ---------------------------------------------------------------------------------------------- the secret


class Thief:
    """Somebody with all rights in this Redis, and without the secret of the home."""

    def __init__(self, server: Redis, home: str) -> None:
        self.client, self.home = redis_py.Redis.from_url(f"{server.url}?db=1"), home

    def take(self) -> tuple[bytes, Request]:
        """Takes a request before the home does."""
        found = self.client.blpop([lists.requests_key(self.home)], PATIENCE_S)
        assert found is not None, "there was no request"
        return found[1], Request.parse(found[1].partition(b" ")[2])

    def give(self, request: Request, *answers: bytes) -> None:
        self.client.rpush(lists.answer_key(request.id), *answers)

    def put_back(self, taken: bytes) -> None:
        self.client.rpush(lists.requests_key(self.home), taken)


def forged(request: Request, result: object = "forged") -> bytes:
    """A SUCCESS for everything that a request asks for."""
    found = []
    for one in request.ids:
        body = json.dumps({"status": "SUCCESS", "result": result, "task_id": one}).encode()
        found.append(Found(one, "SUCCESS", True, None, 1, len(body), 0, body, "application/json", "utf-8"))
    return Answer(request.id, request.home, tuple(found)).encoded()


def looks(app: Celery, task_id: str, timeout: float = PATIENCE_S) -> tuple[threading.Thread, list[object]]:
    """A `.get()` in a thread, and where its outcome will be."""
    outcome: list[object] = []

    def get() -> None:
        try:
            outcome.append(AsyncResult(task_id, app=app).get(timeout=timeout))
        except Exception as error:  # noqa: BLE001 - the test looks at it
            outcome.append(error)

    thread = threading.Thread(target=get)
    thread.start()
    return thread, outcome


@pytest.fixture
def pair(server: Redis, url: str, tmp_path: Path) -> Iterator[SimpleNamespace]:
    """A home whose worker does not answer yet, a client, both with the secret, and a thief."""
    there, setting = f"{server.url}?db=1", {"cystore_answers_secret_file": secret_file(tmp_path)}
    home = app_on(there, url, **setting)
    name = store_id_of(home.backend.store)
    web = app_on(there, "cystore+remote://", cystore_home=name, **setting)
    thief = Thief(server, name)
    yield SimpleNamespace(home=home, web=web, thief=thief, there=there, name=name, setting=setting)
    thief.client.close()


def test_a_forged_answer_does_not_end_a_wait(pair, caplog):
    """Seen: a failed task became SUCCESS for an honest client, which asked nobody again."""
    homes.remember(pair.web.backend, "t", pair.name)
    thread, outcome = looks(pair.web, "t")
    taken, request = pair.thief.take()
    assert request.signed
    mac_of_nobody = b"CYRS" + bytes(32) + forged(request)
    pair.thief.give(request, forged(request), mac_of_nobody, b"", b"CYRS", b"x" * 100)
    wait_until(lambda: "it has no proof of the home's secret" in caplog.text, "the client says so")
    pair.home.backend.store_result("t", ValueError("it failed"), states.FAILURE)
    pair.thief.put_back(taken)
    with answering(pair.home):
        thread.join(PATIENCE_S)
    (error,) = outcome
    assert isinstance(error, ValueError) and "it failed" in str(error)
    assert caplog.text.count("waiting for the right one") == 1, "told once, not for each"


def test_parts_of_a_result_are_proved_too(pair, monkeypatch):
    """A thief answers each further part before the home does."""
    text = "0123456789" * (LARGE // 10)
    pair.home.backend.store_result("large", text, states.SUCCESS)
    homes.remember(pair.web.backend, "large", pair.name)
    push, count = lists.Line.push, []

    def first_the_thief(line: lists.Line, request: Request, lives_ms: int, *, name: str = "") -> bool:
        if request.part is not None:
            at, begin = request.part
            body = b"x" * 1_000
            part = Found(
                "large", "SUCCESS", True, None, at, LARGE + 200, begin, body, "application/json", "utf-8"
            )
            pair.thief.give(request, Answer(request.id, pair.name, (part,)).encoded())
            count.append(begin)
        return push(line, request, lives_ms, name=name)

    monkeypatch.setattr(lists.Line, "push", first_the_thief)
    with answering(pair.home):
        assert AsyncResult("large", app=pair.web).get(timeout=PATIENCE_S) == text
    assert count


def test_an_old_answer_is_not_believed_again(pair):
    """A thief keeps what the home said, and gives it to a later request for the same task."""
    pair.home.backend.store_result("t", None, states.STARTED)
    client = pair.thief.client
    with answering(pair.home), lists.Line(pair.web.backend.elsewhere.reader().location) as line:
        request = Request(new_request_id(), pair.name, ("t",), signed=True)
        line.push(request, 20_000)
        _, kept = client.blpop([lists.answer_key(request.id)], PATIENCE_S)
    assert Answer.parse(kept, request, secret=b"a secret of this home").found[0].state == states.STARTED
    pair.home.backend.store_result("t", 5, states.SUCCESS)
    homes.remember(pair.web.backend, "t", pair.name)
    thread, outcome = looks(pair.web, "t")
    taken, asked = pair.thief.take()
    pair.thief.give(asked, kept, kept.replace(request.id.encode(), asked.id.encode()))
    pair.thief.put_back(taken)
    with answering(pair.home):
        thread.join(PATIENCE_S)
    assert outcome == [5]


def test_a_thief_cannot_have_an_answer_without_a_proof_believed(pair):
    """It takes `signed` out of a request; the home then gives a plain answer."""
    pair.home.backend.store_result("t", 5, states.SUCCESS)
    homes.remember(pair.web.backend, "t", pair.name)
    thread, outcome = looks(pair.web, "t")
    taken, request = pair.thief.take()
    with answering(pair.home):
        pair.thief.put_back(taken.replace(b',"signed":true', b""))
        key = lists.answer_key(request.id)
        wait_until(lambda: not pair.thief.client.exists(lists.taken_key(pair.name), key), "it was answered")
        assert not outcome
        pair.thief.put_back(taken)
        thread.join(PATIENCE_S)
    assert outcome == [5]


def test_who_has_no_secret_reads_the_answers_of_a_home_with_one(pair):
    pair.home.backend.store_result("t", 5, states.SUCCESS)
    plain = app_on(pair.there, "cystore+remote://", cystore_home=pair.name)
    with answering(pair.home):
        assert plain.AsyncResult("t").get(timeout=PATIENCE_S) == 5


@pytest.mark.parametrize("homes_secret", [None, "the secret of another", "the home is left out"])
def test_who_has_a_secret_believes_nobody_without_it(pair, url, tmp_path, monkeypatch, homes_secret):
    """The error says what to look at."""
    monkeypatch.setattr(result_look, "ANSWER_S", 1.0)
    given = {"cystore_answers_secret_file": secret_file(tmp_path, homes_secret)} if homes_secret else {}
    home = app_on(pair.there, url, **given)
    home.backend.store_result("t", 5, states.SUCCESS)
    setting = pair.setting
    if homes_secret == "the home is left out":
        setting = {"cystore_answers_secret_file": {UNKNOWN_HOME: secret_file(tmp_path)}}
    web = app_on(pair.there, "cystore+remote://", cystore_home=pair.name, **setting)
    with answering(home), pytest.raises(homes.HomeAwayError, match="cystore_answers_secret_file"):
        web.AsyncResult("t").get(timeout=2)
