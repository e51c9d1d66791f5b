"""A fleet that looks like a web shop's: for pictures of the page, and beside other programs that show a fleet."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.processes import ends_with_us
from tools.redis_server import redis_server

APP = "tools.shop_fleet.app"
ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 180
WORKERS = {"web1@shop": ("orders", "mail"), "web2@shop": ("orders", "reports")}


class ShopFleet:
    """Two workers on one store and one Redis. `environment` is that of each process."""

    def __init__(self, folder: Path, broker_url: str) -> None:
        self.folder, self.store_path = folder, folder / "shop"
        self.broker_url = broker_url
        self.environment = {**os.environ, "SHOP_BROKER": broker_url, "SHOP_STORE": str(self.store_path)}
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """A program of `celery -A APP`, which ends with the fleet."""
        with open(self.folder / f"{len(self._processes)}.log", "wb") as log:
            process = subprocess.Popen(
                ends_with_us([sys.executable, "-m", "celery", "-A", APP, *words]),
                cwd=ROOT, env=self.environment, stdout=log, stderr=log,
            )  # fmt: skip
        self._processes.append(process)
        return process

    def start_workers(self, *words: str) -> None:
        """Both workers."""
        for name, queues in WORKERS.items():
            self.start("worker", "-n", name, "-Q", ",".join(queues), "--concurrency=2", "-l", "INFO", *words)

    def stop(self) -> None:
        """Ends all programs in order."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait(PATIENCE_S)


@contextmanager
def shop_fleet() -> Iterator[ShopFleet]:
    """A fleet without workers yet. Import the app inside of the block: it reads SHOP_BROKER and SHOP_STORE."""
    with tempfile.TemporaryDirectory(prefix="shop-") as folder, redis_server(own=True) as redis:
        fleet = ShopFleet(Path(folder), redis.broker_url)
        os.environ |= {name: fleet.environment[name] for name in ("SHOP_BROKER", "SHOP_STORE")}
        try:
            yield fleet
        finally:
            fleet.stop()
            from cystore.celery.stores import close_shared

            close_shared()
