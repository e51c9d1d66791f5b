"""Checks a run: a process that took no part in it reads every acknowledged result back from the store."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cystore
from celery_app.folder import RunFolder
from cystore.celery import history
from cystore.celery.base import records


@dataclass
class Verdict:
    """The result of reading back; the lists hold task ids."""

    checked: int = 0
    missing: list[str] = field(default_factory=list)
    different: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """True when something was checked and all of it is there."""
        return self.checked > 0 and not self.missing and not self.different


def acknowledgement(meta: dict[str, Any]) -> dict[str, Any]:
    """The fields that are noted of a result that was handed out."""
    failed = isinstance(meta["result"], BaseException)
    return {
        "id": meta["task_id"],
        "state": meta["status"],
        "result": type(meta["result"]).__name__ if failed else meta["result"],
    }


def write_acknowledged(path: Path, metas: Iterable[dict[str, Any]]) -> None:
    """Writes the list that `verify` reads."""
    with open(path, "w") as file:
        file.writelines(json.dumps(acknowledgement(meta)) + "\n" for meta in metas)


def verify(folder: RunFolder) -> Verdict:
    """Looks every acknowledged result up in the store, which is opened for reading only."""
    verdict = Verdict()
    with cystore.open(folder.store, read_only=True) as store:
        for line in folder.acknowledged.read_text().splitlines():
            wanted = json.loads(line)
            verdict.checked += 1
            found = records.fold(records.records_of(store, records.RESULTS, records.key_of(wanted["id"])))
            if found is None:
                verdict.missing.append(wanted["id"])
                continue
            transition = history.Transition.of(found)
            result = transition.result
            if isinstance(result, dict) and "exc_type" in result:
                result = result["exc_type"]
            if (transition.state, result) != (wanted["state"], wanted["result"]):
                verdict.different.append(wanted["id"])
    return verdict
