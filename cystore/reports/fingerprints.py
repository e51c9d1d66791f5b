"""Groups failures: a fingerprint of the exception's class and the frames of the traceback, with numbers and ids masked.

The functions work on columns, not on single rows. They leave out messages of exceptions, which differ from failure to
failure.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

# A line of a traceback. In a group of exceptions, bars precede it.
_FRAME = r'^[\s|+-]*File "(?P<file>.*)", line (?P<line>[0-9]+)(?:, in (?P<function>.*))?$'
_NAME = r"^\W?(?P<name>[A-Za-z_][\w.]*)"  # `shop.Refused('x')`, `<HTTPError 404: 'x'>`, `<shop.Refused object at 0x7f>`
# In this order: random names of temporary files, UUIDs, hexadecimal numbers, other numbers, words that hold several
# of these.
_MASKS = (
    (r"\btmp[a-z0-9_]{8}\b", "#"),
    (r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b", "#"),
    (r"0x[0-9a-fA-F]+", "#"),
    (r"\b[0-9a-fA-F]{12,}\b", "#"),
    (r"\b[0-9a-fA-F]*[0-9][0-9a-fA-F]*\b", "#"),
    (r"[0-9]+", "#"),
    (r"#(?:-#)+", "#"),
    (r"[0-9A-Za-z]*#[0-9A-Za-z]*(?:#[0-9A-Za-z]*)+", "#"),
)
CUT = " ... "  # in place of the middle of a long traceback that the lifecycle log left out
# of such a traceback only the last frames count: the length of the message decides which frames the cut leaves
CUT_FRAMES = 5
HEX_DIGITS = 16


def classes(exceptions: pa.Array, outcomes: pa.Array) -> pa.Array:
    """The class of each exception, from its repr; the attempt's outcome if the repr is unknown or does not begin with a
    name."""
    names = pc.struct_field(pc.extract_regex(exceptions, _NAME), "name")
    return pc.coalesce(names, outcomes)


def fingerprints(names: pa.Array, tracebacks: pa.Array) -> pa.Array:
    """A text of 16 digits for each class and traceback, the same for failures of one class at one place. Null if there
    is no class."""
    key = pc.binary_join_element_wise(names, _places(tracebacks), "\n")
    coded = key.dictionary_encode()
    made = [
        None if text is None else hashlib.sha256(text.encode()).hexdigest()[:HEX_DIGITS]
        for text in coded.dictionary.to_pylist()
    ]
    return pa.array(made, pa.string()).take(coded.indices)


def _places(tracebacks: pa.Array) -> pa.Array:
    """The masked frames of each traceback, one line each; empty if it has none."""
    texts = pc.fill_null(tracebacks, "")
    lines = pc.split_pattern(texts, "\n")
    frames = pc.extract_regex(lines.flatten(), _FRAME)
    known = frames.is_valid()
    row = pc.list_parent_indices(lines).filter(known).to_numpy()
    found = frames.filter(known)
    masked = [_masked(pc.struct_field(found, name)) for name in ("file", "function")]
    text = pc.binary_join_element_wise(masked[0], pc.struct_field(found, "line"), masked[1], ":")
    counts = np.bincount(row, minlength=len(texts))
    ends = np.concatenate([[0], np.cumsum(counts)])
    from_end = ends[row + 1] - np.arange(len(row))  # 1 for the last frame
    cut = pc.match_substring(texts, CUT).to_numpy(zero_copy_only=False)
    kept = ~cut[row] | (from_end <= CUT_FRAMES)
    text = text.filter(pa.array(kept))
    counts = np.bincount(row[kept], minlength=len(texts))
    ends = np.concatenate([[0], np.cumsum(counts)])
    return pc.binary_join(pa.ListArray.from_arrays(pa.array(ends, pa.int32()), text), "\n")


def _masked(texts: pa.Array) -> pa.Array:
    """Masks each distinct text once."""
    coded = pc.fill_null(texts, "").dictionary_encode()
    distinct = coded.dictionary
    for pattern, by in _MASKS:
        distinct = pc.replace_substring_regex(distinct, pattern, by)
    return distinct.take(coded.indices)
