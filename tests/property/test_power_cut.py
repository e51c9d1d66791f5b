"""Goal: a power cut loses nothing that was durable and leaves nothing that contradicts the log. Method: a store as it
was at its last checkpoint and as it stood in the page cache when the power went; of every file each sector is the old
or the new one, chosen freely. What cystore recovers from it is compared with what the oracle finds in the log alone."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

import cystore
from tests.oracle import store as oracle
from tests.oracle.log import lay_out
from tests.oracle.record import CYSTORE_MAGIC
from tests.property.test_store import assert_answers, assert_derived_files, scratch
from tests.support.property import stores
from tests.support.property.strategies import logs

# The units that a disk writes completely or not at all; each kind of file has several, and entries across their
# borders.
SECTOR_BYTES = 512
SHAPE = stores.Shape(queue_file_bytes=1200, slots=150, capacity=300)
FILE_BYTES = 4096


def torn(draw, old: dict[str, bytes], new: dict[str, bytes]) -> dict[str, bytes]:
    """Sector by sector from one or the other; a file that is new was made, with zeros, before it was written."""
    images = {}
    for path, data in {**old, **new}.items():
        before = old.get(path, bytes(len(data)))
        changed = [
            at
            for at in range(0, len(data), SECTOR_BYTES)
            if before[at : at + SECTOR_BYTES] != data[at : at + SECTOR_BYTES]
        ]
        image = bytearray(before)
        for at in changed:
            if draw(st.booleans()):
                image[at : at + SECTOR_BYTES] = data[at : at + SECTOR_BYTES]
        images[path] = bytes(image)
    return images


def log_images(records) -> dict[str, bytes]:
    log, _, _ = lay_out(records, FILE_BYTES)
    return {f"commitlog/{base:020d}": data for base, data in log.files.items()}


@given(
    logs(magic=st.just(CYSTORE_MAGIC), max_records=30).filter(lambda w: w.records), st.booleans(), st.data()
)
@settings(max_examples=max(settings.default.max_examples // 4, 10))
def test_a_power_cut(written, read_only, data):
    records, count = written.records, len(written.records)
    flushed = data.draw(st.integers(1, count), label="records flushed")
    dispatched = data.draw(st.integers(0, count), label="records dispatched")
    derived = data.draw(
        st.integers(0, min(flushed, dispatched)), label="records whose queues and index were synced"
    )
    checkpoint = stores.durable_to(records[flushed - 1])
    checkpoint = replace(checkpoint, physic_ms=records[flushed - 1].store_timestamp_ms)
    if derived:
        last = records[derived - 1]
        checkpoint = replace(
            checkpoint,
            logics_ms=last.store_timestamp_ms,
            index_ms=last.store_timestamp_ms,
            index_synced=last.end,
        )
    with scratch() as path:
        stores.write_log(path, written.log, records, checkpoint, clean=False)
        stores.write_files(path, torn(data.draw, log_images(records[:flushed]), log_images(records)))
        queues, index = stores.queue_images, stores.index_images
        stores.write_files(
            path, torn(data.draw, queues(records[:derived], SHAPE), queues(records[:dispatched], SHAPE))
        )
        stores.write_files(
            path, torn(data.draw, index(records[:derived], SHAPE), index(records[:dispatched], SHAPE))
        )
        view = oracle.recover(oracle.read_directory(path), believe_queues=False)
        assert len(view.records) >= flushed and not view.outcome.holes
        with cystore.open(path, read_only=read_only, **stores.config(written.log, SHAPE)) as store:
            assert_answers(store, view)
            assert store.recovery.lost is None and not store.recovery.new_holes
        if not read_only:
            assert_derived_files(path, view)
