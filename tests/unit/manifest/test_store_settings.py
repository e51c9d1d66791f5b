"""Goal: what shapes the files and the retention policy are the store's, not a process's. Method: two attachments of
one store that were given different settings."""

import json
import subprocess
import sys

import pytest

import cystore
from cystore import clock
from cystore.cli.program import main
from tests.support.clock import stop
from tests.support.small_stores import LOG_BYTES, SETTINGS, body_for, open_small

pytestmark = pytest.mark.unsanitized  # about settings

HOUR_MS = 3_600_000


def test_a_process_without_the_index_cannot_starve_the_queries_of_others(tmp_path):
    """Seen: a process with message_index_enable=False that dispatched made the queries of all others miss messages,
    for good."""
    with open_small(tmp_path / "s") as store:
        store.put("T", b"x", keys=["k"])
        with pytest.raises(cystore.StoreConfigError, match=r"message_index_enable.*True.*False"):
            open_small(tmp_path / "s", message_index_enable=False)
    with pytest.raises(cystore.StoreConfigError, match="message_index_enable"):
        open_small(tmp_path / "s", message_index_enable=False)
    with open_small(tmp_path / "s") as store:
        assert [m.body for m in store.query("T", "k")] == [b"x"]


@pytest.mark.parametrize("name", ["message_index_enable", "enable_consume_queue_ext"])
def test_the_first_process_decides_and_one_that_gives_none_takes_the_stores(tmp_path, name):
    """A value that is the default is refused too when it was given by name."""
    default = getattr(cystore.StoreConfig(), name)
    with open_small(tmp_path / "s", **{name: not default}) as store:
        store.put("T", b"x", keys=["k"])
    for more in ({}, {"read_only": True}):
        with open_small(tmp_path / "s", **more) as store:
            assert store._attached().config.gives(name)
            assert [m.body for m in store.get("T", 0, 0).messages] == [b"x"]
        with pytest.raises(cystore.StoreConfigError, match=name):
            open_small(tmp_path / "s", **{name: default}, **more)


