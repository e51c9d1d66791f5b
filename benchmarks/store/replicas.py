"""`python -m benchmarks replicas [GIB] [COUNT]`: what replicas cost: the time of a rejoin by the length of the log, the
idle cost of many replicas in one process, and the requests of a group's members to etcd.

A rejoin is either the whole log for an empty replica, or a truncation of its last records: that reads the whole log and
makes all queues and the index anew. The log's pages are in memory; a disk that is slower than the figures bounds them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import cystore
from cystore.ha.epochs.truncation import order_truncation
from tests.support.ha.etcd import EtcdServer
from tests.support.ha.ha_pair import free_port, members, until, wrote

GIB, BODY_BYTES, BATCH = 1 << 30, 1024, 256
IDLE_S = 10.0
GROUPS = 5  # of three members each
COUNTED = re.compile(r'^(?:grpc_server_handled_total\{grpc_code="OK",grpc_method="(\w+)".*\}|(process_cpu)_seconds_total) (\S+)$', re.M)  # fmt: skip # noqa: E501


def _timed(what: str, call: Callable[[], Any], log_bytes: int) -> Any:
    begun_s = time.monotonic()
    value = call()
    took_s = time.monotonic() - begun_s
    a_tib_h = took_s * (1 << 40) / log_bytes / 3600
    print(f"{what}: {log_bytes / took_s / 2**20:.0f} MiB/s, so {a_tib_h:.1f} h for a TiB", flush=True)
    return value


def _rejoin(folder: Path, log_bytes: int) -> None:
    port, slave = free_port(), folder / "slave"
    messages = [
        cystore.Message(topic="T", body=b"x" * BODY_BYTES, queue_id=n % 4, keys=(f"k{n}",))
        for n in range(BATCH)
    ]
    serves = {"ha_listen_port": port, "ha_allow_plain": True}
    with cystore.open(folder / "master", services="all", **serves) as master:
        while wrote(master) < log_bytes:
            master.put_many(messages)
        master.flush()
        end = wrote(master)
        command = ["replicate", str(slave), "--from", f"127.0.0.1:{port}", "--once"]
        run = [sys.executable, "-m", "cystore", *command]
        _timed("whole log for an empty replica", lambda: subprocess.run(run, check=True), end)
    with cystore.open(slave, services="none") as store:
        last = store.topics()["T"][0].max_offset - 10
        (at,) = store.get("T", 0, last, 1).messages
        order_truncation(store._attached().manifest, at.physical_offset, end)
    with _timed("truncation", lambda: cystore.open(slave, services="none"), end) as store:
        assert wrote(store) == at.physical_offset and store.topics()["T"][0].max_offset == last


def _own(field: str) -> float:
    (found,) = re.findall(rf"^{field}:\s+(\d+)", Path("/proc/self/status").read_text(), re.M)
    return float(found)


def _idle(folder: Path, count: int) -> None:
    """Replicas whose master sends heartbeats. A master serves 64 slaves."""
    port, before = free_port(), (_own("Threads"), _own("VmRSS"))
    small = {"services": "all", "mapped_file_size_commit_log_bytes": 1 << 20}
    serves = {**small, "ha_listen_port": port, "ha_allow_plain": True}
    with ExitStack() as opened, cystore.open(folder / "master", **serves) as master:
        master.put("T", b"x")
        whole = wrote(master)
        from_ = {**small, "broker_role": "slave", "ha_master_address": f"127.0.0.1:{port}"}
        stores = [opened.enter_context(cystore.open(folder / f"r{n}", **from_)) for n in range(count)]
        until(lambda: all(wrote(store) == whole for store in stores))
        begun_s = time.process_time()
        time.sleep(IDLE_S)
        share = (time.process_time() - begun_s) / IDLE_S / count
        threads = (_own("Threads") - before[0]) / (count + 1)
        memory = (_own("VmRSS") - before[1]) / (count + 1) / 1024
        print(
            f"a replica of {count} in one process, without messages: {threads:.1f} threads, {memory:.1f} MiB, "
            f"{share:.2%} of a processor",
            flush=True,
        )


def _counts(url: str) -> dict[str, float]:
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        rows = COUNTED.findall(answer.read().decode())
    return {method or cpu: float(value) for method, cpu, value in rows}


def _etcd(folder: Path) -> None:
    with EtcdServer(folder / "etcd") as etcd, ExitStack() as opened:
        stores = [
            opened.enter_context(
                cystore.open(
                    folder / f"{number}{name}",
                    **members(etcd.url, name, ha_group=f"g{number}", services=("ha",)),
                )
            )
            for number in range(GROUPS)
            for name in "abc"
        ]
        until(lambda: sum(store.stats()["in_sync"] == 3 for store in stores if store.epoch) == GROUPS)
        before = _counts(etcd.url)
        time.sleep(IDLE_S)
        after = _counts(etcd.url)
        each = {name: (value - before.get(name, 0)) / IDLE_S for name, value in after.items()}
        print(
            f"etcd, {GROUPS} groups of 3 members: {each['Range']:.1f} reads, {each['LeaseKeepAlive']:.1f} renewals, "
            f"{each.get('Txn', 0):.1f} transactions a second, {each['process_cpu']:.1%} of a processor",
            flush=True,
        )


def main(arguments: list[str]) -> int:
    size = float(arguments[0]) if arguments else 1.0
    count = int(arguments[1]) if len(arguments) > 1 else 50
    with tempfile.TemporaryDirectory() as folder:
        _rejoin(Path(folder), int(size * GIB))
    with tempfile.TemporaryDirectory() as folder:
        _idle(Path(folder), count)
    with tempfile.TemporaryDirectory() as folder:
        _etcd(Path(folder))
    print(f"load {os.getloadavg()[0]:.1f}")
    return 0
