"""Goal: the master knows which in-sync set etcd has, whatever happens to calls and answers, and etcd's nonsense ends
nothing. Method: a keeper with a real etcd, behind an endpoint that loses answers; and servers that are no etcd."""

from __future__ import annotations

import contextlib
import http.server
import json
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

import cystore
from cystore.config import StoreConfig
from cystore.errors import ElectionError
from cystore.ha.election.etcd import Etcd
from cystore.ha.election.group import Elected, Group
from cystore.ha.election.keeper import Keeper
from tests.support import parts
from tests.support.ha.etcd import EtcdServer, needs_etcd
from tests.support.ha.ha_pair import until
from tests.support.small_stores import SETTINGS

LEASE_MS = 2_000
TIMEOUT_S = 2.0


class LosesAnswers:
    """An endpoint before an etcd, which makes the changes that it is asked for, and says nothing of them."""

    def __init__(self, port: int) -> None:
        self._port, self.lost = port, 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = "http://{}:{}".format(*self._listener.getsockname())
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        asked = b""
        with client, socket.create_connection(("127.0.0.1", self._port)) as etcd:
            while True:
                for ready in select.select([client, etcd], [], [])[0]:
                    data = ready.recv(1 << 16)
                    if not data:
                        return
                    if ready is client:
                        asked += data
                        etcd.sendall(data)
                    elif b"/kv/txn" in asked:
                        self.lost += 1
                        return
                    else:
                        asked = b""
                        client.sendall(data)

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def etcd(tmp_path) -> Iterator[EtcdServer]:
    with EtcdServer(tmp_path / "etcd") as server:
        yield server


def group_of(*urls: str) -> Group:
    return Group(Etcd(StoreConfig(), ",".join(urls), TIMEOUT_S), "g")


@needs_etcd
def test_a_change_whose_answer_was_lost_is_known(etcd):
    with contextlib.closing(group_of(etcd.url)) as group:
        lease = group.grant(60)
        epoch, _ = group.elect(group.look(), Elected("m", "127.0.0.1:1", "store", 0, lease), "log")
        loses = LosesAnswers(etcd.port)
        control = parts.control_block(StoreConfig(**SETTINGS), 64)
        keeper = Keeper(control, group_of(loses.url, etcd.url), LEASE_MS)
        with contextlib.closing(loses), contextlib.closing(keeper):
            keeper.propose(epoch, frozenset({"m", "a"}))
            answer = until(keeper.answered)
            assert loses.lost == 1
            assert group.look().state.in_sync == {"m", "a"}
            assert answer == (frozenset({"m", "a"}), True)


NONSENSE = (
    {},
    [],
    {"result": []},
    {"header": {"revision": "x"}},
    {"kvs": [1], "header": {"revision": 1}},
    "x",
)


@pytest.fixture(params=NONSENSE, ids=json.dumps)
def no_etcd(request) -> Iterator[str]:
    """A server that answers everything with the same nonsense."""

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(request.param).encode())

        def log_message(self, *_: object) -> None:
            """Nothing is printed."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_an_endpoint_that_is_no_etcd_is_one_that_does_not_answer(no_etcd):
    with contextlib.closing(group_of(no_etcd)) as group:
        for call in (group.look, lambda: group.grant(5), lambda: group.keep(5)):
            with pytest.raises(ElectionError, match="no endpoint of etcd answers"):
                call()


@needs_etcd
@pytest.mark.sampled(2)
def test_a_keeper_goes_on_behind_an_endpoint_that_is_no_etcd(etcd, no_etcd):
    control = parts.control_block(StoreConfig(**SETTINGS), 64)
    keeper = Keeper(control, group_of(no_etcd, etcd.url), LEASE_MS)
    with contextlib.closing(keeper):
        view = until(lambda: keeper.view)
        assert view.master is None
        lease = cystore.clock.boottime_ms()
        with contextlib.closing(group_of(etcd.url)) as group:
            keeper.hold(group.grant(60), lease)
        until(lambda: control.lease_until_ms > lease + LEASE_MS)


def test_the_libraries_for_etcd_print_nothing():
    """Seen: `cystore ha promote` printed that eventlet is deprecated. A library imports eventlet where it finds it."""
    pytest.importorskip("eventlet")
    code = """
from cystore.config import StoreConfig
from cystore.ha.election.etcd import Etcd
Etcd(StoreConfig(), "http://127.0.0.1:1", 1.0).close()
"""
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
