"""`python -m benchmarks.celery.page`: how fast does `cystore web` answer on a log of a million tasks, and what does it
cost?

A log of so many tasks, four events each, is written as a fleet writes it. Then a server gets the requests of a person:
the first page, a task by its id or the beginning of one, lists by name, state and time, and texts that many tasks have,
that one of the oldest has, and that nobody has. A request takes until its last byte; the first page of a list has 50
tasks. A text that nobody has is searched page by page to the end of the log. Memory is the server's own (anonymous),
and its whole resident size with the pages of the log that it has mapped.

At last one process puts events while 50 watchers listen to `/events`, in turn with nobody: the ratio is of the medians.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit
from uuid import uuid4

import cystore
from cystore import Message, MessageStore
from cystore.celery.base import events, records
from tools.browser import Browser, program
from tools.processes import ends_with_us

ROOT = Path(__file__).resolve().parents[2]
NAMES = 20
STEP = 1_000
WATCHERS, PUTS, TURNS = 50, 20_000, 5
NEEDLE = "needle-7c1f"
TIMEOUT_S = 600.0


def id_of(number: int) -> str:
    """The id of a task, as random as Celery's, and the same in each run."""
    scattered = number * 0x9E3779B97F4A7C15 % (1 << 64)
    return f"{scattered >> 32:08x}-{scattered >> 16 & 0xFFFF:04x}-4{scattered & 0xFFF:03x}-8000-{number:012x}"


def life_of(number: int) -> list[Message]:
    """The events of one task; every hundredth fails."""
    task_id, name = id_of(number), f"shop.tasks.task_{number % NAMES}"
    args = f"({number}, {NEEDLE!r})" if number == 100 else f"({number}, 'customer-{number % 9973}')"
    common = {"worker": f"celery@host{number % 4}", "pid": 1000 + number % 8}
    failed = number % 100 == 99
    told: list[tuple[str, dict[str, Any]]] = [
        (
            events.SENT,
            {"args": args, "kwargs": "{}", "queue": "celery", "origin": "gen1@web", "exchange": ""},
        ),
        (events.RECEIVED, {"args": args, "kwargs": "{}", "queue": "celery", "worker": common["worker"]}),
        (events.STARTED, common),
        (
            events.FAILED if failed else events.SUCCEEDED,
            {
                **common,
                "runtime": number % 997 / 1000,
                "exception": f"ValueError('no customer {number % 9973}')" if failed else None,
                "traceback": "Traceback (most recent call last):\n  ...\n" if failed else None,
            },
        ),
    ]
    return [
        Message(
            topic=events.EVENTS,
            body=events.body_of(details),
            queue_id=records.queue_of(name),
            keys=events.keys_of(task_id, task_id, None),
            tags=event,
            properties={"task": name},
        )
        for event, details in told
    ]


def write(path: Path, tasks: int) -> None:
    """A store with so many tasks."""
    with cystore.open(path) as store:
        for begin in range(0, tasks, STEP):
            lives = [life_of(number) for number in range(begin, min(begin + STEP, tasks))]
            store.put_many([message for life in lives for message in life])
            if sys.stderr.isatty():
                print(f"\r{begin + len(lives):,} tasks", end="", file=sys.stderr, flush=True)
        store.catch_up()
    if sys.stderr.isatty():
        print(file=sys.stderr)


@contextmanager
def server(path: Path) -> Iterator[tuple[int, str, int]]:
    """Process id, host and port of a page's server."""
    command = [sys.executable, "-m", "cystore", "web", str(path), "--port", "0", "--rate", "100000"]
    process = subprocess.Popen(ends_with_us(command), cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = urlsplit(process.stdout.readline().strip())
        yield process.pid, url.hostname or "", url.port or 0
    finally:
        process.terminate()
        process.wait()


class Client:
    """Requests over one connection."""

    def __init__(self, host: str, port: int) -> None:
        self._connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)

    def get(self, path: str, **query: object) -> Any:
        """The answer of an address, as JSON."""
        self._connection.request("GET", f"{path}?{urlencode(query)}" if query else path)
        answer = self._connection.getresponse()
        body = answer.read()
        if answer.status != http.client.OK:
            raise RuntimeError(f"{path}: {answer.status} {body[:200]!r}")
        return json.loads(body)

    def first(self, **query: object) -> list[dict[str, Any]]:
        """The first page of a list."""
        return list(self.get("/api/tasks", limit=50, **query)["tasks"])

    def first_rows(self, **query: object) -> None:
        """The first page that has rows, as the page of tasks asks for it."""
        after: dict[str, str] = {}
        while True:
            page = self.get("/api/tasks", limit=50, within="400ms", **query, **after)
            if page["tasks"] or page["next"] is None:
                return
            after = {"after": page["next"]}

    def through(self, **query: object) -> int:
        """The number of tasks of a whole list, page by page."""
        found, after = 0, {}
        while True:
            page = self.get("/api/tasks", limit=50, **query, **after)
            found += len(page["tasks"])
            if page["next"] is None:
                return found
            after = {"after": page["next"]}


def p95_ms(times: list[float]) -> float:
    """The 95th of a hundred, ms."""
    return sorted(times)[min(len(times) - 1, int(0.95 * len(times)))] * 1000


