"""RocketMQ 4.9.3 in its own JVM: runs the Java program of benchmarks/peers/rocketmq (its README says what each case
measures)."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.suite.failures import MeasureError, reason
from benchmarks.suite.workload import Job, Measure
from tests.support.interop import rocketmq

# Direct memory is for three buffers of a pool; the default is that of the heap.
JVM_FLAGS = ("-XX:+UseParallelGC", "-Xms1g", "-Xmx1g", "-XX:MaxDirectMemorySize=4g")
CASES = {
    "put": "put",
    "put_built": "put",
    "put_batch": "batch",
    "put_batch_built": "batch",
    "put_light": "put",
    "put_light_built": "put",
    "get": "get",
    "get_decoded": "get",
    "get_filtered": "filter",
    "query": "query",
    "offset_by_time": "by-time",
    "offsets": "offsets",
    "dispatch": "reput",
    "deliver": "deliver",
    "recover": "recover",
}
TIMEOUT_S = 900
NOT_FACTS = {"peer", "case", "count", "seconds", "ns_per_op", "ops_per_s", "config", "body_bytes", "keys"}


def ask(case: str, folder: Path, options: Mapping[str, object]) -> dict[str, Any]:
    """The answer of the Java program, which makes its store in the folder. Raises MeasureError."""
    try:
        jars = rocketmq.build()
    except rocketmq.Unavailable as error:
        raise MeasureError(str(error)) from None
    command = [str(jars.java), *JVM_FLAGS, "-jar", str(jars.bench), case, "--dir", str(folder / "store")]
    command += [word for name, value in options.items() for word in (f"--{name}", str(value))]
    try:
        done = subprocess.run(command, text=True, capture_output=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise MeasureError(f"RocketMQ, {case}: not finished after {TIMEOUT_S} s") from None
    if done.returncode:
        raise MeasureError(f"RocketMQ, {case}: {reason(done.stderr, done.returncode)}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _run(job: Job) -> Measure:
    options: dict[str, object] = {"count": job.count}
    if job.case != "offsets":
        options.update({"body-bytes": job.body_bytes, "keys": job.keys})
    if job.case.startswith(("get", "put_batch", "offset_by")):
        options["batch"] = job.batch
    if job.options.get("pool"):
        options["transient-pool"] = "true"
    if job.options.get("dispatch"):
        options["dispatch"] = "true"
    if "filter" in job.options:
        options["filter"] = job.options["filter"]
    for name in ("queries", "light_queues"):
        if name in job.options:
            options[name.replace("_", "-")] = job.options[name]
    if "segment_bytes" in job.options:
        options["segment-bytes"] = job.options["segment_bytes"]
    with tempfile.TemporaryDirectory(dir=job.folder) as folder:
        answer = ask(CASES[job.case], Path(folder), options)
    facts = {name: value for name, value in answer.items() if name not in NOT_FACTS}
    return Measure(1_000_000_000, answer["ns_per_op"], facts)  # the answer has the time of its median round


def put_built(job: Job) -> Measure:
    """`put` that first builds each message from topic, body, key and tag, as ours does; or each batch."""
    return Measure(1_000_000_000, _run(job).facts["built_ns_per_op"])


def get_decoded(job: Job) -> Measure:
    """`get` with each record decoded to an object, as ours are."""
    return Measure(1_000_000_000, _run(job).facts["decoded_ns_per_op"])


put_batch_built = put_light_built = put_built
put = put_batch = put_light = get = get_filtered = query = offset_by_time = offsets = _run
dispatch = deliver = recover = _run
