"""The parts of a SQL92 expression. Each part makes the checks of RocketMQ's parser, and writes its steps.

Source: rocketmq-filter 4.9.3, the classes of `org.apache.rocketmq.filter.expression`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from cystore._native.filters.program import PROPERTY_NAMES_MAX, STACK_MAX, STEP_KINDS, FilterProgram
from cystore.errors import FilterError

Step = tuple[int, int, float, bytes | list[bytes] | None]
DEPTH_MAX = STACK_MAX - 56  # of nested parts; each may need one place of the stack
INT_MIN, INT_MAX, LONG_MAX = -(1 << 31), (1 << 31) - 1, (1 << 63) - 1
LONG_DIGITS = len(str(LONG_MAX))
DOUBLE_MIN = 5e-324
SHOWN_CHARS = 20  # characters of the expression in an error


class Steps:
    """The steps and property names that are written so far."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.names: dict[str, int] = {}

    def add(self, kind: str, number: float = 0, text: bytes | list[bytes] | None = None) -> int:
        """Adds a step; returns its place."""
        self.steps.append((STEP_KINDS[kind], 0, number, text))
        return len(self.steps) - 1

    def lead_here(self, place: int) -> None:
        """Makes the skip at `place` lead to the next step that is added."""
        kind, _, number, text = self.steps[place]
        self.steps[place] = (kind, len(self.steps), number, text)

    def property(self, name: str, position: int) -> None:
        """Adds a step that pushes a property."""
        number = self.names.setdefault(name, len(self.names))
        if number >= PROPERTY_NAMES_MAX:
            raise wrong(f"more than {PROPERTY_NAMES_MAX} different properties", position)
        self.steps.append((STEP_KINDS["property"], number, 0, None))

    def program(self) -> FilterProgram:
        """All steps as a program."""
        return FilterProgram([name.encode() for name in self.names], self.steps)


def wrong(what: str, position: int) -> FilterError:
    """The error of an expression, with the position of the wrong character."""
    return FilterError(f"filter: {what} at position {position}", position=position)


def shown(text: str) -> str:
    """The begin of a text of the expression, for an error."""
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}..."


@dataclass
class Node(ABC):
    """A part of an expression. `position`: of its first character. `depth`: the number of nested parts."""

    position: int
    depth: int = field(default=1, init=False)

    def set_depth(self, *parts: Node) -> None:
        """Takes the parts inside this part. Raises FilterError if they are nested too deeply."""
        self.depth = 1 + max(part.depth for part in parts)
        if self.depth > DEPTH_MAX:
            raise wrong(f"nested more than {DEPTH_MAX} deep", self.position)

    @abstractmethod
    def write(self, steps: Steps) -> None:
        """Adds the steps that push this part's value."""


@dataclass
class Constant(Node):
    """A literal; `kind` is the step that pushes it."""

    kind: str
    value: int | float | str | None = None

    def write(self, steps: Steps) -> None:
        if isinstance(self.value, str):
            steps.add("text", 0, encoded(self.value, self.position))
        else:
            steps.add(self.kind, self.value or 0)


@dataclass
class Property(Node):
    """The value of a property, always text; NULL if the message does not have it."""

    name: str

    def write(self, steps: Steps) -> None:
        steps.property(self.name, self.position)


@dataclass
class Negative(Node):
    """`- part`: NULL for all but numbers."""

    part: Node

    def __post_init__(self) -> None:
        self.set_depth(self.part)

    def write(self, steps: Steps) -> None:
        self.part.write(steps)
        steps.add("negate")


@dataclass
class Truth(Node):
    """A part whose value is TRUE, FALSE or NULL."""


@dataclass
class Not(Truth):
    """`NOT part`."""

    part: Node

    def __post_init__(self) -> None:
        self.set_depth(self.part)

    def write(self, steps: Steps) -> None:
        self.part.write(steps)
        steps.add("not")


@dataclass
class Cast(Truth):
    """A property where TRUE or FALSE is wanted: FALSE, because it is text."""

    part: Node

    def __post_init__(self) -> None:
        self.set_depth(self.part)

    def write(self, steps: Steps) -> None:
        self.part.write(steps)
        steps.add("cast")


@dataclass
class Comparison(Truth):
    """`left kind right`."""

    kind: str
    left: Node
    right: Node

    def __post_init__(self) -> None:
        self.set_depth(self.left, self.right)

    def write(self, steps: Steps) -> None:
        self.left.write(steps)
        self.right.write(steps)
        steps.add(self.kind)


