"""Goal: nobody reads who may not, no client stops the others, and what cannot be served ends with one line. Method: the
real server with each kind of protection, asked with and without what it wants; raw sockets for bad clients."""

from __future__ import annotations

import json
import resource
import shutil
import socket
import ssl
import subprocess
import sys
import urllib.request
from urllib.parse import urlsplit

import pytest

import cystore
from cystore.web import app as web_app
from cystore.web.access import Rates
from tests.celery.conftest import wait_until
from tests.structure.sources import ROOT
from tests.support.celery.logs import event_message, runs, write
from tests.support.celery.web import CYSTORE, TIMEOUT_S, WebServer, asked, status_of
from tools.processes import ends_with_us

TOKEN = "a-token-of-the-test"
HANGING = 200
FAILED = 2


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("log") / "store"
    with cystore.open(path) as store:
        write(store, runs(5))
    return path


@pytest.fixture(scope="module")
def server(path):
    """Without a token, for this host."""
    with WebServer(path) as server:
        yield server


@pytest.fixture(scope="module")
def guarded(path):
    """With a token, behind a prefix."""
    with WebServer(path, "--url-prefix", "/tasks/", CYSTORE_WEB_TOKEN=TOKEN) as server:
        yield server


def _refused(*words):
    done = subprocess.run(
        ends_with_us([*CYSTORE, *map(str, words)]),
        cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (FAILED, "")
    (line,) = done.stderr.splitlines()
    return line


def test_what_cannot_be_served(server, path, tmp_path):
    assert "--token" in _refused(path, "--host", "0.0.0.0")
    assert str(tmp_path / "none") in _refused(tmp_path / "none")
    port = urlsplit(server.url).port
    line = _refused(path, "--port", port)
    assert f"port {port}" in line and line.endswith("give another --host or --port")  # the disk is no reason


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate with")
def test_tls(path, tmp_path):
    """With the key in a file of its own, and in that of the certificate; what is no certificate is named."""
    certificate, key, both = (tmp_path / name for name in ("certificate.pem", "key.pem", "both.pem"))
    made = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=test -addext subjectAltName=IP:127.0.0.1"
    )
    words = [*made.split(), "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(words, check=True, capture_output=True, timeout=TIMEOUT_S)
    both.write_bytes(certificate.read_bytes() + key.read_bytes())
    trusting = urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=certificate))
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), trusting)
    for words in (("--certificate", certificate, "--key", key), ("--certificate", both)):
        with WebServer(path, *words) as server:
            assert server.url.startswith("https://")
            with opener.open(f"{server.url}healthz", timeout=TIMEOUT_S) as answer:
                assert answer.status == 200
    for words in (
        ("--certificate", certificate),
        ("--certificate", tmp_path / "none"),
        ("--certificate", path),
    ):
        assert str(words[1]) in _refused(path, *words)
    assert "--certificate" in _refused(path, "--key", key)


@pytest.mark.parametrize(
    "place", ["", "api/tasks", "api/tasks/t0", "api/stores", "metrics", "events", "assets/page.js"]
)
def test_a_token_is_needed_everywhere(guarded, place):
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Cookie": "cystore_token=wrong"}):
        answer = guarded.get(place, headers)
        assert answer.status == 401
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.headers["www-authenticate"] == "Bearer"


def test_the_token_opens(guarded):
    assert guarded.url.endswith("/tasks/")
    assert guarded.get("healthz").status == 200
    assert guarded.get("api/tasks", {"Authorization": f"Bearer {TOKEN}"}).json["tasks"]
    answer = guarded.get("", token=TOKEN)
    assert answer.status == 303 and TOKEN not in answer.headers["location"]
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "samesite=strict" in cookie.lower()
    assert guarded.get("api/tasks", {"Cookie": cookie.partition(";")[0]}).json["tasks"]
    assert guarded.get("", token="wrong").status == 401
    # A proxy may have taken the prefix away.
    without = guarded.url.removesuffix("tasks/")
    assert asked(without + "api/tasks", {"Authorization": f"Bearer {TOKEN}"}).status == 200


def test_other_names_of_this_host_are_refused_without_a_token(server):
    """A page of another site could lead its own name here, and read."""
    assert server.get("api/tasks", {"Host": "evil.example:80"}).status == 421
    port = urlsplit(server.url).port
    assert server.get("api/tasks", {"Host": f"localhost:{port}"}).status == 200


def test_the_browser_is_told_what_it_may(server):
    for place in ("", "api/tasks", "api/none"):
        headers = server.get(place).headers
        policy = headers["content-security-policy"]
        assert (
            "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
        )
        assert headers["x-content-type-options"] == "nosniff"


def test_only_reads_are_served(server):
    for method in ("POST", "PUT", "DELETE"):
        assert asked(server.url + "api/tasks/t0", method=method).status == 405


def test_the_rate_of_one_client_is_bounded(monkeypatch):
    now_s = 0.0
    monkeypatch.setattr("cystore.web.access.monotonic_s", lambda: now_s)
    rates = Rates(per_s=2, burst=3)
    assert [rates.takes("a") for _ in range(4)] == [True, True, True, False]
    assert rates.takes("b")
    now_s = 1.0
    assert [rates.takes("a") for _ in range(3)] == [True, True, False]


