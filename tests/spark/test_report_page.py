"""Goal: the report's page is right and harmless for any names and any span of time, and says so when there is
nothing. Method: pages of made-up rows, parsed; no Spark, no browser."""

from __future__ import annotations

import base64
import hashlib
import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import pytest

pytest.importorskip("matplotlib", reason="pip install 'cystore[report]'")
pytest.importorskip("pyspark", reason="pip install 'cystore[spark]'")

from cystore.operate.output import one_line
from cystore.reports import report_plots as plots
from cystore.reports.report_page import page
from cystore.reports.report_style import duration, short

HOUR = datetime(2026, 3, 1, 12, tzinfo=UTC)
ODD = ["others", "_hidden", "$x$ $", "<script>alert(1)</script>", '"quoted"', "n" * 300, "(all other tasks)"]


def numbers(name: str, **more: Any) -> dict[str, Any]:
    found = {"name": name, "count": 1200, "failed": 3, "failure_rate": 0.0025, "retried": 0}
    for what in ("runtime", "wait"):
        found |= {f"{what}_p{p}": 0.0123 for p in (50, 95, 99)}
    return {**found, **more}


class Parsed(HTMLParser):
    """Tags with their attributes, and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def made(hours: list[datetime], names: list[str]) -> str:
    rows = [{**numbers(name), "hour": hour} for name in names for hour in hours]
    failure = {
        "first": HOUR,
        "count": 5000,
        "name": names[0],
        "class": "E",
        "exception": "E('<b>')",
        "traceback": "<i>",
        "task_id": "t",
    }
    flow = {"name": names[0], "root_id": "r" * 60, "begin": HOUR, "seconds": 5400.0, "tasks": 3, "failed": 0}
    return page(
        ["<store>"],
        {"runs": "1,200"},
        [numbers(n) for n in names],
        rows,
        [{**failure, "last": HOUR}],
        [flow],
    )


@pytest.mark.parametrize("count", [1, 2, 24, 24 * 366])
def test_one_hour_and_one_year_fit(count):
    hours = [HOUR + timedelta(hours=number) for number in range(0, count, max(1, count // 50))]
    text = made(hours, ["a", "b"])
    for part in text.split("<svg")[1:]:
        ElementTree.fromstring("<svg" + part[: part.index("</svg>")] + "</svg>")
    assert text.count("<svg") == 3
    assert len(text) < 500_000, "a year is drawn by weeks"
    assert f"2026-03-01 12:00 to {hours[-1] + timedelta(hours=1):%Y-%m-%d %H:%M} UTC. Made 2" in text


def test_no_name_breaks_the_page_or_the_legend():
    """Seen: a task called others was one with all others, one that begins with _ was not in the legend, long ones
    swallowed the plot."""
    text = made([HOUR], ODD + [f"task-{n}" for n in range(20)])
    found = Parsed(text)
    assert [tag for tag, _ in found.tags].count("script") == 1
    titles = [attributes["title"] for tag, attributes in found.tags if tag == "td" and "title" in attributes]
    assert set(ODD) <= set(titles), "the whole name is there on hover"
    assert not any(len(line) > 60 for line in found.text if line.startswith("nnn"))
    assert "http" not in text.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    ).replace("https://matplotlib.org", "")
    for told in ("1.50 h", "12.3 ms", "0.25 %", "5,000"):
        assert told in text, told
    values = [attributes.get("data-value") for tag, attributes in found.tags if tag == "td"]
    assert "0.0123" in values and "5400.0" in values, "tables sort by numbers"


def test_no_text_moves_the_cursor_or_turns_the_direction_of_writing():
    """Seen: a name with a right-to-left override read as another one, and what a terminal obeys came out of a copy."""
    odd = "a\x1b[2J\x00\u202egnp.exe\u2066\x85\ud800\rb"
    flow = {"name": odd, "root_id": odd, "begin": HOUR, "seconds": 5.0, "tasks": 3, "failed": 0}
    failure = {**dict.fromkeys(("name", "class", "exception", "task_id"), odd), "count": 1, "first": HOUR}
    failure |= {"last": HOUR, "traceback": f"{odd}\n\tline two"}
    worker = {**numbers("w"), "worker": odd}
    text = page(
        [odd] * 5, {odd: odd}, [numbers(odd)], [{**numbers(odd), "hour": HOUR}], [failure], [flow], [worker]
    )
    assert [c for c in set(text) if not c.isprintable() and c != "\n"] == []
    told = one_line(odd)
    assert told in Parsed(text).text and told == r"a\x1b[2J\x00\u202egnp.exe\u2066\x85\ud800\rb"
    assert f"{told}\n        line two" in "".join(Parsed(text).text), "lines of a traceback stay lines"


def test_the_page_allows_its_own_script_and_nothing_else():
    text = made([HOUR], ["a"])
    found = Parsed(text)
    metas = [attributes for tag, attributes in found.tags if tag == "meta"]
    (policy,) = [one["content"] for one in metas if one.get("http-equiv") == "Content-Security-Policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in (policy or "").split(";"))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    (script,) = re.findall("<script>(.*?)</script>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert rules["script-src"] == f"'sha256-{digest}'"
    assert text.index("Content-Security-Policy") < min(text.index("<script"), text.index("<style"))
    assert not [name for _, attributes in found.tags for name in attributes if name.startswith("on")]


@pytest.mark.parametrize("count", [1, 24 * 366])
def test_a_plot_is_small_enough_for_a_telephone(count):
    """Seen: a plot was 700 pixels wide on a screen of 400, or had letters of 4 pixels."""
    hours = [HOUR + timedelta(hours=number) for number in range(0, count, max(1, count // 50))]
    text = made(hours, ["a", "b"])
    assert not re.search(r"svg \{[^}]*min-width", text)
    for width, plot in re.findall(r'<svg [^>]*viewBox="0 0 ([0-9.]+) [^>]*>(.*?)</svg>', text, re.DOTALL):
        sizes = [float(size) for size in re.findall(r"font-size: ([0-9.]+)px", plot)]
        assert sizes and min(sizes) * (400 - 32) / float(width) > 7


def test_unfinished_tasks_are_a_list_also_where_no_task_has_ended():
    row = {"task_id": "t" * 90, "retries": 0, "state": "sent", "since": HOUR, "worker": None, "total": 1234}
    text = page(["s"], {"unfinished": "1,234"}, [], [], [], [], [], [{**row, "name": "<b>"}])
    found = Parsed(text)
    assert "Unfinished tasks: the oldest 1 of 1,234" in found.text and "2026-03-01 12:00:00" in found.text
    assert "t" * 90 not in found.text, "a long id is cut"
    assert "<svg" not in text and "There is no task" not in text


def test_a_store_without_tasks_says_so():
    text = page(["store"], {"runs": "0"}, [], [], [], [])
    assert "There is no task in this time" in text and "<svg" not in text and "<table" not in text


def test_many_stores_leave_room_for_the_report():
    """Seen: the paths of 40 stores were a title that filled the screen."""
    stores = [f"/var/lib/<{number}>/store" for number in range(40)]
    found = Parsed(page(stores, {"runs": "0"}, [], [], [], []))
    assert found.text.count("Tasks in 40 stores") == 2, "title and head"
    assert "\n".join(stores) in found.text, "all of them, to unfold"
    few = Parsed(page(stores[:3], {"runs": "0"}, [], [], [], []))
    assert few.text.count(f"Tasks in {', '.join(stores[:3])}") == 2
    assert "details" not in [tag for tag, _ in few.tags]


@pytest.mark.parametrize(
    ("low", "high", "lines"),
    [
        (1e-5, 100.0, [1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1, 10, 60]),
        (0.9, 4.1, [1, 2]),  # seen: one line alone says nothing of the others
        (20.0, 300.0, [20, 30, 60, 120, 300]),
        (1.41, 1.59, [1.4, 1.5, 1.6]),
    ],
)
def test_an_axis_of_times_has_several_lines(low, high, lines):
    assert plots._lines(low, high) == pytest.approx(lines)


def test_a_number_of_one_hour_is_as_wide_as_its_hour():
    """Seen: one small dot in an empty plot."""
    axis = plots.Axis.of([{"hour": HOUR}])
    row = {**numbers("a"), "hour": HOUR}
    drawn = plots.times_plot([row], ["a"], axis, "wait_p95")
    (line,) = re.findall(rf'd="M ([0-9.]+) [0-9.]+ \nL ([0-9.]+) [^/]*stroke: {plots.COLOURS[0]}', drawn)
    width = re.search(r'viewBox="0 0 ([0-9]+) ', drawn)
    assert width and float(line[1]) - float(line[0]) > 0.8 * float(width[1])


def test_units_and_short_names():
    told = {
        0.0000042: "4.20 µs",
        0.0123: "12.3 ms",
        0.9999: "1.00 s",
        59.99: "1.00 min",
        5400: "1.50 h",
        200_000: "2.31 d",
    }
    assert {seconds: duration(seconds) for seconds in told} == told
    assert (duration(None), duration(float("nan")), duration(0)) == ("", "", "0 s")
    assert short("abc", 3) == "abc" and len(short("a" * 99, 40)) == 40 and "…" in short("a" * 99, 40)
