"""A slave's connection to its master: connects, sends a greeting, and exchanges proofs of the secret."""

from __future__ import annotations

import secrets
import select
import socket
import ssl

from cystore.clock import monotonic_s
from cystore.config import StoreConfig
from cystore.errors import ReplicationError
from cystore.ha.link import wire
from cystore.ha.link.address import address_of
from cystore.ha.link.secret import check_unencrypted, read_secret, slaves_context, wrapped
from cystore.ha.link.sockets import ours
from cystore.ha.link.wire import Hello

CONNECT_S = 5.0
GREETING_S = 1.0  # RocketMQ's master never answers a greeting


class MasterCall:
    """One connection at a time to one master. Raises OSError when the connection is over, ReplicationError if the peer
    is no master or does not know the secret."""

    def __init__(
        self, config: StoreConfig, master: str, wait_s: float = CONNECT_S, greeting_s: float | None = None
    ) -> None:
        self._config, self.master, self._wait_s = config, master, wait_s
        self._secret, self._context = read_secret(config), slaves_context(config)
        self.greeting_s = GREETING_S if greeting_s is None else greeting_s  # the next wait for a greeting
        self.socket: socket.socket | None = None

    def close(self) -> None:
        connection, self.socket = self.socket, None
        if connection is not None:
            connection.close()

    def open(self) -> Hello | None:
        """Connects; returns the greeting of a cystore master, None for RocketMQ's master."""
        host, port = address_of(self.master)
        plain = self.socket = ours(socket.create_connection((host, port), self._wait_s))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._context is None:
            check_unencrypted(self._config, plain, peer=True)
        connection = self.socket = wrapped(self._context, plain, host=host)
        connection.settimeout(self._wait_s)
        if isinstance(connection, ssl.SSLSocket):
            connection.do_handshake()
        self.send(wire.REPORT.pack(wire.HELLO))
        if not readable(connection, self.greeting_s):
            # A slow cystore master answers later, between frames; that ends the connection. So wait longer next time.
            self.greeting_s = min(2 * self.greeting_s, self._config.ha_housekeeping_interval_ms / 1000)
            if self._secret is not None:
                raise ReplicationError(
                    "the master does not answer a greeting, so it cannot prove that it knows the secret"
                )
            return None
        kind, data = self._frame()
        self.greeting_s = GREETING_S
        if kind == wire.CHALLENGE:
            self._prove(data)
            return Hello.parse(self.talk(wire.HELLO))
        if kind != wire.HELLO:
            raise ReplicationError(f"the master answered {kind} to {wire.HELLO}")
        hello = Hello.parse(data)
        if hello.nonce:  # a master of an earlier release
            self._prove(bytes.fromhex(hello.nonce))
        elif self._secret is not None:
            raise ReplicationError("the master asks for no secret: set its ha_secret_file too")
        return hello

    def send(self, data: bytes) -> None:
        if self.socket is None:
            raise ConnectionResetError("not connected")
        self.socket.sendall(data)

    def talk(self, kind: int) -> bytes:
        """Receives the master's answer of a kind."""
        answered, data = self._frame()
        if answered != kind:
            raise ReplicationError(f"the master answered {answered} to {kind}")
        return data

    def _frame(self) -> tuple[int, bytes]:
        """Receives a frame without log bytes: (kind, content)."""
        kind, size = wire.HEADER.unpack(self._exactly(wire.HEADER.size))
        wire.check_frame(kind, size)
        if kind >= 0:
            raise ReplicationError(f"the master sends its log from {kind} on before it was asked")
        return kind, self._exactly(size)

    def _exactly(self, count: int) -> bytes:
        """Receives `count` bytes. The time limit is for all of them, however slowly they arrive."""
        got, connection, until_s = bytearray(), self.socket, monotonic_s() + self._wait_s
        while len(got) < count:
            if connection is None or monotonic_s() >= until_s:
                raise TimeoutError(f"the master did not answer within {self._wait_s:g} s")
            piece = connection.recv(count - len(got))
            if not piece:
                raise ConnectionResetError("the master closed the connection")
            got += piece
        return bytes(got)

    def _prove(self, masters: bytes) -> None:
        """Each side proves to its peer that it knows the secret; `masters` is the master's nonce."""
        if self._secret is None:
            raise ReplicationError("the master asks for a secret: set ha_secret_file")
        mine = secrets.token_bytes(wire.NONCE_BYTES)
        self.send(wire.REPORT.pack(wire.PROOF) + mine + self._secret.proof("slave", masters, mine))
        if not self._secret.is_proof("master", masters, mine, self.talk(wire.PROOF)):
            raise ReplicationError("the master does not know the secret (ha_secret_file)")


def ask_master(config: StoreConfig, master: str) -> Hello | None:
    """The greeting of a master, for a command that makes a slave of it; None for RocketMQ's master. Raises OSError,
    ReplicationError."""
    call = MasterCall(config, master)
    try:
        return call.open()
    finally:
        call.close()


def readable(connection: socket.socket, timeout_s: float) -> bool:
    """Whether bytes arrive within a time."""
    if isinstance(connection, ssl.SSLSocket) and connection.pending():
        return True
    return bool(select.select([connection], [], [], timeout_s)[0])
