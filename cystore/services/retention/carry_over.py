"""Carrying over a store of an earlier version into the manifest.

Earlier versions had the files config/holds.json, config/archive.json and config/scrub.json. The first process to open
the store enters their content, and removes them when the manifest is durable. A kill in between leaves both, with the
same content. Entries that are in the manifest already win. Unreadable holds pause cleaning, and their file stays for an
operator.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cystore.engine.manifest.manifest import Manifest
from cystore.system import files

log = logging.getLogger("cystore")


def _holds(data: bytes) -> Any:
    from cystore.services.retention import hold

    return hold.hold_fields(hold.parse_hold_map(data))


def _archived(data: bytes) -> Any:
    from cystore.services.retention import archive_mark

    return archive_mark.archived_fields(archive_mark.parse_archived(data))


def _scrub(data: bytes) -> Any:
    from cystore.services import scrub_progress

    return scrub_progress.progress_fields(scrub_progress.parse_progress(data))


# (section, file in config/, its reader, whether there may be a last good copy). A reader imports its module: nearly no
# store has such a file.
SECTIONS: tuple[tuple[str, str, Callable[[bytes], Any], bool], ...] = (
    ("holds", "holds.json", _holds, True),
    ("archive", "archive.json", _archived, False),
    ("scrub", "scrub.json", _scrub, False),
)


def carry_over(root: Path, manifest: Manifest) -> None:
    """Enters the content of an earlier version's files, and removes them, even if the manifest is not durable."""
    for section, name, parse, has_copy in SECTIONS:
        path = root / "config" / name
        paths = [path, path.with_name(f"{name}.bak")] if has_copy else [path]
        found = [(each, data) for each in paths if (data := files.read_if_there(each)) is not None]
        if not found:
            continue
        if section not in manifest.snapshot().sections:
            content = _first_good(found, parse)
            if content is None:
                manifest.pause_cleaning(f"{path} of an earlier version cannot be read")
                continue
            manifest.set_section(section, content or None)
        if manifest.durable:
            for each, _ in found:
                files.remove(each)
            log.info("%s: carried over into the manifest", path)


def _first_good(found: list[tuple[Path, bytes]], parse: Callable[[bytes], Any]) -> Any:
    """The first content that can be read; None if there is none."""
    for path, data in found:
        try:
            return parse(data)
        except ValueError as error:
            log.error("%s cannot be read: %s", path, error)
    return None
