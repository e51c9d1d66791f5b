"""Goal: docs/production.md is true from its first line to its last. Method: its own app, unit file and commands, in
its order, with a real Redis and real workers. Only the places differ: paths, the user, and the supervisor."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from celery import states

import cystore
from cystore.celery import history
from cystore.celery.base import events
from cystore.celery.base.store_watch import EXIT_CODE, HANDOVER_EXIT_CODE
from cystore.celery.stores import close_shared
from tests.celery.conftest import PATIENCE_S, ROOT, fleet_in, wait_until
from tests.structure.test_docs import Block, blocks
from tests.support.celery import work
from tests.support.process import Process
from tools.processes import ends_with_us
from tools.redis_server import redis_server

PAGE, UPGRADE = ROOT / "docs" / "production.md", ROOT / "docs" / "upgrade.md"
TASKS = (
    "\n\n@app.task\ndef add(x, y):\n    return x + y\n\n\n"
    "app.conf.beat_schedule = {'each second': {'task': 'shop.add', 'schedule': 1.0, 'args': (1, 1)}}\n"
)
SUPERVISOR = ("systemctl stop shop-worker", "systemctl start shop-worker")


class Host:
    """A host as the page describes it, in a folder. It has the page's app as the module `shop`, and the page's unit."""

    def __init__(self, folder: Path, broker_url: str) -> None:
        self.folder = folder
        self.results = folder / "shop" / "results"
        self.places = {
            "/var/lib/shop": str(folder / "shop"),
            "/backup/results-2026-01-31": f"{folder}/backup/results-$(date +%F)",
            "/backup": str(folder / "backup"),
            "redis://localhost:6379/0": broker_url,
            "/opt/shop/venv/bin/": f"{folder}/bin/",
            "runuser -u shop -- ": "",
        }
        for name in ("shop", "backup", "bin"):
            (folder / name).mkdir()
        for name in ("celery", "cystore"):
            program = folder / "bin" / name
            program.write_text(f'#!/bin/sh\nexec {sys.executable} -m {name} "$@"\n')
            program.chmod(0o755)
        self.page = blocks(PAGE.read_text())
        app = next(b for b in self.page if b.language == "python" and "import SERVER" in b.source)
        (folder / "shop.py").write_text(self.here(app.source) + TASKS)
        unit = configparser.ConfigParser(strict=False, interpolation=None)
        unit.read_string(next(b for b in self.page if b.language == "ini").source)
        command = self.here(unit["Service"]["ExecStart"]).replace("%H", socket.gethostname())
        self.command = [*shlex.split(command), "--loglevel", "INFO"]
        self.environment = {
            **os.environ,
            "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}",
            "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        }
        self.worker: subprocess.Popen[bytes] | None = None
        self.log = folder / "worker.log"

    def here(self, text: str) -> str:
        """Text of the page with the places of this host."""
        return re.sub("|".join(map(re.escape, self.places)), lambda found: self.places[found[0]], text)

    def block(self, word: str) -> Block:
        """The page's commands that contain a word."""
        (found,) = (b for b in self.page if b.language == "sh" and word in b.source)
        return found

    def run(self, line: str, code: int = 0) -> str:
        """A command as a user types it; its output."""
        done = subprocess.run(
            ["bash", "-c", self.here(line)],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == code, (line, done.stdout, done.stderr)
        return done.stdout

    def python(self, program: str) -> str:
        """A program beside the app, as a web tier has it; what it prints."""
        return self.run(f"{shlex.quote(sys.executable)} -c {shlex.quote(program)}").strip()

    def start(self) -> None:
        """What `systemctl start` does."""
        before = self.ready()
        with open(self.log, "ab") as output:
            self.worker = subprocess.Popen(
                ends_with_us(self.command),
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        wait_until(lambda: self.ready() > before, f"the worker is ready:\n{self.log.read_text()}")

    def ready(self) -> int:
        return self.log.read_text().count(" ready.") if self.log.exists() else 0

    def stop(self) -> None:
        """What `systemctl stop` does with KillMode=mixed."""
        if self.worker is not None and self.worker.poll() is None:
            self.worker.terminate()
            self.worker.wait(PATIENCE_S)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with redis_server(own=True) as redis:
        host = Host(tmp_path, redis.broker_url)
        try:
            yield host
        finally:
            host.stop()
            close_shared()


SEND = "import shop; r = shop.add.delay(20, 22); print(r.id, r.get(timeout=60))"
AWAY = """
try:
    away = not shop.app.AsyncResult("unknown").state
except cystore.StoreMovedError:
    away = True
away
"""
LOOK = "import shop; print(shop.app.AsyncResult({!r}).state)"


def test_the_first_day(host):
    # User and directory. The app has create=false: nobody makes a second, empty store.
    missing = host.run("celery -A shop worker --concurrency=1 2>&1", code=1)
    assert str(host.results) in missing and not host.results.exists()
    useradd, create = host.block("useradd").source.splitlines()
    assert useradd.startswith("useradd ") and "--home-dir /var/lib/shop" in useradd
    host.run(create)
    host.start()
    assert host.python(SEND).endswith(" 42")

    # Retention and disk. The command alone lasts until the next process of the app, as the page says.
    shown, shorter, clean, info = host.block("roll_interval_h").source.splitlines()
    assert "file_reserved_time_h" in host.run(shown)
    host.run(shorter)
    assert reserved_h(host) == 24
    host.python(SEND)
    assert reserved_h(host) == 72, "an app without the setting makes the retention longer"
    short = "import shop; shop.app.conf.result_backend_transport_options = {**shop.SERVER, **{%r: 24}}; "
    host.run(shorter)
    host.python(short % "file_reserved_time_h" + SEND.removeprefix("import shop; "))
    assert reserved_h(host) == 24, "an app with the setting leaves it"
    host.run(clean)
    assert "segments" in host.run(info)

    # Duties: what to monitor, with --json.
    store = json.loads(host.run("celery -A shop cystore status --json"))["store"]
    assert store["duties"].keys() >= {"clean_expired"} and "dispatch_behind_bytes" in store
    facts = json.loads(host.run("cystore info /var/lib/shop/results --json"))
    assert facts.keys() >= {"disk_free_bytes", "holes", "needs", "positions"}
    host.run("celery -A shop cystore unfinished --older-than 1h", code=1)

    # Unit file: a worker whose store is away ends with 74, and makes no other one.
    host.results.rename(host.results.with_name("moved"))
    assert host.worker.wait(PATIENCE_S) == EXIT_CODE == 74
    assert not host.results.exists()


def sent(host: Host) -> int:
    """The SENT events in the store that is at the path now."""
    with cystore.open(host.results, read_only=True) as store:
        return sum(m.topic == events.EVENTS and m.tags == events.SENT for m in store.scan())


def test_backup_restore_and_the_next_upgrade(host):
    """Seen: a web process that stayed up over the restore said PENDING for ever, and its `.get()` timed out; the SENT
    events of beat were lost."""
    host.run("celery -A shop cystore create")
    host.start()
    kept, answer = host.python(SEND).split()
    assert answer == "42"
    with Process(host.environment, fresh=True) as web, beat_of(host) as beat:
        web.do("import cystore, shop, threading")
        assert web.do("shop.add.delay(20, 22).get(timeout=60)") == 42
        before = sent(host)
        wait_until(lambda: sent(host) > before, "beat sends")
        restore_a_backup(host, kept, web)
        assert beat.poll() is None
        before = sent(host)
        wait_until(lambda: sent(host) > before, "beat's events are in the restored store")

    # Upgrade: the worker leaves between two tasks, and the supervisor starts it again.
    host.run("cystore handover /var/lib/shop/results")
    assert host.worker.wait(PATIENCE_S) == HANDOVER_EXIT_CODE == 75
    host.start()
    assert host.python(SEND).endswith(" 42")


@contextmanager
def beat_of(host: Host) -> Iterator[subprocess.Popen[bytes]]:
    """Beat of the page's app, which sends a task each second."""
    command = [str(host.folder / "bin" / "celery"), "-A", "shop", "beat", "--pidfile", "", "-s", "schedule"]
    with open(host.folder / "beat.log", "wb") as output:
        beat = subprocess.Popen(
            ends_with_us(command), cwd=host.folder, env=host.environment, stdin=subprocess.DEVNULL,
            stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    try:
        yield beat
    finally:
        os.killpg(beat.pid, signal.SIGKILL)
        beat.wait()


def restore_a_backup(host: Host, kept: str, web: Process) -> None:
    """Each command of the page; the supervisor is this test. Beat and a web process stay up."""

    # Backup, while everything runs.
    backup, verify = host.block("cystore verify").source.splitlines()
    host.run(backup)
    host.run(verify)
    host.run(host.block("--pack").source)
    later, _ = host.python(SEND).split()

    # Restore.
    home = (host.results / "config" / "storeId").read_text()
    stop, move, restore, start = host.block("results.broken").source.splitlines()
    assert (stop, start) == SUPERVISOR
    host.stop()
    assert host.worker is not None and host.worker.returncode == 0
    web.do("r = shop.add.delay(1, 2); got = []")
    web.do("waits = threading.Thread(target=lambda: got.append(r.get(timeout=300)))")
    web.do("waits.start()")
    host.run(move)
    wait_until(lambda: web.do(AWAY), "the web process notices")
    host.run(restore)
    assert web.do(f"shop.app.AsyncResult({kept!r}).state") == states.SUCCESS
    web.do("shop.app.backend.store_result('stored', 1, 'SUCCESS')")
    assert host.python(LOOK.format("stored")) == states.SUCCESS, "the web process stores where others read"
    host.start()
    web.do("waits.join()")
    assert web.do("got") == [3], "a wait that was begun before the restore"
    assert web.do("shop.add.delay(20, 22).get(timeout=60)") == 42
    assert (host.results / "config" / "storeId").read_text() == home
    assert host.python(LOOK.format(kept)) == states.SUCCESS
    assert host.python(LOOK.format(later)) == states.PENDING, "it ended after the backup"
    assert host.python(SEND).endswith(" 42")


def test_the_page_about_upgrades(host):
    """docs/upgrade.md: its commands, with a worker that the supervisor starts again, and a program that has the store
    open."""
    wait, info, cancel = next(
        b for b in blocks(UPGRADE.read_text()) if b.language == "sh"
    ).source.splitlines()
    host.run("celery -A shop cystore create")
    host.start()
    with Process(host.environment, fresh=True) as program:
        program.do("import cystore; store = cystore.open(path)", path=str(host.results))
        asks = subprocess.Popen(
            ["bash", "-c", host.here(wait)],
            cwd=host.folder,
            env=host.environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert host.worker is not None and host.worker.wait(PATIENCE_S) == HANDOVER_EXIT_CODE
        wait_until(lambda: program.do("store.asked_to_leave()"), "the program is asked")
        assert host.run(info).startswith("HANDOVER: ")
        host.start()  # with the same layout: it stays
        assert host.python(SEND).endswith(" 42")
        program.do("store.close()")
        text, _ = asks.communicate(timeout=PATIENCE_S)
        assert asks.returncode == 0 and "all processes have left" in text
        program.do("store = cystore.open(path)")
        host.run(f"{wait.split('--wait')[0]} --wait 0", code=1)
        assert host.run(info).startswith("HANDOVER: ")
        assert "cancelled" in host.run(cancel)
        assert not host.run(info).startswith("HANDOVER: ")
        program.do("store.close()")


def reserved_h(host: Host) -> int:
    with cystore.open(host.results, read_only=True) as store:
        return store.settings.file_reserved_time_h


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("payload", "log_bytes"), [(None, 2_100), ("message", 2_900)])
def test_a_task_takes_the_space_that_the_page_says(tmp_path, payload, log_bytes):
    page = PAGE.read_text()
    assert "about 2.1 KB of log" in page and "once more: 0.8 KB" in page
    with fleet_in(tmp_path, cystore_lifecycle_payload=payload) as fleet:
        fleet.start("--concurrency=1")
        add, store = fleet.task(work.add), fleet.backend.store
        assert add.delay(1, 2).get(timeout=PATIENCE_S) == 3
        begin = ended(store, 1)
        for number in range(20):
            assert add.delay(number, 2).get(timeout=PATIENCE_S) == number + 2
        taken = (ended(store, 21) - begin) / 20
        assert log_bytes * 0.85 < taken < log_bytes * 1.15, taken


def ended(store: cystore.MessageStore, count: int) -> int:
    """The end of the log when so many tasks have logged their end."""
    wait_until(lambda: len(list(history.events(store, states=["SUCCEEDED"]))) == count, "the ends are logged")
    return store.wrote_position
