"""Goal: the page shows what the API says, to anybody, on any screen, and nothing that a task wrote is ever run. Method:
a real browser on a log whose every text is a script; the sources where no browser is needed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest

import cystore
from cystore.celery.eta import waiting
from cystore.celery.lifecycle.payload import LoggedMessage
from cystore.celery.schedules import entries
from cystore.clock import now_ms
from cystore.web.app import ASSETS
from tests.structure.sources import ROOT
from tests.support.celery.logs import event_message, runs, write
from tests.support.celery.web import TIMEOUT_S, WebServer
from tools import browser
from tools.browser import Browser
from tools.processes import ends_with_us

PICTURES = ROOT / "docs" / "pictures"
SCRIPT = '<img src=x onerror="window.ran=1"><script>window.ran=1</script>\'"&'
PAGES = {
    "": "overview",
    **{one: one for one in ("tasks", "failures", "workers", "eta", "schedules", "topics", "stores")},
    f"schedule/{quote(SCRIPT, safe='')}": "schedule",
    "topic/orders": "topic",
    "topic/celery_events": "topic",
    f"task/{quote(SCRIPT, safe='')}": "task",
}
in_a_browser = [
    pytest.mark.slow,
    pytest.mark.may_skip("a browser is a large package"),
    pytest.mark.skipif(browser.program() is None, reason="there is no chromium: apt-get install chromium"),
]


def test_the_page_needs_no_network_and_runs_no_text():
    """The policy of the page forbids scripts and styles in the HTML; its own script writes text nodes only."""
    html = (ASSETS / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\bon\w+=|\bstyle=|https?://", html)
    script = (ASSETS / "page.js").read_text().replace("http://www.w3.org/2000/svg", "")
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|https?://", script
    )
    assert "http" not in (ASSETS / "page.css").read_text()


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("log") / "store"
    with cystore.open(path) as store:
        write(store, runs(120))
        texts = {"args": SCRIPT, "kwargs": SCRIPT, "worker": SCRIPT, "queue": SCRIPT}
        write(
            store,
            [
                event_message("SENT", SCRIPT, SCRIPT, **texts),
                event_message("STARTED", SCRIPT, SCRIPT, **texts),
                event_message("FAILED", SCRIPT, SCRIPT, **texts, exception=SCRIPT, traceback=SCRIPT),
                event_message("STARTED", "runs", SCRIPT, "root", **texts),
                *(
                    event_message("SENT", f"part{n}", SCRIPT, SCRIPT, "group", parent_id=SCRIPT)
                    for n in range(3)
                ),
            ],
        )
        entries.add(store, SCRIPT, SCRIPT, {"every_ms": 3_600_000}, options={"queue": SCRIPT})
        headers = {"id": SCRIPT, "task": SCRIPT}
        message = LoggedMessage(headers, {}, b"[]", "application/json", "utf-8", None, "", SCRIPT)
        body = waiting.body_of(message, [])
        waiting.put(store, waiting.parse(body, now_ms() + 3_600_000, 0), body)
        store.put("orders", SCRIPT.encode(), keys=("<b>key</b>",), tags=SCRIPT)
    return path


@pytest.fixture(scope="module")
def server(path):
    with WebServer(path) as server:
        yield server


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("profile")) as page:
        yield page


class TestInABrowser:
    pytestmark = in_a_browser

    def test_every_page_is_shown_and_runs_no_text(self, server, page):
        page.size(1200, 900)
        for place, name in PAGES.items():
            page.open(f"{server.url}#/{place}", name)
            assert page.value("document.querySelectorAll('main h1').length") == 1
            assert page.value("document.querySelectorAll('main img, main script').length") == 0
        page.open(f"{server.url}#/tasks", "tasks")
        page.value("document.querySelectorAll('main td a')[1].click()")
        page.wait("document.querySelector('#main').dataset.page === 'task'")
        text = page.value("document.querySelector('main').innerText")
        assert text.count("<script>window.ran=1</script>") >= 6
        assert page.value("window.ran") is None
        assert page.errors == []

    def test_dragging_over_a_plot_looks_closer(self, server, page):
        page.size(1200, 900)
        page.open(f"{server.url}#/", "overview")
        box = "document.querySelector('svg.plot').getBoundingClientRect()"
        left, top, width = (page.value(f"{box}.{one}") for one in ("left", "top", "width"))
        for kind, part in (("mousePressed", 0.9), ("mouseMoved", 0.95), ("mouseReleased", 1.0)):
            place = {"x": left + part * (width - 2), "y": top + 40}
            page.call("Input.dispatchMouseEvent", type=kind, button="left", buttons=1, clickCount=1, **place)
        page.wait("location.hash.includes('until=') && document.querySelector('main .pager a') !== null")
        page.value("document.querySelector('main .pager a').click()")
        page.wait("document.querySelectorAll('main tbody tr').length > 40")

    def test_search_by_keyboard(self, server, page):
        page.open(f"{server.url}#/tasks", "tasks")
        page.value("document.activeElement.blur()")
        page.press("/")
        assert page.value("document.activeElement.id") == "search"
        for key in "(77,)":
            page.press(key)
        page.value("document.querySelector('form').requestSubmit()")
        page.wait("document.querySelectorAll('main tbody tr').length === 1")
        assert page.value("document.querySelector('main tbody a').textContent") == "t77"
        assert page.value("location.hash") == "#/tasks?text=%2877%2C%29"

    def test_older_tasks_are_a_link_away(self, server, page):
        page.open(f"{server.url}#/tasks", "tasks")
        seen = page.value("[...document.querySelectorAll('main tbody a')].map(a => a.textContent)")
        page.value("[...document.querySelectorAll('.pager a')].find(a => a.textContent === 'Older').click()")
        page.wait("[...document.querySelectorAll('.pager a')].some(a => a.textContent === 'Newest')")
        older = page.value("[...document.querySelectorAll('main tbody a')].map(a => a.textContent)")
        assert len(seen) == len(older) == 50 and not set(seen) & set(older)

    def test_new_tasks_appear(self, server, page, path):
        page.open(f"{server.url}#/tasks", "tasks")
        page.value("document.activeElement.blur()")
        with cystore.open(path) as store:
            write(store, [event_message("SENT", "just-sent", "app.new")])
            page.wait("document.querySelector('main tbody a').textContent === 'just-sent'")

    def test_on_a_phone_and_in_the_dark(self, server, page):
        light = page.value("getComputedStyle(document.body).backgroundColor")
        page.size(400, 800, dark=True)
        for place, name in PAGES.items():
            page.open(f"{server.url}#/{place}", name)
            assert page.value("document.documentElement.scrollWidth") == 400
        assert page.value("getComputedStyle(document.body).backgroundColor") != light

    def test_every_control_and_picture_has_a_name(self, server, page):
        page.size(1200, 900)
        for place, name in PAGES.items():
            page.open(f"{server.url}#/{place}", name)
            assert (
                page.value(
                    "[...document.querySelectorAll('input, select')].filter(one => !one.labels.length).length"
                )
                == 0
            )
            assert (
                page.value(
                    "[...document.querySelectorAll('a, button')].filter(one => !one.textContent.trim()).length"
                )
                == 0
            )
            assert page.value("document.querySelectorAll('svg:not([aria-label])').length") == 0
            assert page.value("document.querySelectorAll('th:not([scope])').length") == 0

    @pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
    @pytest.mark.parametrize("width", [400, 1200])
    def test_no_serious_fault_of_accessibility(self, server, page, dark, width):
        """By the rules of axe-core (WCAG 2)."""
        page.size(width, 900, dark=dark)
        task = f"task/{json.loads(server.get('api/tasks', limit=1).body)['tasks'][0]['id']}"
        rules = Path(pytest.importorskip("axe_core_python").__file__).with_name("axe.min.js").read_text()
        faults = {}
        for place, name in {**PAGES, "task/t99": "task", task: "task"}.items():
            page.open(f"{server.url}#/{place}", name)
            page.value(rules + "; 0")
            found = page.value("axe.run(document)")["violations"]
            for one in found:
                if one["impact"] in ("serious", "critical"):
                    faults[f"{one['id']} on {name}"] = [node["html"] for node in one["nodes"]]
        assert faults == {}

    def test_the_pictures_of_the_docs_are_made(self, tmp_path):
        """By `make screenshots`; every picture of the page on it is one of them."""
        done = subprocess.run(
            ends_with_us([sys.executable, "-m", "tools.screenshots", "--folder", str(tmp_path)]),
            cwd=ROOT, capture_output=True, text=True, timeout=10 * TIMEOUT_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        shown = set(re.findall(r"\(pictures/([a-z-]+\.png)\)", (ROOT / "docs" / "web.md").read_text()))
        assert shown == {one.name for one in tmp_path.iterdir()} == {one.name for one in PICTURES.iterdir()}
        for one in tmp_path.iterdir():
            assert one.read_bytes().startswith(b"\x89PNG") and one.stat().st_size > 10_000
