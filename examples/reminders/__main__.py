"""Reminders for the next weeks: booked, moved, cancelled; the program that books them is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from datetime import UTC, datetime, timedelta

import cystore

DAYS = {"plants": 21, "ann": 14, "cat": 10}
TEXTS = {"plants": "water the plants", "ann": "call ann", "cat": "feed the cat"}


def in_days(days: float) -> int:
    """A time so many days ahead, ms since 1970."""
    return round((datetime.now(UTC) + timedelta(days=days)).timestamp() * 1000)


def book(path: str) -> None:
    """The first program: it does not live to see its reminders."""
    store = cystore.open(path, services="none")
    for key, days in DAYS.items():
        store.put("reminders", TEXTS[key].encode(), keys=(key,), deliver_at_ms=in_days(days), flush="sync")
    os.kill(os.getpid(), signal.SIGKILL)


def show(store: cystore.MessageStore) -> None:
    """The reminders that wait, the next one first."""
    for one in store.pending("reminders"):
        days = (one.deliver_at_ms - in_days(0)) / 86_400_000
        print(f"waits: {bytes(one.body).decode()}, in {days:.0f} days")


def change_and_deliver(path: str) -> None:
    """The second program: it recovers the store, changes its mind, and gets what is due."""
    with cystore.open(path, services="all") as store:
        show(store)
        print("moved:", store.reschedule("reminders", "ann", in_days(0) + 1000))
        print("cancelled:", store.cancel("reminders", "plants"))
        with store.consumer("phone", ["reminders"]) as phone:
            (message,) = phone.poll(timeout_s=60)
            print("now:", message.text())
            phone.ack(message)
        print("cancelled once more:", store.cancel("reminders", "ann"))
        show(store)


def main() -> None:
    if len(sys.argv) > 1:
        book(sys.argv[1])
    with tempfile.TemporaryDirectory(prefix="cystore-example-") as folder:
        path = f"{folder}/store"
        first = subprocess.run([sys.executable, "-m", "examples.reminders", path], check=False)
        print("the first program was killed:", first.returncode == -signal.SIGKILL)
        change_and_deliver(path)


if __name__ == "__main__":
    main()
