"""Servers that tests reach in another way than by a socket."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from redis import Redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from tools.processes import ends_with_us
from tools.redis_server import find_executable


@contextmanager
def redis_named_by_host() -> Iterator[str]:
    """A Redis that is reached by a name: looking it up is what the duty thread was in when beat was forked."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    executable = find_executable()
    if executable is None:
        raise RuntimeError("no redis-server")
    command = ends_with_us([executable, "--port", str(port), "--bind", "127.0.0.1", "--save", ""])
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        url = f"redis://localhost:{port}/0"
        with Redis.from_url(url, retry=Retry(ConstantBackoff(0.1), 300)) as client:
            client.ping()
        try:
            yield url
        finally:
            server.terminate()
