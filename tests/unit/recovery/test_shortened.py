"""Goal: a log file that another program shortens costs what was in it, and nothing else. Method: a process has the
store open while one of its files is cut; then the next one opens the store."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import cystore
from tests.support.process import Failed, Process
from tests.support.small_stores import LOG_BYTES, SETTINGS

pytestmark = pytest.mark.unsanitized  # the sanitizer reports the signal
COUNT, KEPT = 60, 4096
OPENED = "import cystore; store = cystore.open(path, **settings)"
FILLED = f"""
{OPENED}
for n in range({COUNT}):
    store.put("T", b"%d" % n + b" " * 900, keys=(f"k{{n}}",))
store.dispatch()
store.flush()
"""
SCAN = "sum(1 for _ in store.scan())"


def shorten(path: Path, number: int) -> Path:
    """Cuts one of the files of the log."""
    file = path / "commitlog" / f"{number * LOG_BYTES:020d}"
    os.truncate(file, KEPT)
    return file


def check_next(path: Path, lost: range) -> None:
    """The next process reads all messages but the lost ones, which keep their queue offsets, and puts."""
    with cystore.open(path, **SETTINGS) as store:
        assert [n for n in range(COUNT) if not store.query("T", f"k{n}")] == list(lost)
        assert sum(1 for _ in store.scan()) == COUNT - len(lost)
        assert store.put("T", b"next").queue_offset == COUNT


def lost_of(path: Path, number: int) -> range:
    """The messages behind the first KEPT bytes of a file."""
    with cystore.open(path, **SETTINGS, read_only=True) as store:
        places = [number * LOG_BYTES + KEPT, (number + 1) * LOG_BYTES]
        kept = {message.queue_offset: message.physical_offset for message in store.scan()}
    lost = [n for n in range(COUNT) if n not in kept]
    assert lost and kept[lost[0] - 1] < places[0] and kept[lost[-1] + 1] >= places[1]
    return range(lost[0], lost[-1] + 1)


@pytest.mark.parametrize("work", [SCAN, "[len(store.get('T', 0, n, 1).messages) for n in range(60)]"])
def test_a_process_that_touches_what_is_gone_ends_and_the_next_one_has_the_rest(tmp_path, work):
    with Process() as process:
        process.do(FILLED, path=str(tmp_path / "s"), settings=SETTINGS)
        shorten(tmp_path / "s", 0)
        with pytest.raises(EOFError):
            process.do(work)
        assert process.wait() == -signal.SIGBUS
    check_next(tmp_path / "s", lost_of(tmp_path / "s", 0))


def test_reads_with_pread_give_an_error_instead_and_nobody_joins(tmp_path):
    with Process() as writer, Process() as reader:
        writer.do(FILLED, path=str(tmp_path / "s"), settings=SETTINGS)
        reader.do(OPENED, path=str(tmp_path / "s"), settings={**SETTINGS, "read_through": "pread"})
        file = shorten(tmp_path / "s", 1)
        with pytest.raises(Failed, match=f"CorruptRecordError: .*{file}"):
            reader.do(SCAN)
        assert reader.do("bytes(store.get('T', 0, 59).messages[0].body)[:2]") == "59"
        with pytest.raises(cystore.StoreFormatError, match=str(file)):
            cystore.open(tmp_path / "s", **SETTINGS)
        for process in (writer, reader):
            process.kill()
    check_next(tmp_path / "s", lost_of(tmp_path / "s", 1))
