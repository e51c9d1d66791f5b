"""Values that must not be kept, by the names of `cystore_lifecycle_redact`: in arguments, in calls within them, and in
texts.

A value is found by the key of a dict, by the parameter of a task, by a pair in a list, and in a text by the name before
it. Of doubtful ends of a value the later one counts: too much is hidden, and never too little.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

HIDDEN = "<redacted>"
# A call within a canvas gets arguments before its own: a callback the result, an error callback up to three.
SHIFTS = (0, 1, 3)
# Quotes may be escaped, in JSON within JSON for example: then as many backslashes end the value as begin it.
QUOTED = re.compile(
    r"""[bBrRuU]{0,2}(?:"(?:\\.|[^"\\])*"?|'(?:\\.|[^'\\])*'?"""
    r"""|(?P<slashes>\\+)(?P<quote>["']).*?(?:(?<!\\)(?P=slashes)(?P=quote)|\Z))""",
    re.DOTALL,
)
PLAIN = re.compile(r"""[^\s,;&"']*""")
OPEN, CLOSE = "([{", ")]}"
Parameters = Callable[[str], "list[inspect.Parameter] | None"]


class HiddenNames:
    """The names, in any case. `parameters` finds those of a task; with `hides_unknown`, positions without a known name
    are hidden too."""

    def __init__(self, names: Iterable[str], parameters: Parameters, hides_unknown: bool) -> None:
        self._names = frozenset(name.casefold() for name in names)
        self._parameters, self._hides_unknown = parameters, hides_unknown
        among = "|".join(sorted(map(re.escape, names), key=len, reverse=True))
        self._before_value = re.compile(
            rf"""(?<![A-Za-z0-9_])(?:{among})(?P<quote>\\*["'])?\s*(?P<sign>=>|=(?!=)|:)\s*""", re.IGNORECASE
        )

    def call(self, name: str, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments of a task that may be kept."""
        return self._positions(name, args, (0,)), self.value(kwargs)

    def value(self, value: Any) -> Any:
        """A copy of a value with nothing under a hidden name; lists take the place of tuples."""
        if isinstance(value, Mapping):
            kept = {
                key: HIDDEN if self._is_hidden(key) else self.value(inside) for key, inside in value.items()
            }
            return self._with_positions(value, kept)
        if isinstance(value, (list, tuple)):
            if len(value) == 2 and self._is_hidden(value[0]):
                return [value[0], HIDDEN]
            return [self.value(inside) for inside in value]
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, (bytes, bytearray)):
            text = value.decode("utf-8", "replace")
            kept_text = self.text(text)
            return value if kept_text == text else kept_text.encode()
        return value

    def text(self, text: str) -> str:
        """A text without the values of pairs with a hidden name."""
        if text.lstrip()[:1] in ("{", "["):
            try:
                content = json.loads(text)
            except (ValueError, RecursionError):
                content = None  # it is no JSON, or was cut
            if content is not None:
                kept = self.value(content)
                return text if kept == content else json.dumps(kept)
        parts, end = [], 0
        for found in self._before_value.finditer(text):
            if found.start() < end:  # within a hidden value
                continue
            to_line_end = found["sign"] == ":" and not found["quote"]  # as in the headers of HTTP
            begin, until = found.end(), _value_end(text, found.end(), to_line_end)
            quote = QUOTED.match(text, begin)
            around = text[begin : begin + 1] if quote and text[begin] in "'\"" else ""
            parts += [text[end:begin], around, HIDDEN, around] if until > begin else [text[end:begin]]
            end = until
        return text if not parts else "".join([*parts, text[end:]])

    def _is_hidden(self, name: Any) -> bool:
        if isinstance(name, (bytes, bytearray)):
            name = name.decode("utf-8", "replace")
        return isinstance(name, str) and name.casefold() in self._names

    def _with_positions(self, value: Mapping[Any, Any], kept: dict[Any, Any]) -> dict[Any, Any]:
        """`kept` with the positional arguments of a signature, or of the calls of `map` and `starmap`, redacted."""
        task, inner = value.get("task"), value.get("it")
        if isinstance(task, str) and isinstance(value.get("args"), (list, tuple)):
            kept["args"] = self._positions(task, value["args"], SHIFTS)
        elif (
            isinstance(task, Mapping)
            and isinstance(task.get("task"), str)
            and isinstance(inner, (list, tuple))
        ):
            kept["it"] = [
                self._positions(task["task"], one, SHIFTS)
                if isinstance(one, (list, tuple))
                else self._positions(task["task"], [one], SHIFTS)[0]
                for one in inner
            ]
        return kept

    def _positions(self, task: str, args: Any, shifts: Iterable[int]) -> Any:
        if not isinstance(args, (list, tuple)):
            return self.value(args)
        parameters = self._parameters(task)
        return [
            HIDDEN if any(self._is_at(parameters, at + shift) for shift in shifts) else self.value(one)
            for at, one in enumerate(args)
        ]

    def _is_at(self, parameters: list[inspect.Parameter] | None, at: int) -> bool:
        """Whether the argument at a position is hidden by its name."""
        for number, parameter in enumerate(parameters or ()):
            if parameter.kind is parameter.VAR_POSITIONAL:
                return self._is_hidden(parameter.name) or self._hides_unknown
            if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
                break
            if number == at:
                return self._is_hidden(parameter.name)
        return parameters is None and self._hides_unknown


def plain(value: Any) -> Any:
    """A copy with lists in place of tuples, as `HiddenNames.value` makes them."""
    if isinstance(value, Mapping):
        return {key: plain(inside) for key, inside in value.items()}
    return [plain(inside) for inside in value] if isinstance(value, (list, tuple)) else value


def _value_end(text: str, begin: int, to_line_end: bool) -> int:
    """Where the value that begins at a place ends."""
    quoted = QUOTED.match(text, begin)
    if quoted is not None:
        return quoted.end()
    if text[begin : begin + 1] and text[begin] in OPEN:
        return _closed_at(text, begin)
    if to_line_end:
        end = text.find("\n", begin)
        return len(text) if end < 0 else end
    found = PLAIN.match(text, begin)
    return begin if found is None else found.end()


def _closed_at(text: str, begin: int) -> int:
    """The end of a list or dict that is written in a text; the text's end if it is cut."""
    depth, at = 0, begin
    while at < len(text):
        quoted = QUOTED.match(text, at)
        if quoted is not None:
            at = quoted.end()
            continue
        depth += (text[at] in OPEN) - (text[at] in CLOSE)
        at += 1
        if not depth:
            return at
    return at
