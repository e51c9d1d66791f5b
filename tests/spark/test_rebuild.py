"""Goal: a rebuild in parallel gives the queues that dispatch gives, byte for byte, and an index that answers alike;
killed anywhere it leaves a store that opens whole. Method: each kind of store is rebuilt by Spark and, as a copy, by
`cystore rebuild`."""

from __future__ import annotations

import random
import shutil
import signal
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

import cystore
from cystore.recovery.apply import drop_derived
from cystore.verify import verify
from tests.golden.conftest import unpack_golden as unpack_golden
from tests.oracle.record import ROCKETMQ_MAGIC, SCHEDULE_TOPIC, encode
from tests.spark.conftest import fill
from tests.spark.test_processes import program
from tests.support.golden.cystore_config import cystore_config
from tests.support.golden.stores import NAMES
from tests.support.recovery_stores import make_records, write
from tests.support.small_stores import SETTINGS, open_small

pytest.importorskip("pyspark", reason="pip install 'cystore[spark]'")


def settings_of(config: cystore.StoreConfig) -> dict[str, Any]:
    return {field.name: getattr(config, field.name) for field in fields(config)}


def rebuilt(spark, path, settings: dict[str, Any], **more: Any) -> dict[str, Any]:
    from cystore.spark.jobs.rebuild import rebuild

    return rebuild(spark, path, **{"range_bytes": 2000, **settings, **more})


def dispatched_anew(path: Path, settings: dict[str, Any]) -> Path:
    """A copy whose queues and index the store's own dispatcher made."""
    from cystore.cli.change.rebuild import _drop

    copy = path.parent / f"{path.name}-copy"
    shutil.copytree(path, copy)
    _drop(copy)
    with cystore.open(copy, **{**settings, "services": ()}):
        pass
    return copy


def queue_bytes(path: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(path)): file.read_bytes()
        for name in ("consumequeue", "consumequeue_ext")
        for file in sorted((path / name).rglob("*"))
        if file.is_file()
    }


def answers(path: Path, settings: dict[str, Any]) -> dict[tuple[str, str], list[int]]:
    """The records that each key of the log points to."""
    with cystore.open(path, **{**settings, "read_only": True, "services": ()}) as store:
        keys = {(message.topic, key) for message in store.scan() for key in message.keys}
        return {
            (topic, key): [found.physical_offset for found in store.query(topic, key, 1000)]
            for topic, key in keys
        }


