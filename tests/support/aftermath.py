"""The aftermath: what an operator does with a store after a fault, and what must come of it.

Every episode of the fault matrix ends here. The store is closed and its own check has passed. Then it is cleaned,
rebuilt, verified and opened again; the commands run in this process, which costs milliseconds.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cystore
from cystore.cli.program import build_parser
from cystore.operate.command import FOUND_WRONG, OK
from tests.support import checks

TOPIC = "aftermath"


def command(name: str, path: Path, settings: dict[str, Any], *more: str) -> tuple[int, str]:
    """Runs a command of the command line; gives its exit code and its output."""
    given = [word for setting, value in settings.items() for word in ("--set", f"{setting}={_text(value)}")]
    args = _parser().parse_args([name, str(path), *given, *more])
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        code = args.command.run(args)
    return code, output.getvalue()


@functools.cache
def _parser() -> argparse.ArgumentParser:
    return build_parser()


def _text(value: Any) -> str:
    return ",".join(value) if isinstance(value, (list, tuple)) else str(value)


def verified(path: Path, settings: dict[str, Any], reported: Sequence[tuple[int, int]] = ()) -> None:
    """`cystore verify` finds the damage that is reported, and no other."""
    code, output = command("verify", path, settings, "--json")
    found = [json.loads(line) for line in output.splitlines()]
    assert code == (FOUND_WRONG if found else OK), (code, found)
    others = [one for one in found if one["kind"] != "record" or (one["begin"], one["end"]) not in reported]
    assert not others, (others, reported)


def aftermath(path: Path, settings: dict[str, Any], check: Callable[[cystore.MessageStore], object]) -> None:
    """Cleans, rebuilds, verifies, opens; `check` gets the open store and asks for everything that the episode
    acknowledged. Then one more message is put and read, and the closed store is verified again."""
    with cystore.open(path, **settings) as store:
        store.clean()
        reported = holes(store)
        lost = store.recovery is not None and store.recovery.lost is not None
    code, output = command("rebuild", path, settings)
    assert code == OK or (lost and code == FOUND_WRONG), (
        output
    )  # a lost tail is reported until it is written over
    verified(path, settings, reported)
    with cystore.open(path, **settings) as store:
        assert holes(store) == reported
        check(store)
        put = store.put(TOPIC, b"goes on", keys=(TOPIC,), flush="sync")
        (got,) = store.get(TOPIC, 0, put.queue_offset).messages
        assert bytes(got.body) == b"goes on" and got.physical_offset == put.physical_offset, got
        assert put.physical_offset in {found.physical_offset for found in store.query(TOPIC, TOPIC)}
    verified(path, settings, reported)


def after_check(path: Path, settings: dict[str, Any], acknowledged: Sequence[Sequence[Any]]) -> None:
    """The aftermath of an episode that damaged no record: `checks.check` holds before and after."""
    aftermath(path, settings, lambda store: checks.check(store, acknowledged))


def after_kills(path: Path, settings: dict[str, Any]) -> None:
    """The aftermath of an episode whose own check has passed: every record stays where it was, and its queue finds
    it."""
    with cystore.open(path, **settings) as store:
        before = _places(store)

    def check(store: cystore.MessageStore) -> None:
        assert _places(store) == before
        for topic, queue_id, queue_offset, physical_offset in before:
            got = store.get(topic, queue_id, queue_offset, 1)
            assert [message.physical_offset for message in got.messages] == [physical_offset], got

    aftermath(path, settings, check)


def _places(store: cystore.MessageStore) -> list[tuple[str, int, int, int]]:
    return [
        (message.topic, message.queue_id, message.queue_offset, message.physical_offset)
        for message in store.scan()
        if message.queue_offset is not None and message.physical_offset is not None
    ]


def holes(store: cystore.MessageStore) -> list[tuple[int, int]]:
    """The damaged ranges that the store reports."""
    return [(int(begin), int(end)) for begin, end in store.stats()["holes"]]
