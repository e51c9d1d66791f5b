"""Makes the report of stores in this process: reads their lifecycle logs with a thread for each core, and writes the
tables as Parquet and as one page.

It holds all attempts in memory, about 500 MB for those of 5 million events. `cystore.spark.jobs.report` reads archives,
URLs and larger logs, and writes with the same code.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import pyarrow as pa

from cystore.columns.arrow import FOREVER, ReadSettings, RowFilter, plan_ranges, read_ranges
from cystore.config import StoreConfig
from cystore.derived.reading.snapshot import PIECE_BYTES, LogRange, packed
from cystore.errors import StoreConfigError
from cystore.operate.output import time_text
from cystore.operate.progress import Report
from cystore.reports import attempts, check_installed, report_text
from cystore.reports.report_folder import check_out, replaced, write_parquet
from cystore.reports.report_tables import NUMBERS, tables_of
from cystore.reports.task_layout import TOPIC
from cystore.store import open as open_store
from cystore.system import files
from cystore.system.threads.thread_pool import ThreadPool

Format = Literal["html", "json", "md"]
TOP = 20
LEAST_PIECE_BYTES = 4 << 20
ONLY_ON_THE_PAGE = ("unfinished",)  # true for the moment of the report alone
OF_NUMBERS = ("hourly", "names", "workers")  # tables whose columns can be chosen
Part = TypeVar("Part")
Shown = Callable[[Any], Any]  # hides what an app's settings hide


@dataclass(frozen=True)
class Asked:
    """The subject of a report: events in [begin_ms, end_ms), attempts of tasks with these names (none: all), the `top`
    failures and workflows. With `skip_damaged` damage in a log is no error."""

    begin_ms: int | None = None
    end_ms: int | None = None
    names: tuple[str, ...] = ()
    top: int = TOP
    skip_damaged: bool = False

    def check(self) -> None:
        """Raises StoreConfigError for conditions that no report can meet."""
        if isinstance(self.top, bool) or not isinstance(self.top, int) or self.top < 1:
            raise StoreConfigError(f"top must be a whole number from 1, not {self.top!r}")
        if None not in (self.begin_ms, self.end_ms) and self.begin_ms >= self.end_ms:  # type: ignore[operator]
            begin, end = time_text(self.begin_ms or 0), time_text(self.end_ms or 0)
            raise StoreConfigError(f"the begin ({begin}) must be before the end ({end})")


@dataclass(frozen=True)
class Form:
    """How a report is written. `columns` are those of the numbers by task, worker and hour; none: all."""

    format: Format = "html"
    columns: tuple[str, ...] = ()
    shown: Shown | None = None

    def check(self) -> None:
        """Raises StoreConfigError for an unknown format or column, and for a package that is missing."""
        if self.format not in get_args(Format):
            raise StoreConfigError(
                f"the format must be one of {', '.join(get_args(Format))}, not {self.format!r}"
            )
        unknown = [name for name in self.columns if name not in NUMBERS]
        if unknown or len(set(self.columns)) != len(self.columns):
            raise StoreConfigError(
                f"columns must name some of {', '.join(NUMBERS)}, each once, not {','.join(self.columns)}"
            )
        check_installed(plots=self.format == "html")


def tables_here(
    stores: Sequence[Path], config: StoreConfig | None, asked: Asked, report: Report | None = None
) -> dict[str, pa.Table]:
    """The tables of the report about stores of this host. Raises the errors of `cystore.open` and of a read."""
    rows = RowFilter(
        topics=(TOPIC,),
        times_ms=(
            -FOREVER if asked.begin_ms is None else asked.begin_ms,
            FOREVER if asked.end_ms is None else asked.end_ms,
        ),
    )
    settings = ReadSettings(
        columns=attempts.COLUMNS, rows=rows, on_corruption="skip" if asked.skip_damaged else "fail"
    )

    def read(part: tuple[LogRange, ...]) -> list[pa.RecordBatch]:
        return list(attempts.attempts(read_ranges(part, settings), asked.end_ms))

    parts = _parts(stores, config, rows)
    sizes = [sum(one.size_bytes for one in part) for part in parts]
    return tables_in_threads(parts, read, asked, sizes, report)


def _parts(stores: Sequence[Path], config: StoreConfig | None, rows: RowFilter) -> list[tuple[LogRange, ...]]:
    """The logs in parts for threads, each log up to its published end now."""
    pieces: list[LogRange] = []
    for path in stores:
        with open_store(path, **({"read_only": True} if config is None else {"config": config})) as store:
            snapshot = store.snapshot()
            ranges = plan_ranges(snapshot, rows)
            size = _piece_bytes(sum(part.size_bytes for part in ranges))
            pieces += [one for part in ranges for one in snapshot.pieces(part.begin, part.end, size)]
    return packed(pieces, _piece_bytes(sum(part.size_bytes for part in pieces)))


def _piece_bytes(total: int) -> int:
    return max(LEAST_PIECE_BYTES, min(PIECE_BYTES, total // (4 * _cores())))


def tables_in_threads(
    parts: Sequence[Part],
    read: Callable[[Part], Iterable[pa.RecordBatch]],
    asked: Asked,
    sizes: Sequence[int] = (),
    report: Report | None = None,
) -> dict[str, pa.Table]:
    """The tables of the attempts that `read` finds in parts of the log, with a thread for each core."""
    found: list[pa.RecordBatch] = []
    with ThreadPool(_cores(), "cystore-report") as threads:
        for number, batches in enumerate(threads.map(lambda part: list(read(part)), parts)):
            found += batches
            if report is not None:
                report("reading the log", sum(sizes[: number + 1]), max(1, sum(sizes)))
    return tables_of(found, asked.top, asked.names)


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def write_report(
    stores: Sequence[Path],
    out: Path | str,
    *,
    config: StoreConfig | None = None,
    asked: Asked = Asked(),
    form: Form = Form(),
    overwrite: bool = False,
    report: Report | None = None,
) -> dict[str, Any]:
    """Writes the report of stores of this host into the folder `out`, completely or not at all; returns a summary.

    The folder has the tables as Parquet and the page: report.html, report.json or report.md. It is for its owner
    alone, or for the group of the folder above, as all content of a store elsewhere."""
    asked.check()
    form.check()
    folder = check_out(out, [str(path) for path in stores], overwrite=overwrite)
    return written(folder, list(map(str, stores)), tables_here(stores, config, asked, report), form)


def report_as_text(
    stores: Sequence[Path],
    *,
    config: StoreConfig | None = None,
    asked: Asked = Asked(),
    form: Form = Form(format="md"),
    report: Report | None = None,
) -> str:
    """The page of the report as a text."""
    asked.check()
    form.check()
    return _text(list(map(str, stores)), _hidden(tables_here(stores, config, asked, report), form), form)


def written(folder: Path, stores: Sequence[str], tables: dict[str, pa.Table], form: Form) -> dict[str, Any]:
    """Writes the tables and the page into a folder that `check_out` allowed; returns a summary."""
    tables = _hidden(tables, form)
    with replaced(folder) as making:
        for name, table in _chosen(tables, form).items():
            if name not in ONLY_ON_THE_PAGE:
                write_parquet(making, making / name / "part-0.parquet", table)
        text = _text(stores, tables, form).encode("utf-8", "backslashreplace")
        files.write_whole(making, making / f"report.{form.format}", text, keep_last=False)
    return {**_facts(tables), "out": str(folder)}


def _hidden(tables: dict[str, pa.Table], form: Form) -> dict[str, pa.Table]:
    """The tables without what the app's settings hide, which may be younger than the log."""
    if form.shown is None:
        return tables
    failures = tables["tracebacks"]
    for name in ("exception", "traceback"):
        values = [None if text is None else form.shown(text) for text in failures[name].to_pylist()]
        failures = failures.set_column(
            failures.schema.get_field_index(name), name, pa.array(values, pa.string())
        )
    return {**tables, "tracebacks": failures}


