"""`cystore handover`: asks the processes that have a store open to leave, and waits until they did."""

from __future__ import annotations

import argparse
from typing import Any

from cystore import clock
from cystore.engine.inspect.control_head import ask_to_leave, attached_processes, read_head
from cystore.errors import StoreLockedError
from cystore.operate import facts
from cystore.operate.command import FOUND_WRONG, OK, Command, add_json
from cystore.operate.output import one_line, write_json, write_line, write_table
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
    parser.add_argument("--cancel", action="store_true", help="cancel the request")
    add_json(parser, "one JSON object")


def _found(args: argparse.Namespace) -> dict[str, Any]:
    """The processes that are attached now."""
    state, head = facts.state(args.path), read_head(args.path)
    live = state.name == "live"
    return {
        "left": not live,
        "asked": live and head is not None and head.handover,
        "attached_with": str(head) if live and head is not None else None,
        "processes": [
            {"pid": pid, "command": command}
            for pid, command in (attached_processes(args.path) if live else ())
        ],
    }


def _run(args: argparse.Namespace) -> int:
    state = facts.state(args.path)
    if state.name == "exclusive":
        raise StoreLockedError(
            "one process has the store exclusively, and cannot be asked: end it", path=args.path
        )
    until_s = clock.monotonic_s() + args.wait
    while state.name == "live":
        ask_to_leave(args.path, asked=not args.cancel)
        if args.cancel or clock.monotonic_s() >= until_s:
            break
        os_threads.pause(LOOK_S)
        state = facts.state(args.path)
    found = _found(args)
    if args.json:
        write_json(found)
    elif found["left"]:
        write_line(
            f"{one_line(str(args.path))}: no process is attached; the next one to open the store makes its layout"
        )
    elif args.cancel:
        write_line(f"{one_line(str(args.path))}: the request is cancelled")
    else:
        write_line(
            f"{one_line(str(args.path))}: still attached with {found['attached_with']}, and asked to leave:"
        )
        shown = [(p["pid"], one_line(p["command"])) for p in found["processes"]]
        if shown:
            write_table(("pid", "command"), shown)
        else:
            write_line("this process cannot see them: they run in another PID namespace, or as another user")
    return OK if found["left"] or args.cancel else FOUND_WRONG


COMMAND = Command(
    name="handover",
    summary="asks the processes that have a store open to leave, and waits for them",
    description=(
        "For an upgrade to a version whose control block has another layout. Celery workers of any version "
        "from this one on stop taking\n"
        "tasks, give unstarted ones back to the broker, finish the running ones and exit; other programs\n"
        "ask store.asked_to_leave() and close the store by themselves. Exit code 1: a process is still attached (it "
        "is shown, and still asked)."
    ),
    examples=(
        "cystore handover /var/lib/app/store",
        "cystore handover /var/lib/app/store --wait 600",
        "cystore handover /var/lib/app/store --cancel",
    ),
    add_arguments=_add_arguments,
    run=_run,
)
