"""`cystore clean`: removes expired segments, now. `cystore compact`: keeps the newest record of each key."""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace

import cystore
from cystore.engine.manifest.manifest import read_facts
from cystore.errors import StoreConfigError
from cystore.operate import facts
from cystore.operate.command import FOUND_WRONG, OK, Command, add_json, store_config
from cystore.operate.output import write_json, write_line
from cystore.operate.progress import progress

RETENTION = "file_reserved_time_h"


def _run(args: argparse.Namespace) -> int:
    facts.state(args.path)
    config = store_config(args)
    if RETENTION not in read_facts(args.path)[0].settings and not config.gives(RETENTION):
        raise StoreConfigError(
            "the store does not say how long its messages are kept, and its users may keep them for longer "
            "than the default of "
            f"{config.file_reserved_time_h} hours: give --set {RETENTION}=HOURS",
            path=args.path,
        )
    with progress() as report, cystore.open(args.path, config=config, progress=report) as store:
        # first, to count: at its hour the service's turn would remove the same files without a count
        first = store.clean()
        store.clean_due()  # begins a new segment by time: the one before may have expired
        second = store.clean()
    cleaned = replace(
        second,
        segments=first.segments + second.segments,
        queue_files=first.queue_files + second.queue_files,
        index_files=first.index_files + second.index_files,
    )
    if args.json:
        write_json(asdict(cleaned))
        return OK
    write_line(
        f"removed {cleaned.segments} segments, {cleaned.queue_files} files of queues and {cleaned.index_files} "
        "of the index; the log "
        f"begins at {cleaned.min_physical_offset}"
    )
    return OK


COMMAND = Command(
    name="clean",
    summary="removes expired segments, now",
    description=(
        "Ends the current segment if it is old enough (roll_interval_h), and removes segments whose messages "
        "are all older\n"
        "than the store's file_reserved_time_h (see cystore config), at any hour. Segments that a hold, an "
        "archive or a delayed message\n"
        "needs stay. Other processes may use the store at the same time."
    ),
    examples=(
        "cystore clean /var/lib/app/store",
        "cystore clean /var/lib/app/store --json",
    ),
    add_arguments=lambda parser: add_json(
        parser, "one JSON object: numbers of files, and the log's first offset"
    ),
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
