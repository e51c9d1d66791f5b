"""Goal: a configuration is RocketMQ's, or it is refused with the setting's name. Method: compare the defaults with a
table of MessageStoreConfig's, and give every kind of setting what it must not be."""

from __future__ import annotations

import dataclasses
import pickle

import pytest

from cystore.config import _BOUNDS, AGES, DEFAULTS, FOREVER_H, StoreConfig
from cystore.errors import StoreConfigError

pytestmark = pytest.mark.unsanitized  # settings, which no kernel reads

# MessageStoreConfig of RocketMQ 4.9.3.
ROCKETMQ_DEFAULTS = {
    "mapped_file_size_commit_log_bytes": 1024 * 1024 * 1024,
    "mapped_file_size_consume_queue_bytes": 300000 * 20,
    "enable_consume_queue_ext": False,
    "mapped_file_size_consume_queue_ext_bytes": 48 * 1024 * 1024,
    "bit_map_length_consume_queue_ext": 112,  # what BrokerController makes of the 64
    "flush_interval_commit_log_ms": 500,
    "flush_interval_consume_queue_ms": 1000,
    "file_reserved_time_h": 72,
    "max_message_size_bytes": 1024 * 1024 * 4,
    "check_crc_on_recover": True,
    "flush_commit_log_least_pages": 4,
    "flush_consume_queue_least_pages": 2,
    "flush_commit_log_thorough_interval_ms": 1000 * 10,
    "flush_consume_queue_thorough_interval_ms": 1000 * 60,
    "max_transfer_bytes_on_message_in_memory": 1024 * 256,
    "max_transfer_count_on_message_in_memory": 32,
    "max_transfer_bytes_on_message_in_disk": 1024 * 64,
    "max_transfer_count_on_message_in_disk": 8,
    "access_message_in_memory_max_ratio": 40,
    "message_index_enable": True,
    "max_hash_slot_num": 5000000,
    "max_index_num": 5000000 * 4,
    "os_page_cache_busy_timeout_ms": 1000,
    "default_query_max_num": 32,
    "message_delay_level": "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
    "flush_disk_type": "async",
}


@pytest.mark.parametrize(("name", "value"), ROCKETMQ_DEFAULTS.items())
def test_default_is_rocketmqs(name, value):
    assert getattr(StoreConfig(), name) == value


REFUSED = {
    "mapped_file_size_commit_log_bytes": (4095, 0, -1, 1 << 31, 1 << 40, 4096.0, "4096", True, None),
    "mapped_file_size_consume_queue_bytes": (0, 19, (1 << 31) - 7, 1 << 32),
    "mapped_file_size_consume_queue_ext_bytes": (63, 1 << 31),
    "max_hash_slot_num": (0, -5, 1 << 30),
    "max_index_num": (1, 1 << 31),
    "max_queues": (0, (1 << 20) + 1),
    "max_message_size_bytes": (0, 1 << 31),
    "sync_flush_timeout_ms": (0, 86_400_001),
    "os_page_cache_busy_timeout_ms": (0,),
    "allocate_ahead_bytes": (4095,),
    "populate_ahead_bytes": (-1,),
    "access_message_in_memory_max_ratio": (-1, 101),
    "record_format": ("RocketMQ", "", None, 1),
    "flush_disk_type": ("SYNC_FLUSH", True),
    "damaged_range": ("drop",),
    "exclusive": (1, "yes", None),
    "read_only": (0,),
    "store_host": (10911, None),
    "message_delay_level": (
        "1x",
        "1s s",
        "1s  -2s",
        5,
        "",
        " ",
        "1s " * 65,
        "36501d",
        "1" * 5000 + "s",
        "\u0661s",
        "1 s",
        "1.5s",
    ),
    "services": (7, ("flush", "dispatch"), "sweep"),
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in REFUSED for value in REFUSED[name]])
def test_refusal_names_the_setting(name, value):
    with pytest.raises(StoreConfigError, match=name):
        StoreConfig(**{name: value})


BOUNDS = {
    "mapped_file_size_commit_log_bytes": (4096, (1 << 31) - 1),
    "mapped_file_size_consume_queue_bytes": (20, (1 << 31) - 8),
    "mapped_file_size_consume_queue_ext_bytes": (64, (1 << 31) - 1),
    "max_index_num": (2, 1 << 30),
    "max_queues": (1, 1 << 20),
    "populate_ahead_bytes": (0, 1 << 40),
    "access_message_in_memory_max_ratio": (0, 100),
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in BOUNDS for value in BOUNDS[name]])
def test_bound_itself_is_taken(name, value):
    assert getattr(StoreConfig(**{name: value}), name) == value


