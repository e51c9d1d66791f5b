"""Repairs the hash slots of an index file whose last entries may be only partly on disk: each slot then names the
newest kept entry of its chain.

Slots and entries come as bytes that were read, not mapped. Source of the format: IndexFile of RocketMQ 4.9.3.
"""

from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint32_t

from cystore._native.layout cimport (
    INDEX_ENTRY_BYTES, INDEX_HEADER_BYTES, INDEX_SLOT_BYTES, index_entry_key_hash, index_entry_physical_offset,
    index_entry_previous, load_be32, store_be32
)

# A disk writes a sector whole or not at all. An entry across two sectors may be written by half.
cdef size_t SECTOR_BYTES = 512
# Marks a slot with a broken chain; the lower bits are the newest kept entry found so far.
cdef uint32_t BROKEN = 0x80000000u


cdef inline uint32_t _newest_kept(const uint8_t* tail, uint32_t first, uint32_t count, uint32_t slot, uint32_t slots,
                                  uint32_t keep, uint32_t number) noexcept nogil:
    """The newest entry below `keep` in the chain from entry `number` on, or BROKEN."""
    cdef const uint8_t* entry
    cdef int32_t hash, previous
    cdef size_t place
    while number >= keep:
        if number < first or number - first >= count:
            return BROKEN
        place = INDEX_HEADER_BYTES + <size_t>INDEX_SLOT_BYTES * slots + <size_t>INDEX_ENTRY_BYTES * number
        if place % SECTOR_BYTES > SECTOR_BYTES - INDEX_ENTRY_BYTES:
            return BROKEN
        entry = tail + <size_t>(number - first) * INDEX_ENTRY_BYTES
        hash = index_entry_key_hash(entry)
        previous = index_entry_previous(entry)
        if hash < 0 or <uint32_t>hash % slots != slot or previous < 0 or <uint32_t>previous >= number:
            return BROKEN
        # All zeros: the entry was never written, or it names log position 0. `relink` finds the slot's newest entry.
        if previous == 0 and hash == 0 and index_entry_physical_offset(entry) == 0:
            return BROKEN
        number = <uint32_t>previous
    return number


cdef uint32_t _mend(uint8_t* p, uint32_t slots, const uint8_t* tail, uint32_t first, uint32_t count,
                    uint32_t keep) noexcept nogil:
    cdef uint32_t slot, number, broken = 0
    for slot in range(slots):
        number = load_be32(p + <size_t>slot * INDEX_SLOT_BYTES)
        if number < keep:
            continue
        if number > <uint32_t>INT32_MAX:
            number = BROKEN
        else:
            number = _newest_kept(tail, first, count, slot, slots, keep, number)
        broken += number == BROKEN
        store_be32(p + <size_t>slot * INDEX_SLOT_BYTES, number)
    return broken


cdef void _relink(uint8_t* p, uint32_t slots, const uint8_t* entries, uint32_t first, uint32_t count) noexcept nogil:
    cdef uint32_t i
    cdef int32_t hash
    cdef uint8_t* slot
    for i in range(count):
        hash = index_entry_key_hash(entries + <size_t>i * INDEX_ENTRY_BYTES)
        if hash < 0:
            continue
        slot = p + <size_t>(<uint32_t>hash % slots) * INDEX_SLOT_BYTES
        if load_be32(slot) & BROKEN:
            store_be32(slot, BROKEN | (first + i))


cdef uint32_t _settle(uint8_t* p, uint32_t slots) noexcept nogil:
    cdef uint32_t slot, number, used = 0
    for slot in range(slots):
        number = load_be32(p + <size_t>slot * INDEX_SLOT_BYTES)
        if number & BROKEN:
            number ^= BROKEN
            store_be32(p + <size_t>slot * INDEX_SLOT_BYTES, number)
        used += number != 0
    return used


cdef int64_t _chain(uint8_t* p, uint32_t slots, const uint8_t* entries, uint32_t first, uint32_t count) noexcept nogil:
    cdef uint32_t i
    cdef int32_t hash
    cdef uint8_t* slot
    for i in range(count):
        hash = index_entry_key_hash(entries + <size_t>i * INDEX_ENTRY_BYTES)
        if hash < 0:
            return first + i
        slot = p + <size_t>(<uint32_t>hash % slots) * INDEX_SLOT_BYTES
        if load_be32(slot) != <uint32_t>index_entry_previous(entries + <size_t>i * INDEX_ENTRY_BYTES):
            return first + i
        store_be32(slot, first + i)
    return -1


cdef int64_t _used(const uint8_t* p, const uint8_t* stored, uint32_t slots) noexcept nogil:
    cdef uint32_t slot, number, used = 0
    for slot in range(slots):
        number = load_be32(stored + <size_t>slot * INDEX_SLOT_BYTES)
        if number == 0:
            continue
        if number != load_be32(p + <size_t>slot * INDEX_SLOT_BYTES):
            return -1
        used += 1
    return used


cdef int _check(Py_ssize_t slot_bytes, Py_ssize_t entry_bytes, int64_t first) except -1:
    if slot_bytes < INDEX_SLOT_BYTES or slot_bytes % INDEX_SLOT_BYTES or slot_bytes // INDEX_SLOT_BYTES > INT32_MAX:
        raise ValueError(f"{slot_bytes} bytes are no hash slots")
    if entry_bytes % INDEX_ENTRY_BYTES or not 0 <= first <= INT32_MAX - entry_bytes // INDEX_ENTRY_BYTES:
        raise ValueError(f"{entry_bytes} bytes from entry {first} on are no index entries")
    return 0


