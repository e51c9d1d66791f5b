"""A measurement that failed, as one line."""

from __future__ import annotations


class MeasureError(RuntimeError):
    """A contestant could not be measured; the text is one line that says why."""


def reason(errors: str, code: int) -> str:
    """The last line of a process's error output that is none of a traceback's; its exit code without one."""
    lines = [line for line in errors.splitlines() if line and not line[0].isspace()]
    if not lines:
        return f"exit code {code}"
    return lines[-1].removeprefix(f"{MeasureError.__module__}.{MeasureError.__qualname__}: ")
