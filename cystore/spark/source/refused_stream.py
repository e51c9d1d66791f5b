"""A stream whose options are refused: it raises the error at a call whose errors Spark reports.

If the making of a reader fails, Spark 4.3 calls `stop` of the missing reader, and reports that failure instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from cystore.errors import StoreError


class RefusedStream(DataSourceStreamReader):
    """Raises `error` as soon as a query asks for its begin or its end."""

    def __init__(self, error: StoreError) -> None:
        self._error = error

    def _refuse(self) -> NoReturn:
        raise self._error

    def initialOffset(self) -> dict[str, Any]:
        """Raises the error: the query is new."""
        self._refuse()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Raises the error: the query continues from its checkpoint."""
        self._refuse()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Raises the error: the query repeats a batch."""
        self._refuse()

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """No task is ever made."""
        self._refuse()
