"""RocketMQ 4.9.3's own store, for tests and benchmarks: builds the Java side once, and talks to it.

Run by itself it builds and prints where the jars are.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
CACHE = ROOT / ".cache" / "rocketmq"
PROJECT = ROOT / "tests" / "interop" / "pom.xml"
SOURCES = (ROOT / "tests" / "interop" / "driver", ROOT / "benchmarks" / "peers" / "rocketmq")
# Maven's messages when it cannot reach a repository: then there is no peer, but nothing is wrong with us either.
UNREACHABLE = ("Could not transfer artifact", "Unknown host", "Non-resolvable", "could not be resolved")
BUILD_TIMEOUT_S = 600
ANSWER_TIMEOUT_S = 120
# A short life on a small machine: no time for the optimizing compiler, no memory for a parallel collector.
JVM_FLAGS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx512m")


class Unavailable(Exception):
    """There is no JDK, no Maven, or no way to RocketMQ's jars; says which."""


class Refused(Exception):
    """RocketMQ, or the driver, refused a request; carries what RocketMQ logged."""


@dataclass(frozen=True)
class Jars:
    java: Path
    driver: Path
    bench: Path


def build() -> Jars:
    """Builds both jars unless these very sources are built already. Raises Unavailable."""
    java, maven = _tool("java"), _tool("mvn")
    _tool("javac")
    home = CACHE / _digest()
    CACHE.mkdir(parents=True, exist_ok=True)
    (CACHE / ".gitignore").write_text("*\n")
    with open(CACHE / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not home.is_dir():
            for stale in CACHE.iterdir():
                if stale.is_dir():
                    shutil.rmtree(stale)
            _maven(maven, home)
    return Jars(
        java,
        home / "rocketmq-driver" / "rocketmq-driver-1.jar",
        home / "rocketmq-bench" / "rocketmq-bench-1.jar",
    )


def _tool(name: str) -> Path:
    java_home = os.environ.get("JAVA_HOME")
    found = shutil.which(name, path=f"{java_home}/bin") if java_home else None
    found = found or shutil.which(name)
    if not found:
        package = "maven" if name == "mvn" else "default-jdk-headless"
        raise Unavailable(f"no {name}: RocketMQ cannot be run (on Debian: apt-get install {package})")
    return Path(found)


def _digest() -> str:
    digest = hashlib.sha256()
    for path in (
        PROJECT,
        *sorted(p for source in SOURCES for p in source.rglob("*") if p.suffix in (".xml", ".java")),
    ):
        digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _maven(maven: Path, home: Path) -> None:
    unfinished = home.with_suffix(".unfinished")
    command = [maven, "-B", "-q", "-f", PROJECT, "package", f"-Dbuild.root={unfinished}"]
    done = subprocess.run(
        command,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=BUILD_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        if any(sign in done.stdout for sign in UNREACHABLE):
            raise Unavailable(f"Maven cannot get RocketMQ's jars: {done.stdout[:500]}")
        raise RuntimeError(f"the RocketMQ driver does not build:\n{done.stdout}")
    unfinished.rename(home)


class RocketMQ:
    """One JVM that opens RocketMQ stores on request; requests of several threads run side by side in it.

    Settings are RocketMQ's own (`{"mappedFileSizeConsumeQueue": 6000}`).
    """

    def __init__(self, jars: Jars) -> None:
        self._jars = jars
        self._stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115 - as long as the JVM
        self._jvm = subprocess.Popen(
            self._command("serve"),
            text=True,
            encoding="utf-8",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
        )
        self._numbers = itertools.count()
        self._waiting: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, name="rocketmq driver", daemon=True)
        self._reader.start()

    def _command(self, *arguments: object) -> list[str]:
        return [str(self._jars.java), *JVM_FLAGS, "-jar", str(self._jars.driver), *map(str, arguments)]

    def close(self) -> None:
        self._jvm.stdin.close()
        self._jvm.wait(ANSWER_TIMEOUT_S)
        self._reader.join()
        self._jvm.stdout.close()
        self._stderr.close()

    def write(self, spec: dict, store: Path) -> Future[list[dict]]:
        """A store from a spec (the golden stores' `spec.json`), closed cleanly; what became of each put."""
        return self._submit("write", spec=spec, store=str(store))

    def write_and_halt(self, spec: dict, store: Path) -> list[dict]:
        """The same in a JVM that is halted at the end: what a killed broker leaves."""
        spec = {**spec, "finish": {"mode": "halt"}}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "spec.json"
            path.write_text(json.dumps(spec), encoding="utf-8")
            done = subprocess.run(
                self._command("write", path, store),
                capture_output=True,
                encoding="utf-8",
                timeout=ANSWER_TIMEOUT_S,
                check=False,
            )
        if done.returncode:
            raise Refused(done.stderr)
        return json.loads(done.stdout)

    def dump(self, store: Path, settings: dict, out: Path) -> list[dict]:
        """RocketMQ's view of a store, as rows; it recovers and closes `store`, so give it a copy."""
        self._submit("dump", store=str(store), config=settings, out=str(out)).result(ANSWER_TIMEOUT_S)
        return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]

    def after(self, store: Path) -> str:
        """Path, size and digest of each file of a closed store."""
        return self._submit("after", store=str(store)).result(ANSWER_TIMEOUT_S)

    def consumer_offsets(self, text: str) -> str:
        """The text that RocketMQ's ConsumerOffsetManager writes of what it read from this one."""
        return self._submit("consumerOffsets", text=text).result(ANSWER_TIMEOUT_S)

    def filter(self, expressions: list[str], messages: list[dict[str, str]]) -> list[dict]:
        """For each expression: whether RocketMQ refuses it, whether text is left behind it, and what it says to each
        message's properties."""
        return self._submit("filter", expressions=expressions, messages=messages).result(ANSWER_TIMEOUT_S)

    def bit_positions(self, names: list[str], consumers: int = 32) -> dict:
        """The `bits` of a broker's bitmaps that expects so many consumers, and the `positions` of each name's bits."""
        return self._submit("bitPositions", names=names, consumers=consumers).result(ANSWER_TIMEOUT_S)

    def bitmaps(
        self, topic: str, filters: list[list[str]], messages: list[dict[str, str]], consumers: int = 32
    ) -> list[str | None]:
        """The bitmap that the broker's dispatcher gives each message, in hexadecimal digits. Each filter: topic, group,
        expression."""
        return self._submit(
            "bitmaps", topic=topic, filters=filters, messages=messages, consumers=consumers
        ).result(ANSWER_TIMEOUT_S)

    @contextlib.contextmanager
    def opened(self, store: Path, settings: dict, role: str = "ASYNC_MASTER") -> Iterator[OpenStore]:
        """The store, open in the JVM. A SLAVE follows the setting haMasterAddress."""
        self._submit("open", store=str(store), config=settings, role=role).result(ANSWER_TIMEOUT_S)
        try:
            yield OpenStore(self, store)
        finally:
            self._submit("close", store=str(store)).result(ANSWER_TIMEOUT_S)

    def _submit(self, op: str, **request: object) -> Future[Any]:
        future: Future[Any] = Future()
        with self._lock:
            number = next(self._numbers)
            self._waiting[number] = future
            self._jvm.stdin.write(json.dumps({"id": number, "op": op, **request}) + "\n")
            self._jvm.stdin.flush()
        return future

    def _read(self) -> None:
        for line in self._jvm.stdout:
            reply = json.loads(line)
            with self._lock:
                future = self._waiting.pop(reply["id"])
            if "error" in reply:
                future.set_exception(Refused(reply["error"]))
            else:
                future.set_result(reply.get("result"))
        with self._lock:
            lost = list(self._waiting.values())
        if lost:
            self._stderr.seek(0)
            reason = self._stderr.read()
            for future in lost:
                future.set_exception(RuntimeError(f"the JVM ended: {reason}"))


