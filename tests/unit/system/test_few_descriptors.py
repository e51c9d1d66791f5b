"""Goal: descriptors and mappings are bounded, whatever the number of segments, in every mode. Method: processes with
a low limit on descriptors over stores with many small segments."""

from __future__ import annotations

import contextlib

import pytest

import cystore
from tests.support.process import Failed, Process
from tests.support.small_stores import SETTINGS

pytestmark = pytest.mark.unsanitized  # about descriptors

SEGMENT_BYTES = 4096
SEGMENTS = 1_300
SMALL = {
    **SETTINGS,
    "mapped_file_size_commit_log_bytes": SEGMENT_BYTES,
    "mapped_file_size_consume_queue_bytes": 20_000,
}
LIMITED = """
import cystore, os, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
store = cystore.open(path, **settings)
def mapped(kind="commitlog"):
    with open("/proc/self/maps") as maps:
        return sum(f"/{kind}/" in line for line in maps)
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A store of many segments with one record each."""
    path = tmp_path_factory.mktemp("many") / "s"
    with cystore.open(path, **SMALL) as store:
        body = bytes(SEGMENT_BYTES - 200)
        for first in range(0, SEGMENTS, 100):
            store.put_many(
                [cystore.Message(topic="T", body=body, keys=(f"k{n}",)) for n in range(first, first + 100)]
            )
        store.dispatch()
    return path


@pytest.mark.slow
def test_scan_of_many_segments_with_few_descriptors(path):
    """Seen: one scan over 1,300 segments at `ulimit -n 1024` got EMFILE, and that made the whole fleet read-only."""
    with Process() as poor:
        poor.do(LIMITED, path=str(path), settings=SMALL)
        assert poor.do("sum(1 for _ in store.scan())") >= SEGMENTS
        assert poor.do("len(os.listdir('/proc/self/fd'))") <= 32
        poor.do("store.put('T', b'more', flush='sync')")
        assert poor.do("len(store.get('T', 0, 1200).messages)") > 0
        assert poor.do("len(store.query('T', 'k0'))") == 1
        poor.do("store.flush(); store.close()")


def test_the_first_scrub_of_a_process_without_descriptors_is_a_typed_error(tmp_path):
    """Seen: it imports a module, and so raised OSError."""
    cystore.open(tmp_path / "s", **SMALL).close()
    with Process() as poor:
        poor.do(LIMITED, path=str(tmp_path / "s"), settings=SMALL)
        poor.do("store.put('T', b'x', flush='sync')")
        poor.do("resource.setrlimit(resource.RLIMIT_NOFILE, (3, 64))")
        with pytest.raises(Failed, match="StoreResourceError"):
            poor.do("store.scrub()")
        poor.do("resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))")
        poor.do("store.scrub(); store.close()")


@pytest.mark.slow
def test_ten_thousand_segments_with_few_descriptors(tmp_path):
    """The whole size: a process at `ulimit -n 64` makes, recovers, reads, queries, scans and verifies 10,000 segments
    and 100 index files."""
    with Process() as poor:
        poor.do(LIMITED, path=str(tmp_path / "s"), settings={**SMALL, "max_index_num": 101})
        poor.do(f"batch = [cystore.Message(topic='T', body=bytes({SEGMENT_BYTES - 200}), keys=('k',))] * 100")
        for _ in range(100):
            poor.do("store.put_many(batch)")
        poor.do("store.flush()")
        poor.do("store.close()")
        poor.do("store = cystore.open(path, **settings)")
        assert poor.do("sum(1 for _ in store.scan())") == 10_000
        poor.do(
            "at = 0\nwhile messages := store.get('T', 0, at).messages:\n    at += len(messages)\n"
            "assert at == 10_000, at"
        )
        assert poor.do("len(store.query('T', 'k', 20_000))") == 10_000
        assert len(list((tmp_path / "s" / "index").iterdir())) >= 100
        assert poor.do("len(os.listdir('/proc/self/fd'))") <= 64
        assert poor.do("store.put('T', b'more', flush='sync').queue_offset") == 10_000
        poor.do("store.close()\nfrom cystore.verify import verify")
        assert (
            poor.do("list(verify(__import__('pathlib').Path(path), cystore.StoreConfig(**settings)))") == []
        )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("live", [False, True])
