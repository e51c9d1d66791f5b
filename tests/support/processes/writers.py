"""Processes that write until they are killed, and note outside the store what was acknowledged to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.process import Process
from tests.support.small_stores import SETTINGS
from tools import build

# `work(n)` puts n times: one by one and in batches, to queues that all share and to new ones; `sync` tells how
# durable. With `how` all appends to known queues are made by one of the kernel's two functions: `put` by append_one,
# `put_many` by append_items.
WRITER = """
import cystore, os, random
store = cystore.open(path, **settings)
rng = random.Random(seed)
out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def acknowledge(topic, queue_id, r, key):
    os.write(out, f"{topic} {queue_id} {r.queue_offset} {key}\\n".encode())
def work(count, flush="async", how="both"):
    for n in range(count):
        topic = f"T{rng.randrange(50)}" if n % 10 == 0 else "shared"
        if how == "put_many" or (how == "both" and n % 4 == 0):
            batch = [cystore.Message(topic=topic, body=b"b" * rng.randrange(200), queue_id=q % 2,
                                     keys=(f"{seed}.{n}.{q}",))
                     for q in range(3)]
            for q, r in enumerate(store.put_many(batch, flush=flush)):
                acknowledge(topic, q % 2, r, f"{seed}.{n}.{q}")
        else:
            key = f"{seed}.{n}"
            r = store.put(topic, b"x" * rng.randrange(300), queue_id=n % 2, keys=(key,), flush=flush)
            acknowledge(topic, n % 2, r, key)
        if n % 9 == 0:
            store.dispatch()
"""


def start(process: Process, path: Path, log: Path, seed: int, settings: dict[str, Any] = SETTINGS) -> None:
    """Opens the store in the process and defines `work`."""
    process.do(WRITER, path=str(path), settings=settings, seed=seed, log=str(log))


def arm(process: Process, failpoint: str) -> None:
    """From now on the process, of the build with failpoints, is killed (or stopped) at this place."""
    imported = process.do(
        "import os, cystore; os.environ['CYSTORE_FAILPOINT'] = failpoint; cystore.__file__",
        failpoint=failpoint,
    )
    assert Path(imported).is_relative_to(build.tree("failpoints")), f"nothing can be armed in {imported}"


def acknowledged(log: Path) -> list[list[str]]:
    """The acknowledged puts: topic, queue id, queue offset, key."""
    return [line.split() for line in log.read_text().splitlines()] if log.exists() else []
