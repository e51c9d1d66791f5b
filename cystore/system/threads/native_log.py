"""Log lines of the store's native threads, in a process whose threads are greenlets.

In such a process `logging` uses the locks of gevent or eventlet. A release of such a lock wakes its waiter in the
releasing thread, so a native thread that logs would stop the hub or end the process. Therefore a native thread puts
its record into a list. A greenlet of the hub logs it within LOOK_S, with its original time.
"""

from __future__ import annotations

import atexit
import importlib
import logging
import sys
from collections import deque
from types import FrameType, TracebackType
from typing import Any

from cystore.clock import now_ms
from cystore.system.threads import os_threads

LOOK_S = 0.5
MOST = 10_000  # records kept while the hub stands still; beyond that the oldest are lost
LOGGERS = ("cystore", "cystore.celery", "cystore.celery.lifecycle.recorder")
LOGGING = logging.addLevelName.__code__.co_filename
ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]

_said: deque[tuple[logging.Logger, int, int, dict[str, Any]]] = deque(maxlen=MOST)
_relays: list[Any] = []


class HandsOver:
    """Replaces a logger's methods: keeps records of native threads, and passes all others on."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._is_enabled_for = logger.isEnabledFor
        self._log = logger._log

    def is_enabled_for(self, level: int) -> bool:
        """True for a native thread, because the check would take a lock: the greenlet decides later."""
        return os_threads.among_greenlets() or self._is_enabled_for(level)

    def log(
        self,
        level: int,
        msg: object,
        args: tuple[Any, ...],
        exc_info: Any = None,
        extra: Any = None,
        stack_info: bool = False,
        stacklevel: int = 1,
    ) -> None:
        """In place of Logger._log."""
        if not os_threads.among_greenlets():
            self._log(level, msg, args, exc_info, extra, stack_info, stacklevel + 1)
            return
        caller = _caller(sys._getframe(1), stacklevel)
        fields = {
            "fn": caller.f_code.co_filename,
            "lno": caller.f_lineno,
            "func": caller.f_code.co_name,
            "msg": msg,
            "args": args,
            "exc_info": _as_tuple(exc_info),
            "extra": extra,
        }
        _said.append((self._logger, now_ms(), level, fields))


def _caller(frame: FrameType, stacklevel: int) -> FrameType:
    while frame.f_back is not None and (stacklevel > 1 or frame.f_code.co_filename == LOGGING):
        if frame.f_code.co_filename != LOGGING:
            stacklevel -= 1
        frame = frame.f_back
    return frame


def _as_tuple(exc_info: Any) -> ExcInfo | None:
    if isinstance(exc_info, BaseException):
        return type(exc_info), exc_info, exc_info.__traceback__
    if not exc_info:
        return None
    found = exc_info if isinstance(exc_info, tuple) else sys.exc_info()
    return None if found[0] is None else found


def drain() -> None:
    """Logs the records that native threads have left. A greenlet calls it, and `atexit`."""
    while _said:
        try:
            logger, said_ms, level, fields = _said.popleft()
        except IndexError:  # another greenlet took it
            return
        if not logger.isEnabledFor(level):
            continue
        record = logger.makeRecord(logger.name, level, **fields)
        record.relativeCreated += said_ms - record.created * 1000
        record.created, record.msecs = said_ms / 1000, float(said_ms % 1000)
        logger.handle(record)


def relay() -> None:
    """Starts the hand-over of records. A greenlet calls it before a native thread begins. Acts only once, and only if
    `threading` starts greenlets."""
    if _relays or not os_threads.patched() or os_threads.is_native():
        return
    _relays.append(None)
    for name in LOGGERS:
        logger = logging.getLogger(name)
        before = HandsOver(logger)
        logger.__dict__.update(isEnabledFor=before.is_enabled_for, _log=before.log)
    _relays.append(_begin())


def _begin() -> Any:
    if os_threads.patched_by() != "gevent":
        return _loop_of_eventlet()
    gevent: Any = importlib.import_module("gevent")
    # ref=False: a wait for all greenlets does not wait for the timer.
    timer = gevent.get_hub().loop.timer(LOOK_S, LOOK_S, ref=False)
    timer.start(lambda: gevent.spawn(drain) if _said else None)
    return timer


def _loop_of_eventlet() -> Any:
    eventlet: Any = importlib.import_module("eventlet")

    def look() -> None:
        while True:
            eventlet.sleep(LOOK_S)
            if _said:
                eventlet.spawn(drain)  # a log handler that raises ends only this greenlet

    return eventlet.spawn(look)


os_threads.before_native.append(relay)
# `cystore` registers the close of its stores later, so `atexit` closes the stores before it drains.
atexit.register(drain)
