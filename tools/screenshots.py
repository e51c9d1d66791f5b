"""`make screenshots`: pictures of the page (`cystore web`) for the docs, from a real browser on a real fleet.

A fleet works on some hundred orders; then each page is opened as a person would see it, and its picture is written to
docs/pictures. Look at them before they are committed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote, urlsplit

from PIL import Image

from tools.browser import Browser, program
from tools.processes import ends_with_us
from tools.shop_fleet import APP, PATIENCE_S, ROOT, ShopFleet, shop_fleet

PICTURES = ROOT / "docs" / "pictures"
TOKEN = "a-token-for-pictures"
ORDERS, ORDERS_A_SECOND = 240, 6
COLOURS = 256
WIDE, PHONE = (1200, 860), (400, 800)


def _work(fleet: ShopFleet) -> str:
    """Lets the fleet work; the id of a task whose workflow is worth a picture."""
    from cystore.celery.schedules import entries
    from tools.shop_fleet import app as shop

    store = shop.app.backend.store
    entries.add(store, "nightly report", "shop.make_report", {"crontab": "30 2 * * *", "timezone": "Europe/Berlin"},
                args=["2026-11-29"], options={"queue": "reports"})  # fmt: skip
    entries.add(store, "pulse", "shop.recount", {"every_ms": 5_000}, args=[0.1], missed="skip")
    entries.add(
        store, "black friday", "shop.send_mail", {"at_ms": _ms(days=300)}, args=["all@example.com", "sale"]
    )
    entries.pause(store, "black friday")
    now = datetime.now(UTC)
    for number in range(6):
        due = now + timedelta(minutes=20 + 25 * number)
        shop.send_mail.apply_async((f"customer{number}@example.com", "your basket waits"), eta=due)
    for number in range(40):
        body = json.dumps({"order": 7000 + number, "total": f"{number * 3 % 70 + 5}.90", "country": "DE"})
        store.put(
            "orders", body.encode(), keys=(f"order-{7000 + number}",), tags="placed", queue_id=number % 4
        )
    store.consumer("billing", "orders").close()
    last = []
    for number in range(ORDERS):
        last.append(shop.place(number))
        time.sleep(1 / ORDERS_A_SECOND)
    chosen = last[205]
    chosen.get(timeout=PATIENCE_S)
    for seconds in (60, 45, 90):
        shop.recount.apply_async((seconds,), queue="reports")
    time.sleep(2)  # until a worker has begun them
    return str(chosen.children[0].id if chosen.children else chosen.id)


def _ms(**span: float) -> int:
    return int((datetime.now(UTC) + timedelta(**span)).timestamp() * 1000)


def _pictures(url: str, pages: dict[str, tuple[str, tuple[int, int], bool]], folder: Path) -> None:
    address = urlsplit(url)
    origin = f"{address.scheme}://{address.netloc}/"
    with tempfile.TemporaryDirectory(prefix="browser-") as profile, Browser(Path(profile)) as page:
        page.open(f"{origin}?token={TOKEN}", "overview")
        for name, (place, size, dark) in pages.items():
            page.size(*size, dark=dark)
            page.open(f"{origin}#/{place}", place.partition("/")[0].partition("?")[0] or "overview")
            page.value("document.activeElement.blur()")
            page.picture(folder / f"{name}.png")
            _fewer_colours(folder / f"{name}.png")
            print(f"{name}.png", flush=True)
        if page.errors:
            raise SystemExit(f"the page reported errors: {page.errors}")


def _fewer_colours(picture: Path) -> None:
    """The page has few colours: so a picture takes half of the bytes."""
    with Image.open(picture) as drawn:
        drawn.quantize(COLOURS).save(picture, optimize=True)


def _make(folder: Path) -> None:
    with shop_fleet() as fleet:
        fleet.start_workers()
        chosen = _work(fleet)
        command = [sys.executable, "-m", "celery", "-A", APP, "cystore", "web", "--port", "0"]
        words = ["--token", TOKEN, "--allow-actions"]
        with subprocess.Popen(
            ends_with_us([*command, *words]),
            cwd=ROOT,
            env=fleet.environment,
            stdout=subprocess.PIPE,
            text=True,
        ) as server:
            assert server.stdout is not None
            url = server.stdout.readline().strip()
            task = f"task/{quote(chosen)}"
            try:
                _pictures(url, {
                    "overview": ("?since=2m", WIDE, False),
                    "tasks": ("tasks", WIDE, False),
                    "task": (task, (1200, 1500), False),
                    "failures": ("failures", WIDE, False),
                    "waiting": ("eta", (1200, 520), False),
                    "schedules": ("schedules", (1200, 420), False),
                    "stores": ("stores", (1200, 1000), False),
                    "phone": ("tasks?state=FAILURE", PHONE, True),
                }, folder)  # fmt: skip
            finally:
                server.terminate()


def main(arguments: list[str]) -> int:
    """0: the pictures are there; 2: there is no browser."""
    parser = argparse.ArgumentParser(prog="python -m tools.screenshots", description=__doc__)
    parser.add_argument("--folder", type=Path, default=PICTURES, help="where the pictures go (docs/pictures)")
    options = parser.parse_args(arguments)
    if program() is None:
        print("there is no chromium: apt-get install chromium", file=sys.stderr)
        return 2
    options.folder.mkdir(parents=True, exist_ok=True)
    _make(options.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
