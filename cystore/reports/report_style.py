"""The report's style, light and dark, and the script of its tables. The page fetches nothing."""

from __future__ import annotations

import base64
import hashlib
import math
from html import escape

from cystore.operate.output import one_line

STYLE = """
:root { color-scheme: light dark; --ink: #1d1f24; --soft: #6a6f78; --line: #dcdfe4;
  --back: #fff; --card: #f5f6f8; --bad: #b00020; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8ec; --soft: #9aa0aa; --line: #353a42; --back: #15171b; --card: #1e2126; --bad: #ff7a85; }
}
* { box-sizing: border-box; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 92rem; padding: 0 1rem; color: var(--ink);
  background: var(--back); }
h1 { font-size: 1.5rem; overflow-wrap: anywhere; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
.when { color: var(--soft); }
.facts { display: flex; flex-wrap: wrap; gap: .6rem; padding: 0; list-style: none; }
.facts li { background: var(--card); border-radius: .5rem; padding: .5rem .9rem; min-width: 7rem; }
.facts b { display: block; font-size: 1.35rem; font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; } .wide:has(table) { max-height: 40rem; overflow: auto; margin: .5rem 0 1.5rem; }
@media print { .wide:has(table) { max-height: none; } }
table { border-collapse: separate; border-spacing: 0; width: 100%; }
th, td { text-align: right; padding: .25rem .6rem; border-bottom: 1px solid var(--line);
  font-variant-numeric: tabular-nums;
  white-space: nowrap; }
th { color: var(--soft); font-weight: 600; position: sticky; top: 0; z-index: 1; background: var(--back); }
 table.sorts th { cursor: pointer; }
th[aria-sort="ascending"]::after { content: " \\25B2"; } th[aria-sort="descending"]::after { content: " \\25BC"; }
th:first-child, td:first-child, td:has(details), table:has(details) th:last-child { text-align: left; }
td:has(details) { white-space: normal; overflow-wrap: anywhere; min-width: 20rem; color: var(--bad); }
td { vertical-align: top; }
input { font: inherit; padding: .3rem .6rem; border: 1px solid var(--line); border-radius: .4rem;
  background: var(--card);
  color: inherit; width: 100%; max-width: 20rem; }
pre { overflow-x: auto; background: var(--card); color: var(--ink); padding: .6rem; font-size: 12px;
  white-space: pre-wrap; }
svg { width: 100%; max-width: 48rem; height: auto; fill: currentColor; }
.legend { display: flex; flex-wrap: wrap; gap: .3rem 1.2rem; padding: 0; list-style: none; font-size: .9rem; }
.legend li { overflow-wrap: anywhere; } .legend em { color: var(--soft); }
.legend i { display: inline-block; width: .8rem; height: .8rem; border-radius: .2rem; margin-right: .4rem; }
summary { overflow-wrap: anywhere; cursor: pointer; } .stores { color: var(--soft); margin-bottom: 1rem; }
td:first-child { position: sticky; left: 0; background: var(--back); } th:first-child { left: 0; z-index: 2; }
@media (max-width: 48rem) { body { margin: 1rem auto; }
  td:first-child { max-width: 9rem; overflow: hidden; text-overflow: ellipsis; }
  td:has(details) { min-width: 14rem; } }
.bad { color: var(--bad); } .empty { background: var(--card); border-radius: .5rem; padding: 1rem; }
"""

# Sorts a table by the column whose head is clicked, and hides the rows that do not have the text that is typed above
# it.
SCRIPT = """
for (const table of document.querySelectorAll("table.sorts")) {
  const body = table.tBodies[0], rows = [...body.rows], heads = [...table.tHead.rows[0].cells];
  const value = (row, at) => { const cell = row.cells[at], told = cell.dataset.value;
    return told === undefined ? cell.textContent.toLowerCase() : told === "" ? -Infinity : Number(told); };
  heads.forEach((head, at) => { head.tabIndex = 0;
    const sort = () => { const down = head.getAttribute("aria-sort") !== "descending";
      heads.forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      rows.sort((a, b) => { const x = value(a, at), y = value(b, at);
        return (x < y ? -1 : x > y ? 1 : 0) * (down ? -1 : 1); });
      body.append(...rows); };
    head.onclick = sort; head.onkeydown = event => { if (event.key === "Enter") sort(); }; });
  const box = document.createElement("input"); box.type = "search"; box.placeholder = `search ${rows.length} rows`;
  box.setAttribute("aria-label", "search in this table");
  box.oninput = () => { for (const row of rows)
    row.hidden = !row.textContent.toLowerCase().includes(box.value.toLowerCase()); };
  table.parentNode.before(box);
}
"""

SCRIPT_HASH = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()

_UNITS = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def duration(seconds: float | None, digits_max: int = 2) -> str:
    """Three digits and a unit, from µs to days, with at most `digits_max` digits after the point."""
    if seconds is None or math.isnan(seconds):
        return ""
    if seconds <= 0:
        return "0 s"
    rounded = float(f"{seconds:.3g}")
    size, unit = next(((size, unit) for size, unit in _UNITS if rounded >= size), _UNITS[-1])
    shown = rounded / size
    digits = 0 if shown >= 100 else 1 if shown >= 10 else 2
    return f"{shown:.{min(digits, digits_max)}f} {unit}"


def short(name: str, most: int) -> str:
    """A name; if it is longer than `most`, its middle is left out."""
    return name if len(name) <= most else f"{name[: most // 2 - 1]}…{name[len(name) - (most - most // 2) :]}"


def shown_text(text: str, most: int | None = None) -> str:
    """A text of one line as HTML, cut to `most` characters; what moves the cursor or turns the direction of writing is
    an escape, as in commands."""
    plain = one_line(text)
    return escape(plain if most is None else short(plain, most))


def shown_lines(text: str) -> str:
    """A text of several lines as HTML."""
    return "\n".join(map(shown_text, text.expandtabs().split("\n")))
