"""Goal: each setting's value comes from the first source that gives it, and an error names the source. Method: real
environment variables, real TOML files, a real store."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cystore
from cystore.cli.program import main
from cystore.config import _BOUNDS, DEFAULTS, StoreConfig, _types
from cystore.config_sources import given_outside, resolve
from tests.support.small_stores import open_small

pytestmark = pytest.mark.unsanitized  # settings, which no kernel reads


@pytest.fixture
def toml(tmp_path):
    path = tmp_path / "store.toml"
    path.write_text("max_queues = 7\nsync_flush_timeout_ms = 70\nflush_commit_log_least_pages = 7\n")
    return path


def test_arguments_win_over_the_environment_and_that_over_the_file(tmp_path, monkeypatch, toml):
    monkeypatch.setenv("CYSTORE_CONFIG", str(toml))
    monkeypatch.setenv("CYSTORE_MAX_QUEUES", "8")
    monkeypatch.setenv("CYSTORE_SYNC_FLUSH_TIMEOUT_MS", "80")
    with cystore.open(tmp_path / "s", max_queues=9, services="none") as store:
        config = store.config
    assert (config.max_queues, config.sync_flush_timeout_ms, config.flush_commit_log_least_pages) == (
        9,
        80,
        7,
    )
    assert config.source("max_queues") == "argument"
    assert config.source("sync_flush_timeout_ms") == "CYSTORE_SYNC_FLUSH_TIMEOUT_MS"
    assert config.source("flush_commit_log_least_pages") == str(toml)
    assert config.source("default_query_max_num") == "default"


def test_a_file_that_is_given_replaces_the_one_of_the_environment(tmp_path, monkeypatch, toml):
    other = tmp_path / "other.toml"
    other.write_text("[cystore]\nmax_queues = 5\n")
    monkeypatch.setenv("CYSTORE_CONFIG", str(toml))
    with cystore.open(tmp_path / "s", config=other, services=["flush"]) as store:
        assert store.config.max_queues == 5
        assert store.config.sync_flush_timeout_ms == DEFAULTS["sync_flush_timeout_ms"]
        assert store.config.services == ("flush",)


def test_a_whole_configuration_is_taken_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setenv("CYSTORE_MAX_QUEUES", "8")
    with cystore.open(tmp_path / "s", config=StoreConfig(max_queues=6)) as store:
        assert store.config.max_queues == 6
    with pytest.raises(cystore.StoreConfigError, match="not both"):
        cystore.open(tmp_path / "s", config=StoreConfig(), max_queues=6)
    with pytest.raises(cystore.StoreConfigError, match="must be a StoreConfig or name a TOML file, not 5"):
        cystore.open(tmp_path / "s", config=5)


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("CYSTORE_MAX_QUEUES", "0", "CYSTORE_MAX_QUEUES: max_queues must be 1 to 1048576, not 0"),
        ("CYSTORE_MAX_QUEUES", "many", "CYSTORE_MAX_QUEUES: max_queues must be a whole number, not 'many'"),
        ("CYSTORE_READ_ONLY", "", "CYSTORE_READ_ONLY: read_only must be true or false, not ''"),
        ("CYSTORE_FLUSH_DISK_TYPE", "fast", "CYSTORE_FLUSH_DISK_TYPE: flush_disk_type must be one of async, sync"),
        ("CYSTORE_SERVICES", "sweep", "CYSTORE_SERVICES: services: no service has the name 'sweep'"),
        ("CYSTORE_MAX_QUEUE", "5", ("CYSTORE_MAX_QUEUE: there is no setting 'max_queue'; did you mean "
                                   "CYSTORE_MAX_QUEUES")),
        ("CYSTORE_CONFIG", "", "CYSTORE_CONFIG is empty"),
        ("CYSTORE_CONFIG", "/none.toml", "cannot read settings: .*/none.toml"),
    ],
)  # fmt: skip
def test_a_bad_variable_is_named(tmp_path, monkeypatch, variable, value, message):
    monkeypatch.setenv(variable, value)
    with pytest.raises(cystore.StoreConfigError, match=message):
        cystore.open(tmp_path / "s")
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_queues = 0", "max_queues must be 1 to 1048576, not 0"),
        ("max_queues = '5'", "max_queues must be a whole number, not '5'"),
        ("max_queue = 5", "there is no setting 'max_queue'; did you mean max_queues"),
        ("delete_when = '24'", "delete_when must be hours from 00 to 23"),
        ("cystore = 5", "cystore must be a table of settings"),
        ("[other]\nmax_queues = 5", "there is no setting 'other'"),
    ],
)
def test_a_bad_file_is_named(tmp_path, text, message):
    path = tmp_path / "store.toml"
    path.write_text(text)
    with pytest.raises(cystore.StoreConfigError, match=message) as raised:
        cystore.open(tmp_path / "s", config=path)
    assert str(path) in str(raised.value)


def test_variables_of_other_programs_are_left_alone():
    """Kubernetes makes these for a service that is called cystore."""
    theirs = {
        "CYSTORE_SERVICE_HOST": "10.0.0.1",
        "CYSTORE_SERVICE_PORT": "80",
        "CYSTORE_PORT": "tcp://10.0.0.1:80",
        "CYSTORE_PORT_80_TCP": "x",
        "CYSTORE_APP_STORE": "/x",
        "CYSTORE_REDIS_URL": "x",
        "CYSTORE_SEED": "5",
    }
    assert given_outside(environment=theirs) == {}


@given(values=st.dictionaries(st.sampled_from(sorted(_BOUNDS)), st.integers(0, 200)))
def test_text_of_the_environment_means_what_a_file_says(values):
    """Where both take a value, and where both refuse it."""

    def of(environment):
        try:
            return {name: value for name, (value, _) in given_outside(environment=environment).items()}
        except cystore.StoreConfigError:
            return None

    def direct():
        try:
            StoreConfig(**values)
        except cystore.StoreConfigError:
            return None
        return values

    expected = direct()
    found = of({f"CYSTORE_{name.upper()}": str(value) for name, value in values.items()})
    assert (found is None) == (expected is None)
    assert found is None or found == values


def test_every_number_has_a_range():
    assert {name for name, kind in _types().items() if kind is int} - set(_BOUNDS) == set()


def test_config_shows_every_setting_with_its_source(tmp_path, monkeypatch, capsys, toml):
    path = str(tmp_path / "s")
    open_small(path).close()
    monkeypatch.setenv("CYSTORE_MAX_QUEUES", "8")
    assert main(["config", path, "--json", "--config", str(toml), "--set", "default_query_max_num=3"]) == 0
    rows = {row["name"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    assert list(rows) == [field.name for field in dataclasses.fields(StoreConfig)]
    seen = {name: (row["value"], row["source"]) for name, row in rows.items()}
    assert seen["max_queues"] == (8, "CYSTORE_MAX_QUEUES")
    assert seen["flush_commit_log_least_pages"] == (7, str(toml))
    assert seen["default_query_max_num"] == (3, "--set")
    assert seen["max_hash_slot_num"][1] == seen["file_reserved_time_h"][1] == "store"
    assert seen["services"] == (["flush", "allocate"], "default")


def test_what_the_store_has_of_its_own_is_not_changed_from_outside(tmp_path, monkeypatch):
    open_small(tmp_path / "s").close()
    monkeypatch.setenv("CYSTORE_MAX_INDEX_NUM", "999")
    with pytest.raises(
        cystore.StoreConfigError,
        match=r"max_index_num: this store was made with \d+, and this process gives 999 \(CYSTORE_MAX_INDEX_NUM\)",
    ):
        cystore.open(tmp_path / "s")


def test_a_length_of_bitmaps_without_extended_entries_is_refused(tmp_path):
    with pytest.raises(
        cystore.StoreConfigError,
        match=r"bit_map_length_consume_queue_ext: 128 is .* give enable_consume_queue_ext=True too",
    ):
        cystore.open(tmp_path / "s", bit_map_length_consume_queue_ext=128)


@pytest.mark.parametrize("bits", [8, 128, 200])
def test_the_store_keeps_its_length_of_bitmaps(tmp_path, bits):
    """Seen: stores of a RocketMQ with another length than its default could not be opened."""
    name, ext = "bit_map_length_consume_queue_ext", {"enable_consume_queue_ext": True}
    with open_small(tmp_path / "s", **ext, **{name: bits}) as store:
        store.put("T", b"x", tags="a")
    with cystore.open(tmp_path / "s", services="none") as store:
        assert getattr(store.settings, name) == bits
        assert store.get("T", 0, 0).messages[0].tags == "a"


def test_no_source_but_arguments_gives_what_a_mapping_gives():
    settings = {"max_queues": 5, "services": ("flush",)}
    assert resolve(settings) == StoreConfig.from_mapping(settings)
