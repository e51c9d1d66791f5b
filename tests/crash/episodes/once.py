"""Once: a process that puts once is killed behind the append; another one puts the same keys. A log outside of the
store has each answer."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import cystore
from tests.crash.episodes import armed
from tests.support.aftermath import after_kills
from tests.support.process import Process
from tests.support.small_stores import SETTINGS

KEYS, HOUR_MS = 400, 3_600_000
PLACES = {"once.put": KEYS}
PUT = """
import cystore, os
store = cystore.open(path, **settings)
out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
for number in range(keys):
    place, _ = store.put_once("orders", b"%d" % number, dedup_key=f"k{number}", window_ms=hour_ms)
    os.write(out, f"{number} {place.physical_offset}\\n".encode())
"""


def given(path: Path, log: Path) -> dict[str, Any]:
    return {"path": str(path), "log": str(log), "settings": SETTINGS, "keys": KEYS, "hour_ms": HOUR_MS}


def notes(log: Path) -> list[tuple[int, ...]]:
    return [tuple(map(int, line.split())) for line in log.read_text().splitlines()] if log.exists() else []


def check(path: Path, log: Path) -> None:
    with cystore.open(path, **SETTINGS) as store:
        found = {int(bytes(message.body)): message.physical_offset for message in store.scan()}
        assert len(list(store.scan())) == len(found) == KEYS
        assert {(number, at) for number, at in notes(log)} == set(found.items())
    after_kills(path, SETTINGS)


def killed_at(
    place: str, rng: random.Random, folder: Path, environment: Mapping[str, str], *, planted: str = ""
) -> None:
    path, log = folder / "store", folder / "log"
    hits = rng.randint(1, PLACES[place])
    with Process(armed(environment, place, hits)) as victim, Process() as other:
        victim.send(PUT, **given(path, log))
        with pytest.raises(EOFError):
            victim.answer()
        other.do(PUT + planted, **given(path, log))
    check(path, log)
