"""Other users: processes of theirs, for tests that run as root."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.process import Process
from tests.support.small_stores import SETTINGS

ALICE, BOB, EVE = 54_001, 54_002, 54_003  # users and their private groups
TEAM = 54_100  # alice's and bob's
NEEDS_ROOT = "only root can be other users"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason=NEEDS_ROOT)

# What is imported late is imported first: the other user may not be able to read this user's Python.
BECOME = """
import logging, os, tempfile, cystore, cystore.cli
def put(root, **more):
    with cystore.open(root, **settings, **more) as store:
        return store.put("T", b"by %d" % user).queue_offset
def bodies(root, **more):
    with cystore.open(root, **settings, **more) as store:
        return [bytes(m.body).decode() for m in store.get("T", 0, 0).messages]
def command(*arguments):
    try:
        return cystore.cli.main(arguments)
    finally:
        logging.getLogger("cystore").handlers.clear()
with tempfile.TemporaryDirectory() as folder:
    put(folder)
    [command(name, folder, *more) for name, *more in commands]
try:
    put("/proc/none")
except cystore.StoreError:
    pass
os.umask(umask)
os.setgroups(groups)
os.setresgid(user, user, user)
os.setresuid(user, user, user)
"""
COMMANDS = [["info"], ["dump"], ["verify"], ["query", "T", "no-key"], ["doctor"]]


class User(Process):
    """A process of another user."""

    def __init__(
        self, user: int, *groups: int, umask: int = 0o022, environment: dict[str, str] | None = None
    ) -> None:
        super().__init__(environment)
        self.do(BECOME, user=user, groups=[user, *groups], umask=umask, settings=SETTINGS, commands=COMMANDS)


@contextlib.contextmanager
def common_place() -> Iterator[Path]:
    """A folder that every user can get to and only this one can write to. Not below pytest's, which each run closes
    anew."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)
