"""Goal: who has not proved that it belongs to a master's slaves learns nothing of the store, counts as no slave, keeps
no slave out and fills no log; a master that could not tell serves nobody. Method: sockets of another user of the host,
which say what they like, beside real slaves; the bytes of both sides written down here."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import threading
from pathlib import Path

import pytest

import cystore
from cystore.ha import connection
from cystore.ha.link import wire
from cystore.ha.link.secret import Secret
from cystore.ha.master import GUESTS_MAX, SLAVES_MAX
from cystore.ha.status import read_status
from cystore.system.threads import repeated_errors
from tests.ha.test_peers import closed
from tests.support.ha.etcd import EtcdServer, needs_etcd
from tests.support.ha.ha_pair import (
    check_equal,
    fill,
    free_port,
    masters,
    members,
    slaves,
    until,
    wait_log,
    wrote,
)

SECRET = b"a secret of more than sixteen bytes"
HELLO = wire.REPORT.pack(wire.HELLO)
PROOF = wire.REPORT.pack(wire.PROOF)


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def secret(tmp_path) -> dict[str, str]:
    """The setting of both sides."""
    path = tmp_path / "secret"
    path.write_bytes(SECRET)
    path.chmod(0o600)
    return {"ha_secret_file": str(path)}


def proving(port: int, secret: dict[str, str], **more: object) -> dict[str, object]:
    """Settings of a master that asks for the secret."""
    return masters(port, ha_allow_plain=False, **secret, **more)


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), 20)


def served(port: int) -> None:
    def listens() -> bool:
        with contextlib.suppress(ConnectionError), connected(port):
            return True
        return False

    until(listens)


def frame(peer: socket.socket) -> tuple[int, bytes]:
    """The next frame of the master."""
    kind, size = wire.HEADER.unpack(exactly(peer, wire.HEADER.size))
    return kind, exactly(peer, size)


def exactly(peer: socket.socket, count: int) -> bytes:
    peer.settimeout(20)
    found = peer.recv(count, socket.MSG_WAITALL) if count else b""
    assert len(found) == count
    return found


def everything(peer: socket.socket) -> bytes:
    """All that the master sends before it ends the connection."""
    peer.settimeout(20)
    found = bytearray()
    with contextlib.suppress(ConnectionError):
        while piece := peer.recv(1 << 16):
            found += piece
    return bytes(found)


# ----------------------------------------------------------------------------------------------- who serves


def refuses(port: int) -> bool:
    try:
        connected(port).close()
    except ConnectionRefusedError:
        return True
    return False


def test_a_port_on_loopback_needs_a_secret(tmp_path, port, caplog):
    """Seen: any other user of the host read the whole log."""
    with cystore.open(tmp_path / "s", **masters(port, ha_allow_plain=False)) as store:
        until(lambda: "ha_listen_port needs ha_secret_file" in caplog.text)
        assert refuses(port)
        store.put("T", b"the store itself works")
        assert not read_status(tmp_path / "s").listens


def test_what_is_allowed_is_said_at_each_start(tmp_path, port, caplog):
    told = f"serves slaves on 127.0.0.1:{port} without a secret (ha_allow_plain)"
    for count in (1, 2):
        with cystore.open(tmp_path / "s", **masters(port)):
            served(port)
        assert caplog.text.count(told) == count


def test_a_slave_says_that_it_trusts_whoever_listens(tmp_path, port, caplog):
    with cystore.open(tmp_path / "slave", **slaves(port)):
        until(lambda: "gives this store any log" in caplog.text)


def test_a_secret_needs_no_such_words(tmp_path, port, secret, caplog):
    with (
        cystore.open(tmp_path / "s", **proving(port, secret)) as master,
        cystore.open(tmp_path / "slave", **slaves(port, **secret)) as slave,
    ):
        wait_log(slave, master.put("T", b"x").physical_offset)
    assert "ha_allow_plain" not in caplog.text and "any log" not in caplog.text


def test_an_open_port_without_tls_says_so_too(tmp_path, port, secret, caplog):
    with cystore.open(tmp_path / "s", **masters(port, ha_listen_host="0.0.0.0", **secret)):
        served(port)
    assert f"serves slaves on 0.0.0.0:{port} without TLS (ha_allow_plain)" in caplog.text


@needs_etcd
def test_a_member_without_a_secret_is_not_elected(tmp_path, caplog):
    with (
        EtcdServer(tmp_path / "etcd") as etcd,
        cystore.open(tmp_path / "a", **members(etcd.url, "a", ha_allow_plain=False)) as member,
    ):
        until(lambda: "ha_listen_port needs ha_secret_file" in caplog.text)
        assert member._attached().control.epoch == 0


# ------------------------------------------------------------------------------- what is told, and who counts


def test_nothing_is_told_before_the_proof(tmp_path, port, secret):
    """Seen: the greeting had the store's id, its home, and begin and end of the log."""
    with cystore.open(tmp_path / "master", **proving(port, secret)) as master:
        fill(master, 50)
        until(lambda: read_status(tmp_path / "master").listens)
        nonces = set()
        digest = wire.REPORT.pack(wire.DIGEST) + wire.RANGE.pack(0, 91)
        asked = (PROOF + bytes(64), digest, wire.REPORT.pack(wire.FACTS), wire.Join("g", "m", 1, "").word())
        for words in (b"", wire.REPORT.pack(0), *asked):
            with connected(port) as peer:
                peer.sendall(HELLO)
                kind, nonce = frame(peer)
                assert (kind, len(nonce)) == (wire.CHALLENGE, wire.NONCE_BYTES)
                nonces.add(nonce)
                peer.sendall(words or HELLO)
                assert everything(peer) == b""
            if words:
                with connected(port) as peer:
                    peer.sendall(words)
                    assert everything(peer) == b""
        assert len(nonces) == 6


