"""The checker: what the members have in the end, against what the writers were told.

* Nothing that a reader saw was taken back.
* Nothing that was acknowledged as replicated is lost: it is where its put said, in every member.
* No two epochs acknowledged at the same place, and a later epoch acknowledged behind an earlier one.
* Nothing is there twice. A queue has no gap, and each writer's messages are in their order.
* A read of each queue gives the messages that its log has, all of them.
* The members are equal byte for byte.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Stored:
    """A record of a log."""

    queue: int
    offset: int
    at: int
    body: str


def check(
    acknowledged: Sequence[dict[str, Any]],
    logs: dict[str, Sequence[Stored]],
    read: dict[str, Sequence[Stored]],
    raw: dict[str, bytes],
    seen: Iterable[tuple[int, str]] = (),
) -> list[str]:
    """All faults, as lines. `acknowledged` are the lines of all journals; `logs` in the order of the log, `read` from
    the queues, and `raw` are of each member; `seen` are the places and bodies that readers saw on the way."""
    faults = [*_epochs(acknowledged), *_taken_back(seen, next(iter(logs.values())))]
    for name, stored in logs.items():
        faults += [
            f"{name}: {fault}"
            for fault in (
                *_lost(acknowledged, stored),
                *_queues(stored),
                *_writers(stored),
                *_served(stored, read[name]),
            )
        ]
    first = next(iter(raw))
    faults += [f"{name} and {first} differ" for name, data in raw.items() if data != raw[first]]
    return faults


def _lost(acknowledged: Iterable[dict[str, Any]], stored: Sequence[Stored]) -> Iterable[str]:
    by_place = {one.at: one for one in stored}
    for line in acknowledged:
        found, body = by_place.get(line["at"]), f"{line['life']} {line['number']}"
        if found is None or (found.queue, found.offset, found.body) != (line["queue"], line["offset"], body):
            yield f"acknowledged in epoch {line['epoch']} and lost: {body} at {line['at']}, found {found}"


def _taken_back(seen: Iterable[tuple[int, str]], stored: Sequence[Stored]) -> Iterable[str]:
    there = {one.at: one.body for one in stored}
    for at, body in seen:
        if there.get(at) != body:
            yield f"a reader saw {body!r} at {at}, and it was taken back: found {there.get(at)!r}"


def _epochs(acknowledged: Iterable[dict[str, Any]]) -> Iterable[str]:
    places: dict[int, dict[str, Any]] = {}
    spans: dict[int, tuple[int, int]] = {}
    masters: dict[int, set[str]] = {}
    for line in acknowledged:
        at, epoch = line["at"], line["epoch"]
        if at in places:
            yield f"acknowledged twice at {at}: {places[at]} and {line}"
        places[at] = line
        low, high = spans.get(epoch, (at, at))
        spans[epoch] = min(low, at), max(high, at)
        masters.setdefault(epoch, set()).add(line["life"].partition(".")[0])
    for epoch, names in masters.items():
        if len(names) > 1:
            yield f"epoch {epoch} has the masters {sorted(names)}"
    ordered = sorted(spans.items())
    for (epoch, (_, high)), (later, (low, _)) in itertools.pairwise(ordered):
        if low <= high:
            yield f"epoch {epoch} acknowledged up to {high}, and epoch {later} from {low} on"


def _queues(stored: Sequence[Stored]) -> Iterable[str]:
    following: dict[int, int] = {}
    bodies: set[str] = set()
    for one in stored:
        expected = following.get(one.queue, 0)
        if one.offset != expected:
            yield f"queue {one.queue} continues with {one.offset} instead of {expected}"
        following[one.queue] = one.offset + 1
        if one.body in bodies:
            yield f"{one.body} is there twice"
        bodies.add(one.body)


def _served(stored: Sequence[Stored], read: Sequence[Stored]) -> Iterable[str]:
    there, served = ({(one.queue, one.offset): one for one in some} for some in (stored, read))
    for place in sorted(there.keys() | served.keys()):
        if there.get(place) != served.get(place):
            yield f"the log has {there.get(place)}, and a read of its queue gives {served.get(place)}"


def _writers(stored: Sequence[Stored]) -> Iterable[str]:
    last: dict[tuple[str, int], int] = {}
    for one in stored:
        life, _, number = one.body.rpartition(" ")
        if last.get((life, one.queue), -1) >= int(number):
            yield f"queue {one.queue}: {life} {number} stands behind {last[life, one.queue]}"
        last[life, one.queue] = int(number)
