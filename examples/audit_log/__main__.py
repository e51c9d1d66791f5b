"""A day in a bank, and the questions of an auditor."""

from __future__ import annotations

import subprocess
import sys

from examples.fleet import PATIENCE_S, environment, place, shown, worker

APP = "examples.audit_log.bank"
PIN = "9281-7736"


def main() -> None:
    with place() as folder:
        with worker(APP, folder):
            from examples.audit_log import bank

            sent = [
                bank.transfer.delay("ann", "A-1", "A-2", 100, pin=PIN),
                bank.transfer.delay("bob", "A-2", "A-17", 5_000, pin=PIN),
                bank.transfer.delay("eve", "A-17", "A-1", 70, pin=PIN),
                bank.close_account.apply_async(("eve", "A-17"), task_id="close-A-17"),
            ]
            for result in sent:
                print(result.get(timeout=PATIENCE_S, propagate=False))

        shown(APP, "find", "--args", "A-17")
        shown(APP, "history", "close-A-17")
        shown(APP, "failures", "--traceback")

        page = [
            sys.executable,
            "-m",
            "cystore",
            "report",
            str(folder / "store"),
            "--out",
            str(folder / "report"),
        ]
        subprocess.run(page, env=environment(), timeout=PATIENCE_S, check=True)
        report = folder / "report" / "report.html"
        print(f"the report has {report.stat().st_size} bytes")

        files = [path for path in (folder / "store").rglob("*") if path.is_file()]
        print(f"files of the store with the PIN: {sum(PIN.encode() in path.read_bytes() for path in files)}")


if __name__ == "__main__":
    main()
