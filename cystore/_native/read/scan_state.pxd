# What a walk over the log (scan.pyx) knows while it walks, and why it stops.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from cystore._native.record.record_view cimport record_view

cdef enum ScanStatus:
    SCAN_LIMIT = 0              # `limit` is reached
    SCAN_MORE = 1               # what stands at `position` needs `needed` bytes, more than are at hand
    SCAN_BLANK = 2              # a blank fills the file from `position` on
    SCAN_INVALID = 3            # no valid record at `position`: `reason` is its RecordStatus
    SCAN_NEW_QUEUE = 4          # the record at `position` belongs to a queue that is not in the table
    SCAN_OUT_OF_SEQUENCE = 5    # its queue offset is not the next one of queue `slot`
    SCAN_BACK_IN_TIME = 6       # its store timestamp is behind that of a record before it
    SCAN_ENTRIES = 7            # the consume queue entry `wanted` of queue `slot` is not at hand
    SCAN_OTHER_ENTRY = 8        # that entry is not the one of the record
    SCAN_KEYS = 9               # index entries from `wanted` on are not at hand
    SCAN_OTHER_KEY = 10         # index entry `wanted` is not the next one of the record, or there is none

# What is known of one (topic, queue id).
cdef struct scan_queue:
    uint8_t[128] topic
    int topic_len
    int32_t queue_id
    uint32_t hash
    uint32_t link               # number of the next queue in the bucket + 1
    int64_t next                # queue offset that the next record must have, -1 when any will do
    int64_t first_offset        # queue offset and place of its first record here, -1 before there is one
    int64_t first_physical
    int64_t swallowed           # `swallowed` of the scan when its last record was seen
    int64_t missing             # place of its first record without a matching entry, -1: all have theirs
    const uint8_t* entries      # its consume queue entries [entries_begin, entries_end), counted in queue offsets
    int64_t entries_begin
    int64_t entries_end
    int64_t entries_limit       # no entry at or behind it is to be compared
    int64_t removed             # records below this queue offset were removed: they have no entries

cdef struct scan_state:
    scan_queue* queues
    uint32_t* buckets
    uint32_t bucket_mask
    uint32_t queue_count
    bint check_checksum
    bint follow_queues          # look at queue offsets and entries; without it the scan only walks
    bint in_time_order          # store timestamps may not go back at or above the watermark
    bint compare_tags           # an entry's tags code must be the record's
    bint compare_keys           # and the index must hold the record's keys next
    int64_t position
    int64_t limit
    int64_t file_end            # of the file that holds `position`
    int64_t watermark
    int64_t accepted            # the record here was judged: its queue offset and time are taken as they are
    int64_t accepted_entry      # and the same for its entry
    int64_t accepted_keys       # and the same for its index entries
    const uint8_t* keys         # index entries [keys_begin, keys_end), counted over all files; at most keys_limit
    int64_t keys_begin
    int64_t keys_end
    int64_t keys_limit
    int64_t keys_at             # the next one that is expected
    const int64_t* keys_files   # (number of the first entry, time the seconds count from) of each file
    int keys_file_count
    int keys_file               # the one that was looked at last
    int64_t swallowed           # bytes of damage stepped over
    int64_t physic_timestamp
    int64_t timed_end           # end of the last record whose store timestamp is at most `physic_timestamp`
    int64_t last_timestamp      # newest store timestamp
    int64_t last_record
    uint32_t last_checksum
    int64_t record_count
    int reason
    int64_t needed
    uint32_t slot
    int64_t wanted
    record_view v
