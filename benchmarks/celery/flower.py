"""`python -m benchmarks.celery.flower`: what do Flower and `cystore web` show of one fleet, and what does each need?

A fleet of two workers on one Redis and one store works on orders (`tools.shop_fleet`) while Flower and the page watch.
Then both are asked for all tasks, ended and started again, and asked once more. Flower is from the package registry
(`pip install flower`). A card number stands in the arguments of some tasks; the app's setting says that nobody shall
see it (`cystore_lifecycle_redact`).
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cystore.celery.base import events
from tools.processes import ends_with_us
from tools.shop_fleet import APP, PATIENCE_S, ROOT, ShopFleet, shop_fleet

CARD = "5100 2222"
WAITING = 5
TASKS_MOST = 100_000


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
        return json.loads(answer.read())


def _comes(url: str) -> None:
    """Returns when an address answers."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            _get(url)
            return
        except (urllib.error.URLError, http.client.HTTPException, ValueError):
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


@contextmanager
def _flower(fleet: ShopFleet, port: int) -> Iterator[tuple[int, str]]:
    """The process and the address of a Flower."""
    command = [sys.executable, "-m", "celery", "--broker", fleet.broker_url, "flower", f"--port={port}"]
    environment = {**os.environ, "FLOWER_UNAUTHENTICATED_API": "1"}
    with open(fleet.folder / "flower.log", "ab") as log:
        process = subprocess.Popen(
            ends_with_us([*command, "--address=127.0.0.1"]), cwd=fleet.folder, env=environment, stdout=log, stderr=log
        )  # fmt: skip
    try:
        _comes(f"http://127.0.0.1:{port}/api/tasks?limit=1")
        yield process.pid, f"http://127.0.0.1:{port}/"
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


@contextmanager
def _page(fleet: ShopFleet) -> Iterator[tuple[int, str]]:
    """The process and the address of the page."""
    command = [sys.executable, "-m", "celery", "-A", APP, "cystore", "web", "--port", "0", "--rate", "100000"]
    process = subprocess.Popen(
        ends_with_us(command), cwd=ROOT, env=fleet.environment, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield process.pid, process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def _of_flower(url: str) -> list[dict[str, Any]]:
    return list(_get(f"{url}api/tasks?limit={TASKS_MOST}").values())


def _of_page(url: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    after = ""
    while True:
        page = _get(f"{url}api/tasks?limit=1000{after}")
        found += page["tasks"]
        if page["next"] is None:
            return found
        after = f"&after={page['next']}"


def _memory_mb(pid: int) -> float:
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) / 1024


def _ms(ask: Callable[[], object]) -> float:
    begin = time.perf_counter()
    ask()
    return (time.perf_counter() - begin) * 1000


def _facts(tasks: list[dict[str, Any]]) -> dict[str, float]:
    """Numbers of what a list of tasks shows."""
    return {
        "tasks": len(tasks),
        "of these with arguments": sum(bool(one.get("args")) for one in tasks),
        "failed, with their traceback": sum(
            bool(one.get("traceback")) and one["state"] == "FAILURE" for one in tasks
        ),
        "skipped, because a task before them failed": sum(
            one.get("event") == events.SKIPPED for one in tasks
        ),
        "with the time of their sending": sum(bool(one.get("sent")) for one in tasks),
        "with a card number that nobody shall see": sum(CARD in json.dumps(one) for one in tasks),
    }


def measure(orders: int, port: int) -> list[tuple[str, float, float]]:
    """Rows: what, of Flower, of the page."""
    with shop_fleet() as fleet:
        from tools.shop_fleet import app as shop

        shop.app.backend.store.catch_up()  # which makes the store
        with _flower(fleet, port) as (flower_pid, flower), _page(fleet) as (page_pid, page):
            fleet.start_workers("-E")
            for number in range(WAITING):
                shop.send_mail.apply_async(
                    (f"customer{number}@example.com", "later"), countdown=3600 + number
                )
            last = [shop.place(number) for number in range(orders)]
            for one in last:
                _ended(one)
            time.sleep(2)  # until Flower has got the last events
            known = _facts(_of_flower(flower)), _facts(_of_page(page))
            rows = [(what, number, known[1][what]) for what, number in known[0].items()]
            waiting = _get(f"{page}api/eta")["tasks"]
            rows.append(("tasks that wait for their ETA", 0, len(waiting)))
            rows.append(("first page of 50 tasks, ms", _ms(lambda: _get(f"{flower}api/tasks?limit=50")),
                         _ms(lambda: _get(f"{page}api/tasks?limit=50"))))  # fmt: skip
            rows.append(("memory of its process, MiB", _memory_mb(flower_pid), _memory_mb(page_pid)))
        with _flower(fleet, port) as (_, flower), _page(fleet) as (_, page):
            rows.append(("tasks after a restart", len(_of_flower(flower)), len(_of_page(page))))
    return rows


def _ended(result: Any) -> None:
    """Waits until a workflow has ended: its last result, or a failure before it."""
    node = result
    while node.parent is not None:
        node = node.parent
    node.get(timeout=PATIENCE_S, propagate=False)
    if node.successful():
        result.get(timeout=PATIENCE_S, propagate=False)


def main(arguments: list[str]) -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.celery.flower", description=__doc__)
    parser.add_argument("--orders", type=int, default=100, help="six tasks each (%(default)s)")
    parser.add_argument("--port", type=int, default=5555, help="of Flower (%(default)s)")
    options = parser.parse_args(arguments)
    if find_spec("flower") is None:
        print("there is no Flower: pip install flower", file=sys.stderr)
        return 2
    print("| | Flower | cystore web |\n|---|---:|---:|")
    for what, flower, page in measure(options.orders, options.port):
        print(f"| {what} | {flower:,.0f} | {page:,.0f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
