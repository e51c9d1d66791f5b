"""Times and lengths of time as people write them in options and addresses."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from cystore.clock import now_ms

UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000}
# A number from here on is ms since 1970 (1973 and later), a smaller one is seconds (up to the year 5138).
MS_FROM = 10**11


def moment_of(text: str) -> int:
    """A time in ms since 1970: ISO 8601 (UTC by default), seconds or ms since 1970, or an age: 90s, 15m, 2h, 7d, 2w.
    Raises ValueError, whose text lists the forms."""
    ago = re.fullmatch(r"([0-9]{1,9})([smhdw])", text)
    if ago:
        return now_ms() - int(ago[1]) * UNITS_MS[ago[2]]
    since_1970 = re.fullmatch(r"[0-9]{9,15}|[0-9]{9,11}\.[0-9]{1,9}", text)
    if since_1970:
        return int(text if "." not in text and int(text) >= MS_FROM else float(text) * 1000)
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return int(moment.timestamp() * 1000)
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text!r} is not a time: give 2026-01-31T12:00:00Z, 2026-01-31, 1769860800 or 1769860800000 since "
            "1970, or an age: 90s, 15m, "
            "2h, 7d, 2w"
        ) from None


def duration_of(text: str) -> int:
    """A length of time in ms: 90s, 15m, 2h, 7d, 2w. Raises ValueError."""
    number, unit = text[:-1], text[-1:]
    if not (number.isascii() and number.isdecimal() and len(number) < 10 and unit in UNITS_MS):
        raise ValueError(f"{text!r} is not a length of time: give 90s, 15m, 2h, 7d or 2w")
    return int(number) * UNITS_MS[unit]
