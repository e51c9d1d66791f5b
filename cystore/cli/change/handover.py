"""`cystore handover`: asks the processes that have a store open to leave, and waits until they did.

The request is for the processes that are attached when it is made. A process that comes later stays: it has this
layout, or it would be refused. So a supervisor may start workers again meanwhile, and the command waits for the old
ones only.
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import Any

from cystore import clock
from cystore.engine.inspect.control_head import (
    SEEN_S,
    ask_to_leave,
    attached_processes,
    read_head,
    request_until,
)
from cystore.engine.inspect.control_words import read_words
from cystore.errors import StoreLockedError
from cystore.operate import facts
from cystore.operate.command import FOUND_WRONG, OK, Command, add_json
from cystore.operate.output import one_line, write_json, write_line, write_note, write_table
from cystore.system.threads import os_threads

LOOK_S = 0.2
WAIT_S = 60.0
WAIT_S_MAX = 7 * 86_400.0


def wait_seconds(text: str) -> float:
    """The value of --wait. Raises argparse.ArgumentTypeError."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= WAIT_S_MAX:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds from 0 to {WAIT_S_MAX:.0f}")
    return seconds


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--wait",
        type=wait_seconds,
        default=WAIT_S,
        metavar="SECONDS",
        help="wait at most this time (default: %(default).0f)",
    )
    parser.add_argument(
        "--keep",
        action="store_true",
        help="the request stands after --wait, until it is cancelled; --wait 0 means this, too",
    )
    parser.add_argument("--cancel", action="store_true", help="end a standing request")
    add_json(parser, "one JSON object")


_Key = tuple[int, int | None]  # of an AttachedProcess


def _generation(path: Path) -> int | None:
    """The number of a store's control block, which the first process that attaches makes anew."""
    words = read_words(path)
    return None if words is None else words.generation


def _await(path: Path, before: set[_Key], wait_s: float) -> None:
    """Waits until these processes are not attached any more. If this process sees none of them, waits
    until no process is attached, or until the block is a new one."""
    generation, until_s = _generation(path), clock.monotonic_s() + wait_s
    while clock.monotonic_s() < until_s and facts.state(path).name == "live":
        if _generation(path) != generation or (before and not _still(path, before)):
            return
        os_threads.pause(LOOK_S)


def _still(path: Path, before: set[_Key]) -> bool:
    return any(process.key in before for process in attached_processes(path))


def _ask(args: argparse.Namespace) -> dict[str, Any]:
    """Asks, waits, and ends the request, unless it is to stand. Returns what is found then."""
    path, keeps = args.path, args.keep or args.wait == 0
    before, generation = {process.key for process in attached_processes(path)}, _generation(path)
    ask_to_leave(path, request=request_until(None if keeps else args.wait))
    try:
        _await(path, before, args.wait)
    finally:
        head = read_head(path) if facts.state(path).name == "live" else None
        # A shorter request ends by itself, when every process has had the time to see it.
        if head is not None and not keeps and (args.wait >= SEEN_S or not head.is_ours):
            ask_to_leave(path, asked=False)
    return _found(path, before, generation)


def _found(path: Path, before: set[_Key], generation: int | None) -> dict[str, Any]:
    """The processes that are attached now; `left`: those before the request are not."""
    state, head = facts.state(path), read_head(path)
    live = state.name == "live"
    attached = attached_processes(path) if live else []
    left = (
        not live
        or _generation(path) != generation
        or bool(before and not before & {process.key for process in attached})
    )
    return {
        "left": left,
        "asked": live and head is not None and head.handover,
        "attached_with": str(head) if live and head is not None else None,
        "processes": [{**process._asdict(), "later": process.key not in before} for process in attached],
    }


def _show(args: argparse.Namespace, found: dict[str, Any]) -> None:
    path = one_line(str(args.path))
    if found["left"] and not found["processes"]:
        write_line(f"{path}: no process is attached; the next one to open the store makes its layout")
        return
    later = [process for process in found["processes"] if process["later"]]
    if found["left"]:
        write_line(f"{path}: all processes have left; attached since, with {found['attached_with']}:")
        _table(later)
        return
    write_line(f"{path}: still attached with {found['attached_with']}, and asked to leave:")
    _table([process for process in found["processes"] if not process["later"]])
    write_line(
        "They may stay, and processes with the same layout may come: everything works. Until all of them have "
        "ended, no process with another layout can write to the store."
    )
    command = f"cystore handover {one_line(shlex.quote(str(args.path)))}"
    if args.keep or args.wait == 0:
        write_line(f"The request stands; to cancel it: {command} --cancel")
    else:
        write_line(
            "The request has ended: workers that have seen it leave when their tasks have ended, all others stay. "
            f"End them, or ask again: {command} --wait SECONDS, or --keep"
        )


def _table(processes: list[dict[str, Any]]) -> None:
    if processes:
        write_table(("pid", "command"), [(p["pid"], one_line(p["command"])) for p in processes])
    else:
        write_line("this process cannot see them: they run as another user")


def _run(args: argparse.Namespace) -> int:
    state = facts.state(args.path)
    if state.name == "exclusive":
        raise StoreLockedError(
            "one process has the store exclusively, and cannot be asked: end it", path=args.path
        )
    if args.cancel:
        head = read_head(args.path) if state.name == "live" else None
        stands = head is not None and head.handover
        if stands:
            ask_to_leave(args.path, asked=False)
        if args.json:
            write_json(_found(args.path, set(), _generation(args.path)))
        elif stands:
            write_line(f"{one_line(str(args.path))}: the request is cancelled")
        if not stands:
            write_note(f"{args.path}: there is no request to cancel")
        return OK if stands else FOUND_WRONG
    found = _ask(args) if state.name == "live" else _found(args.path, set(), None)
    if args.json:
        write_json(found)
    else:
        _show(args, found)
    return OK if found["left"] else FOUND_WRONG


COMMAND = Command(
    name="handover",
    summary="asks the processes that have a store open to leave, and waits for them",
    description=(
        "For an upgrade to a version whose control block has another layout. Celery workers of any version "
        "from this one on stop taking\n"
        "tasks, give unstarted ones back to the broker, finish the running ones and exit; other programs\n"
        "ask store.asked_to_leave() and close the store by themselves. Processes that come later stay. The "
        "request ends with --wait.\n"
        "Exit code 1: a process that was asked is still attached; it is shown. With --cancel: there was no request."
    ),
    examples=(
        "cystore handover /var/lib/app/store",
        "cystore handover /var/lib/app/store --wait 600",
        "cystore handover /var/lib/app/store --keep",
        "cystore handover /var/lib/app/store --cancel",
    ),
    add_arguments=_add_arguments,
    run=_run,
)
