"""The Cython declarations of the layout, and the kernel that has the properties of `Control`."""

from __future__ import annotations

import textwrap

from cystore import layout
from tools.control_properties import CONTROL_ACCESS, QUEUE_ACCESS, Access, Write
from tools.layout_header import NOTE, disk_constants


def pxd_text() -> str:
    """The Cython declarations of the names that `header_text` defines."""
    out = [
        f"# {NOTE}",
        "from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t",
        "",
    ]
    out += ['cdef extern from "layout.h" nogil:']
    for name in [
        *layout.CONSTANTS,
        *layout.FLAGS,
        "CONTROL_BUCKETS_AT",
        "CONTROL_BUCKETS",
        "CONTROL_PROCESSES_AT",
        "CONTROL_QUEUES_AT",
        "PROCESS_SLOTS",
        "PROCESS_SLOT_BITS",
        "INCARNATION_BITS",
        "PROCESS_BYTES_AT",
        "LATENCY_BUCKETS",
        "DUTIES_MAX",
        "WORDS_OF_DUTY",
        "KEY_WORDS",
    ]:
        out.append(f"    const uint32_t {name}")
    out += ["    const uint64_t CONTROL_MAGIC", "    const uint64_t LAYOUT_FINGERPRINT"]
    out += ['    const char* SCHEDULE_TOPIC_TEXT "SCHEDULE_TOPIC"', "    const int SCHEDULE_TOPIC_BYTES"]
    out += ["    const char* LMQ_PREFIX", "    const int LMQ_PREFIX_BYTES"]
    out += [
        "    bint own_topic(const uint8_t* topic, int64_t length)  # whether the store writes it for itself"
    ]
    out += [f"    const char* PROPERTY_{name}" for name in layout.PROPERTIES]
    out += [f"    const int LOCK_{name.upper()}" for name in layout.MUTEX_NAMES]
    for bits in (16, 32, 64):
        out += [
            f"    uint{bits}_t load_be{bits}(const uint8_t* p)",
            f"    void store_be{bits}(uint8_t* p, uint{bits}_t v)",
        ]
    for struct in layout.DISK_STRUCTS:
        out += [f"    const int {name}" for name, _ in disk_constants(struct)]
        for field in struct.fields:
            ctype = f"{'u' if field.unsigned else ''}int{field.width * 8}_t"
            out.append(f"    {ctype} {struct.name}_{field.name}(const uint8_t* p)")
            out.append(f"    void {struct.name}_set_{field.name}(uint8_t* p, {ctype} v)")
    out += ["    bint takes_queue_offset(int32_t sys_flag)", "    bint takes_index_entry(int32_t sys_flag)"]
    for name, placed in (
        ("queue_entry", layout.QUEUE_SLOT_FIELDS),
        ("process_slot", layout.PROCESS_SLOT_FIELDS),
        ("control_block", layout.CONTROL_FIELDS),
    ):
        out.append(f"    ctypedef struct {name}:")
        for shared, _ in placed:
            if shared.type == "packed_mutex":  # reached by control_mutex (atomics.h) alone
                continue
            array = f"[{shared.count}]" if shared.count > 1 else ""
            out.append(f"        {shared.type} {shared.name}{array}")
    return "\n".join(out) + "\n"


_ATOMIC = {"int64_t": "i64", "uint64_t": "u64", "uint32_t": "u32"}
_FIELDS = {field.name: field for field, _ in layout.CONTROL_FIELDS}
_SLOT_FIELDS = {field.name: field for field, _ in layout.QUEUE_SLOT_FIELDS}
_HEAD = f'''"""The properties of `Control`, one for each field that Python reads.

{NOTE}
"""

cimport cython
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

from cystore._native.layout cimport queue_entry
from cystore._native.memory.atomics cimport (ATOMICS)
from cystore._native.memory.locks cimport SharedLocks
from cystore._native.memory.queue_table cimport checked_slot
from cystore.errors import StoreFormatError


cdef int _forward(SharedLocks control, str name, int64_t* position, int64_t value) except -1:
    """Publishes a position of the log, none of which ever goes back."""
    if value < load_i64(position):
        raise StoreFormatError(f"{{name}} stands at {{load_i64(position)}} and cannot go back to {{value}}",
                               path=control.file.path)
    store_i64(position, value)
    return 0


@cython.no_gc_clear  # as what it inherits from
@cython.auto_pickle(False)
cdef class ControlFields(SharedLocks):
    """The fields of a `Control`. Positions are physical offsets in bytes, times are ms."""

    cdef queue_entry* slot_at(self, int64_t slot) except NULL:
        return checked_slot(self.checked(), slot)
'''


