"""Goal: cystore reads whatever RocketMQ 4.9.3 writes. Method: RocketMQ writes a store of every shape from random
messages, now; cystore is asked all that `tests/golden/test_reads.py` and `test_store.py` ask about the golden ones,
and compared with RocketMQ's own view of the same files."""

from collections.abc import Iterator

import pytest

import cystore
from tests.golden import test_reads, test_store
from tests.support.golden.cystore_config import cystore_config
from tests.support.golden.stores import Golden
from tests.support.interop.fresh import questions


@pytest.fixture
def opened(golden: Golden) -> Iterator[cystore.MessageStore]:
    """As it lies there, a crashed one too; the questions that write open it again for themselves."""
    config = cystore_config(golden.spec)
    with cystore.open(golden.store, read_only=True, damaged_range="truncate", **config) as store:
        yield store


globals().update({**questions(test_reads, 8), **questions(test_store, 4)})
