"""Goal: a file in the place of a folder, or a folder in the place of a file, is named itself, and not what should be
inside; moved away, everything is there again. Method: a small store with one of its names given to the other kind."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import cystore
from tests.support.checks import check_closed
from tests.support.small_stores import SETTINGS, open_small

pytestmark = pytest.mark.unsanitized  # Python alone


def texts(count: int) -> list[bytes]:
    return [b"%d" % n for n in range(count)]


def bodies(store: cystore.MessageStore, topic: str) -> list[bytes]:
    return [bytes(message.body) for message in store.get(topic, 0, 0, 100).messages]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with open_small(tmp_path / "store") as store:
        for text in texts(20):
            store.put("T", text, keys=("k",))
    return tmp_path / "store"


def give_to_a_file(place: Path) -> None:
    if place.exists():
        place.rename(place.with_name("away"))
    place.parent.mkdir(exist_ok=True)
    place.write_bytes(b"not a folder")


@pytest.mark.parametrize("name", ["commitlog", "consumequeue", "index", "config", "tmp"])
def test_a_file_in_place_of_a_folder_is_named_by_open(path, name):
    give_to_a_file(path / name)
    with pytest.raises(cystore.StoreIOError, match=r"not a folder.*move it away") as caught:
        open_small(path)
    assert str(caught.value.path) == str(path / name)
    (path / name).unlink()
    (path / "away").rename(path / name)
    with open_small(path) as store:
        assert bodies(store, "T") == texts(20)
    check_closed(path, SETTINGS)


@pytest.mark.parametrize("name", ["T", "T/0", "New", "New/0"])
def test_a_file_in_place_of_a_queues_folder_is_named_and_stops_no_put(path, name, caplog):
    """Seen: the error named the folder that would be inside of it."""
    place = path / "consumequeue" / name
    give_to_a_file(place)
    with open_small(path) as store:
        for topic in ("T", "New"):
            store.put(topic, b"20")
        with pytest.raises(cystore.StoreIOError, match=r"not a folder.*move it away") as caught:
            store.dispatch()
        assert str(caught.value.path) == str(place)
        store.flush()
        assert len(list(store.scan())) == 22
        caplog.clear()
        assert bodies(store, "New") == []
        assert f"[path {place}]" in caplog.text
        place.unlink()
        shutil.rmtree(place.with_name("away"), ignore_errors=True)
        assert store.dispatch() > 0
        assert (bodies(store, "T")[-1], bodies(store, "New")) == (b"20", [b"20"])
    with open_small(path) as store:
        assert (bodies(store, "T"), bodies(store, "New")) == (texts(21), [b"20"])
    check_closed(path, SETTINGS)


@pytest.mark.parametrize("name", ["control", "checkpoint", "lock"])
def test_a_folder_in_place_of_a_file_is_named(path, name):
    (path / name).unlink(missing_ok=True)
    (path / name).mkdir()
    with pytest.raises(cystore.StoreIOError, match=r"a folder.*move it away") as caught:
        open_small(path)
    assert str(caught.value.path) == str(path / name)
    (path / name).rmdir()
    with open_small(path) as store:
        assert bodies(store, "T") == texts(20)
    check_closed(path, SETTINGS)