@dataclass
class Chain(Truth):
    """Parts that are all joined by AND, or all by OR. The first one that decides ends the evaluation."""

    kind: str
    parts: list[Node]

    def __post_init__(self) -> None:
        self.set_depth(*self.parts)

    def write(self, steps: Steps) -> None:
        skips = []
        for number, part in enumerate(self.parts):
            part.write(steps)
            if number:
                steps.add(self.kind)
            if number < len(self.parts) - 1:
                skips.append(steps.add("skip_if_false" if self.kind == "and" else "skip_if_true"))
        for skip in skips:
            steps.lead_here(skip)


@dataclass
class InList(Truth):
    """`property IN (texts)`."""

    part: Property
    texts: list[str]
    is_not: bool

    def __post_init__(self) -> None:
        self.set_depth(self.part)

    def write(self, steps: Steps) -> None:
        self.part.write(steps)
        steps.add(
            "in", int(self.is_not), [encoded(text, self.position) for text in dict.fromkeys(self.texts)]
        )


def encoded(text: str, position: int) -> bytes:
    """A text of the expression as stored."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise wrong("text that cannot be encoded as UTF-8", position) from None


# ----------------------------------------------------------------------- what RocketMQ checks when it parses


def truth(part: Node) -> Node:
    """The part where TRUE or FALSE is wanted (SelectorParser.asBooleanExpression)."""
    if isinstance(part, Truth) or (isinstance(part, Constant) and part.kind in ("true", "false", "null")):
        return part
    if isinstance(part, Property):
        return Cast(part.position, part)
    raise wrong("TRUE or FALSE is wanted, not a number or a text,", part.position)


def joined(kind: str, left: Node, right: Node) -> Node:
    """`left AND right`, or with OR. A chain to the left grows."""
    left, right = truth(left), truth(right)
    if isinstance(left, Chain) and left.kind == kind:
        left.parts.append(right)
        left.depth = max(left.depth, right.depth + 1)
        return left
    return Chain(left.position, kind, [left, right])


def equal(left: Node, right: Node) -> Node:
    """`left = right` (ComparisonExpression.createEqual)."""
    for part in (left, right):
        if isinstance(part, Constant) and part.kind == "null":
            raise wrong("NULL cannot be compared: write IS NULL or IS NOT NULL", part.position)
    if isinstance(left, Constant) and isinstance(right, Constant) and left.kind in ("true", "false"):  # noqa: SIM102
        if right.kind not in ("true", "false"):
            raise wrong("TRUE or FALSE cannot be compared with this constant", right.position)
    return Comparison(left.position, "=", left, right)


def ordered(kind: str, left: Node, right: Node) -> Node:
    """`left > right` and the like: only numbers have an order (ComparisonExpression.checkLessThanOperand)."""
    for part in (left, right):
        if isinstance(part, Truth) or (
            isinstance(part, Constant) and part.kind not in ("int", "long", "double")
        ):
            raise wrong(
                "only a number or a property can be compared by <, <=, >, >= and BETWEEN", part.position
            )
    return Comparison(left.position, kind, left, right)


def between(value: Node, low: Node, high: Node, *, is_not: bool) -> Node:
    """`value BETWEEN low AND high`, or NOT BETWEEN."""
    if is_not:
        return Chain(value.position, "or", [ordered("<", value, low), ordered(">", value, high)])
    parts: list[Node] = [ordered(">=", value, low), ordered("<=", value, high)]
    if isinstance(low, Constant) and isinstance(high, Constant) and _above(low, high):
        raise wrong("the first value of BETWEEN is above the second", low.position)
    return Chain(value.position, "and", parts)


def _above(low: Constant, high: Constant) -> bool:
    """Compares as Java does: if one number is a double, so becomes the second."""
    first, second = low.value, high.value
    if not isinstance(first, (int, float)) or not isinstance(second, (int, float)):
        return False
    if "double" in (low.kind, high.kind):
        first, second = float(first), float(second)
    return first > second


def within(value: Node, texts: list[str], *, is_not: bool) -> Node:
    """`value IN (texts)`, or NOT IN."""
    if not isinstance(value, Property):
        raise wrong("IN wants a property before it", value.position)
    return InList(value.position, value, texts, is_not)


def whole_number(text: str, position: int) -> Constant:
    """A literal without point and exponent (ConstantExpression.createFromDecimal)."""
    digits = text.rstrip("lL")
    value = int(digits) if len(digits) <= LONG_DIGITS else LONG_MAX + 1  # Python refuses thousands of digits
    if value > LONG_MAX:
        raise wrong(f"the number {shown(text)} is above {LONG_MAX}", position)
    return Constant(position, "int" if value <= INT_MAX else "long", value)


def real_number(text: str, position: int) -> Constant:
    """A literal with a point or an exponent (ConstantExpression.createFloat)."""
    value = float(text)
    if value == float("inf"):
        raise wrong(f"the number {shown(text)} is too large", position)
    if value < DOUBLE_MIN:
        raise wrong(f"the number {shown(text)} is too small: write 0 without a point", position)
    return Constant(position, "double", value)