@pytest.mark.parametrize("name", AGES)
@pytest.mark.parametrize("never", [-1, "never"])
def test_an_age_may_be_never(name, never):
    assert getattr(StoreConfig(**{name: never}), name) == FOREVER_H
    assert StoreConfig.parse_setting(f"{name}={never}") == (name, FOREVER_H)
    with pytest.raises(StoreConfigError, match=f"{name} must be . to {FOREVER_H}, or -1 or never for ever"):
        StoreConfig(**{name: -2})


def test_nothing_else_may_be_never():
    for name in set(_BOUNDS) - set(AGES):
        for value in (-1, "never"):
            with pytest.raises(StoreConfigError, match=name):
                StoreConfig(**{name: value})


def test_consume_queue_file_is_rounded_up_to_whole_entries():
    assert StoreConfig(mapped_file_size_consume_queue_bytes=101).mapped_file_size_consume_queue_bytes == 120


def test_unknown_name_is_refused_with_the_nearest_known_one():
    with pytest.raises(StoreConfigError, match="did you mean max_queues"):
        StoreConfig.from_mapping({"max_queue": 5})
    with pytest.raises(StoreConfigError, match=r"there is no setting 'zzz'$"):
        StoreConfig.from_mapping({"zzz": 5})


def test_configuration_does_not_change():
    config = StoreConfig()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.max_queues = 5  # type: ignore[misc]


def test_delay_levels_are_milliseconds():
    assert StoreConfig().delay_levels_ms()[:5] == (1000, 5000, 10000, 30000, 60000)
    assert StoreConfig(message_delay_level="2h 1d").delay_levels_ms() == (7_200_000, 86_400_000)
    assert StoreConfig.delay_level_text((7_200_000, 0)) == "7200s 0s"
    text = "36500d " * 64
    assert StoreConfig(message_delay_level=text).delay_levels_ms() == (3_153_600_000_000,) * 64


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ("all", ("flush", "allocate", "reput", "schedule", "clean", "compact", "ha")),
        ("none", ()),
        ("reput", ("reput",)),
        (["flush"], ("flush",)),
        ((), ()),
    ],
)
def test_services(given, names):
    assert StoreConfig(services=given).services == names


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("max_queues=1_000", ("max_queues", 1000)),
        ("exclusive=yes", ("exclusive", True)),
        ("read_only=OFF", ("read_only", False)),
        ("record_format=rocketmq", ("record_format", "rocketmq")),
        ("services=flush,reput", ("services", ("flush", "reput"))),
        ("services=all", ("services", "all")),
        ("store_host=[::1]:10911", ("store_host", "[::1]:10911")),
    ],
)
def test_setting_from_a_command_line(text, parsed):
    assert StoreConfig.parse_setting(text) == parsed


@pytest.mark.parametrize(
    "text", ["max_queues", "max_queues=many", "exclusive=perhaps", "nothing=5", "", "=5"]
)
def test_bad_setting_from_a_command_line(text):
    with pytest.raises(StoreConfigError):
        StoreConfig.parse_setting(text)


@pytest.mark.parametrize("table", ["", "[cystore]\n"])
def test_settings_from_a_file(tmp_path, table):
    path = tmp_path / "store.toml"
    path.write_text(f'{table}max_queues = 7\nrecord_format = "rocketmq"\n')
    config = StoreConfig.from_toml(path, max_queues=8)
    assert (config.max_queues, config.record_format) == (8, "rocketmq")


@pytest.mark.parametrize("text", [None, "max_queues = ", "[cystore]\nmax_queues = 'x'", "max_qeues = 1"])
def test_bad_settings_file(tmp_path, text):
    path = tmp_path / "store.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(StoreConfigError):
        StoreConfig.from_toml(path)


def test_every_field_is_a_setting():
    """Programs make a configuration from the fields of another one."""
    config = StoreConfig.from_mapping({"message_index_enable": True})
    assert StoreConfig.from_mapping(dataclasses.asdict(config)) == config
    assert config.gives("message_index_enable") and not config.gives("check_crc_on_recover")


def test_a_pickle_of_an_older_version_loads():
    """Its state was a list of values, without the settings that came later."""
    config = StoreConfig(max_queues=77, services=("flush",))
    values = [getattr(config, name) for name in DEFAULTS]
    for state in (values[:-2], {"max_queues": 77, "services": ("flush",)}):
        old = object.__new__(StoreConfig)
        old.__setstate__(state)
        assert old == config == pickle.loads(pickle.dumps(config))