def test_the_greeting_follows_the_proof(tmp_path, port, secret):
    with cystore.open(tmp_path / "master", **proving(port, secret)) as master:
        fill(master, 50)
        served(port)
        with connected(port) as peer:
            peer.sendall(HELLO)
            _, nonce = frame(peer)
            mine = bytes(wire.NONCE_BYTES)
            peer.sendall(PROOF + mine + Secret(SECRET).proof("slave", nonce, mine))
            assert frame(peer) == (wire.PROOF, Secret(SECRET).proof("master", nonce, mine))
            kind, greeting = frame(peer)
            assert kind == wire.HELLO and wire.Hello.parse(greeting).wrote == wrote(master)
            assert json.loads(greeting)["nonce"] == nonce.hex()
            peer.sendall(PROOF + mine + Secret(SECRET).proof("slave", nonce, mine))  # once more
            assert everything(peer) == b""


def test_a_master_of_an_earlier_release_is_followed(tmp_path, port, secret, monkeypatch):
    """Its greeting has the nonce, and comes before the proof."""

    def greet(slave: connection.SlaveConnection) -> None:
        slave.is_ours = True
        slave._answer(slave._hello(slave._nonce.hex()).frame())

    def check(slave: connection.SlaveConnection, words: bytes) -> None:
        nonce, proof = words[: wire.NONCE_BYTES], words[wire.NONCE_BYTES :]
        assert slave._secret is not None and slave._secret.is_proof("slave", slave._nonce, nonce, proof)
        slave._proved = True
        slave._answer(wire.talk(wire.PROOF, slave._secret.proof("master", slave._nonce, nonce)))

    monkeypatch.setattr(connection.SlaveConnection, "_greet", greet)
    monkeypatch.setattr(connection.SlaveConnection, "_check_proof", check)
    with (
        cystore.open(tmp_path / "master", **proving(port, secret)) as master,
        cystore.open(tmp_path / "slave", **slaves(port, **secret)) as slave,
    ):
        fill(master, 30)
        wait_log(slave, wrote(master))
        check_equal(master, slave)


def test_a_connection_without_a_proof_is_no_slave(tmp_path, port, secret):
    """Neither for those who look, nor for a put that waits, nor for the cleaning."""
    settings = proving(port, secret, ha_housekeeping_interval_ms=86_400_000, slave_timeout_ms=500)
    with cystore.open(tmp_path / "master", **settings) as master, contextlib.ExitStack() as stack:
        served(port)
        strangers = [stack.enter_context(connected(port)) for _ in range(3)]
        strangers[0].sendall(HELLO)
        assert frame(strangers[0])[0] == wire.CHALLENGE
        strangers[1].sendall(HELLO[:3])
        with pytest.raises(cystore.SlaveNotAvailableError):
            master.put("T", b"x", flush="replicated")
        before = read_status(tmp_path / "master")
        until(
            lambda: (
                (now := read_status(tmp_path / "master")).at_ms > before.at_ms
                and now.listens
                and not now.slaves
            )
        )
        assert "ha-slaves" not in master.holds()


def test_a_connection_without_a_proof_is_short(tmp_path, port, secret, monkeypatch):
    monkeypatch.setattr(connection, "PROOF_S", 0.2)
    settings = proving(port, secret, ha_housekeeping_interval_ms=86_400_000)
    with cystore.open(tmp_path / "master", **settings), contextlib.ExitStack() as stack:
        served(port)
        silent, greeted = (stack.enter_context(connected(port)) for _ in range(2))
        greeted.sendall(HELLO)
        assert frame(greeted)[0] == wire.CHALLENGE
        assert closed(silent) and closed(greeted)


# ------------------------------------------------------------------------------------------------ floods


