"""Stores that RocketMQ wrote a moment ago, laid out like the golden ones: spec, store, dump, list of files."""

import inspect
import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

from tests.oracle.log import read_log
from tests.support.golden.stores import Golden
from tests.support.interop import specs
from tests.support.interop.rocketmq import ANSWER_TIMEOUT_S, RocketMQ

# A store damaged or aged by hand, by the shape that it is made from.
DERIVED = {"torn_tail": "crash", "torn_middle": "crash", "expired": "clean"}
NAMES = (*specs.SHAPES, *DERIVED)


def questions(module: ModuleType, at_least: int = 10) -> dict[str, Callable]:
    """The tests of a module about golden stores that may be asked about any store: they take `golden`, and choose
    none."""
    found = {
        name: test
        for name, test in vars(module).items()
        if name.startswith("test_")
        and "golden" in inspect.signature(test).parameters
        and not any(mark.name == "parametrize" for mark in getattr(test, "pytestmark", ()))
    }
    assert len(found) >= at_least, found
    return found


def write_all(rocketmq: RocketMQ, seed: int, folder: Path) -> None:
    """Every shape, side by side: most of the time is RocketMQ's own waiting."""
    with ThreadPoolExecutor(len(NAMES)) as pool:
        list(pool.map(lambda shape: _write(rocketmq, seed, folder / shape, shape), specs.SHAPES))
        list(pool.map(lambda name: _derive(folder / name, folder / DERIVED[name]), DERIVED))
        list(pool.map(lambda name: _dump(rocketmq, folder / name), NAMES))


def _write(rocketmq: RocketMQ, seed: int, path: Path, shape: str) -> None:
    spec = specs.spec(shape, seed)
    path.mkdir()
    (path / "spec.json").write_text(json.dumps(spec), encoding="utf-8")
    if spec["finish"]["mode"] == "halt":
        rocketmq.write_and_halt(spec, path / "store")
    else:
        rocketmq.write(spec, path / "store").result(ANSWER_TIMEOUT_S)


def _derive(path: Path, source: Path) -> None:
    shutil.copytree(source, path)
    log = read_log(path / "store")
    spec = {
        "config": json.loads((path / "spec.json").read_text(encoding="utf-8"))["config"],
        "derivedFrom": source.name,
    }
    if path.name == "expired":
        for base in sorted(log.files)[: len(log.files) // 2]:
            _segment(path, base).unlink()
        shutil.rmtree(path / "store" / "consumequeue")
    else:
        records = log.records()
        bad = records[-1] if path.name == "torn_tail" else next(r for r in records[-100:] if r.body)
        with open(_segment(path, bad.physical_offset // log.file_size * log.file_size), "r+b") as segment:
            if path.name == "torn_tail":
                segment.seek(bad.physical_offset % log.file_size + bad.size // 2)
                segment.write(bytes(bad.size - bad.size // 2))
            else:
                at = bad.raw.index(bad.body, 88)
                segment.seek(bad.physical_offset % log.file_size + at)
                segment.write(bytes([bad.body[0] ^ 0xFF]))
        spec["badRecord"] = bad.physical_offset
    (path / "spec.json").write_text(json.dumps(spec), encoding="utf-8")


def _segment(path: Path, base: int) -> Path:
    return path / "store" / "commitlog" / f"{base:020}"


def _dump(rocketmq: RocketMQ, path: Path) -> None:
    """RocketMQ's view, of a copy: its load recovers what a crash left."""
    copy = path / "copy"
    shutil.copytree(path / "store", copy)
    settings = json.loads((path / "spec.json").read_text(encoding="utf-8"))["config"]
    rocketmq.dump(copy, settings, path / "dump.jsonl")
    (path / "after.txt").write_text(rocketmq.after(copy), encoding="utf-8")
    shutil.rmtree(copy)


def copy(name: str, folder: Path, into: Path) -> Golden:
    """A copy to write to, with the times of its files, which RocketMQ searches by."""
    shutil.copytree(folder / name, into / name)
    return Golden(name, into / name)
