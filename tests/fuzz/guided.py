"""Targets about Python under atheris, which sees the branches of what it imports. Only where atheris is installed."""

from __future__ import annotations

import sys
import zlib
from pathlib import Path

import atheris

from tests.fuzz.target import Target


def load(name: str) -> Target | None:
    """The target with its code instrumented; None for one that is about kernels."""
    with atheris.instrument_imports(include=["cystore"]):  # not the kernels: atheris sees no compiled code
        from tests.fuzz.targets import TARGETS
    return TARGETS[name] if TARGETS[name].python else None


def run(target: Target, *, seconds: float, seed: str, notepad: Path) -> int:
    """Does not return: libFuzzer ends the process."""
    from tests.fuzz.loop import LONGEST, Notepad
    from tests.fuzz.target import CORPUS

    pad, grown = Notepad(notepad), notepad.parent / f"corpus-{target.name}"
    grown.mkdir(parents=True, exist_ok=True)

    def one(data: bytes) -> None:
        pad.note(data)
        target.run(data)

    options = [
        f"-max_total_time={int(seconds)}",
        f"-max_len={LONGEST}",
        f"-seed={zlib.crc32(seed.encode()) or 1}",
    ]
    options += [f"-artifact_prefix={notepad.parent}/{target.name}-", "-print_final_stats=1"]
    atheris.Setup([sys.argv[0], *options, str(grown), str(CORPUS / target.name)], one)
    print(f"{target.name}: guided by Python's branches (atheris), seed {seed}", flush=True)
    atheris.Fuzz()
    return 0