def test_strangers_keep_no_slave_out(tmp_path, port, secret):
    """Seen: with 64 of them, which followed, no slave came in any more."""
    settings = proving(port, secret, ha_housekeeping_interval_ms=86_400_000)
    with cystore.open(tmp_path / "master", **settings) as master, contextlib.ExitStack() as stack:
        fill(master, 20)
        served(port)
        strangers = [stack.enter_context(connected(port)) for _ in range(SLAVES_MAX + GUESTS_MAX + 5)]
        for stranger in strangers[::2]:
            with contextlib.suppress(ConnectionError):
                stranger.sendall(HELLO)
        with cystore.open(tmp_path / "slave", **slaves(port, **secret)) as slave:
            wait_log(slave, wrote(master))
            fill(master, 20, start=20)
            wait_log(slave, master.put("T0", b"x", flush="replicated").physical_offset)
            check_equal(master, slave)


WORDS = {
    "reports": wire.REPORT.pack(0),
    "proofs": HELLO + PROOF + bytes(64),
    "noise": bytes(range(200)),
    "nothing": b"",
    "greetings": HELLO,
}


@pytest.mark.parametrize("words", WORDS.values(), ids=WORDS)
def test_a_flood_of_strangers_keeps_no_slave_out_and_fills_no_log(tmp_path, port, secret, caplog, words):
    """Seen: 22,000 warnings in 15 s."""
    caplog.set_level(logging.INFO)
    ended = threading.Event()
    counts: list[int] = []

    def flood() -> None:
        count = 0
        while not ended.is_set():
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1) as peer:
                count += 1
                peer.sendall(words)
                if words:
                    peer.settimeout(0.5)
                    peer.recv(1 << 10)
        counts.append(count)

    with cystore.open(tmp_path / "master", **proving(port, secret)) as master:
        fill(master, 20)
        served(port)
        threads = [threading.Thread(target=flood) for _ in range(4)]
        for thread in threads:
            thread.start()
        try:
            with cystore.open(tmp_path / "slave", **slaves(port, **secret)) as slave:
                wait_log(slave, wrote(master))
                fill(master, 20, start=20)
                wait_log(slave, wrote(master))
                check_equal(master, slave)
        finally:
            ended.set()
            for thread in threads:
                thread.join(100)
    assert sum(counts) > 10
    told = [one for one in caplog.records if "closed the connection of" in one.getMessage()]
    assert len(told) <= 8, "two kinds in each of two minutes, and the slave's own"


def test_without_a_secret_a_flood_fills_no_log_either(tmp_path, port, caplog):
    caplog.set_level(logging.INFO)
    with cystore.open(tmp_path / "master", **masters(port)) as master:
        fill(master, 20)
        served(port)
        for number in range(100):
            for words in (
                b"\xff" * 7 + bytes([number]),
                wire.REPORT.pack(1 << 40),
                HELLO * 2,
                wire.REPORT.pack(0) + b"\x80" * 8,
            ):
                with connected(port) as peer:
                    peer.sendall(words)
                    assert closed(peer)
        with cystore.open(tmp_path / "slave", **slaves(port)) as slave:
            wait_log(slave, wrote(master))
    told = [record.getMessage() for record in caplog.records if "slave 127.0.0.1:" in record.getMessage()]
    assert 4 < len(told) < 100, "400 connections"


# --------------------------------------------------------------------------------------------- rare lines


def test_lines_that_strangers_cause_are_few(monkeypatch, caplog):
    now_s = [1000.0]
    monkeypatch.setattr(repeated_errors, "monotonic_s", lambda: now_s[0])
    lines, log = repeated_errors.RareLines(), logging.getLogger("cystore")
    for number in range(50):
        lines.tell(log, logging.WARNING, "a", 2, "line %d", number)
        lines.tell(log, logging.DEBUG, "unseen", 1, "no level for it")
    assert [record.getMessage() for record in caplog.records] == ["line 0", "line 1"]
    for kind in range(50):
        lines.tell(log, logging.WARNING, f"kind {kind}", 1, "kind %d", kind)
    assert len(caplog.records) == 1 + repeated_errors.KINDS_MOST
    now_s[0] += repeated_errors.AGAIN_S
    caplog.clear()
    assert lines.tell(log, logging.WARNING, "a", 2, "line %d", 50)
    assert "lines of this sort were left out before" in caplog.text


def test_the_secret_is_asked_of_a_replicating_command(tmp_path, port, secret):
    """`cystore replicate` asks the master before it makes a store."""
    from cystore.ha.link.call import ask_master

    with cystore.open(tmp_path / "master", **proving(port, secret)) as master:
        served(port)
        config = cystore.StoreConfig(**secret)
        hello = ask_master(config, f"127.0.0.1:{port}")
        assert hello is not None and hello.file_bytes == master.settings.mapped_file_size_commit_log_bytes
        with pytest.raises(cystore.ReplicationError, match="the master asks for a secret"):
            ask_master(cystore.StoreConfig(), f"127.0.0.1:{port}")
    assert Path(tmp_path / "master").exists()
