"""`value_class`: a dataclass whose methods are not compiled for each class.

`dataclasses.dataclass` writes the methods of each class as Python text and compiles it: half a millisecond for a frozen
class, at each import. The classes made here share one set of methods, so a class takes some forty microseconds. To make
an object takes half a microsecond longer. `dataclasses.fields`, `replace`, `asdict`, patterns, copies and pickles work
as with a dataclass. Not there: slots, order, fields for keywords only, InitVar.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from dataclasses import dataclass as value_class
else:

    def value_class(cls: type | None = None, *, frozen: bool = False) -> Any:
        """A decorator, as `dataclass` and `dataclass(frozen=True)`."""
        return _made(cls, frozen) if cls is not None else lambda found: _made(found, frozen)


class _Shape(NamedTuple):
    """The fields of a class: the number of those that have a value before `__post_init__`, the names that `__init__`
    takes, defaults, makers of defaults, what `==` compares, what the hash is of, and what `repr` shows."""

    filled: int
    given: tuple[str, ...]
    defaults: dict[str, Any]
    factories: tuple[tuple[str, Callable[[], Any]], ...]
    compared: tuple[str, ...]
    hashed: tuple[str, ...]
    shown: tuple[str, ...]


def _made(cls: type[Any], frozen: bool) -> type[Any]:
    cls = dataclass(init=False, repr=False, eq=False)(cls)
    found = fields(cls)
    cls._value_shape = _Shape(
        sum(f.init or f.default is not MISSING or f.default_factory is not MISSING for f in found),
        tuple(field.name for field in found if field.init),
        {field.name: field.default for field in found if field.default is not MISSING},
        tuple((f.name, f.default_factory) for f in found if f.default_factory is not MISSING),
        tuple(field.name for field in found if field.compare),
        tuple(f.name for f in found if (f.compare if f.hash is None else f.hash)),
        tuple(field.name for field in found if field.repr),
    )
    own = cls.__dict__
    methods: dict[str, Any] = {"__init__": _init, "__repr__": _repr, "__eq__": _eq, "__getstate__": _state}
    methods |= {"__setattr__": _refuse, "__delattr__": _refuse} if frozen else {}
    methods["__hash__"] = _hash if frozen else None
    for name, method in methods.items():
        if name not in own or (name == "__hash__" and own[name] is None and "__eq__" in own):
            setattr(cls, name, method)
    return cls


def _init(self: Any, /, *values: Any, **named: Any) -> None:
    shape: _Shape = self._value_shape
    state = self.__dict__
    state.update(shape.defaults)
    state.update(zip(shape.given, values, strict=False))
    state.update(named)
    for name, factory in shape.factories:
        if name not in state:
            state[name] = factory()
    if (
        len(state) != shape.filled
        or len(values) > len(shape.given)
        or (named and not named.keys() <= frozenset(shape.given[len(values) :]))
    ):
        raise TypeError(_fault(type(self), values, named))
    post = getattr(self, "__post_init__", None)
    if post is not None:
        post()


def _fault(cls: type[Any], values: tuple[Any, ...], named: dict[str, Any]) -> str:
    """The reason why these arguments make no object of the class."""
    shape: _Shape = cls._value_shape
    if len(values) > len(shape.given):
        return f"{cls.__name__} takes {len(shape.given)} values, not {len(values)}"
    twice = [name for name in shape.given[: len(values)] if name in named]
    unknown = [name for name in named if name not in shape.given]
    optional = {*shape.defaults, *(name for name, _ in shape.factories)}
    missing = [name for name in shape.given[len(values) :] if name not in named and name not in optional]
    for problem, names in (("given twice", twice), ("unknown", unknown), ("missing", missing)):
        if names:
            return f"{cls.__name__}: {problem}: {', '.join(names)}"
    return f"{cls.__name__}: these arguments make no object"


def _repr(self: Any) -> str:
    shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._value_shape.shown)
    return f"{type(self).__qualname__}({shown})"


def _values(self: Any, names: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple([getattr(self, name) for name in names])


def _eq(self: Any, other: object) -> Any:
    names: tuple[str, ...] = self._value_shape.compared
    if other.__class__ is not self.__class__:
        return NotImplemented
    return _values(self, names) == _values(other, names)


def _hash(self: Any) -> int:
    return hash(_values(self, self._value_shape.hashed))


def _state(self: Any) -> dict[str, Any]:
    return dict(self.__dict__)


def _refuse(self: Any, name: str, *value: Any) -> None:
    raise FrozenInstanceError(f"cannot {'assign to' if value else 'delete'} field {name!r}")