def _load(ctype: str, where: str) -> str:
    return f"load_{_ATOMIC[ctype]}(&{where})" if ctype in _ATOMIC else where


def _store(ctype: str, where: str, value: str) -> str:
    return f"store_{_ATOMIC[ctype]}(&{where}, {value})" if ctype in _ATOMIC else f"{where} = {value}"


def _write(access: Access, ctype: str, where: str) -> list[str]:
    """The body of a setter."""
    if access.write is Write.FORWARD:
        out = [f'        _forward(self, "{access.called}", &{where}, value)']
    elif access.write is Write.RAISE:
        out = [f"        raise_i64(&{where}, value)"]
    else:
        out = [f"        {_store(ctype, where, 'value')}"]
    if access.counts:
        out.append(f"        add_u32(&self.block.{access.counts}, 1)")
    if access.wakes:
        out.append(f"        futex_wake_all(&self.block.{access.counts})")
    return out


def _doc(access: Access) -> list[str]:
    return [f'        """{access.doc}"""'] if access.doc else []


def _raises(name: str) -> str:
    return f'        """Raises `{name}` to `value`. Never lowers it, even while other processes raise it."""'


def _property(access: Access) -> list[str]:
    name, ctype = access.property, _FIELDS[access.field].type
    where = f"self.checked().{access.field}"
    out = [
        "",
        "    @property",
        f"    def {name}(self):",
        *_doc(access),
        f"        return {_load(ctype, where)}",
    ]
    if access.write is Write.RAISE:
        out += ["", f"    def raise_{name}(self, {ctype} value):"]
        out += [_raises(name)]
        out += _write(access, ctype, where)
    elif access.write is not Write.NO:
        out += [
            "",
            f"    @{name}.setter",
            f"    def {name}(self, {ctype} value):",
            *_write(access, ctype, where),
        ]
    return out


def _of_queue(access: Access) -> list[str]:
    name, ctype = f"queue_{access.property}", _SLOT_FIELDS[access.field].type
    where = f"self.slot_at(slot).{access.field}"
    if access.write is Write.RAISE:
        return [
            "",
            f"    def raise_{name}(self, int64_t slot, {ctype} value):",
            _raises(access.property),
            *_write(access, ctype, where),
        ]
    out = ["", f"    def {name}(self, int64_t slot):", *_doc(access), f"        return {_load(ctype, where)}"]
    if access.write is not Write.NO:
        out += ["", f"    def set_{name}(self, int64_t slot, {ctype} value):", *_write(access, ctype, where)]
    return out


def fields_pyx() -> str:
    """The kernel: class ControlFields."""
    lines = [line for access in CONTROL_ACCESS for line in _property(access)]
    lines += [line for access in QUEUE_ACCESS for line in _of_queue(access)]
    body = "\n".join(lines)
    called = (
        "add_u32",
        "futex_wake_all",
        "load_i64",
        "load_u32",
        "load_u64",
        "raise_i64",
        "store_i64",
        "store_u32",
    )
    atomics = ", ".join(name for name in (*called, "store_u64") if f"{name}(" in _HEAD + body)
    wrapped = textwrap.fill(f"({atomics})", 73).replace("\n", "\n" + " " * 45)
    return _HEAD.replace("(ATOMICS)", wrapped) + body + "\n"


def fields_pxd() -> str:
    """The declarations of ControlFields for other kernels."""
    return f"""# {NOTE}
from libc.stdint cimport int64_t

from cystore._native.layout cimport queue_entry
from cystore._native.memory.locks cimport SharedLocks


cdef class ControlFields(SharedLocks):
    cdef queue_entry* slot_at(self, int64_t slot) except NULL
"""


def fields_pyi() -> str:
    """The stub of ControlFields for type checkers."""
    out = [
        f"# {NOTE}",
        "from cystore._native.memory.locks import SharedLocks",
        "",
        "class ControlFields(SharedLocks):",
    ]
    for access in CONTROL_ACCESS:
        name = access.property
        out += ["    @property", f"    def {name}(self) -> int: ..."]
        if access.write is Write.RAISE:
            out.append(f"    def raise_{name}(self, value: int) -> None: ...")
        elif access.write is not Write.NO:
            out += [f"    @{name}.setter", f"    def {name}(self, value: int) -> None: ..."]
    for access in QUEUE_ACCESS:
        name = f"queue_{access.property}"
        if access.write is Write.RAISE:
            out.append(f"    def raise_{name}(self, slot: int, value: int) -> None: ...")
            continue
        out.append(f"    def {name}(self, slot: int) -> int: ...")
        if access.write is not Write.NO:
            out.append(f"    def set_{name}(self, slot: int, value: int) -> None: ...")
    return "\n".join(out) + "\n"
