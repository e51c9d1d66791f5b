"""Stores of a broker with a DLedger commit log, written by RocketMQ 4.9.3 and DLedger 0.2.3.

    python -m tests.interop.ledgers FOLDER

makes the two archives of tests/golden/ledgers from seed 1. The index files are cut behind their last entry there: each
has 160 MiB, nearly all of it a hole.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import tarfile
from pathlib import Path

from tests.oracle.ledger import INDEX_BYTES, cut_index_files, grow_index_files
from tests.support.ha.ha_pair import free_port
from tests.support.interop.rocketmq import ANSWER_TIMEOUT_S, RocketMQ, build
from tests.support.interop.specs import SMALL, Writer

LEVELS = "1s 2s 1h"
CHECKPOINT_MS = 3000  # DLedger writes its checkpoint so often, and at a shutdown
NAMES = ("switched", "killed")


def settings() -> dict:
    return {
        **SMALL,
        "mapedFileSizeCommitLog": 16384,
        "messageDelayLevel": LEVELS,
        "enableDLegerCommitLog": True,
        "dLegerGroup": "group",
        "dLegerSelfId": "n0",
        "dLegerPeers": f"n0-127.0.0.1:{free_port()}",
    }


def mixed(writer: Writer, number: int) -> list[dict]:
    """Messages of every kind, over several data files."""
    return [writer.any_kind((1, 3)) for _ in range(number)]


def switched(rocketmq: RocketMQ, writer: Writer, path: Path) -> dict:
    """A plain commit log at first, then a DLedger behind it; delayed messages were delivered and others wait; closed
    cleanly."""
    ledger = settings()
    plain = {name: value for name, value in ledger.items() if "DLeger" not in name and "dLeger" not in name}
    done = {"mode": "shutdown"}
    first = {"config": plain, "messages": list(writer.many(60)), "finish": done}
    rocketmq.write(first, path / "store").result(ANSWER_TIMEOUT_S)
    pause = {"action": "sleep", "ms": 2500}
    messages = [*mixed(writer, 80), pause, *mixed(writer, 20)]
    spec = {"config": ledger, "messages": messages, "finish": done}
    rocketmq.write(spec, path / "store").result(ANSWER_TIMEOUT_S)
    return spec


def killed(rocketmq: RocketMQ, writer: Writer, path: Path) -> dict:
    """A broker that was killed: its last entries are behind the committed index of the checkpoint."""
    pause = {"action": "sleep", "ms": CHECKPOINT_MS + 500}
    messages = [*mixed(writer, 40), pause, writer.message("TopicTest", 0), pause, *writer.many(12)]
    spec = {"config": settings(), "messages": messages}
    rocketmq.write_and_halt(spec, path / "store")
    return spec


def write(rocketmq: RocketMQ, name: str, seed: int, path: Path) -> None:
    """One of them, laid out like a golden store: spec, store with cut index files, and what RocketMQ reads back from a
    copy."""
    path.mkdir(parents=True)
    make = {"switched": switched, "killed": killed}[name]
    spec = make(rocketmq, Writer(random.Random(f"{seed} {name}")), path)
    (path / "spec.json").write_text(json.dumps(spec), encoding="utf-8")
    copy = path / "copy"
    cut_index_files(path / "store")  # holes would be written out
    shutil.copytree(path / "store", copy)
    grow_index_files(copy)
    rocketmq.dump(copy, {**spec["config"], **settings()}, path / "dump.jsonl")
    shutil.rmtree(copy)


def main(folder: Path) -> None:
    rocketmq = RocketMQ(build())
    for name in NAMES:
        path = folder / name
        write(rocketmq, name, 1, path)
        with tarfile.open(folder / f"{name}.tar.xz", "w:xz") as archive:
            archive.add(path, name)
        print(
            f"{name}: {(folder / f'{name}.tar.xz').stat().st_size} bytes, index files of {INDEX_BYTES} bytes"
        )
    rocketmq.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
