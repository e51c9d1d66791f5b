"""Goal: a peer that is wrong, silent or a stranger costs a connection and nothing else; secret and TLS keep strangers
out. Method: sockets that say what no peer says, beside a slave that follows; a certificate authority made here."""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import subprocess
import time
from pathlib import Path

import pytest

import cystore
from cystore.ha.connection import DIGEST_BYTES_MAX, DIGESTS_MAX
from cystore.ha.copied_log import CopiedLog
from cystore.ha.link import call, wire
from cystore.ha.master import SLAVES_MAX, Master
from cystore.ha.slave import Slave
from tests.support.ha.ha_pair import (
    check_equal,
    fill,
    free_port,
    log_bytes,
    masters,
    slaves,
    until,
    wait_log,
    wrote,
)

SECRET = "a secret of more than sixteen bytes"


@pytest.fixture
def port() -> int:
    return free_port()


def closed(peer: socket.socket) -> bool:
    """Whether the other side ended the connection, once it did. It may go on sending heartbeats."""
    peer.settimeout(20)
    until_s = time.monotonic() + 20
    with contextlib.suppress(ConnectionError):
        while peer.recv(1 << 16):
            if time.monotonic() > until_s:
                return False
    return True


WRONG = {
    "an offset beyond the log": wire.REPORT.pack(1 << 40),
    "a word that there is not": wire.REPORT.pack(-77),
    "a digest of too much": wire.REPORT.pack(wire.DIGEST) + wire.RANGE.pack(0, 1 << 30),
    "a digest backwards": wire.REPORT.pack(wire.DIGEST) + wire.RANGE.pack(10, 3),
    "an offset that goes back": wire.REPORT.pack(91) + wire.REPORT.pack(90),
    "a proof without a secret": wire.REPORT.pack(wire.PROOF) + bytes(64),
    "more digests than a slave needs": wire.REPORT.pack(wire.HELLO)
    + (DIGESTS_MAX + 1) * (wire.REPORT.pack(wire.DIGEST) + wire.RANGE.pack(0, 91)),
    "digests of too many bytes": wire.REPORT.pack(wire.HELLO)
    + (DIGEST_BYTES_MAX // wire.DIGEST_RANGE_MAX + 1)
    * (wire.REPORT.pack(wire.DIGEST) + wire.RANGE.pack(0, wire.DIGEST_RANGE_MAX)),
    "greetings": 2 * wire.REPORT.pack(wire.HELLO),
    "noise": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + bytes(range(128, 160)),
}


@pytest.mark.parametrize("older", ["master", "slave"])
def test_a_peer_of_an_earlier_release_follows_and_is_followed(tmp_path, port, monkeypatch, older):
    """Its greeting names no home and no facts; its slave asks for none. So the log follows, and nothing else does."""
    if older == "master":
        known, whole = (
            ("store_id", "min_physical_offset", "wrote", "file_bytes", "nonce", "epoch"),
            wire.asdict,
        )
        kept = lambda words: {k: v for k, v in whole(words).items() if k in known}  # noqa: E731
        monkeypatch.setattr(wire, "asdict", kept)
    else:
        monkeypatch.setattr(Slave, "_ask_facts", lambda *_: None)
    with (
        cystore.open(tmp_path / "master", **masters(port)) as master,
        cystore.open(tmp_path / "slave", **slaves(port)) as slave,
    ):
        fill(master, 30)
        master.groups.commit("g", "T0", 0, 3)
        wait_log(slave, wrote(master))
        wait_log(slave, master.put("T0", b"x", flush="replicated").physical_offset)
        check_equal(master, slave)
        assert slave.groups.names() == []
        assert slave.wrote_position == wrote(master), "no bound"


@pytest.mark.parametrize("words", WRONG.values(), ids=WRONG)
def test_a_slave_that_says_nonsense_is_let_go(tmp_path, port, words):
    settings = masters(port, ha_housekeeping_interval_ms=86_400_000)
    with cystore.open(tmp_path / "master", **settings) as master:
        fill(master, 20)
        with cystore.open(tmp_path / "slave", **slaves(port)) as slave:
            wait_log(slave, wrote(master))
            with socket.create_connection(("127.0.0.1", port), 20) as peer:
                peer.sendall(words)
                assert closed(peer)
            fill(master, 20, start=20)
            wait_log(slave, wrote(master))
            check_equal(master, slave)


def test_a_flood_and_a_slow_slave_do_not_stop_the_others(tmp_path, port):
    settings = masters(port, ha_housekeeping_interval_ms=1000)
    with (
        cystore.open(tmp_path / "master", **settings) as master,
        cystore.open(tmp_path / "slave", **slaves(port)) as slave,
        socket.create_connection(("127.0.0.1", port)) as silent,
    ):
        silent.sendall(b"\0\0\0")  # a part of a report, and no more
        with socket.create_connection(("127.0.0.1", port)) as flood:
            flood.sendall(wire.REPORT.pack(0))
            with contextlib.suppress(ConnectionError):
                for _ in range(200):
                    flood.sendall(wire.REPORT.pack(0) * 1000)
            fill(master, 50)
            wait_log(slave, wrote(master))
        assert closed(silent)
        check_equal(master, slave)


def test_strangers_that_say_nothing_keep_no_slave_out(tmp_path, port):
    settings = masters(port, ha_housekeeping_interval_ms=86_400_000)
    with cystore.open(tmp_path / "master", **settings) as master, contextlib.ExitStack() as stack:
        fill(master, 20)
        until(lambda: listens(port))
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(SLAVES_MAX + 5)
        ]
        with cystore.open(tmp_path / "slave", **slaves(port)) as slave:
            wait_log(slave, wrote(master))
            assert closed(silent[0])
            fill(master, 20, start=20)
            wait_log(slave, wrote(master))


