"""Goal: cystore/layout alone knows where what stands in a file. Method: look for literals that are offsets, sizes and
formats of records, queue entries and index entries, in every other source of the library."""

from __future__ import annotations

import ast
import re

import pytest

from cystore import layout
from tests.structure.sources import files, name_of

DECLARES = {
    *(name_of(path) for path in files(".py", under="cystore/layout")),
    "cystore/_native/layout.h",
    "cystore/_native/layout.pxd",
}
OWN_FORMAT = {
    "cystore/celery/routing/messages.py": "requests and answers between hosts, no file of a store",
    "cystore/derived/files/index_layout.py": "a hash slot is one number",
}
# Where a field begins or ends, and the sizes of records and entries. Left out are numbers below 10, and 16, 24 and 32,
# which mean too much else.
STRUCTS = ("record", "queue_entry_disk", "index_header", "index_entry")
NUMBERS = {
    number
    for struct in layout.DISK_STRUCTS
    if struct.name in STRUCTS
    for field in struct.fields
    for number in (field.at, field.at + field.width)
} | {
    layout.CONSTANTS[name][0]
    for name in (
        "RECORD_PREFIX_BYTES",
        "RECORD_BODY_AT",
        "RECORD_FIXED_BYTES",
        "RECORD_SIZE_MIN",
        "RECORD_HEAD_BYTES_MAX",
    )
}
_ANY = "|".join(str(number) for number in sorted(NUMBERS) if number > 9 and number not in (16, 24, 32))
# Arithmetic with such a number, its use as an index or as the end of a slice, and constants that are one.
PLACE = re.compile(
    rf"(?:[\w)\]]\s*(?:[+%]|//|-)|[\w)\]]\s+\*)\s*(?:{_ANY})\b(?!\s*\*|\.)"
    rf"|(?<![\w.])(?:{_ANY})\s*(?:[+%]|//|-)\s*\w"
    rf"|(?<![\w.])(?:{_ANY})\s*\*\s*(?!MIB|KIB)[\w(]"
    rf"|\[(?:\w+:)?(?:{_ANY})(?::\w*)?\]"
    rf"|(?:_AT|_BYTES|\bsize|\bat)\s*=\s*(?:{_ANY})\s*$"
    rf"|(?:un|)pack_(?:from|into)\([^()]*,\s*(?:{_ANY})\)"
    r"|\b20 if .*V6"
)
OTHER_NUMBERS = {
    "cystore/reports/report_plots.py": "hours of four weeks",
}
PLANTED = (
    "    cdef uint8_t* at = p + 48",
    "    cdef int64_t size = 75 + hosts",
    "    width = 20 if flag & V6 else 8",
    "    while i + 36 <= end:",
    "    physical = load_be64(p + 28)",
    "    if p[36] & 1:",
    "    entry = queue.entries + number * 20",
    "    count = length // 20",
    "    topic = head[20:28]",
    "    (offset,) = CODEC.unpack_from(data, 28)",
    "RECORD_BYTES = 91",
    "    body_at = 72 + hosts",
    "    file_bytes: int = 300_000 * 20",
)
HARMLESS = (
    "    at = 7",
    "    size = 48 * MIB",
    "LINES = 120",
    "    return text[:200]",
    "    week = 7 * 24 * 3600",
)
BIG_ENDIAN = re.compile(r">[bhiqBHIQ0-9]{2,}|>[iIqQ]")
RULES = ("SYS_FLAG_TRANSACTION_MASK", "SYS_FLAG_ROLLBACK", "SYS_FLAG_COMMIT")
MAY_NAME_A_RULE = {
    "cystore/columns/parquet.py": "the same rule over a column",
    "cystore/transactions/half.py": "writes the flag of a commit",
}


def _code(text: str) -> list[str]:
    """The lines without their comments."""
    return [line.partition("#")[0] for line in text.splitlines()]


def _texts(source: str) -> list[tuple[int, str]]:
    """Texts in a Python file that are no docstrings."""
    tree = ast.parse(source)
    said = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    return [
        (node.lineno, node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in said
    ]


def _places(source: str) -> list[int]:
    """The lines with a number that is the place or the size of something stored. Texts are left out."""
    return [
        number for number, line in enumerate(_code(source), 1) if PLACE.search(re.sub(r'"[^"]*"', '""', line))
    ]


@pytest.mark.parametrize("suffix", [".py", ".pyx", ".pxd"])
def test_a_planted_place_is_found(suffix):
    path = max(files(suffix, under="cystore/_native/lookup" if suffix != ".py" else "cystore/verify"))
    lines = path.read_text().splitlines()
    for planted in PLANTED:
        middle = len(lines) // 2
        source = "\n".join([*lines[:middle], planted, *lines[middle:]])
        assert _places(source) == [middle + 1], planted
    assert not [line for line in HARMLESS if _places(line)]


def test_no_other_file_has_the_place_of_a_field():
    found = [
        f"{name_of(path)}:{number}"
        for path in files(".py", ".pyx", ".pxd", under="cystore")
        if name_of(path) not in DECLARES | set(OTHER_NUMBERS)
        for number in _places(path.read_text())
    ]
    assert not found, f"cystore/layout declares it: {found}"


def test_no_other_file_has_the_format_of_a_struct():
    assert BIG_ENDIAN.fullmatch(">qiq") and BIG_ENDIAN.fullmatch(">i") and not BIG_ENDIAN.fullmatch("=2i")
    found = [
        f"{name_of(path)}:{line} {text!r}"
        for path in files(".py", under="cystore")
        if name_of(path) not in DECLARES | set(OWN_FORMAT)
        for line, text in _texts(path.read_text())
        if BIG_ENDIAN.fullmatch(text)
    ]
    assert not found, f"layout.codec makes it: {found}"


def test_reserved_topics_are_named_once():
    topics = (layout.SCHEDULE_TOPIC, layout.HALF_TOPIC)
    found = [
        f"{name_of(path)}:{line}"
        for path in files(".py", under="cystore")
        if name_of(path) not in DECLARES
        for line, text in _texts(path.read_text())
        if text in topics
    ]
    found += [
        f"{name_of(path)}:{number}"
        for path in files(".pyx", ".pxd", under="cystore")
        for number, line in enumerate(_code(path.read_text()), 1)
        if any(f'"{topic}"' in line for topic in topics)
    ]
    assert not found


def test_one_rule_says_which_message_takes_a_queue_offset():
    found = [
        f"{name_of(path)}:{number}"
        for path in files(".py", ".pyx", ".pxd", under="cystore")
        if name_of(path) not in DECLARES | set(MAY_NAME_A_RULE)
        for number, line in enumerate(_code(path.read_text()), 1)
        if any(name in line for name in RULES)
    ]
    assert not found, f"layout.takes_queue_offset and layout.takes_index_entry say it: {found}"


def test_a_record_of_every_kind_of_host_has_the_declared_size():
    fixed = layout.CONSTANTS["RECORD_FIXED_BYTES"][0]
    assert (fixed, layout.CONSTANTS["RECORD_SIZE_MIN"][0]) == (75, 91)  # as format.md draws it
    assert layout.CONSTANTS["RECORD_BODY_AT"][0] + layout.CONSTANTS["RECORD_TAIL_FIXED_BYTES"][0] == fixed
    assert [layout.takes_queue_offset(kind) for kind in (0, 4, 8, 12)] == [True, False, True, False]
    assert [layout.takes_index_entry(kind) for kind in (0, 4, 8, 12)] == [True, True, True, False]
