"""Goal: whatever is in a store's files, a command ends with its exit code and at most one line of error that names a
path: no traceback, no hang, no dead interpreter, and what changes nothing changes nothing. Method: many stores with
random damage, all commands on each, in one process that must live to the end."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest

import cystore
from tests.support.cli import stores
from tests.support.cli.command import settings

SMALLER = {
    "mapped_file_size_commit_log_bytes": 16384,
    "mapped_file_size_consume_queue_bytes": 400,
    "max_hash_slot_num": 50,
    "max_index_num": 200,
}
LOOKING = (
    ["info"],
    ["dump", "--json"],
    ["query", "alpha", "group-4"],
    ["tail", "alpha"],
    ["verify"],
    ["recover", "--dry-run"],
)
MENDING = (["recover"], ["rebuild"])
NUMBERS = (b"\xff" * 8, bytes(8), b"\x7f" + b"\xff" * 7, b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\0\0\0\1")


def spoil(path, rng):
    """Does something to a file, and says what."""
    how = rng.choice(["flip", "flip", "flip", "zero", "random", "number", "cut", "grow", "remove", "folder"])
    size = path.stat().st_size
    if how in ("remove", "folder"):
        path.unlink()
        if how == "folder":
            path.mkdir()
    elif how == "cut":
        with open(path, "r+b") as file:
            file.truncate(rng.randint(0, size))
    elif how == "grow":
        with open(path, "r+b") as file:
            file.truncate(size + rng.randint(1, 5000))
    else:
        data = bytearray(path.read_bytes())
        at = rng.randrange(max(1, min(size, rng.choice([64, 512, size]))))
        bytes_ = {
            "flip": bytes([(data[at] if data else 0) ^ (1 << rng.randrange(8))]),
            "zero": bytes(rng.randint(1, 600)),
            "random": rng.randbytes(rng.randint(1, 100)),
            "number": rng.choice(NUMBERS),
        }[how]
        data[at : at + len(bytes_)] = bytes_
        path.write_bytes(data[:size])
    return how


# Runs [[words, ...], ...] and writes [exit code, standard error] of each; a traceback is the error's text.
RUNNER = """
import contextlib, io, json, logging, sys, traceback
from cystore.cli import main
for line in sys.stdin:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = main(json.loads(line))
        except BaseException:
            status = traceback.format_exc()
    logging.getLogger("cystore").handlers.clear()
    print(json.dumps([status, err.getvalue()]), flush=True)
"""


class Runner:
    """Commands in one process."""

    def __init__(self, command):
        self._process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-c", RUNNER],
            env=command.environment, cwd=command.folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, *words):
        self._process.stdin.write(json.dumps([str(word) for word in words]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the interpreter ended with {self._process.wait()} at {words}"
        return json.loads(line)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(60)


def assert_ends_well(runner, path, words, done):
    name, *more = words
    status, error = runner.run(name, path, *more, *settings(SMALLER))
    told = f"{words} after {done}: {status}\n{error}"
    assert status in (0, 1, 2), told
    problems = [
        line for line in error.splitlines() if line.startswith(f"cystore {name}: error: ")
    ]  # what is logged begins with `cystore: `
    assert len(problems) == (1 if status == 2 else 0), told
    assert all("[path " in line for line in problems), told


@pytest.mark.sampled(1)
@pytest.mark.parametrize("part", range(3))
def test_random_damage(command, tmp_path, rng, part):
    sound, path = tmp_path / "sound", tmp_path / "store"
    with cystore.open(sound, **SMALLER) as store:
        for start in range(0, 200, 10):
            store.put_many(stores.messages(10, start))
    names = sorted(str(p.relative_to(sound)) for p in sound.rglob("*") if p.is_file())
    with Runner(command) as runner:
        for _ in range(8):
            shutil.copytree(sound, path)
            done = [(name, spoil(path / name, rng)) for name in rng.sample(names, rng.randint(1, 4))]
            if rng.random() < 0.3 and not (path / "abort").exists():
                (path / "abort").touch()
            before = stores.snapshot(path)
            for words in LOOKING:
                assert_ends_well(runner, path, words, done)
            assert stores.snapshot(path) == before, done
            for words in (rng.choice(MENDING), LOOKING[1]):
                assert_ends_well(runner, path, words, done)
            shutil.rmtree(path)
