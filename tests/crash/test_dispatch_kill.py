"""Goal: whenever a dispatcher is killed, whoever continues makes the same files as if nothing had happened. Method:
processes of the build with failpoints share one control block and are killed at each named place of the dispatch
kernel, once and again and again; another process continues, and the files are compared with the oracle's, byte for
byte."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.oracle.record import Record
from tests.support import parts
from tests.unit.derived.test_dispatch import (
    CAPACITY,
    CONFIG,
    SLOTS,
    expected_index,
    expected_queues,
    index_files,
    laid_out,
    queue_files,
)

FAILPOINTS = (
    "dispatch.queue_entry",
    "dispatch.queue",
    "dispatch.index",
    "dispatch.record",
    "index.end_moved",
    "index.entry_written",
    "index.counted",
    "index.linked",
)
CHILD = """
import json, sys
from pathlib import Path
from cystore.config import StoreConfig
from tests.support import parts
root, settings, budget = json.loads(sys.argv[1])
root = Path(root)
control = parts.join_control(root / "control")
store = parts.attach(root, StoreConfig(**settings), minimum=0, wrote=0, control=control)
while store.dispatcher.run_once(budget).more:
    pass
"""
SETTINGS = {
    "mapped_file_size_commit_log_bytes": CONFIG.mapped_file_size_commit_log_bytes,
    "mapped_file_size_consume_queue_bytes": CONFIG.mapped_file_size_consume_queue_bytes,
    "max_hash_slot_num": SLOTS,
    "max_index_num": CAPACITY,
}


def records(rng: random.Random, count: int) -> list[Record]:
    """Several queues, no key to many keys a record, so that files fill up inside of records too."""
    next_offset: dict[tuple[str, int], int] = {}
    made = []
    for n in range(count):
        queue = rng.choice(["A", "B"]), rng.randrange(3)
        keys = " ".join(f"k{rng.randrange(40)}-{i}" for i in range(rng.choice([0, 1, 1, 2, 5])))
        properties = f"UNIQ_KEY\x01u{n}" + (f"\x02KEYS\x01{keys}" if keys else "")
        made.append(
            Record(
                topic=queue[0],
                queue_id=queue[1],
                queue_offset=next_offset.get(queue, 0),
                body=bytes(rng.randrange(60)),
                store_timestamp_ms=1_700_000_000_000 + 700 * n,
                raw_properties=properties.encode(),
            )
        )
        next_offset[queue] = made[-1].queue_offset + 1
    return made


class Scene:
    """One log, a control block in a file, and children that dispatch until they are killed."""

    def __init__(self, root: Path, rng: random.Random, environment: dict[str, str], count: int = 120) -> None:
        self.root, self.environment = root, environment
        self.written = laid_out(records(rng, count))
        parts.write_log(root, self.written.log)
        self.control = parts.control_block(CONFIG, path=root / "control")
        self.control.wrote = self.written.end
        self.store = parts.attach(root, CONFIG, minimum=0, wrote=0, control=self.control)

    def child(self, failpoint: str = "", budget: int | None = None) -> subprocess.Popen[bytes]:
        given = json.dumps([str(self.root), SETTINGS, budget])
        return subprocess.Popen(
            [sys.executable, "-c", CHILD, given], env={**self.environment, "CYSTORE_FAILPOINT": failpoint}
        )

    def killed_at(self, failpoint: str, budget: int | None = None) -> bool:
        """Whether the child got there; it ends well where it does not."""
        code = self.child(failpoint, budget).wait(timeout=60)
        assert code in (0, -signal.SIGKILL)
        return code != 0

    def check(self) -> None:
        self.store.dispatcher.run_to_end()
        assert self.control.dispatched == self.written.end
        assert queue_files(self.root) == expected_queues(self.written.records)
        assert index_files(self.root) == expected_index(self.written.records)


@pytest.fixture
def scene(tmp_path, rng, build_environment) -> Scene:
    return Scene(tmp_path, rng, build_environment("failpoints"))


@pytest.mark.parametrize("failpoint", FAILPOINTS)
def test_a_kill_inside_a_record(scene, failpoint, rng):
    assert scene.killed_at(f"{failpoint}:{rng.randrange(1, 40)}")
    scene.check()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("failpoint", ["index.linked", "dispatch.queue", "index.counted"])
def test_one_process_after_another_is_killed(scene, failpoint):
    """Each gets a few steps further, and takes back what the one before it left half done."""
    kills = 0
    while kills < 12 and scene.killed_at(f"{failpoint}:7"):
        kills += 1
    assert kills == 12
    scene.check()


def test_a_kill_while_entries_are_taken_back(scene):
    """The repair of a repair: keys of the same record, in the file that was made last and in the one before."""
    killed = 0
    for passes in range(2, 30, 3):
        killed += scene.killed_at(f"index.linked:{passes}")
        killed += scene.killed_at("index.unlinked")
    assert killed > 10
    scene.check()


def test_two_dispatch_while_one_is_killed(scene):
    other = scene.child(budget=400)
    assert scene.killed_at("dispatch.record:3", budget=300) or scene.control.dispatched == scene.written.end
    assert other.wait(timeout=60) == 0
    scene.check()
