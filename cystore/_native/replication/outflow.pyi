from typing import final

from cystore._native.memory.control import Control

@final
class Outflow:
    next: int
    at: int
    left: int
    acknowledged: int
    file_base: int
    frame_bytes: int
    epoch: int
    confirms: bool
    confirmed: int
    heard_s: float
    sent_s: float
    socket: int
    file: int
    def __new__(cls, socket: int, frame_bytes: int, now_s: float) -> Outflow: ...
    def rest(self) -> bytes: ...

def relay(control: Control, key: int, seen: int, wait_ms: int) -> int: ...
def serve(
    control: Control,
    slaves: list[Outflow],
    bell: int,
    listener: int,
    file_bytes: int,
    wait_ms: int,
    turn_ms: int,
    key: int | None,
    flushed: int | None = None,
) -> None: ...
