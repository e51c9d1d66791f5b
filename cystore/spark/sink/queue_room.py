"""Whether a store has room for the queues of staged rows. The commit asks before it appends the first record, because a
put that is refused half-way would leave some of the rows."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from cystore._native.derived.queue import NO_FILES
from cystore.errors import MessageIllegalError, StoreFullError
from cystore.layout import CONSTANTS, LMQ_PREFIX
from cystore.spark.sink.staged_rows import StagedFile, staged_batches
from cystore.store import MessageStore

LIGHT = "INNER_MULTI_DISPATCH"  # the property that names a message's light queues
LIGHT_MOST = 256  # of one message: LIGHT_QUEUES_MAX in cystore/_native/append/light.pxd
LIGHT_NAME = re.compile(
    rf"{LMQ_PREFIX}[%|a-zA-Z0-9_-]{{1,{CONSTANTS['TOPIC_BYTES_MAX'][0] - len(LMQ_PREFIX)}}}"
)

Queue = tuple[str, int]


def check_queues(store: MessageStore, folder: Path, staged: Iterable[StagedFile]) -> None:
    """Raises StoreFullError if the store cannot take the new queues of these rows, MessageIllegalError for a row whose
    light queues the store would refuse. Another process may make queues meanwhile; they are not counted."""
    has_light = store.config.enable_lmq and store.config.enable_multi_dispatch
    columns = ("topic", "queue_id", *(("names", "values") if has_light else ()))
    queues: set[Queue] = set()
    light: set[Queue] = set()
    for batch in staged_batches(folder, staged, columns):
        queues |= _queues_in(batch)
        if has_light:
            light |= _light_in(batch)
    control = store._attached().control
    new = {queue for queue in queues | light if control.find_queue(*queue) < 0}
    free = control.max_queues - control.queue_count
    if len(new) > free:
        raise StoreFullError(
            f"the rows need {len(new)} new queues, and {max(free, 0)} of {control.max_queues} (max_queues) are free; "
            "nothing was written: raise max_queues, or write to fewer topics",
            path=store.path,
        )
    most, wanted = store.config.max_lmq_consume_queue_num, len(light & new)
    if wanted and wanted + control.queue_count > most and wanted + (known := _light_known(store)) > most:
        raise StoreFullError(
            f"the rows need {wanted} new light queues, and the store has {known}; at most max_lmq_consume_queue_num = "
            f"{most}; nothing was written",
            path=store.path,
        )


def _light_known(store: MessageStore) -> int:
    """The number of light queues, without those whose files were removed, as a put counts them."""
    control = store._attached().control
    slots = [slot for slot in range(control.queue_count) if control.queue_allocated(slot) != NO_FILES]
    queues = [control.queue(slot)[:2] for slot in slots]
    return sum(queue_id == 0 and _is_light(topic) for topic, queue_id in queues)


def _queues_in(batch: pa.RecordBatch) -> set[Queue]:
    table = pa.table({"topic": batch["topic"], "queue_id": batch["queue_id"]})
    found = table.group_by(["topic", "queue_id"]).aggregate([])
    return set(zip(found["topic"].to_pylist(), found["queue_id"].to_pylist(), strict=True))


def _light_in(batch: pa.RecordBatch) -> set[Queue]:
    named = pc.equal(batch["names"].flatten(), LIGHT)
    values = batch["values"].flatten().filter(named)
    rows = pc.list_parent_indices(batch["names"]).filter(named)
    found: set[Queue] = set()
    for row, value in zip(rows.to_pylist(), values.to_pylist(), strict=True):
        names = value.split(",")
        own = batch["topic"][row].as_py() if batch["queue_id"][row].as_py() == 0 else None
        if len(names) > LIGHT_MOST or len({*names, own}) != len(names) + 1 or not all(map(_is_light, names)):
            topic = batch["topic"][row].as_py()
            raise MessageIllegalError(
                f"column properties: {LIGHT} of a row of topic {topic} is {value[:200]!r}: it must be at most "
                f"{LIGHT_MOST} different names like {LMQ_PREFIX}name, with commas, and not the message's own queue; "
                "nothing was written"
            )
        found |= {(name, 0) for name in names}
    return found


def _is_light(name: str) -> bool:
    return LIGHT_NAME.fullmatch(name) is not None