def timed(rounds: int, work: Callable[[int], object]) -> list[float]:
    """Seconds of each round."""
    found = []
    for number in range(rounds):
        begin = time.perf_counter()
        work(number)
        found.append(time.perf_counter() - begin)
    return found


def memory_mb(pid: int) -> tuple[float, float]:
    """Anonymous and resident memory of a process."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) / 1024, int(fields["VmRSS"].split()[0]) / 1024


def put_us(store: MessageStore) -> float:
    """The median time of a put of one event of a new task, us."""
    message = life_of(0)[0]
    options: dict[str, Any] = {
        "queue_id": message.queue_id,
        "tags": message.tags,
        "properties": message.properties,
    }
    body, ids = bytes(message.body), [str(uuid4()) for _ in range(PUTS)]
    times = timed(PUTS, lambda n: store.put(message.topic, body, keys=(ids[n],), **options))
    return statistics.median(times) * 1e6


def watched_puts(path: Path, host: str, port: int) -> float:
    """Puts with 50 watchers take so many times as long as with none."""
    alone, watched = [], []
    with cystore.open(path) as store:
        for _ in range(TURNS):
            alone.append(put_us(store))
            with ExitStack() as stack:
                for _ in range(WATCHERS):
                    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
                    stack.callback(connection.close)
                    connection.request("GET", "/events")
                    connection.getresponse().read(1)
                watched.append(put_us(store))
    return statistics.median(watched) / statistics.median(alone)


def in_a_browser(url: str, times: int) -> list[tuple[str, str, str]]:
    """The same for a person: from the address to the rows; none without a browser."""
    if program() is None:
        return []
    rows = []
    with (
        tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True) as profile,
        Browser(Path(profile)) as page,
    ):
        for what, goal, place in (
            ("first page in a browser", "1,000 ms", "tasks"),
            ("the overview in a browser", "-", ""),
        ):

            def shown(_: int, place: str = place) -> None:
                page.open(f"{url}#/{place}", "tasks" if place else "overview")
                page.wait("document.querySelector('main tbody tr, main svg.plot') !== null")

            rows.append((what, f"{p95_ms(timed(times, shown)):,.0f} ms", goal))
    return rows


def measure(path: Path, tasks: int, rounds: int) -> list[tuple[str, str, str]]:
    """Rows: what, figure, goal."""
    rows = []
    with server(path) as (pid, host, port):
        client = Client(host, port)

        def row(what: str, goal: str, work: Callable[[int], object], times: int = rounds) -> None:
            rows.append((what, f"{p95_ms(timed(times, work)):,.0f} ms", goal))

        some = [id_of(number * tasks // rounds) for number in range(rounds)]
        row("first page, the first time", "1,000 ms", lambda _: client.first(), 1)
        row("first page", "1,000 ms", lambda _: client.first())
        row("one task with its events", "300 ms", lambda n: client.get(f"/api/tasks/{some[n]}"))
        row("search by a whole id", "300 ms", lambda n: client.first(text=some[n]))
        row(
            "search by the name of a task",
            "1,000 ms",
            lambda n: client.first(name=f"shop.tasks.task_{n % NAMES}"),
        )
        row("search by state", "1,000 ms", lambda _: client.first(state="FAILURE"))
        row(
            "search by name and time",
            "1,000 ms",
            lambda n: client.first(name=f"shop.tasks.task_{n % NAMES}", since="1d"),
        )
        row("a text that many tasks have", "500 ms", lambda n: client.first(text="customer-"))
        row(
            "first rows of a text that few tasks have",
            "500 ms",
            lambda n: client.first_rows(text=f"customer-{n}'"),
        )
        few = min(rounds, 3)
        row("the beginning of an old id", "3,000 ms", lambda _: client.through(text=id_of(100)[:23]), few)
        row("a text of one of the oldest tasks", "3,000 ms", lambda _: client.through(text=NEEDLE), few)
        row("a text that nobody has", "3,000 ms", lambda _: client.through(text="nobody-has-this"), few)
        row("numbers of an hour", "-", lambda _: client.get("/api/stats", since="1h"), few)
        rows += in_a_browser(f"http://{host}:{port}/", few)
        own, whole = memory_mb(pid)
        rows.append(("memory of the server, its own", f"{own:,.0f} MiB", "150 MiB"))
        rows.append(("resident with the mapped log", f"{whole:,.0f} MiB", "150 MiB"))
        rows.append(
            (f"puts beside {WATCHERS} watchers", f"{watched_puts(path, host, port):.2f} x the time", "1.03")
        )
    return rows


def main(arguments: list[str]) -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.celery.page", description=__doc__)
    parser.add_argument("--tasks", type=int, default=1_000_000, help="in the log (%(default)s)")
    parser.add_argument("--rounds", type=int, default=40, help="requests of each kind (%(default)s)")
    parser.add_argument("--folder", type=Path, help="keep the store here, or use the one that is here")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="bench-") as temporary:
        path = (options.folder or Path(temporary)) / "store"
        if not path.exists():
            write(path, options.tasks)
        size = sum(file.stat().st_blocks * 512 for file in path.rglob("*") if file.is_file())
        print(f"{options.tasks:,} tasks, {size / 2**20:,.0f} MiB on disk, load {os.getloadavg()[0]:.0f}\n")
        print("| request | p95 | goal |\n|---|---:|---:|")
        for what, figure, goal in measure(path, options.tasks, options.rounds):
            print(f"| {what} | {figure} | {goal} |")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
