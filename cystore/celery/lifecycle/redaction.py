"""The lifecycle log's text of a task's arguments and tracebacks, shortened and redacted; never an object.

Celery has put the arguments' repr into the message (`argsrepr`, which a caller may give as
`apply_async(argsrepr=...)`). That text is kept if nothing is to be redacted.

`cystore_lifecycle_redact` is a list of names or a function. The names, in any case, are those of arguments, of keys of
dicts anywhere in the arguments, and of pairs in texts (JSON, `name=value`, `name: value`); their values are not kept. A
position is bound to its name by the signature of the task, if this process has the task. Tracebacks and the texts of
exceptions are treated as other texts. The function (or its name, `package.module:function`) is called as
`redact(name, args, kwargs)` and returns the arguments that may be kept; it does not see exceptions and tracebacks. A
redaction that fails keeps nothing.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Mapping
from dataclasses import field
from functools import cached_property
from typing import Any

from celery.exceptions import ImproperlyConfigured
from celery.utils.imports import symbol_by_name
from celery.utils.log import get_logger
from celery.utils.saferepr import saferepr

from cystore.celery.lifecycle.hidden_names import HIDDEN, HiddenNames, plain
from cystore.errors import did_you_mean
from cystore.value_class import value_class

log = get_logger(__name__)

ARGS_SETTING, ARGS_CHARS = "cystore_lifecycle_args_chars", 1024
TRACEBACK_SETTING, TRACEBACK_CHARS = "cystore_lifecycle_traceback_chars", 8192
REDACT_SETTING = "cystore_lifecycle_redact"
POSITIONS_SETTING, KNOWN = "cystore_lifecycle_redact_positions", "known"
ALL = "all"
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
    names: HiddenNames | None = None  # if `redact` is a list of names
    _reported: set[str] = field(default_factory=set)  # names of tasks for which redaction failed

    @classmethod
    def of(cls, conf: Any, app: Any = None) -> Redaction:
        """Raises ImproperlyConfigured, which names the setting. `app` knows the signatures of tasks."""
        redact = conf.get(REDACT_SETTING) or ()
        if not (callable(redact) or isinstance(redact, (str, list, tuple, set, frozenset))):
            raise ImproperlyConfigured(
                f"{REDACT_SETTING} must be names of arguments, a function or the name of one, not {redact!r}"
            )
        hides_unknown = _hides_unknown(conf)
        names: HiddenNames | None = None
        if redact and not callable(redact) and not isinstance(redact, str):
            if not all(isinstance(name, str) and name for name in redact):
                raise ImproperlyConfigured(f"{REDACT_SETTING} must have names of arguments, not {redact!r}")
            names = HiddenNames(redact, _parameters_of(app), hides_unknown)
        return cls(
            args_chars=_size(conf, ARGS_SETTING, ARGS_CHARS),
            traceback_chars=_size(conf, TRACEBACK_SETTING, TRACEBACK_CHARS),
            redact=redact,
            names=names,
        )

    @cached_property
    def _redact(self) -> Redact | None:
        given = self.redact
        if not given:
            return None
        if self.names is not None:
            return self.names.call
        if isinstance(given, str):
            given = symbol_by_name(given)
        function: Redact = given
        return function

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
            args, kwargs, calls = (
                (body["args"], body["kwargs"], body)
                if isinstance(body, Mapping)
                else (body[0], body[1], body[2])
            )
            others = {
                one: calls[one] for one in ("callbacks", "errbacks", "chain", "chord") if calls.get(one)
            }
            kept_args, kept_kwargs = redact(name, args, kwargs)
            hidden = (
                (plain(others) != plain(self.names.value(others)) if self.names else bool(others))
                or plain(args) != plain(kept_args)
                or plain(kwargs) != plain(kept_kwargs)
            )
        except Exception as error:  # noqa: BLE001 - it is the app's own code, and nothing unredacted may be kept
            return f"{REDACT_SETTING} failed ({type(error).__name__})"
        return f"{REDACT_SETTING} hides a part of it" if hidden else ""

    def hides_call(self, call: Mapping[str, Any]) -> bool:
        """Whether a signature has something that must not be kept, or may have."""
        if not self.redact:
            return False
        return self.names is None or plain(call) != plain(self.names.value(call))

    def text(self, text: str) -> str:
        """A text without the values of hidden names."""
        return text if self.names is None else self.names.text(text)

    def failure(self, result: Any) -> Any:
        """A failure as it is stored, with its texts redacted; an exception itself stays as it is."""
        return result if self.names is None or not isinstance(result, Mapping) else self.names.value(result)

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
            else self.text(saferepr(value, self.args_chars))
        )
        return "" if text in ("()", "{}", "[]") else shortened(text, self.args_chars)

    def traceback(self, einfo: Any) -> str:
        """The kept text of the traceback in Celery's exception info."""
        text = getattr(einfo, "traceback", None)
        return "" if not text else shortened(self.text(str(text)), self.traceback_chars)

    def exception(self, error: Any, limit: int) -> str | None:
        """The kept text of an exception."""
        return None if error is None else shortened(self.text(saferepr(error, limit)), limit)


def _parameters_of(app: Any) -> Callable[[str], list[inspect.Parameter] | None]:
    """Finds the parameters of a task by its name; None if this process does not have the task."""
    reference = (lambda: None) if app is None else weakref.ref(app)
    known: dict[str, list[inspect.Parameter] | None] = {}

    def parameters(name: str) -> list[inspect.Parameter] | None:
        if name not in known:
            app = reference()
            task = None if app is None else app.tasks.get(name)
            if task is None:
                return None  # it may be registered later
            try:
                known[name] = list(inspect.signature(task.run).parameters.values())
            except (TypeError, ValueError):  # it is no Python function
                known[name] = None
        return known[name]

    return parameters


def _hides_unknown(conf: Any) -> bool:
    value = conf.get(POSITIONS_SETTING, KNOWN)
    if value not in (KNOWN, ALL):
        near = did_you_mean(value, (KNOWN, ALL))
        raise ImproperlyConfigured(f'{POSITIONS_SETTING} must be "{KNOWN}" or "{ALL}", not {value!r}{near}')
    return bool(value == ALL)


def _size(conf: Any, setting: str, default: int) -> int:
    value = conf.get(setting, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ImproperlyConfigured(f"{setting} must be a number of characters, 0 or more, not {value!r}")
    return value
