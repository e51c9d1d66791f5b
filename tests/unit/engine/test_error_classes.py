"""Goal: only a failed sync makes a store read-only. A missing resource is an error of the one call that missed it,
and a file that the cleaner took away is skipped. Method: real limits in real processes, and a file that goes away
between a listing and the look at it."""

from __future__ import annotations

import contextlib
import errno
import os
import pickle

import pytest

import cystore
from cystore._native.system import log_files
from cystore.errors import SyncFailedError
from cystore.system import files
from tests.support.process import Failed, Process
from tests.support.small_stores import LOG_BYTES, SETTINGS, body_for, open_small

OPEN = "import cystore\nstore = cystore.open(path, **settings)"
NO_DESCRIPTORS = (
    "import os, resource\n"
    "spare = os.open('/dev/null', os.O_RDONLY)\n"
    "limits = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
    "resource.setrlimit(resource.RLIMIT_NOFILE, (spare, limits[1]))"
)
DESCRIPTORS = "resource.setrlimit(resource.RLIMIT_NOFILE, limits)"


def old_store(path, **more):
    """A store with several segments that have all expired."""
    store = open_small(path, **{"file_reserved_time_h": 0, **more})
    for number in range(6):
        store.put("T", body_for(LOG_BYTES - 8 - 200), tags=f"t{number}")
    store.flush()
    return store


def test_a_process_without_descriptors_does_not_stop_the_others(tmp_path):
    """Seen: EMFILE in one process set the flag of a failed sync, and the whole fleet was read-only for good."""
    with old_store(tmp_path / "s") as store, Process() as poor:
        poor.do(OPEN, path=str(store.path), settings=SETTINGS)
        poor.do(NO_DESCRIPTORS)
        store.put("T", b"not flushed yet")
        for call in ("store.flush()", "store.put('T', b'', flush='sync')"):
            with pytest.raises(Failed) as caught:
                poor.do(call)
            assert caught.value.kind == "StoreResourceError"
            assert "ulimit -n" in str(caught.value)
        store.put("T", b"the others go on", flush="sync")
        poor.do(DESCRIPTORS)
        poor.do("store.put('T', b'and so does it', flush='sync')")
        poor.do("store.flush()")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENOMEM, errno.ENOSPC, errno.EINTR, errno.EIO])
@pytest.mark.parametrize("folder", ["commitlog", "consumequeue"])
def test_only_a_sync_stops_all_writing(tmp_path, monkeypatch, code, folder):
    """What a flush opens or maps may fail in any way: the flush fails, and the next one may succeed."""
    mapped = files.map_file

    def refuse(path, *given, **named):
        if folder in str(path):
            raise OSError(code, os.strerror(code))
        return mapped(path, *given, **named)

    path = tmp_path / "s"
    with open_small(path) as store, Process() as other:
        other.do(OPEN, path=str(path), settings=SETTINGS)
        other.do("store.put('T', b'1', keys=('k',)); store.dispatch()")
        with monkeypatch.context() as broken:
            broken.setattr(files, "map_file", refuse)
            with pytest.raises(cystore.StoreError, match=folder) as caught:
                store.flush()
            assert not isinstance(caught.value, cystore.FlushFailedError)
        store.flush()
        store.put("T", b"2", flush="sync")


def test_a_sync_that_did_not_run_is_no_failed_sync():
    """EINTR says that nothing was looked at: the pages are still dirty, and the next sync tells the truth."""
    assert type(SyncFailedError.of(errno.EINTR, "/x")) is cystore.StoreResourceError
    failed = SyncFailedError.of(errno.ENOSPC, "/x")
    assert isinstance(failed, SyncFailedError)
    assert failed.errno == errno.ENOSPC
    assert str(pickle.loads(pickle.dumps(failed))) == str(failed)


@pytest.fixture
def vanishing(monkeypatch):
    """Lists of a folder whose path holds `name` lose their first file behind the listing, as a clean of another
    process may take it."""
    listed, listed_natively = os.scandir, log_files.list_files
    taken = []

    def take(name):
        @contextlib.contextmanager
        def scandir(fd):
            folder = os.readlink(f"/proc/self/fd/{fd}") if isinstance(fd, int) else str(fd)
            with listed(fd) as found:
                entries = sorted(found, key=lambda entry: entry.name)
                if folder.endswith(name) and len(entries) > 1:
                    taken.append(entries[0].name)
                    os.unlink(os.path.join(folder, entries[0].name))
                yield entries

        def list_files(fd, marker):
            found = listed_natively(fd, marker)
            folder = os.readlink(f"/proc/self/fd/{fd}")
            if found and len(found) > 1 and folder.endswith(name):
                first = min(entry for entry in os.listdir(folder) if entry.isdigit())
                taken.append(first)
                os.unlink(os.path.join(folder, first))
            return found

        monkeypatch.setattr(os, "scandir", scandir)
        monkeypatch.setattr(log_files, "list_files", list_files)
        return taken

    return take


@pytest.mark.parametrize("call", ["clean", "scrub", "flush"])
@pytest.mark.parametrize("folder", ["commitlog", "consumequeue/T/0", "consumequeue_ext/T/0"])
def test_a_file_that_goes_away_behind_a_listing_is_skipped(tmp_path, vanishing, folder, call):
    """Seen: `clean` beside a flush of another process made the store read-only in 3 of 4 runs; `clean` and `scrub`
    raised FileNotFoundError."""
    settings = {"enable_consume_queue_ext": True, "mapped_file_size_consume_queue_ext_bytes": 64}
    settings["mapped_file_size_consume_queue_bytes"] = 40
    with old_store(tmp_path / "s", **settings) as store:
        store.put("T", b"x", tags="a")
        store.dispatch()
        if call == "clean":
            store.clean(1)
        taken = vanishing(folder)
        getattr(store, call)()
        assert taken or call == "flush" or "ext" in folder or (call, folder) == ("scrub", "consumequeue/T/0")
        store.put("T", b"y", tags="b", flush="sync")


def test_an_open_beside_a_clean_skips_what_the_clean_takes(tmp_path, vanishing):
    with old_store(tmp_path / "s") as store:
        taken = vanishing("commitlog")
        with open_small(tmp_path / "s") as other:
            assert taken
            other.put("T", b"x", flush="sync")
        store.put("T", b"y", flush="sync")


@pytest.mark.disk
@pytest.mark.unsanitized  # 5 of the 207 CPU seconds of that group; each step has a test of its own that is
def test_cleaning_beside_flushes_of_other_processes_stops_nothing(tmp_path):
    """The whole of it, with real processes: each puts, flushes and cleans as fast as it can."""
    settings = {**SETTINGS, "file_reserved_time_h": 0, "enable_consume_queue_ext": True}
    settings["mapped_file_size_consume_queue_ext_bytes"] = 256
    settings["mapped_file_size_consume_queue_bytes"] = 80
    with open_small(tmp_path / "s", **settings) as store, Process() as one, Process() as two:
        for process in (one, two):
            process.do(OPEN, path=str(store.path), settings=settings)
        one.send("for n in range(150): store.put('T', b'x' * 900, tags='t'); store.flush()")
        two.send("for n in range(150): store.put('U', b'x' * 900, tags='t'); store.flush(); store.scrub()")
        for _ in range(150):
            store.clean()
        for process in (one, two):
            process.answer()
        store.put("T", b"x", flush="sync")
