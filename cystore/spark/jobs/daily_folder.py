"""The folder of the job `aggregate`: one file of numbers for each day, and the state for the next run.

A run replaces each file as a whole, and writes the state last. If a run is killed, the next run writes its days again.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import date, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cystore.errors import CorruptRecordError, StoreConfigError
from cystore.reports.report_folder import write_parquet
from cystore.system import files

STATE, DAILY, FILE = "state.json", "daily", "tasks.parquet"
DAY_PREFIX = "date="
EPOCH = date(1970, 1, 1)
DAY = timedelta(days=1)
DAY_MS = 86_400_000


@dataclass(frozen=True)
class State:
    """Days before `open_from` are final. `oldest_ms` is the first event that the next run reads, unless the cleaner
    removes it before. Both are None until a run has found an event."""

    stores: tuple[str, ...]
    open_from: date | None = None
    oldest_ms: int | None = None

    def is_final(self, day: date) -> bool:
        """Whether the numbers of a day are final."""
        return self.open_from is not None and day < self.open_from


def begin_of(day: date) -> int:
    """The first millisecond of a day (UTC)."""
    return (day - EPOCH).days * DAY_MS


def day_of(ms: int) -> date:
    """The day of a time (UTC)."""
    return EPOCH + timedelta(days=ms // DAY_MS)


def read_state(home: Path, stores: tuple[str, ...]) -> State:
    """The state in a folder, with the stores that are read now; a first state if the folder is missing or has no state
    yet. Raises StoreConfigError for a folder with other files or of other stores, CorruptRecordError for a damaged
    state."""
    path = home / STATE
    data = files.read_if_there(path) if home.exists() else None
    if data is None:
        unexpected = (
            files.names(home) - {DAILY, files.TMP_DIRECTORY} if home.exists() else set()
        )  # a killed first run leaves these
        if unexpected:
            raise StoreConfigError("this is not a folder of daily numbers: name another one", path=home)
        return State(stores)
    try:
        content = json.loads(data)
        before = tuple(map(str, content["stores"]))
        open_from, oldest_ms = date.fromisoformat(content["open_from"]), int(content["oldest_ms"])
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptRecordError(
            f"the state of the last run is damaged ({error!r}): remove the folder, and the next run computes "
            "all days again",
            path=path,
        ) from None
    if missing := sorted(set(before) - set(stores)):
        raise StoreConfigError(
            f"the numbers in this folder also cover {', '.join(missing)}: name these stores too, or another folder",
            path=home,
        )
    return State(stores, open_from, oldest_ms)


def write_state(home: Path, state: State) -> None:
    """Replaces the state durably."""
    text = json.dumps(asdict(state), default=str, indent=1) + "\n"
    files.write_whole(home, home / STATE, text.encode(), keep_last=False)


def file_of(home: Path, day: date) -> Path:
    """The file of a day's numbers."""
    return home / DAILY / f"{DAY_PREFIX}{day}" / FILE


def days_in(home: Path) -> set[date]:
    """The days that have a file."""
    names = [entry.name.removeprefix(DAY_PREFIX) for entry in files.entries(home / DAILY)]
    days = {date.fromisoformat(name) for name in names}
    return {day for day in days if file_of(home, day).exists()}


def write_day(home: Path, day: date, rows: pa.Table) -> None:
    """Replaces a day's file durably."""
    write_parquet(home, file_of(home, day), rows)


def remove_day(home: Path, day: date) -> None:
    """Removes a day's file: attempts that ended on it ended again later."""
    files.remove_tree(file_of(home, day).parent)


def late_attempts(home: Path, day: date, rows: pa.Table) -> int:
    """The number of attempts that ended on a final day and are missing in its file."""
    path = file_of(home, day)
    known = pq.ParquetFile(path).read(["count", "retried"]) if path.exists() else None
    return max(_attempts(rows) - (0 if known is None else _attempts(known)), 0)


def _attempts(rows: pa.Table) -> int:
    return sum(pc.sum(rows[name]).as_py() or 0 for name in ("count", "retried"))
