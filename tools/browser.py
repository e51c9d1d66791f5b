"""A real browser without a window, led over a pipe (Chrome DevTools Protocol)."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

from cystore.clock import monotonic_s
from tools.processes import ends_with_us

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
TIMEOUT_S = 180.0  # a browser begins slowly on a busy machine
CHUNK = 1 << 16
OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-extensions", "--disable-background-networking", "--no-proxy-server", "--remote-debugging-pipe",
)  # fmt: skip


def program() -> str | None:
    """The browser's program; None without one."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page of a browser; a context manager. `errors` are exceptions of scripts, and what the page's policy
    refused."""

    def __init__(self, profile: Path, width: int = 1200, height: int = 900) -> None:
        found = program()
        assert found is not None
        to_browser, self._to = os.pipe()
        self._from, from_browser = os.pipe()
        # The browser reads from 3 and writes to 4.
        shell = f'exec 3<&{to_browser} 4>&{from_browser}; exec "$@"'
        words = [
            found,
            *OPTIONS,
            f"--user-data-dir={profile}",
            f"--window-size={width},{height}",
            "about:blank",
        ]
        self._process = subprocess.Popen(
            ends_with_us(["bash", "-c", shell, "browser", *words]),
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._number, self._buffer, self.errors = 0, b"", list[str]()
        self._session: str | None = None
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(one["targetId"] for one in targets if one["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The answer to a method of the protocol."""
        self._number += 1
        sent: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            sent["sessionId"] = self._session
        os.write(self._to, json.dumps(sent).encode() + b"\0")
        until_s = monotonic_s() + TIMEOUT_S
        while True:
            told = self._next(until_s)
            if told.get("id") == self._number:
                assert "error" not in told, told
                return told["result"]
            self._note(told)

    def _next(self, until_s: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            left_s = until_s - monotonic_s()
            assert left_s > 0 and select.select([self._from], [], [], left_s)[0], "the browser says nothing"
            data = os.read(self._from, CHUNK)
            assert data, "the browser has ended"
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(line)

    def _note(self, told: dict[str, Any]) -> None:
        if told.get("method") == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(told["params"]["exceptionDetails"]))
        elif told.get("method") == "Log.entryAdded" and told["params"]["entry"]["level"] == "error":
            self.errors.append(told["params"]["entry"]["text"])

    def value(self, script: str) -> Any:
        """The value of an expression in the page; a promise is awaited."""
        got = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in got, got
        return got["result"].get("value")

    def open(self, url: str, page: str) -> None:
        """Leads to an address, and waits until its page is shown."""
        self.call("Page.navigate", url="about:blank")  # otherwise the page before is still there for a moment
        self.call("Page.navigate", url=url)
        self.wait(f"document.querySelector('#main')?.dataset.page === {json.dumps(page)}")

    def wait(self, condition: str) -> None:
        """Returns when an expression is true in the page."""
        look = f"const look = () => ({condition}) ? done(true) : setTimeout(look, 50); look();"
        script = f"new Promise(done => {{ {look} }})"
        assert self.value(script)

    def wait_behind(self, condition: str) -> None:
        """The same in the page that a link or a form leads to: meanwhile there may be no page to ask."""
        until_s = monotonic_s() + TIMEOUT_S
        while True:
            try:
                if self.value(f"Boolean({condition})"):
                    return
            except AssertionError:
                if monotonic_s() >= until_s:
                    raise
            assert monotonic_s() < until_s, condition
            threading.Event().wait(0.05)

    def size(self, width: int, height: int, *, dark: bool = False) -> None:
        """Another size of the window, and its colours."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = "dark" if dark else "light"
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def press(self, key: str) -> None:
        """A key, down and up."""
        text = {"text": key} if len(key) == 1 else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, **(text if kind == "keyDown" else {}))

    def picture(self, path: Path) -> None:
        """A picture of the page."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))
