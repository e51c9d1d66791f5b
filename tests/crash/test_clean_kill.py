"""Goal: a process may be killed anywhere in a clean (I1, I2, I7): nothing that is still needed is gone, and the next
clean ends what it began. Method: a process of the build with failpoints cleans a store that lives on, or whose last
process it was; or it makes room on a full disk before it opens the store."""

from __future__ import annotations

import signal

import pytest

import cystore
from tests.support.aftermath import after_kills
from tests.support.cleaning import check_cleaned, fill
from tests.support.process import Process
from tests.support.small_stores import SETTINGS

EXPIRED = {**SETTINGS, "file_reserved_time_h": 0, "max_index_num": 100}


@pytest.mark.parametrize("survivors", [True, False], ids=["somebody lives", "everybody died"])
@pytest.mark.parametrize("place", ["clean.published", "clean.segment_gone", "clean.queue_minimum"])
def test_i7_a_kill_while_cleaning(tmp_path, rng, build_environment, place, survivors):
    path = tmp_path / "store"
    passes = 1 if place == "clean.published" else rng.randrange(1, 3)
    environment = {**build_environment("failpoints"), "CYSTORE_FAILPOINT": f"{place}:{passes}"}
    with Process(environment) as victim:
        store = cystore.open(path, **EXPIRED)
        put = fill(store, 450)
        store.dispatch()
        store.flush()
        victim.do("import cystore; store = cystore.open(path, **settings)", path=str(path), settings=EXPIRED)
        if not survivors:
            store.close()
        with pytest.raises(EOFError):
            victim.do("store.clean()")
        assert victim.wait() == -signal.SIGKILL
    if not survivors:
        store = cystore.open(path, **EXPIRED)
    with store:
        put += fill(store, 40, start=len(put))
        if not survivors:
            check_cleaned(store, put)
        done = store.clean()
        assert done.files
        check_cleaned(store, put)
        assert min(int(p.name) for p in (path / "commitlog").glob("0*")) == done.min_physical_offset
    with cystore.open(path, **EXPIRED) as store:
        check_cleaned(store, put)
        store.configure(file_reserved_time_h=1000)  # what is left stays
    after_kills(path, EXPIRED)


MAKE_ROOM = """
from pathlib import Path
import cystore
from cystore.attachment.first_process import free_expired
free_expired(Path(path), cystore.StoreConfig(**settings))
"""


@pytest.mark.parametrize("crashed", [True, False])
@pytest.mark.parametrize(
    "place", ["clean.room_synced", "clean.room_begin_entered", "clean.room_segment_gone"]
)
def test_i7_a_kill_while_room_is_made_for_an_open(tmp_path, rng, build_environment, place, crashed):
    """An open on a full disk removes expired segments first."""
    path = tmp_path / "store"
    passes = rng.randrange(1, 4) if place == "clean.room_segment_gone" else 1
    environment = {**build_environment("failpoints"), "CYSTORE_FAILPOINT": f"{place}:{passes}"}
    put, kept = [], {**EXPIRED, "file_reserved_time_h": 1000}
    with Process() as writer:
        writer.do("import cystore; store = cystore.open(path, **settings)", path=str(path), settings=kept)
        with cystore.open(path, **kept) as store:
            put += fill(store, 450)
            store.dispatch()
            store.flush()
            store.configure(file_reserved_time_h=0)
        if crashed:
            writer.kill()
        else:
            writer.do("store.close()")
    with Process(environment) as victim:
        with pytest.raises(EOFError):
            victim.do(MAKE_ROOM, path=str(path), settings=EXPIRED)
        assert victim.wait() == -signal.SIGKILL
    with cystore.open(path, **EXPIRED) as store:
        put += fill(store, 40, start=len(put))
        check_cleaned(store, put)
        done = store.clean()
        check_cleaned(store, put)
        assert min(int(p.name) for p in (path / "commitlog").glob("0*")) == done.min_physical_offset
        store.configure(file_reserved_time_h=1000)  # what is left stays
    after_kills(path, EXPIRED)
