"""`cystore config`: every setting, its value and its source; changes the store's own settings."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import cystore
from cystore.config import KEPT, LOG_PATHS, StoreConfig, value_text
from cystore.engine.manifest.manifest import Manifest, look, read_facts
from cystore.engine.manifest.store_settings import POOL_ENABLE, RETENTION, SHAPE, configure, sources
from cystore.errors import StoreConfigError
from cystore.operate import facts
from cystore.operate.command import OK, Command, add_json, store_config
from cystore.operate.output import write_line, write_note
from cystore.system import ownership
from cystore.system.store_lock import StoreLocks

Settings = dict[str, tuple[Any, str]]  # name: value and source


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--unset", metavar="NAME", action="append", default=[],
        help="remove a value of the store: each process uses its own again",
    )  # fmt: skip
    parser.add_argument(
        "--resume-cleaning",
        action="store_true",
        help="end the pause of cleaning after an unreadable manifest; set all needed holds first",
    )
    parser.add_argument(
        "--end-archive",
        action="store_true",
        help="let cleaning no longer wait for the archive; the archive itself does not change",
    )
    add_json(parser, "one JSON object: name, value and source of each setting")


def _run(args: argparse.Namespace) -> int:
    given = [StoreConfig.parse_setting(text) for text in args.settings]
    changes = {name: value for name, value in given if name in (*RETENTION, *SHAPE)}
    for name in args.unset:
        if name in changes:
            raise StoreConfigError(f"{name}: --set and --unset contradict each other")
        changes[name] = None
    args.settings = [text for text in args.settings if StoreConfig.parse_setting(text)[0] not in changes]
    facts.state(args.path)
    config = store_config(args)
    needed = {name: value for name, value in changes.items() if name in LOG_PATHS}
    if not changes.get(POOL_ENABLE, True):
        needed[POOL_ENABLE] = False
    before = sources(config, read_facts(args.path)[0])
    if needed:
        _change_closed(args.path, config, needed)
    if changes or args.resume_cleaning or args.end_archive:
        writing = store_config(args, services=()).replacing(changes)
        with cystore.open(args.path, config=writing) as store:
            store.configure(**changes)
            if args.end_archive and not store.archive_mark.end():
                write_note("the store has no archive")
            if args.resume_cleaning and not store.resume_cleaning():
                write_note("cleaning was not paused")
        for name, value in given:
            if name not in changes:
                write_note(f"{name}={value} holds for this command alone: the store keeps no value of it")
        settings = sources(config, read_facts(args.path)[0])
        _write_settings({name: before[name] for name in changes}, settings, args)
        for name in KEPT:
            if name in changes and (line := config.but(**{name: settings[name][0]}).meaning(name)):
                write_note(line)
    else:
        _write_settings(before, before, args)
    return OK


def _write_settings(before: Settings, settings: Settings, args: argparse.Namespace) -> None:
    """Writes the settings that `before` names, and what they were."""
    for name, old in before.items():
        value, source = settings[name]
        if args.json:
            more = {} if before is settings else {"before": old[0]}
            write_line(json.dumps({"name": name, "value": value, "source": source, **more}))
        else:
            change = "" if settings[name] == old else f", before: {value_text(name, old[0])} ({old[1]})"
            write_line(f"{name} = {value_text(name, value)}  ({source}){change}")


def _change_closed(root: Path, config: StoreConfig, changes: dict[str, Any]) -> None:
    """Changes settings of a store that no process has open, before it is opened: there may be no memory for its pool,
    or a folder of its log may be missing. A crash's buffers are found without the setting."""
    found = look(root).facts
    if found is None or all(not found.settings.get(name) and not value for name, value in changes.items()):
        return
    if not config.allow_any_owner:
        ownership.check(root, ownership.group_id(config.group))
    locks = StoreLocks(root, read_only=False)
    try:
        with locks.gate():
            if locks.try_alone():
                configure(Manifest.load(root, None, lambda: found), changes)
    finally:
        locks.close()


COMMAND = Command(
    name="config",
    summary="all settings and where each value comes from; changes the store's retention policy",
    description="Writes every setting with its value and source: store, --set, a variable CYSTORE_<FIELD> of "
    "the environment, the TOML\n"
    "file (--config, or the one that CYSTORE_CONFIG names), or default. With --set it changes the store's "
    "retention policy, also for\n"
    "the processes that have the store open, and writes only what it changed.",
    examples=(
        "cystore config /var/lib/app/store",
        "CYSTORE_FLUSH_DISK_TYPE=sync cystore config /var/lib/app/store",
        "cystore config /var/lib/app/store --set file_reserved_time_h=24",
        "cystore config /var/lib/app/store --unset file_reserved_time_h",
        "cystore config /var/lib/app/store --resume-cleaning",
    ),
    add_arguments=_add_arguments,
    run=_run,
)
