"""Reminders for one, two and three seconds from now; the program that puts them is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile

import cystore

SETTINGS = {"message_delay_level": "1s 2s 3s"}  # the levels 1, 2, 3
WHAT = ("water the plants", "call ann", "feed the cat")


def put(path: str) -> None:
    """The first program: it does not live to see its reminders."""
    store = cystore.open(path, services="none", **SETTINGS)
    for level, text in enumerate(WHAT, start=1):
        store.put("reminders", text.encode(), delay_level=level, flush="sync")
    os.kill(os.getpid(), signal.SIGKILL)


def deliver(path: str) -> None:
    """The second program: it recovers the store, and waits for what is due."""
    with cystore.open(path, services="all", **SETTINGS) as store:
        begun = min(message.born_timestamp_ms for message in store.scan())
        with store.consumer("phone", ["reminders"]) as phone:
            seen = 0
            while seen < len(WHAT):
                for message in phone.poll(timeout_s=60):
                    late_ms = message.store_timestamp_ms - begun - 1000 * message.delay_level
                    print(f"{message.text()}: level {message.delay_level}, not early: {late_ms >= 0}")
                    phone.ack(message)
                    seen += 1
        print("lag:", dict(store.groups.lags()))


def main() -> None:
    if len(sys.argv) > 1:
        put(sys.argv[1])
    with tempfile.TemporaryDirectory(prefix="cystore-example-") as folder:
        path = f"{folder}/store"
        first = subprocess.run([sys.executable, "-m", "examples.reminders", path], check=False)
        print("the first program was killed:", first.returncode == -signal.SIGKILL)
        deliver(path)


if __name__ == "__main__":
    main()
