"""cystore's side of an exchange: puts the messages of a spec, gets killed over it, shows RocketMQ a copy."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import cystore
from tests.support.interop.expect import Stored, message_of, one_space, singles
from tests.support.interop.rocketmq import ROOT, RocketMQ


def put_all(store: cystore.MessageStore, items: list[dict]) -> list[Stored]:
    stored = []
    for item in items:
        members = singles(item)
        results = store.put_many([message_of(member) for member in members], batch=len(members) > 1)
        assert len(results) == len(members)
        stored += [Stored.by_cystore(member, result) for member, result in zip(members, results, strict=True)]
    return stored


def dump_of_copy(rocketmq: RocketMQ, path: Path, spec: dict, scratch: Path) -> list[dict]:
    copy = scratch / "copy"
    shutil.copytree(path, copy)
    rows = rocketmq.dump(copy, spec["config"], scratch / "dump.jsonl")
    assert digests(copy, "commitlog") == digests(path, "commitlog")
    shutil.rmtree(copy)
    return rows


def digests(path: Path, folder: str) -> dict[str, str]:
    """RocketMQ makes segments ahead; those that are all zero do not count."""
    files = sorted(p for p in (path / folder).rglob("*") if p.is_file())
    return {
        str(p.relative_to(path)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in files
        if any(p.read_bytes())
    }


# Puts until it is killed; a line for each message that was acknowledged.
PUT_UNTIL_KILLED = """
import json, sys
import cystore
from tests.support.golden.cystore_config import cystore_config
from tests.support.interop.expect import message_of, singles
spec = json.load(sys.stdin)
store = cystore.open(sys.argv[1], **cystore_config(spec))
for _ in range(1000):
    for item in spec["messages"]:
        members = singles(item)
        for member, put in zip(members, store.put_many([message_of(m) for m in members]), strict=True):
            print(json.dumps([member, put.physical_offset, put.queue_offset, put.size_bytes, put.store_timestamp_ms]))
        sys.stdout.flush()
"""


def killed_while_putting(path: Path, spec: dict, acknowledged: int) -> list[Stored]:
    """Another process puts the spec's messages again and again, and is killed after so many acknowledged ones."""
    command = [sys.executable, "-c", PUT_UNTIL_KILLED, str(path)]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    lines = []
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8"
    ) as child:
        json.dump(spec, child.stdin)
        child.stdin.close()
        for line in child.stdout:
            lines.append(line)
            if len(lines) == acknowledged:
                child.send_signal(signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL
    stored = []
    for line in lines:
        if line.endswith("\n"):
            member, *place = json.loads(line)
            stored.append(Stored(one_space(member), *place))
    return stored