def test_a_greeting_that_comes_byte_by_byte_ends(tmp_path, port):
    with socket.create_server(("127.0.0.1", port)) as wrong, cystore.open(tmp_path / "slave", **slaves(port)):
        wrong.settimeout(20)
        peer, _ = wrong.accept()
        with peer:
            peer.sendall(wire.HEADER.pack(wire.HELLO, 30_000))
            assert any(not takes(peer, b"{") for _ in range(200))


def takes(peer: socket.socket, byte: bytes) -> bool:
    """Whether the other side is there for one byte more; slow bytes are the fault."""
    select.select([], [], [], 0.1)
    try:
        peer.sendall(byte)
    except ConnectionError:
        return False
    return True


def test_a_slave_reports_no_more_than_it_was_sent(tmp_path, port):
    """The log's end is behind a blank as soon as the blank's first bytes come, and its master may have sent no more of
    it."""
    with cystore.open(tmp_path / "master", **masters(port)) as master:
        fill(master, 100)
        first = master.settings.mapped_file_size_commit_log_bytes
        last = [message for message in master.scan() if message.physical_offset < first][-1]
        sent = last.physical_offset + last.size_bytes + 8
        assert sent < first
        log, minimum = log_bytes(master.path, 0, sent), wire.Hello("x", 0, wrote(master), first)
    with (
        socket.create_server(("127.0.0.1", port)) as serving,
        cystore.open(tmp_path / "slave", **slaves(port)) as slave,
    ):
        serving.settimeout(20)
        peer, _ = serving.accept()
        with peer:
            peer.settimeout(20)
            peer.sendall(minimum.frame() + wire.HEADER.pack(0, sent) + log)
            wait_log(slave, first)
            reports: list[int] = []
            while reports.count(sent) < 2:  # reports are repeated while nothing comes
                reports.append(*wire.REPORT.unpack(peer.recv(wire.REPORT.size, socket.MSG_WAITALL)))
                assert reports[-1] <= sent


def test_a_silent_elected_master_is_not_taken_for_rocketmqs(tmp_path, port, monkeypatch, caplog):
    """A stopped process accepts connections and does not greet, as RocketMQ's master. Then readers saw what the elected
    master had not confirmed."""
    monkeypatch.setattr(call, "GREETING_S", 0.02)
    with cystore.open(tmp_path / "master", **masters(free_port())) as master:
        fill(master, 10)
        end, first = wrote(master), [message.physical_offset for message in master.scan()][5]
        log = log_bytes(master.path, 0, end)
        hello = wire.Hello(
            "x", 0, end, master.settings.mapped_file_size_commit_log_bytes, epoch=3, facts=True
        )
    confirmed = wire.HEADER.pack(wire.CONFIRMED, wire.REPORT.size) + wire.REPORT.pack(first)
    with (
        socket.create_server(("127.0.0.1", port)) as serving,
        cystore.open(tmp_path / "slave", **slaves(port)) as slave,
    ):
        serving.settimeout(20)
        with serving.accept()[0] as peer:
            peer.sendall(hello.frame() + wire.HEADER.pack(0, end) + log + confirmed)
            until(lambda: slave.wrote_position == first)
        with serving.accept()[0] as silent:
            assert closed(silent)
        assert wrote(slave) == end and slave.wrote_position == first
        until(lambda: "does not answer a greeting, and it was elected" in caplog.text)