def assert_rebuilt(spark, path: Path, settings: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Like dispatch makes it, with nothing dispatched again, nothing left over, and nothing for verify to find but
    holes."""
    copy = dispatched_anew(path, settings)
    summary = rebuilt(spark, path, settings, **more)
    assert queue_bytes(path) == queue_bytes(copy)
    expected = answers(copy, settings)
    assert expected and answers(path, settings) == expected
    assert summary["dispatched_again_bytes"] == 0
    assert not (path / "rebuild").exists()
    damage = list(verify(path, cystore.StoreConfig.from_mapping({**settings, "services": ()})))
    assert all("known hole" in each.reason for each in damage), damage
    return summary


@pytest.fixture(params=["cystore", "rocketmq"])
def records(request):
    """Of three queues, in segments that end with blanks."""
    more = {"magic": ROCKETMQ_MAGIC} if request.param == "rocketmq" else {}
    return make_records(150, **more)


def test_queues_and_index_as_dispatch_makes_them(spark, tmp_path, records):
    store = write(tmp_path / "s", records, durable=-1, clean=True)
    drop_derived(store.path)
    summary = assert_rebuilt(spark, store.path, settings_of(store.config))
    assert (summary["entries"], summary["keys"], summary["queues"]) == (150, 150, 3)


def test_a_damaged_log_gets_holes_first(spark, tmp_path, records):
    """Bytes damaged at random, in records and queues that recovery after a clean close had no reason to look at."""
    store = write(tmp_path / "s", records, durable=-1, clean=True)
    rng = random.Random(7)
    for number in rng.sample(range(1, 140), 6):
        store.flip(store.records[number], 95)
    for path in sorted((store.path / "consumequeue").rglob("0" * 10 + "*")):
        content = bytearray(path.read_bytes())
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(content)
    summary = assert_rebuilt(spark, store.path, {**settings_of(store.config), "check_at_load_bytes": 4096})
    assert summary["new_holes"] >= 4


def test_known_holes_and_a_log_whose_start_expired(spark, tmp_path):
    from cystore.spark.jobs import rebuild as job

    records = make_records(150)
    store = write(tmp_path / "s", records, durable=-1, clean=True)
    for number in (60, 61, 62, 63, 90):
        store.flip(store.records[number], 95)
    with cystore.open(store.path, config=store.config):
        pass
    store.file_of(0).unlink()
    settings = settings_of(store.config)
    copy = dispatched_anew(store.path, settings)
    config = cystore.StoreConfig.from_mapping({**settings, "exclusive": True, "services": ()})
    with job._alone(store.path):
        job._staged(spark, store.path, config, job._recovered(store.path, config, None), 2000, None)
    # Looked at here: recovery would mend what is missing when the store is opened.
    assert queue_bytes(store.path / "rebuild" / "new") == queue_bytes(copy)
    shutil.rmtree(copy)
    assert_rebuilt(spark, store.path, settings)


def test_extended_queues(spark, tmp_path):
    settings = {
        **SETTINGS,
        "enable_consume_queue_ext": True,
        "mapped_file_size_consume_queue_ext_bytes": 1000,
    }
    with cystore.open(tmp_path / "s", **settings) as store:
        fill(store, 400)
    assert_rebuilt(spark, tmp_path / "s", settings)
    assert (tmp_path / "s" / "consumequeue_ext").is_dir()


def test_delayed_messages_and_many_queues(spark, tmp_path):
    with open_small(tmp_path / "s") as store:
        for number in range(300):
            store.put(
                f"t{number % 7}", b"x" * 50, queue_id=number % 5, keys=(f"k{number}",), delay_level=number % 4
            )
    summary = assert_rebuilt(spark, tmp_path / "s", SETTINGS)
    assert summary["queues"] >= 35
    assert (tmp_path / "s" / "consumequeue" / SCHEDULE_TOPIC).is_dir()


def test_a_border_inside_of_a_body_is_found_out(spark, tmp_path):
    records = make_records(60)
    inside = write(tmp_path / "plain", records, durable=-1, clean=True).records[10].physical_offset + 88
    forged = encode(replace(make_records(1, body=10)[0], physical_offset=inside)).raw
    records[10] = replace(records[10], body=forged)
    store = write(tmp_path / "s", records, durable=-1, clean=True)
    summary = assert_rebuilt(spark, store.path, settings_of(store.config), range_bytes=inside)
    assert (summary["entries"], summary["queues"]) == (60, 3)


def test_an_empty_store(spark, tmp_path):
    with open_small(tmp_path / "s"):
        pass
    assert rebuilt(spark, tmp_path / "s", SETTINGS)["entries"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_golden_stores(spark, unpack_golden, name):
    golden = unpack_golden(name)
    config = cystore_config(golden.spec)
    with cystore.open(golden.store, **config):
        pass
    copy = dispatched_anew(Path(golden.store), config)
    rebuilt(spark, golden.store, config)
    assert queue_bytes(Path(golden.store)) == queue_bytes(copy)


def test_a_store_in_use_is_refused(spark, make_store):
    store = make_store(count=3)
    with pytest.raises(cystore.StoreLockedError, match="in use"):
        rebuilt(spark, store.path, SETTINGS)


STEPS = ("staged", "marked", "1 moved", "2 moved", "3 moved", "4 moved", "checkpointed")


@pytest.fixture(scope="module")
def staged(spark, tmp_path_factory) -> Path:
    """A store whose rebuild is staged and not swapped in."""
    from cystore.spark.jobs import rebuild as job

    path = tmp_path_factory.mktemp("staged") / "s"
    with open_small(path) as store:
        fill(store, 200)
    config = cystore.StoreConfig.from_mapping({**SETTINGS, "exclusive": True, "services": ()})
    with job._alone(path):
        job._staged(spark, path, config, job._recovered(path, config, None), 3000, None)
    return path


@pytest.mark.parametrize("step", range(len(STEPS)), ids=STEPS)
def test_killed_at_any_step_of_the_swap_the_store_opens_whole(spark, staged, tmp_path, step):
    """A process dies at each step; what the next one to open the store finds is what dispatch makes. Run again, it
    ends as ever."""
    path, again = tmp_path / "s", tmp_path / "again"
    shutil.copytree(staged, path)
    expected_queues, expected = queue_bytes(path), answers(path, SETTINGS)
    with program("swap", str(path), str(step)) as dying:
        assert dying.wait(120) == -signal.SIGKILL
    assert (path / "rebuild").is_dir()
    shutil.copytree(path, again)
    with open_small(path) as store:
        assert store.recovery.lost is None and not store.recovery.new_holes
    assert queue_bytes(path) == expected_queues
    assert answers(path, SETTINGS) == expected
    if STEPS[step] in ("staged", "3 moved"):
        rebuilt(spark, again, SETTINGS)
        assert queue_bytes(again) == expected_queues
        assert answers(again, SETTINGS) == expected
        assert not (again / "rebuild").exists()
