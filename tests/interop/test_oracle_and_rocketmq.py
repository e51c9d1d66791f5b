"""Goal: the oracle, which judges the library, is itself right about stores that nobody chose. Method: the questions of
`tests/golden/test_oracle.py`, asked about stores that RocketMQ has just written from random messages."""

from tests.golden import test_oracle
from tests.golden.test_oracle import directory
from tests.support.interop.fresh import questions

__all__ = ["directory"]

globals().update(questions(test_oracle))
