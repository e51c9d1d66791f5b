"""Goal: a value class behaves as the dataclass of the same text. Method: both are made from one text and compared."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import sys
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, ClassVar

import pytest

from cystore.value_class import value_class

pytestmark = pytest.mark.unsanitized  # Python alone

TEXT = """
@decorator({arguments})
class Place:
    "A place."
    name: str
    depth: int = 3
    tags: list = field(default_factory=list)
    seen: int = field(default=0, compare=False, repr=False)
    doubled: int = field(init=False, default=0)
    KIND: ClassVar[str] = "place"

    def __post_init__(self):
        if self.depth < 0:
            raise ValueError("depth")
        object.__setattr__(self, "doubled", 2 * self.depth)

@decorator({arguments})
class Far(Place):
    "A place far away."
    miles: float = 1.0
"""


def made(decorator: Any, arguments: str) -> ModuleType:
    module = ModuleType(f"made_{decorator.__name__}_{len(arguments)}")
    sys.modules[module.__name__] = module  # a pickle names it
    names = {"decorator": decorator, "field": field, "ClassVar": ClassVar}
    module.__dict__.update(names)
    exec("from __future__ import annotations\n" + TEXT.format(arguments=arguments), module.__dict__)
    return module


@pytest.fixture(params=["frozen=True", ""], ids=["frozen", "mutable"])
def both(request: pytest.FixtureRequest) -> tuple[ModuleType, ModuleType]:
    return made(value_class, request.param), made(dataclass, request.param)


CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    (("a",), {}),
    (("a", 5, ["x"]), {}),
    (("a", 5, ["x"], 9), {}),
    ((), {"name": "a", "tags": ["y"]}),
    (("a",), {"depth": 7, "seen": 1}),
    (("a", -1), {}),
    ((), {}),
    (("a",), {"name": "b"}),
    (("a",), {"width": 1}),
    (("a", 1, [], 2, 3), {}),
    ((), {"depth": 1}),
    ((), {"name": "a", "doubled": 1}),
]


@pytest.mark.parametrize(("values", "named"), CALLS)
@pytest.mark.parametrize("name", ["Place", "Far"])
def test_an_object_is_made_as_that_of_a_dataclass(both, name, values, named):
    if name == "Far" and len(values) == 5:
        values = (*values, 6)
    ours, theirs = (getattr(module, name) for module in both)
    try:
        expected = theirs(*values, **named)
    except (TypeError, ValueError) as error:
        with pytest.raises(type(error)):
            ours(*values, **named)
        return
    found = ours(*values, **named)
    assert repr(found) == repr(expected)
    assert dataclasses.asdict(found) == dataclasses.asdict(expected)
    assert [f.name for f in dataclasses.fields(ours)] == [f.name for f in dataclasses.fields(theirs)]
    assert ours.__match_args__ == theirs.__match_args__


@pytest.mark.parametrize(
    ("values", "named", "words"),
    [
        ((), {}, "Place: missing: name"),
        (("a",), {"name": "b"}, "given twice: name"),
        (("a",), {"width": 1, "high": 2}, "unknown: width, high"),
        (("a", 1, [], 2, 3), {}, "Place takes 4 values, not 5"),
    ],
)
def test_a_wrong_argument_is_named(both, values, named, words):
    with pytest.raises(TypeError, match=words):
        both[0].Place(*values, **named)


def test_equality_looks_at_compared_fields_of_the_same_class(both):
    place, far = both[0].Place, both[0].Far
    assert place("a", seen=1) == place("a", seen=2)
    assert place("a") != place("b")
    assert place("a") != far("a") and place("a") != ("a", 3, [], 0)


def test_defaults_are_made_anew(both):
    assert both[0].Place("a").tags is not both[0].Place("a").tags


def test_a_frozen_object_refuses_changes_and_has_a_hash():
    place = made(value_class, "frozen=True").Place
    found = place("a", 1, ())
    for change in (lambda: setattr(found, "depth", 2), lambda: delattr(found, "depth")):
        with pytest.raises(dataclasses.FrozenInstanceError, match="'depth'"):
            change()
    assert hash(found) == hash(place("a", 1, (), 5)) and found.depth == 1


@pytest.mark.parametrize("decorator", [value_class, dataclass])
def test_a_field_may_be_compared_and_not_hashed(decorator):
    """Seen: a location of a Redis, whose options are a dict, had no hash."""

    @decorator(frozen=True)
    class Options:
        """Has a field that cannot be hashed."""

        name: str
        more: dict[str, int] = field(default_factory=dict, hash=False)

    assert hash(Options("a", {"x": 1})) == hash(Options("a"))
    assert Options("a", {"x": 1}) != Options("a")


def test_a_mutable_object_changes_and_has_no_hash():
    found = made(value_class, "").Place("a")
    found.depth = 2
    assert found.depth == 2
    with pytest.raises(TypeError, match="unhashable"):
        hash(found)


def test_copies_pickles_and_replace(both):
    found = both[0].Far("a", 4, ["x"], miles=2.5)
    for again in (copy.copy(found), copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
        assert again == found and again.doubled == 8 and again is not found
    changed = dataclasses.replace(found, depth=6)
    assert (changed.depth, changed.doubled, changed.miles) == (6, 12, 2.5)


def test_a_method_of_the_class_stays():
    @value_class(frozen=True)
    class Shown:
        """Has methods of its own."""

        name: str

        def __repr__(self) -> str:
            return self.name

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Shown)

    assert repr(Shown("x")) == "x" and Shown("x") == Shown("y")
