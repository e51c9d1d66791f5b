from array import array

def marks(
    folder: int,
    queue_ids: array[int] | memoryview,
    firsts: array[int] | memoryview,
    lasts: array[int] | memoryview,
    file_bytes: int,
) -> array[int]: ...
