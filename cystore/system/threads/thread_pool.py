"""A pool of threads of `threading`, for the work of readers."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from cystore.system.threads import os_threads


class ThreadPool(ThreadPoolExecutor):
    """A pool of at most `count` threads. `submit` and `map` raise StoreResourceError if there is no room for one."""

    def __init__(self, count: int, name: str) -> None:
        super().__init__(count, name)
        self._name = name

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        try:
            return super().submit(fn, *args, **kwargs)
        except (RuntimeError, MemoryError) as error:
            raise os_threads.no_thread(self._name, error) from error
