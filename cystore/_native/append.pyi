from typing import Final

LATENCY_BOUNDS_MS: Final[tuple[int, ...]]
