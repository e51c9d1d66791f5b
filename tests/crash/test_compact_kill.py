"""Goal: a process may be killed anywhere in a compaction (I7): the newest record of each key is found before and after,
and the next compaction ends what it began. Method: a process of the build with failpoints compacts a store that lives
on, or whose last process it was."""

from __future__ import annotations

import signal

import pytest

import cystore
from cystore.engine.files.compacted_file import numbers, path_of
from tests.crash.episodes.compaction import COMPACTED, PLACES, check, killed_at, put_round
from tests.support.process import Process


@pytest.mark.parametrize("survivors", [True, False], ids=["somebody lives", "everybody died"])
@pytest.mark.parametrize("place", PLACES)
def test_i7_a_kill_while_compacting(tmp_path, rng, build_environment, place, survivors):
    killed_at(place, rng, tmp_path, build_environment("failpoints"), survivors=survivors)


@pytest.mark.parametrize("survivors", [True, False], ids=["somebody lives", "everybody died"])
def test_a_kill_while_a_compacted_topic_is_deleted(tmp_path, build_environment, survivors):
    """The removal of the queues and that of the compacted values are one fact."""
    path, model = tmp_path / "store", {}
    environment = {**build_environment("failpoints"), "CYSTORE_FAILPOINT": "remove.listed:1"}
    with Process(environment) as victim:
        store = cystore.open(path, **COMPACTED)
        put_round(store, model, 0)
        store.clean()
        victim.do(
            "import cystore; store = cystore.open(path, **settings)", path=str(path), settings=COMPACTED
        )
        if not survivors:
            store.close()
        with pytest.raises(EOFError):
            victim.do("store.delete_topic('state')")
        assert victim.wait() == -signal.SIGKILL
    if not survivors:
        store = cystore.open(path, **COMPACTED)
    with store:
        gone = dict.fromkeys(model, b"")
        check(store, gone)
        put_round(store, gone, 1)
        check(store, gone)
        store.clean()
        check(store, gone)


def test_a_file_that_no_turn_entered_is_not_relied_on(tmp_path, build_environment):
    """A kill before the manifest has the new file: if that file is then removed, the old one and the log still have
    every value."""
    path, model = tmp_path / "store", {}
    environment = {**build_environment("failpoints"), "CYSTORE_FAILPOINT": "compact.published:1"}
    with Process(environment) as victim, cystore.open(path, **COMPACTED) as store:
        put_round(store, model, 0)
        store.compact()
        covered = store._attached().compactor.covered()
        put_round(store, model, 1)
        victim.do(
            "import cystore; store = cystore.open(path, **settings)", path=str(path), settings=COMPACTED
        )
        with pytest.raises(EOFError):
            victim.do("store.compact()")
        assert victim.wait() == -signal.SIGKILL
        assert numbers(path) == [0, 1]
        assert store._attached().compactor.covered() == covered
        path_of(path, 1).unlink()
        check(store, model)
        store.clean()
        check(store, model)
        assert store.stats()["compacted_damaged"] == 0


def test_a_reader_in_another_process_follows(tmp_path):
    """A process that only reads has the old file mapped while others compact, clean and remove it."""
    path, model = tmp_path / "store", {}
    with cystore.open(path, **COMPACTED) as store, Process() as reader:
        reader.do("import cystore; store = cystore.open(path, read_only=True)", path=str(path))
        for round_ in range(4):
            put_round(store, model, round_)
            store.clean()
            told = reader.do(
                "found = {key: store.latest('state', key) for key in keys}\n"
                "{key: bytes(one.body) for key, one in found.items() if one is not None}",
                keys=list(model),
            )
            assert told == {key: body.decode() for key, body in model.items() if body}