def test_mappings_stay_within_the_budget_in_every_mode(path, read_only, live):
    """The setting mapped_bytes_max counts what is kept for later use, in processes that write, read, and read
    privately."""
    settings = {**SMALL, "mapped_bytes_max": 64 * SEGMENT_BYTES, "read_only": read_only}
    with Process() as holder, Process() as poor:
        if live:
            holder.do(
                "import cystore; store = cystore.open(path, **settings)", path=str(path), settings=SMALL
            )
        poor.do(LIMITED, path=str(path), settings=settings)
        assert poor.do("sum(1 for _ in store.scan())") >= SEGMENTS
        assert poor.do("mapped()") <= 80
        poor.do("store.close()")


INDEX_FILES = 300
INDEX_BYTES = 40 + 4 * 11 + 20 * 8
MANY_INDEX_FILES = {**SMALL, "max_hash_slot_num": 11, "max_index_num": 8}


@pytest.fixture(scope="module")
def indexed(tmp_path_factory):
    """A store of many index files with seven entries each, all of which a query of the key visits."""
    path = tmp_path_factory.mktemp("indexed") / "s"
    with cystore.open(path, **MANY_INDEX_FILES) as store:
        for number in range(7 * INDEX_FILES):
            store.put("T", b"%d" % number, keys=(f"k{number % 70}",))
        store.dispatch()
    assert len(list((path / "index").iterdir())) == INDEX_FILES
    return path


@pytest.mark.sampled(1)
@pytest.mark.parametrize("mode", ["writer", "live reader", "private reader"])
def test_index_files_share_the_budget_of_mappings(indexed, mode):
    """Seen: each index file stayed mapped for as long as a process was attached, whatever mapped_bytes_max said."""
    budget = {"mapped_bytes_max": 40 * INDEX_BYTES, "read_only": mode != "writer"}
    with Process() as holder, Process() as poor:
        if mode == "live reader":
            holder.do(
                "import cystore; store = cystore.open(path, **settings)",
                path=str(indexed),
                settings=MANY_INDEX_FILES,
            )
        poor.do(LIMITED, path=str(indexed), settings={**MANY_INDEX_FILES, **budget})
        for key in ("k0", "k69", "k7"):
            found = poor.do("[bytes(m.body).decode() for m in store.query('T', key, 100)]", key=key)
            assert found == [str(n) for n in reversed(range(int(key[1:]), 7 * INDEX_FILES, 70))]
            assert poor.do("len(store.query('T', key))", key=key) == 30
        assert 0 < poor.do("mapped('index')") <= 45
        assert poor.do("len(os.listdir('/proc/self/fd'))") <= 32
        if mode == "writer":
            poor.do("for n in range(50): store.put('T', b'more', keys=('more',))")
            poor.do("store.dispatch(); store.flush()")
            assert poor.do("len(store.query('T', 'more', 100))") == 50
            assert poor.do("mapped('index')") <= 60
        poor.do("store.close()")
        assert poor.do("mapped('index')") == 0


def test_index_files_that_another_process_cleaned_are_passed_over(tmp_path):
    """A query of a process that has not mapped them yet, or let them go, misses nothing that is still there."""
    settings = {**MANY_INDEX_FILES, "file_reserved_time_h": 0}
    path = tmp_path / "s"
    with cystore.open(path, **settings) as store, Process() as reader:
        for number in range(200):
            store.put("T", b"%d" % number * 200, keys=("k",))
        store.dispatch()
        store.flush()
        reader.do(LIMITED, path=str(path), settings={**settings, "read_only": True, "mapped_bytes_max": 4096})
        assert reader.do("len(store.query('T', 'k', 1000))") == 200
        before = len(list((path / "index").iterdir()))
        store.clean()
        assert len(list((path / "index").iterdir())) < before
        left = [bytes(message.body) for message in store.query("T", "k", 1000)]
        assert reader.do("len(store.query('T', 'k', 1000))") == len(left)
        assert (
            reader.do("sum('/index/' in line and 'deleted' in line for line in open('/proc/self/maps'))") == 0
        )


