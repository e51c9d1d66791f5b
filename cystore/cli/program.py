"""The program around the commands: arguments, errors as one line, exit codes."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from types import FrameType

from cystore import __version__
from cystore.cli.change.clean import COMMAND as CLEAN
from cystore.cli.change.clean import COMPACT
from cystore.cli.change.config import COMMAND as CONFIG
from cystore.cli.change.filters import ADD as FILTERS_ADD
from cystore.cli.change.filters import COMMAND as FILTERS
from cystore.cli.change.filters import REMOVE as FILTERS_REMOVE
from cystore.cli.change.handover import COMMAND as HANDOVER
from cystore.cli.change.put import COMMAND as PUT
from cystore.cli.change.quarantine import COMMAND as QUARANTINE
from cystore.cli.change.rebuild import COMMAND as REBUILD
from cystore.cli.change.recover import COMMAND as RECOVER
from cystore.cli.change.replicate import COMMAND as REPLICATE
from cystore.cli.change.reset_offset import COMMAND as RESET_OFFSET
from cystore.cli.change.topics import CLEAN as TOPICS_CLEAN
from cystore.cli.change.topics import COMMAND as TOPICS
from cystore.cli.change.topics import DELETE as TOPICS_DELETE
from cystore.cli.change.transactions import COMMAND as TRANSACTIONS
from cystore.cli.copies.import_ledger import COMMAND as IMPORT
from cystore.cli.copies.report import COMMAND as REPORT
from cystore.cli.copies.snapshot import COMMAND as SNAPSHOT
from cystore.cli.ha.group import COMMAND as HA
from cystore.cli.host.completion import COMMAND as COMPLETION
from cystore.cli.host.doctor import COMMAND as DOCTOR
from cystore.cli.look.clock import COMMAND as CLOCK
from cystore.cli.look.dispatchers import COMMAND as DISPATCHERS
from cystore.cli.look.dump import COMMAND as DUMP
from cystore.cli.look.groups import COMMAND as GROUPS
from cystore.cli.look.groups import LAG
from cystore.cli.look.info import COMMAND as INFO
from cystore.cli.look.metrics import COMMAND as METRICS
from cystore.cli.look.query import COMMAND as QUERY
from cystore.cli.look.read import COMMAND as READ
from cystore.cli.look.spans import COMMAND as SPANS
from cystore.cli.look.tail import COMMAND as TAIL
from cystore.cli.look.verify import COMMAND as VERIFY
from cystore.cli.look.web import COMMAND as WEB
from cystore.cli.timed.cancel import CANCEL, FIRE
from cystore.cli.timed.delayed import COMMAND as DELAYED
from cystore.cli.timed.serve import COMMAND as SERVE
from cystore.errors import StoreError
from cystore.operate.command import FAILED, Command, Group
from cystore.operate.exits import (
    INTERRUPTED,
    PIPE_CLOSED,
    TERMINATED,
    hint,
    leave,
    whole_streams,
)
from cystore.operate.output import one_line, write_note

COMMANDS: tuple[Command | Group, ...] = (
    INFO, TOPICS, TOPICS_DELETE, TOPICS_CLEAN, DUMP, QUERY, READ, PUT, TAIL, VERIFY, RECOVER, REBUILD, QUARANTINE,
    CONFIG, CLEAN, COMPACT, CLOCK,
    HANDOVER, SNAPSHOT, IMPORT, TRANSACTIONS, GROUPS, LAG, RESET_OFFSET, FILTERS, FILTERS_ADD, FILTERS_REMOVE,
    DISPATCHERS, DELAYED, CANCEL, FIRE, REPLICATE, HA, METRICS, REPORT, SPANS, WEB, SERVE, DOCTOR, COMPLETION,
)  # fmt: skip
ALIKE = 3  # reports that differ in numbers and names only

EPILOG = """\
exit codes:
  0    done
  1    damage was found, or the answer is empty
  2    wrong usage, or an error of the store: one line on standard error names it
  130  ended by Ctrl-C; 143 by SIGTERM; 141 the reader of the output went away

settings:
  Every command takes --set NAME=VALUE and --config FILE.toml with fields of cystore.StoreConfig. Commands that write
  need the settings of the store's other users.

examples:
  cystore info /var/lib/app/store
  cystore COMMAND --help
"""


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="cystore",
        description="Shows, reads, writes and repairs message stores (directories).",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"cystore {__version__}")
    group = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_to(group)
    return parser


def _joined(words: list[str]) -> list[str]:
    """A command line whose first two words are the name of one command, as one word."""
    if " ".join(words[:2]) in {command.name for command in COMMANDS}:
        return [" ".join(words[:2]), *words[2:]]
    return words


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code. Errors of the store are one line on standard error."""
    whole_streams()
    parser = build_parser()
    args = parser.parse_args(_joined(list(sys.argv[1:] if argv is None else argv)))
    args.program = parser  # for `completion`
    name = args.called
    reports = _reports()
    signal.signal(signal.SIGTERM, _terminated)
    try:
        status = args.command.run(args)
        reports.summary()
        sys.stdout.flush()
    except StoreError as error:
        return _failed(name, f"{error}{hint(error)}")
    except KeyboardInterrupt:
        return leave(INTERRUPTED)
    except BrokenPipeError:
        return leave(PIPE_CLOSED)
    except OSError as error:
        return _failed(name, str(error))
    return status


def _terminated(number: int, frame: FrameType | None) -> None:
    """Ends like an error does, so that the store is closed."""
    raise SystemExit(TERMINATED)


def _failed(name: str, text: str) -> int:
    """Writes an error, after all earlier output."""
    status = leave(FAILED)
    sys.stderr.write(f"cystore {name}: error: {one_line(text)}\n")
    return status


class _Reports(logging.Handler):
    """Log records of the library, a line each; an error's text replaces its traceback. Of records that differ only in
    numbers and names it writes the first few, and then their number."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: Counter[str] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        self._seen[record.msg] += 1
        if self._seen[record.msg] > ALIKE:
            return
        error = record.exc_info[1] if record.exc_info else None
        text = record.getMessage() + (f": {error}" if error is not None else "")
        sys.stderr.write(f"cystore: {record.levelname.lower()}: {one_line(text)}\n")

    def summary(self) -> None:
        """Reports the number of records that were left out."""
        left_out = sum(count - ALIKE for count in self._seen.values() if count > ALIKE)
        if left_out:
            write_note(f"{left_out} more similar reports")


def _reports() -> _Reports:
    """The handler, in place."""
    handler = _Reports()
    logger = logging.getLogger("cystore")
    logger.addHandler(handler)
    logger.propagate = False
    return handler