def _chosen(tables: dict[str, pa.Table], form: Form) -> dict[str, pa.Table]:
    """The tables with the columns that were asked for."""
    if not form.columns:
        return tables
    left_out = set(NUMBERS) - set(form.columns)
    return {
        name: table.drop_columns([one for one in table.schema.names if one in left_out])
        if name in OF_NUMBERS
        else table
        for name, table in tables.items()
    }


def _facts(tables: dict[str, pa.Table]) -> dict[str, Any]:
    rows = tables["names"].to_pylist()
    return {
        "tasks": len(rows),
        "runs": sum(row["count"] for row in rows),
        "failed": sum(row["failed"] for row in rows),
        "retries": sum(row["retried"] for row in rows),
    }


def _text(stores: Sequence[str], tables: dict[str, pa.Table], form: Form) -> str:
    facts = _facts(tables)
    total = tables["unfinished"].slice(0, 1)["total"].to_pylist()
    facts_shown = {**facts, "unfinished": sum(total)}
    if form.format == "json":
        rows = {name: table.to_pylist() for name, table in _chosen(tables, form).items()}
        return report_text.as_json(stores, facts_shown, rows)
    rows = {name: table.to_pylist() for name, table in tables.items()}
    columns = form.columns or tuple(NUMBERS)
    if form.format == "md":
        return report_text.as_markdown(stores, facts_shown, rows, columns)
    from cystore.reports.report_page import page  # matplotlib takes a second to import

    heads = {"tasks": "task names"}
    shown = {heads.get(name, name): f"{value:,}" for name, value in facts_shown.items()}
    return page(
        stores, shown, rows["names"], rows["hourly"], rows["tracebacks"], rows["workflows"], rows["workers"],
        rows["unfinished"], columns,
    )  # fmt: skip
