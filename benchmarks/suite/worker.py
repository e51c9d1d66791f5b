"""One measurement in its own process: `python -m benchmarks.suite.worker PEER JOB`; job and answer are JSON."""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import asdict

from benchmarks.suite.workload import Job


def main(peer: str, job_text: str) -> None:
    job = Job.from_json(job_text)
    module = importlib.import_module(f"benchmarks.peers.{peer}_peer")
    measure = getattr(module, job.case)(job)
    print(json.dumps(asdict(measure)))


if __name__ == "__main__":
    main(*sys.argv[1:])
