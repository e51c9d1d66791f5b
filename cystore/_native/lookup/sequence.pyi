from cystore._native.record.window import LogWindow

def next_offsets(
    window: LogWindow,
    minimum: int,
    wrote: int,
    position: int,
    topic: bytes,
    queue_id: int,
    least: int,
    most: int,
) -> tuple[list[int], int]: ...
