"""Sockets that a forked child closes. Otherwise the peer would not notice that the parent has ended."""

from __future__ import annotations

import contextlib
import os
import socket
import weakref

_open: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def ours(made: socket.socket) -> socket.socket:
    """The same socket; a forked child closes its copy."""
    _open.add(made)
    return made


def is_loopback(made: socket.socket, *, peer: bool) -> bool:
    """Whether the address of the peer (`peer`), or of this end, is a loopback address."""
    host = (made.getpeername() if peer else made.getsockname())[0]
    return host.startswith(("127.", "::ffff:127.")) or host == "::1"


def _forked() -> None:
    for one in list(_open):
        with contextlib.suppress(OSError):
            one.close()


os.register_at_fork(after_in_child=_forked)
