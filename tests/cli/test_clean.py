"""Goal: `cystore clean` removes what expired, and nothing whose time it does not know. Method: the command on real
stores."""

from __future__ import annotations

import json
import time

import pytest

from cystore.cli.program import main
from tests.support.clock import turn
from tests.support.small_stores import open_small

HOUR_MS = 3_600_000


def fill(path) -> int:
    with open_small(path) as store:
        for _ in range(400):
            store.put("T", b"x" * 100)
        store.flush()
    return segments(path)


def segments(path) -> int:
    return len(list((path / "commitlog").glob("0*")))


def test_it_refuses_to_guess_how_long_messages_are_kept(tmp_path, capsys):
    """A store from before, or RocketMQ's own, does not say so."""
    fill(tmp_path / "s")
    (tmp_path / "s" / "manifest").unlink()
    assert main(["clean", str(tmp_path / "s")]) == 2
    assert "does not say how long its messages are kept" in capsys.readouterr().err


@pytest.mark.parametrize("hour", [4, 5])
def test_it_removes_what_expired(tmp_path, capsys, monkeypatch, hour):
    """Seen: at 04 o'clock (delete_when) the service's turn removed it first, and the command said that it removed
    nothing."""
    before = fill(tmp_path / "s")
    turn(monkeypatch, (hour - time.localtime().tm_hour) % 24 * HOUR_MS + 24 * HOUR_MS)
    given = [str(tmp_path / "s"), "--json"]
    assert main(["clean", *given]) == 0
    assert json.loads(capsys.readouterr().out)["segments"] == 0
    with open_small(tmp_path / "s", services=()) as store:
        store.configure(file_reserved_time_h=2)
    capsys.readouterr()
    assert main(["clean", *given]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["segments"] > 0
    assert segments(tmp_path / "s") < before
    assert told["min_physical_offset"] > 0


def test_a_store_that_says_how_long_needs_no_setting(tmp_path, capsys):
    fill(tmp_path / "s")
    with open_small(tmp_path / "s") as store:
        store.configure(file_reserved_time_h=1)
    assert main(["clean", str(tmp_path / "s")]) == 0
    assert "removed 0 segments" in capsys.readouterr().out


def test_no_store_is_made(tmp_path):
    assert main(["clean", str(tmp_path / "s"), "--set", "file_reserved_time_h=4"]) == 2
    assert not (tmp_path / "s").exists()


def test_compact_keeps_the_newest(tmp_path, capsys):
    path = str(tmp_path / "s")
    with open_small(path) as store:
        for number in range(30):
            store.put("state", b"%d" % number, keys=[f"k{number % 3}"])
    assert main(["compact", path]) == 2
    assert "compacted_topics" in capsys.readouterr().err
    assert main(["config", path, "--set", "compacted_topics=state"]) == 0
    capsys.readouterr()
    assert main(["compact", path, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["looked_at"], told["records"], told["keys"], told["damaged"]) == (30, 3, 3, [])
    with open_small(path) as store:
        store.put("state", b"later", keys=["k0"])
    assert main(["info", path, "--json"]) == 0
    info = json.loads(capsys.readouterr().out)
    assert info["disk"]["compacted"]["size_bytes"] == told["size_bytes"]
    assert {need["owner"]: need["physical_offset"] for need in info["needs"]}["compaction"] == told["covered"]
    assert main(["verify", path]) == 0
    (file,) = (tmp_path / "s" / "compacted").glob("0*")
    data = bytearray(file.read_bytes())
    data[4200] ^= 1
    file.write_bytes(data)
    capsys.readouterr()
    assert main(["verify", path]) == 1
    assert "compacted" in capsys.readouterr().out
    assert main(["compact", path]) == 1
    assert "damaged, stepped over" in capsys.readouterr().out
    assert main(["verify", path]) == 0
