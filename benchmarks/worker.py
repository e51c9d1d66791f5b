"""One measurement in a process of its own: `python -m benchmarks.worker PEER JOB`, the job and the answer as JSON."""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import asdict

from benchmarks.workload import Job


def main(peer: str, job_text: str) -> None:
    job = Job.from_json(job_text)
    module = importlib.import_module(f"benchmarks.peers.{peer}_peer")
    measure = getattr(module, job.case)(job)
    print(json.dumps(asdict(measure)))


if __name__ == "__main__":
    main(*sys.argv[1:])