@dataclass(frozen=True)
class OpenStore:
    rocketmq: RocketMQ
    path: Path

    def put(self, messages: list[dict]) -> list[dict]:
        """Puts messages in the form of a spec; returns the result of each."""
        return self.rocketmq._submit("put", store=str(self.path), messages=messages).result(ANSWER_TIMEOUT_S)

    def read_by_bitmaps(self, topic: str, group: str, filters: list[list[str]], consumers: int = 32) -> dict:
        """Queue `offsets` that the broker's filter of a group lets through, and how many `records` it looked at."""
        return self.rocketmq._submit(
            "readByBitmaps",
            store=str(self.path),
            topic=topic,
            group=group,
            filters=filters,
            consumers=consumers,
        ).result(ANSWER_TIMEOUT_S)

    def reach(self, position: int, timeout_s: float = 30) -> tuple[int, int]:
        """End and begin of the log, when it goes up to a position and is dispatched; after `timeout_s` at the
        latest."""
        request = {"store": str(self.path), "position": position, "ms": int(timeout_s * 1000)}
        end, begin = self.rocketmq._submit("reach", **request).result(ANSWER_TIMEOUT_S)
        return end, begin


if __name__ == "__main__":
    jars = build()
    print(json.dumps({"driver": str(jars.driver), "bench": str(jars.bench)}))
