# The filter of a column reader.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcmp

from cystore._native.layout cimport takes_queue_offset
from cystore._native.memory.queue_table cimport queue_hash
from cystore._native.record.property_read cimport key_next, known_properties, property_view, read_known
from cystore._native.record.record_view cimport record_view

# Fits records of this topic (and of this queue, if the id is not below 0) within these bounds; each end is exclusive.
cdef struct queue_rule:
    const uint8_t* topic
    int topic_len
    int32_t queue_id
    int64_t offset_begin
    int64_t offset_end
    int64_t time_begin
    int64_t time_end
    uint32_t link               # number of the next rule in the bucket + 1

cdef struct word:
    const uint8_t* text
    int length

cdef enum:
    RULE_BUCKETS = 256

# A record must fit each condition. An empty list fits every record.
cdef struct record_filter:
    bint in_queue               # only records in a consume queue
    int64_t physical_begin
    int64_t physical_end
    int64_t offset_begin
    int64_t offset_end
    int64_t time_begin
    int64_t time_end
    const int32_t* queue_ids    # any of them
    int queue_id_count
    const word* tags            # any of them
    int tag_count
    const word* keys            # any of them
    int key_count
    queue_rule* rules           # any of them
    uint32_t rule_count
    uint32_t[256] buckets


cdef inline bint _is_word(const word* words, int count, const uint8_t* text, int64_t length) noexcept nogil:
    cdef int i
    for i in range(count):
        if words[i].length == length and memcmp(words[i].text, text, length) == 0:
            return True
    return False


cdef inline bint _is_value(const word* words, int count, const property_view* pair) noexcept nogil:
    return pair.value_len > 0 and _is_word(words, count, pair.value, pair.value_len)


cdef inline bint _has_key(const word* words, int count, const uint8_t* at, const uint8_t* end) noexcept nogil:
    cdef const uint8_t* key
    cdef size_t length
    while key_next(&at, end, &key, &length):
        if _is_word(words, count, key, <int64_t>length):
            return True
    return False


cdef inline bint _in_rules(const record_filter* f, const record_view* v) noexcept nogil:
    cdef uint32_t link = f.buckets[queue_hash(v.topic, v.topic_len, 0) % RULE_BUCKETS]
    cdef const queue_rule* rule
    while link:
        rule = &f.rules[link - 1]
        if (rule.queue_id == v.queue_id or rule.queue_id < 0) and rule.topic_len == v.topic_len \
                and rule.offset_begin <= v.queue_offset < rule.offset_end \
                and rule.time_begin <= v.store_timestamp < rule.time_end \
                and memcmp(rule.topic, v.topic, v.topic_len) == 0:
            return True
        link = rule.link
    return False


cdef inline bint _words_match(const record_filter* f, const record_view* v) noexcept nogil:
    cdef known_properties known
    read_known(v, &known)
    if f.tag_count and not _is_value(f.tags, f.tag_count, &known.tags):
        return False
    return not f.key_count or _has_key(f.keys, f.key_count, known.keys.value, known.keys.value + known.keys.value_len) \
        or _is_value(f.keys, f.key_count, &known.unique)


cdef inline bint is_wanted(const record_filter* f, const record_view* v) noexcept nogil:
    cdef bint found
    cdef int i
    if f.in_queue and not takes_queue_offset(v.sys_flag):
        return False
    if not f.physical_begin <= v.physical_offset < f.physical_end \
            or not f.offset_begin <= v.queue_offset < f.offset_end \
            or not f.time_begin <= v.store_timestamp < f.time_end:
        return False
    if f.queue_id_count:
        found = False
        for i in range(f.queue_id_count):
            found = found or f.queue_ids[i] == v.queue_id
        if not found:
            return False
    if f.rule_count and not _in_rules(f, v):
        return False
    return not (f.tag_count or f.key_count) or _words_match(f, v)
