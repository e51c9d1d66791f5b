"""The column kernel's rows of a log file, for a comparison with the oracle's."""

from __future__ import annotations

import struct
from dataclasses import asdict
from itertools import pairwise
from typing import Any

import pytest

from tests.oracle.columns import Wanted
from tests.oracle.log import Log

kernel = pytest.importorskip("cystore._native.scan.columns", reason="the kernels are not built")

NAMES = tuple(kernel.COLUMN_BITS)


def numbers(buffer: Any, code: str, count: int) -> list[int]:
    return list(struct.unpack(f"={count}{code}", bytes(buffer)[: struct.calcsize(code) * count]))


def texts(buffers: tuple[Any, Any], valid: Any = None) -> list[bytes | None]:
    offsets, data = numbers(buffers[0], "i", len(buffers[0]) // 4), bytes(buffers[1])
    assert len(data) == offsets[-1], "the data ends with the last item"
    found: list[bytes | None] = [data[begin:end] for begin, end in pairwise(offsets)]
    if valid is not None:
        bits = bytes(valid)
        found = [text if bits[i // 8] >> i % 8 & 1 else None for i, text in enumerate(found)]
    return found


def decoded(found: list[bytes | None]) -> list[str | None]:
    return [None if text is None else text.decode() for text in found]


def lists(begins: Any, items: list[Any], rows: int) -> list[list[Any]]:
    at = numbers(begins, "i", rows + 1)
    assert at[0] == 0
    assert at[-1] == len(items)
    return [items[begin:end] for begin, end in pairwise(at)]


def as_rows(rows: int, buffers: dict[str, Any]) -> list[dict[str, Any]]:
    columns: dict[str, list[Any]] = {}
    for name in NAMES:
        if name == "properties" and "names" in buffers:
            pairs = list(
                zip(decoded(texts(buffers["names"])), decoded(texts(buffers["values"])), strict=True)
            )
            columns[name] = lists(buffers["properties_begin"], pairs, rows)
        elif name not in buffers:
            continue
        elif name == "keys":
            columns[name] = lists(buffers["keys_begin"], decoded(texts(buffers[name])), rows)
        elif name == "value":
            columns[name] = texts(buffers[name])
        elif name in ("key", "topic", "tags"):
            columns[name] = decoded(texts(buffers[name], buffers.get(f"{name}_valid")))
        else:
            columns[name] = numbers(buffers[name], "i" if name in ("partition", "sys_flag") else "q", rows)
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def read_file(
    log: Log,
    base: int,
    wanted: Wanted,
    names: tuple[str, ...] = NAMES,
    rows_max: int = 7,
    bytes_max: int = 600,
) -> tuple[list[dict[str, Any]], int, bool]:
    bits = sum(kernel.COLUMN_BITS[name] for name in names)
    given = asdict(wanted)
    begin, end = given.pop("physical")
    reader = kernel.ColumnReader(bits, rows_max, bytes_max, physical_begin=begin, physical_end=end, **given)
    data, at, rows = log.files[base], base, []
    while True:
        status = reader.run(data, base, at, base + len(data), base + log.file_size, at + 500)
        at = reader.position
        assert status != kernel.FULL or reader.rows, "a record fits into columns of its own"
        assert reader.rows <= rows_max
        if status == kernel.LIMIT and at < base + len(data):
            continue
        rows += as_rows(*reader.take())
        if status != kernel.FULL:
            return rows, at, status == kernel.BLANK
