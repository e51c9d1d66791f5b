"""`cystore clean`: removes expired segments, now. `cystore compact`: keeps the newest record of each key."""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace

import cystore
from cystore.attachment.first_process import free_full_disk
from cystore.engine.manifest.manifest import read_facts
from cystore.errors import StoreConfigError, StoreFullError
from cystore.operate import facts
from cystore.operate.command import FOUND_WRONG, OK, Command, add_json, store_config
from cystore.operate.output import write_json, write_line
from cystore.operate.progress import progress
from cystore.services.clean import Cleaned
from cystore.system.links import real_path

RETENTION = "file_reserved_time_h"


def _run(args: argparse.Namespace) -> int:
    facts.state(args.path)
    config = store_config(args)
    if RETENTION not in read_facts(args.path)[0].settings and not config.gives(RETENTION):
        raise StoreConfigError(
            "the store does not say how long its messages are kept, and its users may keep them for longer "
            "than the default of "
            f"{config.file_reserved_time_h} hours: give --set {RETENTION}=HOURS, or never",
            path=args.path,
        )
    root = real_path(args.path)
    if args.quarantine is not None:
        free_full_disk(root, config, elsewhere=real_path(args.quarantine))
    unexpired = 0
    while True:
        try:
            cleaned = _clean(args, config)
            break
        except StoreFullError:
            if not args.forcibly or not free_full_disk(root, config, forcibly=True):
                raise
            unexpired += 1
    cleaned = replace(cleaned, segments=cleaned.segments + unexpired, unexpired=cleaned.unexpired + unexpired)
    if args.json:
        write_json(asdict(cleaned))
        return OK
    write_line(
        f"removed {cleaned.segments} segments, {cleaned.queue_files} files of queues and {cleaned.index_files} "
        "of the index; the log "
        f"begins at {cleaned.min_physical_offset}"
    )
    if cleaned.unexpired:
        write_line(
            f"{cleaned.unexpired} of these segments had not expired: they went to make room on the disk"
        )
    return OK


def _clean(args: argparse.Namespace, config: cystore.StoreConfig) -> Cleaned:
    """Raises StoreFullError for a disk that stays too full for the store's reserved space."""
    with progress() as report, cystore.open(args.path, config=config, progress=report) as store:
        # first, to count: at its hour the service's turn would remove the same files without a count
        first = store.clean(forcibly=args.forcibly)
        store.clean_due()  # begins a new segment by time: the one before may have expired
        second = store.clean()
        if not first.segments + second.segments:
            store.check_reserved_space()
    return replace(
        second,
        segments=first.segments + second.segments,
        queue_files=first.queue_files + second.queue_files,
        index_files=first.index_files + second.index_files,
        unexpired=first.unexpired,
    )


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--forcibly",
        action="store_true",
        help="on a disk that stays too full, also remove the oldest segments that have not expired, one by one, until "
        "the store can grow again; holds keep what they hold",
    )
    parser.add_argument(
        "--quarantine",
        metavar="DIR",
        help="if nobody has the store open: recover it, and put copies of damaged bytes into DIR, which may be on "
        "another disk, instead of PATH/quarantine",
    )
    add_json(parser, "one JSON object: numbers of files, and the log's first offset")


COMMAND = Command(
    name="clean",
    summary="removes expired segments, now",
    description=(
        "Ends the current segment if it is old enough (roll_interval_h), and removes segments whose messages "
        "are all older\n"
        "than the store's file_reserved_time_h (see cystore config), at any hour. Segments that a hold, an "
        "archive or a delayed message\n"
        "needs stay. Other processes may use the store at the same time. On a full disk it needs no new space\n"
        "(docs/recovery.md)."
    ),
    examples=(
        "cystore clean /var/lib/app/store",
        "cystore clean /var/lib/app/store --json",
        "cystore clean /var/lib/app/store --forcibly",
    ),
    add_arguments=_add_arguments,
    run=_run,
)


def _compact(args: argparse.Namespace) -> int:
    facts.state(args.path)
    config = store_config(args)
    with progress() as report, cystore.open(args.path, config=config, progress=report) as store:
        done = store.compact(progress=report)
    code = FOUND_WRONG if done.damaged else OK
    if args.json:
        write_json(asdict(done))
        return code
    write_line(
        f"looked at {done.looked_at} records; kept {done.records} of {done.keys} keys in {done.size_bytes} bytes; "
        f"compacted up to {done.covered}"
    )
    for what in done.damaged:
        write_line(f"damaged, stepped over: {what}")
    if done.uncertain_below:
        write_line(f"values from below {done.uncertain_below} in the log may be outdated")
    return code


COMPACT = Command(
    name="compact",
    summary="keeps the newest record of each key of some topics, now",
    description=(
        "Compacts the topics that the store's setting compacted_topics names: a file in compacted/ keeps the newest\n"
        "record of each key, for longer than the log keeps its records. Services do the same before a segment of the\n"
        "log is removed. Other processes may use the store at the same time. Exit code 1: a part of the log or of the\n"
        "last compacted file is damaged, and was stepped over."
    ),
    examples=(
        "cystore config /var/lib/app/store --set compacted_topics=prices,state*",
        "cystore compact /var/lib/app/store",
        "cystore compact /var/lib/app/store --json",
    ),
    add_arguments=lambda parser: add_json(
        parser, "one JSON object: numbers of records, keys and bytes, and the covered offset"
    ),
    run=_compact,
)
