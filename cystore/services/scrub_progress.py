"""The progress of the scrub, in the manifest."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any

from cystore.engine.manifest.manifest import Facts, look
from cystore.system.checked_json import checksum_of, parse_unchecked
from cystore.value_class import value_class

log = logging.getLogger("cystore")

SECTION = "scrub"  # in the manifest
SLICE_BYTES = 8 << 20
FINDINGS_KEPT = 50


@value_class(frozen=True)
class ScrubProgress:
    """The progress of the scrub. `position`: physical offset of the next slice. `began_ms` and `ended_ms`: of the round
    (0: not ended). `records`, `damaged` and `mended` count this round. `findings`: the newest, kept over rounds.
    `rounds`: the number of finished rounds. `compacted`: the number of the compacted file that is read, plus 1 (0: none
    yet in this round), and `compacted_position` in it."""

    position: int = 0
    began_ms: int = 0
    ended_ms: int = 0
    records: int = 0
    damaged: int = 0
    mended: int = 0
    rounds: int = 0
    compacted: int = 0
    compacted_position: int = 0
    findings: tuple[dict[str, Any], ...] = ()


def read_progress(root: Path) -> ScrubProgress:
    """The progress in the manifest of the store at `root`; the beginning without one, so that everything is verified
    again."""
    return progress_of((look(root).facts or Facts()).sections.get(SECTION))


def progress_of(fields: object) -> ScrubProgress:
    """The progress that a map in JSON describes; the beginning for anything else."""
    if fields is None:
        return ScrubProgress()
    try:
        return _progress(fields)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("cannot read the progress of the scrub (%s): the scrub begins anew", error)
        return ScrubProgress()


def _progress(fields: Any) -> ScrubProgress:
    numbers = {name: value for name, value in fields.items() if name != "findings"}
    if any(type(value) is not int or not 0 <= value < 1 << 62 for value in numbers.values()):
        raise ValueError(f"{numbers!r} is not a progress")
    findings = fields["findings"]
    if not isinstance(findings, list) or not all(isinstance(one, dict) for one in findings):
        raise ValueError("the findings are not a list")
    return ScrubProgress(**numbers, findings=tuple(findings[-FINDINGS_KEPT:]))


def parse_progress(data: bytes) -> ScrubProgress:
    """Reads the bytes of scrub.json, which earlier versions wrote; the beginning if they cannot be read."""
    try:
        content = parse_unchecked(data)
        fields = content["scrub"]
        if content["checksum"] != checksum_of(fields):
            raise ValueError("the checksum does not match the content")
        return _progress(fields)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("scrub.json cannot be read (%s): the scrub begins anew", error)
        return ScrubProgress()


def progress_fields(progress: ScrubProgress) -> dict[str, Any]:
    """The map in JSON that describes the progress."""
    return {**dataclasses.asdict(progress), "findings": list(progress.findings)}