def mend_slots(uint8_t[::1] slots, const uint8_t[::1] tail, int64_t first, int64_t keep):
    """Sets every slot to its newest entry below number `keep`; `tail` holds the entries from number `first` on.

    Returns the number of broken chains. The caller repairs their slots with `relink` and then calls `settle`.
    """
    cdef uint32_t broken
    cdef uint8_t* p
    cdef const uint8_t* entries = &tail[0] if tail.shape[0] else NULL
    _check(slots.shape[0], tail.shape[0], first)
    if not 1 <= keep <= INT32_MAX:
        raise ValueError(f"cannot keep the entries below {keep}")
    p = &slots[0]
    with nogil:
        broken = _mend(p, <uint32_t>(slots.shape[0] // INDEX_SLOT_BYTES), entries, <uint32_t>first,
                       <uint32_t>(tail.shape[0] // INDEX_ENTRY_BYTES), <uint32_t>keep)
    return broken


def newest(const uint8_t[::1] slots):
    """The highest entry number in a slot, 0 without entries."""
    cdef uint32_t slot, number, found = 0
    cdef const uint8_t* p
    _check(slots.shape[0], 0, 0)
    p = &slots[0]
    with nogil:
        for slot in range(<uint32_t>(slots.shape[0] // INDEX_SLOT_BYTES)):
            number = load_be32(p + <size_t>slot * INDEX_SLOT_BYTES)
            if found < number <= <uint32_t>INT32_MAX:
                found = number
    return found


def relink(uint8_t[::1] slots, const uint8_t[::1] entries, int64_t first):
    """Goes through kept entries, oldest first, and sets each broken slot to its newest entry."""
    cdef uint8_t* p
    _check(slots.shape[0], entries.shape[0], first)
    if entries.shape[0] == 0:
        return
    p = &slots[0]
    with nogil:
        _relink(p, <uint32_t>(slots.shape[0] // INDEX_SLOT_BYTES), &entries[0], <uint32_t>first,
                <uint32_t>(entries.shape[0] // INDEX_ENTRY_BYTES))


def settle(uint8_t[::1] slots):
    """Removes the marks; returns the number of used slots."""
    cdef uint32_t used
    cdef uint8_t* p
    _check(slots.shape[0], 0, 0)
    p = &slots[0]
    with nogil:
        used = _settle(p, <uint32_t>(slots.shape[0] // INDEX_SLOT_BYTES))
    return used


def chain(uint8_t[::1] slots, const uint8_t[::1] entries, int64_t first):
    """Links entries into `slots` (zero at first), oldest first. Returns the number of the first entry whose `previous`
    is not the entry before it in its slot, -1 if all are right."""
    cdef int64_t bad
    cdef uint8_t* p
    _check(slots.shape[0], entries.shape[0], first)
    if entries.shape[0] == 0:
        return -1
    p = &slots[0]
    with nogil:
        bad = _chain(p, <uint32_t>(slots.shape[0] // INDEX_SLOT_BYTES), &entries[0], <uint32_t>first,
                     <uint32_t>(entries.shape[0] // INDEX_ENTRY_BYTES))
    return bad


def heads(const uint8_t[::1] entries):
    """The number of entries before which there is none in their slot: so many slots are in use."""
    cdef uint32_t i, count = <uint32_t>(entries.shape[0] // INDEX_ENTRY_BYTES), found = 0
    cdef const uint8_t* p
    _check(INDEX_SLOT_BYTES, entries.shape[0], 0)
    if count == 0:
        return 0
    p = &entries[0]
    with nogil:
        for i in range(count):
            found += index_entry_previous(p + <size_t>i * INDEX_ENTRY_BYTES) == 0
    return found


def used(const uint8_t[::1] slots, const uint8_t[::1] stored, int64_t first):
    """The number of slots in use among `stored`, which are those from number `first` on; -1 if one of them names
    another entry than `slots` does. Reads no other slot of `slots`: whose memory was never written costs nothing."""
    cdef uint32_t count = <uint32_t>(stored.shape[0] // INDEX_SLOT_BYTES)
    cdef const uint8_t* p
    cdef const uint8_t* q
    cdef int64_t found
    _check(slots.shape[0], 0, 0)
    _check(stored.shape[0], 0, 0)
    if not 0 <= first <= slots.shape[0] // INDEX_SLOT_BYTES - count:
        raise ValueError(f"{count} slots from number {first} on are not all among the {slots.shape[0]} bytes of slots")
    p = &slots[first * INDEX_SLOT_BYTES]
    q = &stored[0]
    with nogil:
        found = _used(p, q, count)
    return found


def other_slot(const uint8_t[::1] slots, const uint8_t[::1] stored, int64_t count):
    """The first slot of `stored` that differs from `slots`, -1 if all agree. A slot that names an entry at or behind
    `count` was changed since and is right."""
    cdef uint32_t slot, number
    cdef uint32_t total = <uint32_t>(slots.shape[0] // INDEX_SLOT_BYTES)
    cdef const uint8_t* p
    cdef const uint8_t* q
    cdef int64_t bad = -1
    _check(slots.shape[0], 0, 0)
    if stored.shape[0] != slots.shape[0]:
        raise ValueError(f"stored: {stored.shape[0]} bytes of slots, not {slots.shape[0]}")
    p = &slots[0]
    q = &stored[0]
    with nogil:
        for slot in range(total):
            number = load_be32(q + <size_t>slot * INDEX_SLOT_BYTES)
            if number != load_be32(p + <size_t>slot * INDEX_SLOT_BYTES) and not count <= number <= <uint32_t>INT32_MAX:
                bad = slot
                break
    return bad
