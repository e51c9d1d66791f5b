"""The lifecycle log's text of a task's arguments and tracebacks, shortened and redacted; never an object.

Celery has put the arguments' repr into the message (`argsrepr`, which a caller may give as
`apply_async(argsrepr=...)`). That text is kept if nothing is to be redacted.

`cystore_lifecycle_redact` is a list of names or a function. The names are those of keyword arguments, and of keys of
dicts anywhere in the arguments; their values are not kept. The function (or its name, `package.module:function`) is
called as `redact(name, args, kwargs)` and returns the arguments that may be kept. A redaction that fails keeps nothing.
Exceptions and tracebacks are not redacted: code that puts secrets into the text of an exception writes them into every
log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from functools import cached_property
from typing import Any

from celery.exceptions import ImproperlyConfigured
from celery.utils.imports import symbol_by_name
from celery.utils.log import get_logger
from celery.utils.saferepr import saferepr

from cystore.value_class import value_class

log = get_logger(__name__)

ARGS_SETTING, ARGS_CHARS = "cystore_lifecycle_args_chars", 1024
TRACEBACK_SETTING, TRACEBACK_CHARS = "cystore_lifecycle_traceback_chars", 8192
REDACT_SETTING = "cystore_lifecycle_redact"
HIDDEN = "<redacted>"
CUT = " ... "

Redact = Callable[[str, Any, Any], tuple[Any, Any]]


def shortened(text: str, limit: int) -> str:
    """At most `limit` characters of a text. The middle is cut out, because the end matters most in a traceback."""
    if len(text) <= limit:
        return text
    if limit <= len(CUT):
        return text[:limit]
    head = (limit - len(CUT)) // 4
    return text[:head] + CUT + text[len(text) - (limit - len(CUT) - head) :]


@value_class(frozen=True)
class Redaction:
    """The settings; made by `of`."""

    args_chars: int
    traceback_chars: int
    redact: Any
    _reported: set[str] = field(default_factory=set)  # names of tasks for which redaction failed

    @classmethod
    def of(cls, conf: Any) -> Redaction:
        """Raises ImproperlyConfigured, which names the setting."""
        redact = conf.get(REDACT_SETTING) or ()
        if not (callable(redact) or isinstance(redact, (str, list, tuple, set, frozenset))):
            raise ImproperlyConfigured(
                f"{REDACT_SETTING} must be names of arguments, a function or the name of one, not {redact!r}"
            )
        return cls(
            args_chars=_size(conf, ARGS_SETTING, ARGS_CHARS),
            traceback_chars=_size(conf, TRACEBACK_SETTING, TRACEBACK_CHARS),
            redact=redact,
        )

    @cached_property
    def _redact(self) -> Redact | None:
        given = self.redact
        if not given:
            return None
        if isinstance(given, str):
            given = symbol_by_name(given)
        if callable(given):
            return given
        hidden = frozenset(given)
        return lambda name, args, kwargs: (_without(args, hidden), _without(kwargs, hidden))

    def arguments(self, name: str, args: Any, kwargs: Any, details: Mapping[str, Any]) -> tuple[str, str]:
        """The kept text of a task's arguments; `details` is the message's headers or the request."""
        limit = self.args_chars
        if limit == 0:
            return "", ""
        if not self.redact:
            return self._repr(details.get("argsrepr"), args), self._repr(details.get("kwargsrepr"), kwargs)
        return self._redacted(
            name, args, kwargs, lambda args, kwargs: (self._repr(None, args), self._repr(None, kwargs))
        )

    def values(self, name: str, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments themselves, redacted: for a result that keeps them (`result_extended`)."""
        return self._redacted(name, args, kwargs, lambda *both: both) if self.redact else (args, kwargs)

    def _redacted(
        self, name: str, args: Any, kwargs: Any, keep: Callable[[Any, Any], tuple[Any, Any]]
    ) -> tuple[Any, Any]:
        try:
            redact = self._redact
            assert redact is not None
            return keep(*redact(name, args, kwargs))
        except Exception as error:  # noqa: BLE001 - it is the app's own code, and nothing unredacted may be kept
            if name not in self._reported:  # without its text, which may contain secrets
                self._reported.add(name)
                log.warning(
                    "%s failed (%s): arguments of %s are not kept", REDACT_SETTING, type(error).__name__, name
                )
            return HIDDEN, HIDDEN

    def hides(self, name: str, body: Any) -> str:
        """The reason why a message must not be kept unchanged: the redaction hides a part of it, or may. Empty if it
        may be kept."""
        if not self.redact:
            return ""
        try:
            redact = self._redact
            assert redact is not None
            named = not (callable(self.redact) or isinstance(self.redact, str))
            if named:
                hidden = _display_value(body) != _display_value(_without(body, frozenset(self.redact)))
            else:
                args, kwargs = (
                    (body["args"], body["kwargs"]) if isinstance(body, Mapping) else (body[0], body[1])
                )
                kept_args, kept_kwargs = redact(name, args, kwargs)
                calls = body if isinstance(body, Mapping) else body[2]
                others = any(calls.get(one) for one in ("callbacks", "errbacks", "chain", "chord"))
                hidden = (
                    others
                    or _display_value(args) != _display_value(kept_args)
                    or _display_value(kwargs) != _display_value(kept_kwargs)
                )
        except Exception as error:  # noqa: BLE001 - it is the app's own code, and nothing unredacted may be kept
            return f"{REDACT_SETTING} failed ({type(error).__name__})"
        return f"{REDACT_SETTING} hides a part of it" if hidden else ""

    def unread(self, details: Mapping[str, Any]) -> tuple[str, str]:
        """The same for a message that cannot be decoded: only its headers are known."""
        if self.args_chars == 0 or not details:
            return "", ""
        if self.redact:
            return HIDDEN, HIDDEN
        return self._repr(details.get("argsrepr"), None), self._repr(details.get("kwargsrepr"), None)

    def _repr(self, given: Any, value: Any) -> str:
        text = (
            given
            if isinstance(given, str) and given
            else ""
            if not value
            else saferepr(value, self.args_chars)
        )
        return "" if text in ("()", "{}", "[]") else shortened(text, self.args_chars)

    def traceback(self, einfo: Any) -> str:
        """The kept text of the traceback in Celery's exception info."""
        text = getattr(einfo, "traceback", None)
        return "" if not text else shortened(str(text), self.traceback_chars)


def _without(value: Any, hidden: frozenset[str]) -> Any:
    """A copy of lists and dicts with nothing under the hidden names."""
    if isinstance(value, Mapping):
        return {key: HIDDEN if key in hidden else _without(inside, hidden) for key, inside in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without(inside, hidden) for inside in value]
    return value


def _display_value(value: Any) -> Any:
    """A copy with lists in place of tuples, as `_without` makes them."""
    return _without(value, frozenset())


def _size(conf: Any, setting: str, default: int) -> int:
    value = conf.get(setting, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ImproperlyConfigured(f"{setting} must be a number of characters, 0 or more, not {value!r}")
    return value
