# One step of the walks over the part of the log that dispatch has not entered yet.

from libc.stdint cimport int64_t, uint8_t

from cystore._native.record.record_view cimport RECORD_BLANK, record_view
from cystore._native.record.window cimport WINDOW_GONE, log_window, window_behind, window_record


# Moves `at` over removed and blank bytes to the next record. RECORD_OK; WINDOW_BEYOND at the log's end;
# WINDOW_NEED_SEGMENT; or the RecordStatus of a damaged record at `at`.
cdef inline int tail_record(log_window* window, int64_t* at, record_view* v, const uint8_t** p) noexcept nogil:
    cdef int status
    while True:
        status = window_record(window, at[0], v, p)
        if status == WINDOW_GONE:
            at[0] = window_behind(window, at[0])
        elif status == RECORD_BLANK:
            at[0] = window.segments[window.latest].end
        else:
            return status