def test_a_master_that_greets_slowly_is_waited_for_beside_other_hosts(tmp_path, port, monkeypatch):
    """The wait for a greeting grew with one host alone; slowness is the fault."""
    monkeypatch.setattr(call, "GREETING_S", 0.1)
    greet = Master._hello

    def slowly(self: Master, nonce: str) -> wire.Hello:
        select.select([], [], [], 0.15)
        return greet(self, nonce)

    monkeypatch.setattr(Master, "_hello", slowly)
    hosts = f"127.0.0.1:{port},127.0.0.1:{free_port()}"
    with (
        cystore.open(tmp_path / "master", **masters(port)) as master,
        cystore.open(tmp_path / "slave", **slaves(port, ha_master_address=hosts)) as slave,
    ):
        fill(master, 10)
        wait_log(slave, wrote(master))


FRAMES = {
    "another place": wire.HEADER.pack(64, 8) + bytes(8),
    "a length below 0": wire.HEADER.pack(0, -5),
    "a length beyond all": wire.HEADER.pack(0, 2_000_000_000),
    "zeros": wire.HEADER.pack(0, 64) + bytes(64),
    "a huge record": wire.HEADER.pack(0, 64) + (2_000_000_000).to_bytes(4, "big") + b"CYS1" + bytes(56),
    "noise": bytes(range(200)),
}


@pytest.mark.parametrize("frames", FRAMES.values(), ids=FRAMES)
def test_a_master_that_says_nonsense_changes_nothing(tmp_path, port, frames, caplog):
    caplog.set_level(logging.ERROR)
    with socket.create_server(("127.0.0.1", port)) as wrong:
        with cystore.open(tmp_path / "slave", **slaves(port)) as slave:
            wrong.settimeout(20)
            peer, _ = wrong.accept()
            with peer:
                hello = wire.Hello("x", 0, 0, slave.settings.mapped_file_size_commit_log_bytes)
                peer.sendall(hello.frame() + frames)
                assert closed(peer)
            assert wrote(slave) == 0
        wrong.close()
        with cystore.open(tmp_path / "master", **masters(port)) as master:
            fill(master, 50)
            with cystore.open(tmp_path / "slave", services="all") as slave:
                wait_log(slave, wrote(master))
                check_equal(master, slave)


def test_a_slave_with_other_files_is_refused(tmp_path, port, caplog):
    with cystore.open(tmp_path / "master", **masters(port)) as master:
        fill(master, 20)
        other = slaves(port, mapped_file_size_commit_log_bytes=32 * 1024)
        with cystore.open(tmp_path / "slave", **other) as slave:
            until(lambda: "mapped_file_size_commit_log_bytes=16384" in caplog.text)
            assert wrote(slave) == 0


@pytest.fixture
def secret(tmp_path) -> str:
    path = tmp_path / "secret"
    path.write_text(SECRET)
    path.chmod(0o600)
    return str(path)


def test_both_sides_prove_that_they_know_the_secret(tmp_path, port, secret, caplog):
    with cystore.open(tmp_path / "master", **masters(port, ha_secret_file=secret)) as master:
        fill(master, 20)
        with cystore.open(tmp_path / "slave", **slaves(port, ha_secret_file=secret)) as slave:
            wait_log(slave, wrote(master))
            check_equal(master, slave)
        with cystore.open(tmp_path / "stranger", **slaves(port)) as stranger:
            until(lambda: "the master asks for a secret" in caplog.text)
            assert wrote(stranger) == 0
        other = tmp_path / "other"
        other.write_text("another secret of sixteen bytes")
        other.chmod(0o600)
        with cystore.open(tmp_path / "guess", **slaves(port, ha_secret_file=str(other))) as guess:
            until(lambda: "the slave does not know the secret" in caplog.text)
            assert wrote(guess) == 0
        with socket.create_connection(("127.0.0.1", port)) as peer:
            peer.sendall(wire.REPORT.pack(0))
            assert closed(peer)


def test_a_master_without_the_secret_is_not_believed(tmp_path, port, secret, caplog):
    with cystore.open(tmp_path / "master", **masters(port)) as master:
        fill(master, 20)
        with cystore.open(tmp_path / "slave", **slaves(port, ha_secret_file=secret)) as slave:
            until(lambda: "the master asks for no secret" in caplog.text)
            assert wrote(slave) == 0


