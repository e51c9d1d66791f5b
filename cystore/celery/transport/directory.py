"""The facts of a broker besides its messages, in config/celery_broker.json: exchanges, bindings, and the queues that
live as long as their consumer.

Every process reads the file when it has changed, and writes it whole, under a lock. The messages of a queue that lasts
are a topic of the store, with or without an entry here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cystore.errors import StoreFormatError
from cystore.system import files
from cystore.system.key_lock import NameLocks

NAME, LOCKS = "celery_broker.json", "celery_broker.lock"
WAIT_S = 10.0
PRIORITIES = 10  # 0 to 9

Binding = tuple[str, str, str, str]  # exchange, routing key, pattern, queue


class Directory:
    """The file of one store, for one connection."""

    def __init__(self, root: Path) -> None:
        self._root, self._path = root, root / "config" / NAME
        self._locks = NameLocks(root / "config" / LOCKS)
        self._stamp: tuple[int, int, int] | None = None
        self._known: dict[str, Any] = _empty()

    def read(self) -> dict[str, Any]:
        """The present state. Not to be changed."""
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            self._stamp, self._known = None, _empty()
            return self._known
        stamp = (found.st_ino, found.st_mtime_ns, found.st_size)
        if stamp != self._stamp:
            self._known, self._stamp = read_state(self._path), stamp
        return self._known

    @contextmanager
    def changing(self) -> Iterator[dict[str, Any]]:
        """A with block that changes the state; it is durable at its end."""
        with self._locks.held(NAME, WAIT_S):
            state = json.loads(json.dumps(self.read()))
            before = json.dumps(state)
            yield state
            after = json.dumps(state)
            if after != before:
                files.write_whole(self._root, self._path, after.encode(), keep_last=False)
                self._stamp = None

    # ---------------------------------------------------------------------------------------------- exchanges, bindings

    def exchange(self, name: str) -> dict[str, Any] | None:
        """How an exchange was declared; None for an unknown one."""
        found = self.read()["exchanges"].get(name)
        return None if found is None else dict(found)

    def declare(self, name: str, fields: dict[str, Any]) -> None:
        """Keeps an exchange, if it is new."""
        if name not in self.read()["exchanges"]:
            with self.changing() as state:
                state["exchanges"].setdefault(name, fields)

    def forget_exchange(self, name: str) -> None:
        """Removes an exchange and its bindings."""
        with self.changing() as state:
            state["exchanges"].pop(name, None)
            state["bindings"] = [one for one in state["bindings"] if one[0] != name]

    def table(self, exchange: str) -> list[tuple[str, str, str]]:
        """The bindings of an exchange: routing key, pattern, queue."""
        return [
            (key, pattern, queue) for of, key, pattern, queue in self.read()["bindings"] if of == exchange
        ]

    def bind(self, binding: Binding) -> None:
        """Adds a binding, once."""
        if list(binding) not in self.read()["bindings"]:
            with self.changing() as state:
                if list(binding) not in state["bindings"]:
                    state["bindings"].append(list(binding))

    def unbind(self, matches: Callable[[Binding], bool]) -> None:
        """Removes the bindings that match."""
        if any(matches(tuple(one)) for one in self.read()["bindings"]):
            with self.changing() as state:
                state["bindings"] = [one for one in state["bindings"] if not matches(tuple(one))]

    # --------------------------------------------------------------------------------------------------- passing queues

    def passing(self, queue: str) -> list[int] | None:
        """The places in the topic of passing messages at which a queue begins that lives as long as its consumer, one
        for each priority; None for a queue that lasts."""
        found = self.read()["passing"].get(queue)
        return None if found is None else [int(place) for place in found["begin"]]

    def add_passing(
        self, queue: str, begin: list[int], owner: int, ended: Callable[[set[int]], set[int]]
    ) -> None:
        """Declares such a queue. Those of owners that do not live any more go, also one of the same name."""
        known = self.read()["passing"].get(queue)
        if known is not None and not ended({int(known["owner"])}):
            return
        with self.changing() as state:
            owners = {int(one["owner"]) for one in state["passing"].values()}
            dead = ended(owners)
            gone = {name for name, one in state["passing"].items() if int(one["owner"]) in dead}
            for name in gone:
                del state["passing"][name]
            state["bindings"] = [one for one in state["bindings"] if one[3] not in gone]
            state["passing"].setdefault(queue, {"begin": begin, "owner": owner})
            state["lasting"] = [name for name in state["lasting"] if name != queue]

    def lasts(self, queue: str) -> bool:
        """Whether somebody declared a queue that lasts."""
        return queue in self.read()["lasting"]

    def add_lasting(self, queue: str) -> None:
        """Declares a queue that lasts."""
        if not self.lasts(queue):
            with self.changing() as state:
                state["lasting"] = sorted({*state["lasting"], queue})

    def forget_queue(self, queue: str) -> None:
        """Removes a queue's entry and its bindings."""
        known = self.read()
        if (
            queue in known["passing"]
            or queue in known["lasting"]
            or any(one[3] == queue for one in known["bindings"])
        ):
            with self.changing() as state:
                state["passing"].pop(queue, None)
                state["lasting"] = [one for one in state["lasting"] if one != queue]
                state["bindings"] = [one for one in state["bindings"] if one[3] != queue]

    def close(self) -> None:
        """Gives the lock's descriptors back."""
        self._locks.close()


def read_state(path: Path) -> dict[str, Any]:
    """The state in a file, which need not be there. Raises StoreFormatError for one that no broker wrote."""
    data = files.read_if_there(path)
    try:
        found = json.loads(data) if data else {}
        return _checked({name: type(value)(found.get(name, value)) for name, value in _empty().items()})
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
        raise StoreFormatError(
            f"the broker's exchanges and bindings cannot be read ({error}): remove the file, its programs declare "
            "them again when they start",
            path=path,
        ) from error


def _checked(state: dict[str, Any]) -> dict[str, Any]:
    """Raises ValueError, TypeError, or LookupError for a state that no broker wrote."""
    texts = [*state["lasting"], *(one["type"] for one in state["exchanges"].values())]
    for binding in state["bindings"]:
        _exchange, _key, _pattern, _queue = binding
        texts += binding
    numbers = [one["owner"] for one in state["passing"].values()]
    for one in state["passing"].values():
        if len(one["begin"]) != PRIORITIES:
            raise ValueError(f"a queue begins at {len(one['begin'])} places, not at {PRIORITIES}")
        numbers += one["begin"]
    odd = [one for one in texts if not isinstance(one, str)] + [
        one for one in numbers if type(one) is not int
    ]
    if odd:
        raise ValueError(f"{odd[0]!r} has the wrong type")
    return state


def _empty() -> dict[str, Any]:
    return {"exchanges": {}, "bindings": [], "passing": {}, "lasting": []}
