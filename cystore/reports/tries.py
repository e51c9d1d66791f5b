"""The try that an event belongs to, in columns: the rule of `cystore.celery.base.events.try_of`. For rows of Spark:
`cystore.spark.task_runs.try_of`.

An event belongs to the try that its `retries` names. An end without `retries` belongs to the newest started try:
earlier versions left the number out of some ends, and 0 is always left out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

Numbers = np.ndarray[Any, Any]


def tries(task_ids: pa.Array, retries: Numbers, started: Numbers, lacking: Numbers) -> pa.Array:
    """The try of each row; rows are in the order of their times. `started` marks the begins of tries, `lacking` ends
    that may lack their number. A lacking end without a begin before it is null."""
    rows = np.flatnonzero(started | lacking)
    codes = np.asarray(task_ids.take(pa.array(rows)).dictionary_encode().indices)
    by_task = np.argsort(codes, kind="stable")
    at, codes = rows[by_task], codes[by_task]
    newest = np.maximum.accumulate(np.where(started[at], np.arange(len(at)), -1))
    known = (newest >= 0) & (codes[newest] == codes)
    found, unknown = np.array(retries, np.int32), np.zeros(len(retries), bool)
    found[at[lacking[at] & known]] = found[at[newest[lacking[at] & known]]]
    unknown[at[lacking[at] & ~known]] = True
    return pa.array(found, pa.int32(), mask=unknown)
