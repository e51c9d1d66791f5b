"""Goal: whatever a program gives to a public call, it gets an answer or one of the library's errors. Method: a list of
all public calls that is checked against what the objects have; then each argument of each call in turn is odd."""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Iterator
from typing import Any

import pytest

import cystore
from tests.support.storms import public_calls
from tests.support.storms.public_calls import MANY, ROWS, World

pytestmark = pytest.mark.unsanitized  # the kernels' arguments are fuzzed: tests/fuzz/kernels.py


class Hostile:
    """Raises whatever is asked of it."""

    def _raise(self, *_: Any) -> Any:
        raise ZeroDivisionError("asked of a hostile object")

    __index__ = __int__ = __float__ = __str__ = __repr__ = __len__ = __iter__ = __hash__ = __eq__ = _raise  # type: ignore[assignment]
    __bool__ = __getitem__ = __contains__ = __fspath__ = __bytes__ = __lt__ = __enter__ = _raise  # type: ignore[assignment]


class HostileInt(int):
    __index__ = __int__ = __str__ = __repr__ = __hash__ = __eq__ = __lt__ = __bool__ = Hostile._raise  # type: ignore[assignment]


class HostileText(str):
    __str__ = __repr__ = __hash__ = __eq__ = __len__ = encode = startswith = Hostile._raise  # type: ignore[assignment]


def released() -> memoryview:
    view = memoryview(b"gone")
    view.release()
    return view


def _numbers() -> Iterator[int]:
    yield 1


# Made anew for each call: a generator is read once.
ODD = {
    "None": lambda: None,
    "True": lambda: True,
    "-1": lambda: -1,
    "0": lambda: 0,
    "2**31": lambda: 1 << 31,
    "2**62": lambda: 1 << 62,
    "2**63": lambda: 1 << 63,
    "-2**63-1": lambda: -(1 << 63) - 1,
    "10**4000": lambda: 10**4000,
    "1.5": lambda: 1.5,
    "NaN": lambda: math.nan,
    "-inf": lambda: -math.inf,
    "complex": lambda: 1j,
    "empty text": lambda: "",
    "a word": lambda: "word",
    "a surrogate": lambda: "\ud800",
    "a null": lambda: "a\0b",
    "long text": lambda: "x" * 100_000,
    "a right-to-left override": lambda: "\u202eT",
    "empty bytes": lambda: b"",
    "bytes": lambda: b"\xff",
    "a bytearray": lambda: bytearray(b"x"),
    "a view": lambda: memoryview(b"x"),
    "a released view": released,
    "a view of two dimensions": lambda: memoryview(bytes(4)).cast("B", (2, 2)),
    "a view of floats": lambda: memoryview(bytes(8)).cast("d"),
    "()": lambda: (),
    "[]": list,
    "{}": dict,
    "[None]": lambda: [None],
    "[surrogate]": lambda: ["\ud800"],
    "[hostile]": lambda: [Hostile()],
    "[released]": lambda: [released()],
    "{None: text}": lambda: {None: "a"},
    "{text: None}": lambda: {"a": None},
    "{text: surrogate}": lambda: {"a": "\ud800"},
    "{text: hostile}": lambda: {"a": Hostile()},
    "a set": lambda: {1},
    "a generator": _numbers,
    "an object": object,
    "a class": lambda: int,
    "a message": lambda: cystore.Message(topic="T", body=b""),
    "hostile": Hostile,
    "a hostile int": lambda: HostileInt(1),
    "hostile text": lambda: HostileText("T"),
}
# A wait for ever is what these ask for; and a program's own function may raise anything.
LEFT_OUT = {"timeout_s": ("None", "2**31", "2**62", "2**63", "10**4000"), "filter": ("a class",)}


@pytest.fixture
def world(tmp_path, rng, caplog, monkeypatch):
    caplog.set_level(100, "cystore")
    monkeypatch.chdir(tmp_path)  # a word is the path of a store, too
    with World(tmp_path / "s", rng) as made:
        yield made


def test_each_public_call_has_a_row(world):
    """So each is in the storms, and its arguments are tried below."""
    found = public_calls.found(world)
    assert found - set(ROWS) == set(), "add rows to tests.support.storms.public_calls.py"
    assert set(ROWS) - found == set(), "no such calls any more"


def test_each_row_gives_each_argument(world):
    for name, row in ROWS.items():
        signature = public_calls.signature(name)
        if signature is None:
            continue
        kinds = inspect.Parameter
        wanted = {
            MANY if one.kind is kinds.VAR_POSITIONAL else one.name
            for one in signature.parameters.values()
            if one.kind is not kinds.VAR_KEYWORD
        }
        assert wanted <= set(row(world)), f"{name}: its row leaves arguments out"


@pytest.mark.parametrize("of", sorted({name.partition(".")[0] for name in ROWS}))
def test_an_odd_argument_is_answered_or_refused(world, of):
    """Seen: AttributeError, TypeError, ValueError, UnicodeEncodeError and others of Python itself."""
    raw = []
    for name in ROWS:
        if name.partition(".")[0] != of:
            continue
        for argument in ROWS[name](world):
            for odd, make in ODD.items():
                if odd in LEFT_OUT.get(argument, ()):
                    continue
                error = _error_of(world, name, argument, make())
                if error is not None:
                    raw.append(f"{name}({argument}={odd}): {error}")
                world.store.set_writable(True)
    assert not raw, "\n".join(raw)


def _error_of(world: World, name: str, argument: str, value: Any) -> str | None:
    """The error of a call that is none of the library; None for an answer, or such an error."""
    given = {**ROWS[name](world), argument: [value] if argument == MANY else value}
    try:
        world.call(name, given)
    except cystore.StoreError as error:
        with contextlib.suppress(UnicodeEncodeError):
            str(error).encode()
        return None
    except BaseException as error:  # noqa: BLE001 - any other is what is looked for
        return f"{type(error).__name__}: {error}"
    return None
