"""Servers that tests reach in another way than by a socket."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

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


@contextmanager
def late_redis(unix_path: str, late_s: float) -> Iterator[str]:
    """The URL of a Redis that answers each PUBLISH so many seconds late, in front of one that listens at a path."""
    loop, ready, ends = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    ports: list[int] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, requests = await asyncio.open_unix_connection(unix_path)
        published: list[bytes] = []

        async def forward() -> None:
            while data := await reader.read(65536):
                if b"PUBLISH" in data:
                    published.append(data)
                requests.write(data)
            requests.close()

        async def backward() -> None:
            while data := await answers.read(65536):
                if published:
                    published.clear()
                    await asyncio.sleep(late_s)
                writer.write(data)
            writer.close()

        with suppress(ConnectionError):  # a worker ends as it likes
            await asyncio.gather(forward(), backward())

    async def serve() -> None:
        async with await asyncio.start_server(connected, "127.0.0.1", 0) as server:
            ports.append(server.sockets[0].getsockname()[1])
            ready.set()
            await ends.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    ready.wait()
    try:
        yield f"redis://127.0.0.1:{ports[0]}/0"
    finally:
        loop.call_soon_threadsafe(ends.set)
        thread.join()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
