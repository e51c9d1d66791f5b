cdef enum ColumnsStatus:
    COLUMNS_LIMIT = 0       # `stop` is reached
    COLUMNS_FULL = 1        # the record at `position` does not fit into the columns
    COLUMNS_BLANK = 2       # a blank fills the file from `position` on
    COLUMNS_INVALID = 3     # no valid record at `position`: `reason` is its RecordStatus