def test_a_secret_that_others_may_read_is_refused(tmp_path, port, caplog):
    path = tmp_path / "secret"
    path.write_text(SECRET)
    path.chmod(0o644)
    with cystore.open(tmp_path / "master", **masters(port, ha_secret_file=str(path))):
        until(lambda: "chmod 600" in caplog.text)
        with pytest.raises(ConnectionError):
            socket.create_connection(("127.0.0.1", port))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory) -> Path:
    """An authority, and a certificate of it for localhost."""
    folder = tmp_path_factory.mktemp("tls")
    made = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj"
    for command in (
        f"{made} /CN=authority -keyout ca.key -out ca.pem",
        (
            "openssl req -newkey rsa:2048 -nodes -subj /CN=localhost -addext subjectAltName=DNS:localhost -keyout "
            "key.pem -out asked.pem"
        ),
        "openssl x509 -req -in asked.pem -CA ca.pem -CAkey ca.key -days 2 -copy_extensions copy -out certificate.pem",
        f"{made} /CN=other -keyout other.key -out other.pem",
    ):
        subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    return folder


def test_tls_carries_the_log_and_checks_the_certificate(tmp_path, port, secret, certificates, caplog):
    served = {
        "ha_tls_certificate_file": str(certificates / "certificate.pem"),
        "ha_tls_key_file": str(certificates / "key.pem"),
        "ha_secret_file": secret,
    }
    trusts = {"ha_tls_ca_file": str(certificates / "ca.pem"), "ha_secret_file": secret}
    with cystore.open(tmp_path / "master", **masters(port, **served)) as master:
        fill(master, 200)
        with cystore.open(
            tmp_path / "slave", **slaves(port, ha_master_address=f"localhost:{port}", **trusts)
        ) as slave:
            wait_log(slave, wrote(master))
            fill(master, 100, start=200)
            wait_log(slave, wrote(master))
            check_equal(master, slave)
        for name, more, told in (
            ("other", {"ha_tls_ca_file": str(certificates / "other.pem")}, "CERTIFICATE_VERIFY_FAILED"),
            ("name", {"ha_master_address": f"127.0.0.1:{port}"}, "IP address mismatch"),
        ):
            settings = slaves(port, **{"ha_master_address": f"localhost:{port}", **trusts, **more})
            with cystore.open(tmp_path / name, **settings) as slave:
                until(lambda told=told: told in caplog.text)
                assert wrote(slave) == 0
        with socket.create_connection(("127.0.0.1", port)) as plain:
            plain.sendall(wire.REPORT.pack(0) * 8)
            assert closed(plain)


def test_tls_carries_long_frames_in_few_appends(tmp_path, port, certificates, monkeypatch):
    """Seen: each 16 KiB were a call to encrypt and an append, which took two thirds of the time."""
    long = {"mapped_file_size_commit_log_bytes": 8 << 20}
    served = {
        "ha_tls_certificate_file": str(certificates / "certificate.pem"),
        "ha_tls_key_file": str(certificates / "key.pem"),
    }
    trusts = {"ha_tls_ca_file": str(certificates / "ca.pem"), "ha_master_address": f"localhost:{port}"}
    counts: list[int] = []
    took = CopiedLog.took
    monkeypatch.setattr(CopiedLog, "took", lambda log, count: [counts.append(count), took(log, count)][1])
    with cystore.open(tmp_path / "master", **{**masters(port, **served), **long}) as master:
        for number in range(60):
            master.put("T", bytes([number]) * 100_000)
        with cystore.open(tmp_path / "slave", **{**slaves(port, **trusts), **long}) as slave:
            wait_log(slave, wrote(master))
            check_equal(master, slave)
            end = wrote(master)
    received = list(filter(None, counts))
    assert sum(received) == end and len(received) < end / (16 << 10)


def test_a_port_beyond_this_host_needs_tls(tmp_path, port, caplog):
    with cystore.open(tmp_path / "master", **masters(port, ha_listen_host="0.0.0.0", ha_allow_plain=False)):
        until(lambda: "no TLS on a connection beyond this host" in caplog.text)
        with pytest.raises(ConnectionError):
            socket.create_connection(("127.0.0.1", port))
    with cystore.open(tmp_path / "master", **masters(port, ha_listen_host="0.0.0.0", ha_allow_plain=True)):
        until(lambda: listens(port))


def listens(port: int) -> bool:
    with contextlib.suppress(ConnectionError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False
