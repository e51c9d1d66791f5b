"""`python -m cystore.celery.move STORE --to URL`: drains the queues of a broker in a store into another broker, without
an app."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from urllib.parse import quote

from kombu import Connection
from kombu.exceptions import KombuError

import cystore
import kombu_cystore  # noqa: F401 - makes cystore:// known
from cystore import StoreError
from cystore.celery.move import drain, listed
from cystore.celery.move.carry import target_of
from cystore.errors import hidden
from cystore.operate.command import FAILED, FOUND_WRONG
from cystore.operate.output import one_line, write_json, write_note
from cystore.operate.progress import progress


def main(arguments: list[str]) -> int:
    """0: all moved; 1: workers still have messages; 2: an error."""
    parser = argparse.ArgumentParser(
        prog="python -m cystore.celery.move",
        description="Drains the queues of a broker in a store into another broker. A kill leaves one message on both "
        "sides, and loses none: repeat the command.",
        epilog="example: python -m cystore.celery.move /var/lib/app/store --to redis://broker:6379/0",
    )
    parser.add_argument("store", type=Path, help="the store's directory")
    parser.add_argument("--to", metavar="URL", required=True, help="the broker that gets the messages")
    parser.add_argument("--queue", action="append", help="only this queue; may be repeated")
    options = parser.parse_args(arguments)
    try:
        with cystore.open(options.store, read_only=True) as store:
            ready = {one.name: one.ready for one in listed(store)}
        unknown = [name for name in options.queue or () if name not in ready]
        if unknown:
            parser.error(f"the broker has no queue {unknown[0]!r}")
        url = f"cystore://{quote(str(options.store.resolve()))}"
        with Connection(url) as source, target_of(options.to) as target, progress() as report:
            done = drain(
                source, target, options.queue or list(ready), None,
                lambda queue, moved: report and report(f"moving {queue}", moved, max(ready[queue], moved)),
            )  # fmt: skip
    except StoreError as error:
        write_note(one_line(str(error)))
        return FAILED
    except (KombuError, OSError) as error:
        write_note(
            one_line(f"{hidden(options.to)} does not take the messages: {type(error).__name__}: {error}")
        )
        return FAILED
    for one in done:
        write_json(one._asdict())
    return FOUND_WRONG if any(one.held for one in done) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