def test_cleaned_segments_are_let_go_by_processes_without_services(tmp_path):
    """Seen: without the service `allocate` the segments stayed mapped, and their disk space taken."""
    path = tmp_path / "s"
    settings = {**SMALL, "file_reserved_time_h": 0}
    with cystore.open(path, **settings) as store, Process() as writer, Process() as reader:
        for process, more in ((writer, {}), (reader, {"read_only": True})):
            process.do(LIMITED, path=str(path), settings={**settings, **more})
        writer.do("for _ in range(20): store.put('T', bytes(3896), keys=('k',))")
        store.flush()
        for process in (writer, reader):
            assert process.do("[len(store.get('T', 0, n, 1).messages) for n in range(20)]") == [1] * 20
            assert process.do("len(store.query('T', 'k'))") == 20
            assert process.do("mapped()") >= 20
        store.clean()
        for process in (writer, reader):
            process.do("store.get('T', 0, 19)")
            assert process.do("mapped()") <= 3
            assert process.do("sum('deleted' in line for line in open('/proc/self/maps'))") == 0


def test_a_service_lets_cleaned_segments_go(tmp_path):
    """A process that does nothing but flush, as every process with the default services does."""
    path = tmp_path / "s"
    settings = {**SMALL, "file_reserved_time_h": 0}
    with cystore.open(path, **settings) as store, Process() as idle:
        idle.do(
            LIMITED,
            path=str(path),
            settings={**settings, "services": ["flush"], "flush_interval_commit_log_ms": 10},
        )
        store.put_many([cystore.Message(topic="T", body=bytes(SEGMENT_BYTES - 200))] * 20)
        store.dispatch()
        store.flush()
        assert idle.do("sum(1 for _ in store.scan())") == 20
        store.clean()
        idle.do(
            "import threading, time\n"
            "until = time.monotonic() + 30\n"
            "while mapped() > 3 and time.monotonic() < until: threading.Event().wait(0.01)"
        )
        assert idle.do("mapped()") <= 3


@pytest.mark.sampled(1)
@pytest.mark.parametrize("mode", ["writer", "live reader", "reader that came first"])
def test_an_idle_process_without_services_lets_cleaned_segments_go(tmp_path, mode):
    """Seen: they stayed mapped, and their space taken, until the next call of the process. It makes none here: not
    even of what it appended and dispatched itself anything may stay."""
    path = tmp_path / "s"
    settings = {**SMALL, "file_reserved_time_h": 0}
    with contextlib.ExitStack() as stack:
        idle = stack.enter_context(Process())
        if mode == "reader that came first":
            with cystore.open(path, **settings) as store:
                store.put_many([cystore.Message(topic="T", body=bytes(3896), keys=("k",))] * 20)
        store = (
            None if mode == "reader that came first" else stack.enter_context(cystore.open(path, **settings))
        )
        idle.do(LIMITED, path=str(path), settings={**settings, "read_only": mode != "writer"})
        if mode == "writer":
            idle.do("for _ in range(20): store.put('T', bytes(3896), keys=('k',))\nstore.dispatch()")
        elif store is not None:
            store.put_many([cystore.Message(topic="T", body=bytes(3896), keys=("k",))] * 20)
            store.dispatch()
        assert idle.do("sum(1 for _ in store.scan())") == 20
        assert idle.do("len(store.query('T', 'k'))") == 20
        assert idle.do("kept = store.get('T', 0, 7, 1).messages[0]; mapped()") >= 20
        store = store or stack.enter_context(cystore.open(path, **settings))
        for _ in range(20):
            store.put("T", bytes(3896), keys=("l",))
        store.dispatch()
        store.flush()
        assert store.clean().segments >= 38
        idle.do(
            "import threading, time\n"
            "def removed(): return sum('/commitlog/' in line and 'deleted' in line for line in "
            "open('/proc/self/maps'))\n"
            "until = time.monotonic() + 60\n"
            "while removed() > 1 and time.monotonic() < until: threading.Event().wait(0.01)"
        )
        assert idle.do("removed()") == 1  # what a view holds
        assert idle.do("bytes(kept.body)") == bytes(3896).decode("latin-1")
        assert idle.do("del kept; removed()") == 0
        assert idle.do("len(store.query('T', 'l'))") >= 1
        idle.do("store.close()")
        assert idle.do("[t.name for t in threading.enumerate() if t.name.startswith('cystore')]") == []