@pytest.mark.slow
def test_too_many_requests(path):
    with WebServer(path, "--rate", "1") as server:
        answers = [server.get("healthz") for _ in range(30)]
        assert 429 in {answer.status for answer in answers}
        assert answers[-1].headers["retry-after"] == "1" or answers[-1].status == 200


def _connected(server):
    address = urlsplit(server.url)
    made = socket.create_connection((address.hostname, address.port), TIMEOUT_S)
    made.settimeout(TIMEOUT_S)
    return made


def test_hanging_and_broken_clients_stop_nobody(server):
    held = [_connected(server) for _ in range(HANGING)]
    try:
        for number, one in enumerate(held):
            one.sendall(
                (b"", b"GET /api/ta", b"\x00\xff\x16\x03\x01 nonsense\r\n\r\n", b"GET /events")[number % 4]
            )
        assert server.get("healthz").status == 200
        assert server.get("api/tasks").json["tasks"]
    finally:
        for one in held:
            one.close()


@pytest.mark.skipif(shutil.which("prlimit") is None, reason="there is no prlimit: apt-get install util-linux")
def test_clients_that_hang_take_no_place_from_others(path):
    """More connections than the process may have open files: the one that hangs longest makes room."""
    with WebServer(path, command=("prlimit", "--nofile=700:700", *CYSTORE)) as server:
        held = [_connected(server) for _ in range(1000)]
        try:
            assert server.get("api/tasks").json["tasks"]
            assert held[0].recv(1) == b""  # it was closed
        finally:
            for one in held:
                one.close()


@pytest.mark.slow
def test_ten_thousand_connections(path):
    """Of clients that say nothing, that never end a request, that watch; as many as this process may open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(10_000, hard - 500)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    held = []
    try:
        with WebServer(path, "--rate", "1000000") as server:
            for number in range(count):
                held.append(_connected(server))
                held[-1].sendall(
                    (b"", b"GET /api/ta", b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")[number % 3]
                )
            assert server.get("healthz").status == 200
            assert server.get("api/tasks").json["tasks"]
            held[1].sendall(b"sks HTTP/1.1\r\nHost: localhost\r\n\r\n")  # the slow ones go on
    finally:
        for one in held:
            one.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Watcher:
    """A client of /events."""

    def __init__(self, server):
        self._socket = _connected(server)
        self._socket.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        self._lines = self._socket.makefile("rb")
        self.next("hello")

    def next(self, kind):
        """The data of the next event of a kind."""
        for line in self._lines:
            if line.strip() == f"event: {kind}".encode():
                return json.loads(next(self._lines).decode().removeprefix("data: "))
        raise AssertionError("the server closed the stream")

    def close(self):
        self._lines.close()
        self._socket.close()


def test_an_append_wakes_all_watchers(server, path):
    """Also one that does not read at first."""
    watchers = [Watcher(server) for _ in range(5)]
    with cystore.open(path) as store:
        for number in range(3):
            write(store, [event_message("SENT", f"seen{number}", "app.seen")])
            for watcher in watchers[1:]:
                told = watcher.next("append")
                assert told["store"] == str(path)
                assert [one["id"] for one in told["events"]] == [f"seen{number}"]
        assert watchers[0].next("append")["events"][0]["id"] == "seen0"
    for watcher in watchers:
        watcher.close()


def test_a_watcher_too_many(path, monkeypatch):
    monkeypatch.setattr("cystore.web.live.WATCHERS_MOST", 0)
    from cystore.web.answers.open_stores import OpenStores
    from cystore.web.live import Live
    from cystore.web.problems import Problem

    with pytest.raises(Problem) as problem:
        Live(OpenStores(path)).watch()
    assert problem.value.status == 503


def test_an_app_of_ones_own(path):
    """`create_app` is an ASGI app, of paths or of open stores, whose handles it leaves open."""
    with cystore.open(path) as store:
        for given in (path, [path], store, [store]):
            app = web_app.create_app(given)
            assert status_of(app, "/api/tasks") == 200
            app.state.stores.close()
        assert not store.closed
    for wrong in ({"stores": []}, {"stores": path, "token": ""}):
        with pytest.raises(ValueError, match=r"store|token"):
            web_app.create_app(**wrong)


def test_the_command_of_an_app_redacts_what_is_old(tmp_path):
    """A record from before the setting is hidden by the app that has it now."""
    store = tmp_path / "store"
    with cystore.open(store) as opened:
        write(opened, [event_message("SENT", "t", "app.pay", kwargs="{'card': '4111', 'total': 5}")])
    module = tmp_path / "shop.py"
    module.write_text(
        "from celery import Celery\n"
        f"app = Celery('shop', broker='memory://', backend='cystore://{store}')\n"
        "app.conf.cystore_lifecycle_redact = ['card']\n"
    )
    command = (sys.executable, "-m", "celery", "--workdir", str(tmp_path), "-A", "shop", "cystore", "web")
    with WebServer(command=command) as server:
        wait_until(lambda: server.get("healthz").status == 200, "the server")
        task = server.json("api/tasks/t")
    assert "4111" not in json.dumps(task) and "'total': 5" in task["kwargs"]
