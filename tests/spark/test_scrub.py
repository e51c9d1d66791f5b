"""Goal: a scrub in parallel shows the damage that `cystore verify` shows, in every state of a store. Method: stores
with each kind of damage, cut into small ranges; what ranges do by themselves is in
tests/unit/verify/test_ranges.py."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import fields, replace
from typing import Any

import pytest

import cystore
from cystore.verify import verify
from tests.oracle.record import ROCKETMQ_MAGIC, encode
from tests.support.recovery_stores import fingerprint, make_records, write
from tests.support.small_stores import SETTINGS
from tests.unit.recovery.test_queues import damage_entry

pytest.importorskip("pyspark", reason="pip install 'cystore[spark]'")


def settings_of(config: cystore.StoreConfig) -> dict[str, Any]:
    return {field.name: getattr(config, field.name) for field in fields(config)}


def scrubbed(spark, store, **more: Any):
    from cystore.spark.jobs.scrub import scrub

    return scrub(spark, store.path, **{"range_bytes": 1500, **settings_of(store.config), **more})


def assert_agrees(spark, store, *, abnormal: bool = False, **more: Any):
    """The same ranges as verify, and nothing on disk changes."""
    before = fingerprint(store.path)
    result = scrubbed(spark, store, **more)
    expected = sorted(map(str, verify(store.path, store.config, abnormal=abnormal)))
    assert sorted(map(str, result.damage)) == expected
    assert fingerprint(store.path) == before
    return result


@pytest.mark.parametrize("magic", [None, ROCKETMQ_MAGIC])
def test_all_damage_of_a_closed_store_is_a_row(spark, tmp_path, magic):
    """Records, a run of them over a border, queue entries, an index entry."""
    more = {} if magic is None else {"magic": magic}
    store = write(tmp_path / "s", make_records(120, **more), durable=-1, clean=True)
    assert assert_agrees(spark, store).summary["damaged_ranges"] == 0
    for number in (3, 40, 41, 42, 43, 44, 100):
        store.flip(store.records[number], 95)
    for number in (7, 12, 13, 30):
        damage_entry(store, 1, number, b"\1\2\3\4", 16)
    path = sorted((store.path / "index").iterdir())[1]
    content = bytearray(path.read_bytes())
    content[43] ^= 1
    path.write_bytes(content)
    result = assert_agrees(spark, store)
    assert result.summary["records"] == 120 - 7
    assert {kind: result.summary[f"damaged_{kind}"] > 0 for kind in ("record", "consume_queue", "index")} == {
        "record": True,
        "consume_queue": True,
        "index": True,
    }
    frame = result.frame(spark)
    assert frame.columns == ["file", "begin", "end", "kind", "detail"]
    assert (
        frame.filter("kind = 'record' and detail = 'bad checksum'").count()
        == result.summary["damaged_record"]
    )


def test_a_crashed_store_may_lack_entries(spark, tmp_path):
    store = write(tmp_path / "s", make_records(120), durable=-1, derived=30)
    assert assert_agrees(spark, store, abnormal=True).damage == ()


def test_holes_that_recovery_reported_are_known(spark, tmp_path):
    store = write(tmp_path / "s", make_records(120), durable=-1, clean=True)
    for number in (40, 41, 42, 77):
        store.flip(store.records[number], 95)
    with cystore.open(store.path, config=store.config):
        pass
    (damage, other) = assert_agrees(spark, store).damage
    assert "known hole" in damage.reason and "known hole" in other.reason


def test_a_border_inside_of_a_body_is_found_out(spark, tmp_path):
    records = make_records(60)
    inside = write(tmp_path / "plain", records, durable=-1, clean=True).records[10].physical_offset + 88
    forged = encode(replace(make_records(1, body=10)[0], physical_offset=inside)).raw
    records[10] = replace(records[10], body=forged)
    store = write(tmp_path / "s", records, durable=-1, clean=True)
    result = assert_agrees(spark, store, range_bytes=inside)
    assert result.summary["records"] == 60
    assert result.damage == ()


def test_a_store_in_use_is_scrubbed_up_to_its_end(spark, make_store):
    from cystore.spark.jobs.scrub import scrub

    store = make_store(count=300)
    store.dispatch()
    result = scrub(spark, store.path, range_bytes=5000, **SETTINGS)
    assert result.damage == ()
    assert result.summary["records"] == 300
    assert result.summary["queues"] == 6
    assert result.summary["tasks"] > 8


@pytest.mark.parametrize(
    ("settings", "error"),
    [({"no_such_setting": 1}, cystore.StoreConfigError), ({"range_bytes": 0}, cystore.StoreConfigError)],
)
def test_bad_arguments_are_refused(spark, make_store, settings, error):
    from cystore.spark.jobs.scrub import scrub

    store = make_store(count=3)
    with pytest.raises(error):
        scrub(spark, store.path, **settings)


def test_no_store_is_an_error(spark, tmp_path):
    from cystore.spark.jobs.scrub import scrub

    with pytest.raises(cystore.StoreFormatError, match="no store here"):
        scrub(spark, tmp_path / "nothing")


def test_an_error_on_an_executor_is_the_same_error_here(spark, tmp_path):
    from cystore.spark.jobs.running import run_parts

    def fail(part: int) -> int:
        raise cystore.StoreIOError("bad sector", path="/a/b", offset=part)

    with pytest.raises(cystore.StoreIOError, match=r"bad sector.*/a/b"):
        run_parts(spark, "test", [1, 2], fail)


@pytest.mark.parametrize("job", ["scrub", "rebuild"])
def test_a_command_needs_no_settings_of_the_store(spark, make_store, monkeypatch, capsys, job):
    """The store's files are smaller than those of a new store, and the command does not say so."""
    from cystore.spark.__main__ import JOBS, main

    with make_store() as store:
        store.put("orders", b"x", keys="k")
    monkeypatch.setattr(JOBS[job], "own_session", lambda *_: nullcontext(spark))
    assert main([job, str(store.path), "--json"]) == 0, capsys.readouterr().err
    assert json.loads(capsys.readouterr().out)["path"] == str(store.path)


def test_help_has_an_example(capsys):
    from cystore.spark.__main__ import JOBS, main

    for name in JOBS:
        with pytest.raises(SystemExit) as ended:
            main([name, "--help"])
        assert ended.value.code == 0
        assert f"python -m cystore.spark {name} /" in capsys.readouterr().out