def expired(store, hours):
    """Fills three segments and says that `hours` have passed since."""
    for _ in range(3 * LOG_BYTES // 1024):
        store.put("T", body_for(1024))
    return clock.now_ms() + hours * HOUR_MS


def test_the_stores_retention_wins_over_that_of_an_attached_process(tmp_path, monkeypatch):
    """Seen: the attached process with the shortest retention decided for all, until somebody ran `cystore config`."""
    with (
        open_small(tmp_path / "s", file_reserved_time_h=48) as one,
        open_small(tmp_path / "s", file_reserved_time_h=1) as greedy,
    ):
        assert greedy.settings.file_reserved_time_h == 48
        now_ms = expired(one, 10)
        stop(monkeypatch, now_ms)
        assert greedy.clean().segments == 0
        greedy.configure(file_reserved_time_h=2)
        assert one.clean().segments > 0


def test_config_shows_and_changes_the_stores_settings(tmp_path, capsys):
    path = str(tmp_path / "s")
    open_small(path).close()
    assert main(["config", path, "--set", "file_reserved_time_h=24", "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line) == {"name": "file_reserved_time_h", "value": 24, "source": "store", "before": 72}
    assert main(["config", path, "--json"]) == 0
    rows = {row["name"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    assert (rows["file_reserved_time_h"]["value"], rows["file_reserved_time_h"]["source"]) == (24, "store")
    assert (rows["delete_when"]["value"], rows["delete_when"]["source"]) == ("04", "store")
    assert (rows["message_index_enable"]["value"], rows["message_index_enable"]["source"]) == (True, "store")
    assert main(["config", path]) == 0
    assert "file_reserved_time_h = 24  (store)" in capsys.readouterr().out
    assert main(["config", path, "--set", "file_reserved_time_h=24"]) == 0
    assert capsys.readouterr().out == "file_reserved_time_h = 24  (store)\n"
    assert main(["config", path, "--set", "delete_when=05", "--set", "max_queues=8"]) == 0
    said = capsys.readouterr()
    assert said.out == "delete_when = 05  (store), before: 04 (store)\n"
    assert "max_queues=8 holds for this command alone" in said.err
    assert main(["config", path, "--unset", "file_reserved_time_h"]) == 0
    assert capsys.readouterr().out == "file_reserved_time_h = 72  (default), before: 24 (store)\n"


@pytest.mark.parametrize("never", [-1, "never"])
@pytest.mark.parametrize("name", ["file_reserved_time_h", "quarantine_reserved_time_h"])
def test_for_ever_has_one_spelling_everywhere(tmp_path, monkeypatch, capsys, name, never):
    path, forever_h = str(tmp_path / "s"), 24 * 366 * 100
    toml = tmp_path / "settings.toml"
    toml.write_text(f"{name} = {json.dumps(never)}\n")
    assert getattr(cystore.StoreConfig.from_toml(toml), name) == forever_h
    assert cystore.StoreConfig.parse_setting(f"{name}={never}") == (name, forever_h)
    monkeypatch.setenv("CYSTORE_" + name.upper(), str(never))
    with cystore.open(path) as store:
        assert getattr(store.settings, name) == forever_h
        store.configure(**{name: 7})
        store.configure(**{name: never})
        assert getattr(store.settings, name) == forever_h
    monkeypatch.delenv("CYSTORE_" + name.upper())
    capsys.readouterr()
    assert main(["config", path, "--set", f"{name}={never}"]) == 0
    said = capsys.readouterr()
    assert said.out == f"{name} = never  (store)\n"
    assert "do not expire by age (never)" in said.err
    assert main(["config", path]) == 0
    assert f"{name} = never  (store)" in capsys.readouterr().out
    assert main(["config", path, "--set", f"{name}=24"]) == 0
    assert capsys.readouterr().out == f"{name} = 24  (store), before: never (store)\n"
    assert main(["config", path, "--set", f"{name}=evr"]) == 2
    assert (
        "must be a whole number, or -1 or never for ever, not 'evr'; did you mean never?"
        in capsys.readouterr().err
    )
    for wrong in (-2, "ever", True, "-1 ", None):
        with pytest.raises(cystore.StoreConfigError, match=f"{name} must be .*or -1 or never for ever, not"):
            cystore.StoreConfig(**{name: wrong})


def test_zero_is_said_where_it_is_set_and_where_the_store_is_opened_and_cleaned(tmp_path, caplog):
    path = str(tmp_path / "s")
    line = (
        "file_reserved_time_h=0: each clean removes every whole segment, and all messages in it, however new"
    )

    def lines(*arguments):
        done = subprocess.run(
            [sys.executable, "-m", "cystore", *arguments], capture_output=True, text=True, check=True
        )
        return done.stderr.count(line)

    open_small(path).close()
    assert lines("config", path, "--set", "file_reserved_time_h=0") == 1
    open_small(path).close()
    assert caplog.text.count(line) == 1
    assert lines("clean", path) == 1
    caplog.clear()
    open_small(path, read_only=True).close()
    with open_small(path) as store:
        assert caplog.text.count(line) == 1
        store.configure(file_reserved_time_h=1)
    caplog.clear()
    open_small(path).close()
    assert line not in caplog.text


@pytest.mark.parametrize("is_open", [True, False])
def test_config_says_nothing_of_the_value_that_it_replaces(tmp_path, monkeypatch, is_open):
    """Seen: 0 was replaced by 24, and the command warned that each clean removes everything."""
    path = tmp_path / "s"
    store = open_small(path)
    store.configure(file_reserved_time_h=0, delete_when="03")
    if not is_open:
        store.close()
    monkeypatch.setenv("CYSTORE_DELETE_WHEN", "05")
    changes = ("--set", "file_reserved_time_h=24", "--set", "delete_when=05")
    done = subprocess.run(
        [sys.executable, "-m", "cystore", "config", path, *changes],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    assert "file_reserved_time_h = 24  (store), before: 0 (store)" in done.stdout
    store.close()


def test_config_refuses_what_it_cannot_change(tmp_path, capsys):
    path = str(tmp_path / "s")
    open_small(path).close()
    assert main(["config", path, "--set", "message_index_enable=false"]) == 2
    assert main(["config", path, "--set", "delete_when=99"]) == 2
    capsys.readouterr()
    assert main(["config", path, "--set", "file_reserved_time_h"]) == 2
    assert "'file_reserved_time_h' has no value: write file_reserved_time_h=VALUE" in capsys.readouterr().err
    assert main(["config", path, "--set", "delete_when=03", "--unset", "delete_when"]) == 2
    assert main(["config", str(tmp_path / "none")]) == 2
    with open_small(path, read_only=True) as store, pytest.raises(cystore.StoreNotWritableError):
        store.configure(file_reserved_time_h=1)
    assert "delete_when" in capsys.readouterr().err


def test_nothing_is_said_of_a_value_that_was_only_suggested(tmp_path, caplog):
    """Seen: a worker whose results live longer than the store keeps records told that its time is ignored, and then
    raised the store's."""
    open_small(tmp_path / "s").close()
    config = cystore.StoreConfig.from_mapping(dict(SETTINGS), suggested={"file_reserved_time_h": 96})
    cystore.open(tmp_path / "s", config=config).close()
    assert "is ignored" not in caplog.text


def test_a_new_store_takes_the_whole_policy_of_the_process_that_makes_it(tmp_path, caplog):
    """Also what that process did not say: a later one with a shorter time deletes nothing."""
    open_small(tmp_path / "s").close()
    with open_small(tmp_path / "s", file_reserved_time_h=1) as store:
        assert store.settings.file_reserved_time_h == 72
    assert "file_reserved_time_h: the store has 72; the 1 that this process gives is ignored" in caplog.text
    assert "cystore config PATH --set file_reserved_time_h=1" in caplog.text
    with open_small(tmp_path / "s") as store:
        store.configure(file_reserved_time_h=None)
    with open_small(tmp_path / "s", file_reserved_time_h=5) as store:
        assert store.settings.file_reserved_time_h == 5  # nobody had said


SIZES = {
    "mapped_file_size_commit_log_bytes": 1 << 16,
    "mapped_file_size_consume_queue_bytes": 4000,
    "mapped_file_size_consume_queue_ext_bytes": 1 << 20,
    "bit_map_length_consume_queue_ext": 128,
    "max_hash_slot_num": 11,
    "max_index_num": 50,
    "record_format": "rocketmq",
    "message_delay_level": "1s 2s",
}


@pytest.mark.parametrize("name", SIZES)
def test_what_shapes_the_files_is_refused_with_both_values(tmp_path, name):
    """Seen: a process with another length, record format or delay levels went by the files' own, or by its own,
    without a word."""
    with open_small(tmp_path / "s") as store:
        store.put("T", b"x", keys=["k"], delay_level=0)
        own = getattr(store.settings, name)
        begin = repr(own).split()[0]
        for more in ({}, {"read_only": True}):
            with pytest.raises(cystore.StoreConfigError, match=rf"{name}: .*{begin}.*{SIZES[name]!r}"):
                cystore.open(tmp_path / "s", services="none", **{name: SIZES[name]}, **more)
    with pytest.raises(cystore.StoreConfigError, match=name):
        cystore.open(tmp_path / "s", services="none", **{name: SIZES[name]})
    cystore.open(tmp_path / "s", services="none", **{name: own}).close()
    for config in (cystore.StoreConfig(), cystore.StoreConfig(services="none")):
        with cystore.open(tmp_path / "s", config=config) as store:
            assert getattr(store.settings, name) == own
            assert store.put("T", b"y").queue_offset > 0


def test_a_store_from_before_keeps_the_lengths_of_its_files(tmp_path):
    """It has no manifest; the configuration's lengths are for new stores."""
    path = tmp_path / "s"
    with open_small(path) as store:
        store.put("T", b"x")
    (path / "manifest").unlink()
    with cystore.open(path, services="none", file_reserved_time_h=9) as store:
        assert store.settings.mapped_file_size_commit_log_bytes == LOG_BYTES
        assert store.settings.mapped_file_size_consume_queue_bytes == 2000
        assert store.settings.file_reserved_time_h == 9
    with cystore.open(path, services="none", delete_when="05") as store:
        assert (store.settings.delete_when, store.settings.file_reserved_time_h) == ("05", 9)
