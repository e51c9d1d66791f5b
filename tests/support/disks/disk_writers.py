"""Writers on a disk that may stop at any moment: they say through a pipe what was acknowledged to them, and how
durable it is."""

from __future__ import annotations

import select
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cystore
from tests.support.checks import check
from tests.support.process import Process
from tests.support.processes.line_pipe import LinePipe

WAIT_S = 60.0

# Writes until it is killed or refused: sync and async puts, batches, new queues, flush, dispatch.
WRITER = """
import cystore, logging, os, random
logging.disable()  # what the cut makes fail is of no interest
store = cystore.open(path, **settings)
def tell(durable, topic, queue_id, r, key):
    os.write(out, f"{durable} {topic} {queue_id} {r.queue_offset} {r.physical_offset} {r.size_bytes} {key}\\n".encode())
def work(seed, sync_share):
    rng, n = random.Random(seed), 0
    while True:
        n += 1
        what, flush = rng.random(), "sync" if rng.random() < sync_share else "async"
        topic = f"T{rng.randrange(9)}" if rng.random() < 0.1 else "shared"
        if what < 0.2:
            keys = [f"{seed}.{n}.{q}" for q in range(3)]
            batch = [cystore.Message(topic=topic, body=b"b" * rng.randrange(900), queue_id=q % 2, keys=(key,))
                     for q, key in enumerate(keys)]
            for q, r in enumerate(store.put_many(batch, flush=flush)):
                tell(flush, topic, q % 2, r, keys[q])
        else:
            r = store.put(topic, b"x" * rng.randrange(1500), queue_id=n % 2, keys=(f"{seed}.{n}",), flush=flush)
            tell(flush, topic, n % 2, r, f"{seed}.{n}")
        if what > 0.97:
            end = store.wrote_position
            store.flush()
            os.write(out, f"flushed {end}\\n".encode())
        elif what > 0.9:
            store.dispatch()
work(seed, sync_share)
"""


@dataclass(frozen=True)
class Acknowledged:
    """A put that returned."""

    durable: bool
    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    end: int
    key: str


class Acknowledgements:
    """The puts that are acknowledged by now; the pipe's writing end is `out`."""

    def __init__(self) -> None:
        self._pipe = LinePipe()
        self.out = self._pipe.out
        self.puts: list[Acknowledged] = []
        self.durable = 0  # everything below was promised to be on the disk

    def __enter__(self) -> Acknowledgements:
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.close()

    def forget(self) -> None:
        """For another store."""
        self.take()
        self.puts, self.durable = [], 0

    def wait(self, count: int, writers: Sequence[Process], gone: Sequence[int] = ()) -> bool:
        """Until so many puts were acknowledged. A writer that answers has failed, but when `gone` has something to
        read, the disk was gone before: then this is False at once."""
        lines = {writer.answers: writer for writer in writers}
        while len(self.puts) < count:
            ready = select.select([self._pipe, *lines, *gone], [], [], WAIT_S)[0]
            assert ready, "nobody wrote anything for long"
            if select.select(gone, [], [], 0)[0]:
                return False
            for line in ready:
                if line in lines:
                    raise AssertionError(f"a writer ended: {lines[line].answer()}")
            self.take()
        return True

    def take(self, *, in_time: bool = True) -> None:
        """All that was said by now. What was not said in time, before the power was gone, is no promise: the kernel
        reports a sync that was under way at that moment as done although it is not."""
        for words in self._pipe.lines():
            self._enter(words, in_time)

    def _enter(self, words: list[str], in_time: bool) -> None:
        if words[0] == "flushed":
            self.durable = max(self.durable, int(words[1])) if in_time else self.durable
            return
        durable, topic, queue_id, queue_offset, physical_offset, size_bytes, key = words
        end = int(physical_offset) + int(size_bytes)
        put = Acknowledged(
            durable == "sync" and in_time,
            topic,
            int(queue_id),
            int(queue_offset),
            int(physical_offset),
            end,
            key,
        )
        self.puts.append(put)
        if put.durable:
            self.durable = max(self.durable, end)

    def check(self, store: cystore.MessageStore) -> tuple[int, int]:
        """After a power cut: the log is a prefix of what was acknowledged, with all that was promised to be on the
        disk; and it has no hole, for what was promised was synced. Goes on with what is left. Gives how many are
        left, and how many are not."""
        end = store.wrote_position
        assert end >= self.durable, f"the log ends at {end}, durable was promised up to {self.durable}"
        assert store._attached().commit_log.damaged_ranges.ranges() == []
        left = [put for put in self.puts if put.end <= end]
        gone = [put for put in self.puts if put.end > end]
        assert all(put.physical_offset >= end and not put.durable for put in gone), "half of a put is there"
        check(store, [(put.topic, put.queue_id, put.queue_offset, put.key) for put in left])
        self.puts, self.durable = left, end  # what was read from the disk stays
        return len(left), len(gone)


def start(
    process: Process,
    told: Acknowledgements,
    path: Path,
    settings: dict[str, Any],
    *,
    seed: int,
    sync_share: float,
) -> None:
    """Opens the store in the process and writes; nobody waits for an answer."""
    process.send(WRITER, path=str(path), settings=settings, out=told.out, seed=seed, sync_share=sync_share)
