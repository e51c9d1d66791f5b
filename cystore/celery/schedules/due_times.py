"""When a schedule is due: the next time after a given one, with time zones and their changes.

A schedule is kept as a map of JSON:

| map | due |
|---|---|
| `{"every_ms": 30000}` | each 30 s, counted from the last due time |
| `{"crontab": "30 2 * * *", "timezone": "Europe/Berlin"}` | local times; all five fields match |
| `{"solar": ["sunrise", 52.5, 13.4]}` | at this event of the sun (Celery's `solar`, needs the package ephem) |
| `{"at_ms": 1800000000000}` | once |

A local time that a change of the clock leaves out (02:30 in spring) is due as long after midnight as on other days, by
the clock as it was: at 03:30. One that comes twice is due the first time. With `*` as the hour a crontab follows real
time instead: nothing is left out, nothing waits an hour. (So do the crons of Linux.)
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

from celery import Celery
from celery.schedules import crontab, maybe_schedule, schedule, solar

DAYS_MOST = (
    366 * 8 + 3
)  # a 29 February that is a Monday comes again within 28 years; such a schedule is refused
EVERY_MS_LEAST = 1000
KINDS = ("every_ms", "crontab", "solar", "at_ms")
FIELDS = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")
WHOLE_DAY_H = 24
WHOLE_DAY = set(range(WHOLE_DAY_H))
CALENDAR_MS = 250_000_000_000_000  # in the year 9892
CHANGE_H = 3  # no change of a clock is as long


class ScheduleError(ValueError):
    """A schedule that makes no sense, or one of a kind that the store does not keep; the text names the field."""


def of_celery(app: Celery, given: Any) -> dict[str, Any]:
    """The map of a schedule of Celery: a number of seconds, a timedelta, `schedule`, `crontab`, `solar`. Raises
    ScheduleError for any other class."""
    known = maybe_schedule(given, app=app)
    if type(known) is crontab:
        words = [str(getattr(known, f"_orig_{field}")).replace(" ", "") for field in FIELDS]
        return checked({"crontab": " ".join(words), "timezone": str(app.timezone)})
    if type(known) is solar:
        return checked({"solar": [known.event, known.lat, known.lon]})
    if type(known) is schedule:
        return checked({"every_ms": round(known.run_every.total_seconds() * 1000)})
    raise ScheduleError(
        f"the store keeps no schedules of the class {type(given).__name__}: leave it to Celery's beat"
    )


def shaped(when: Any) -> dict[str, Any]:
    """The map, if its fields and their types are those of a schedule. Raises ScheduleError."""
    if not isinstance(when, Mapping) or len([kind for kind in KINDS if kind in when]) != 1:
        raise ScheduleError(f"a schedule has one of {', '.join(KINDS)}, not {when!r}")
    known = dict(when)
    if "every_ms" in known:
        _whole("every_ms", known["every_ms"], EVERY_MS_LEAST)
    elif "at_ms" in known:
        _whole("at_ms", known["at_ms"], 0)
    elif "crontab" in known:
        known["timezone"] = known.get("timezone", "UTC")
        if not isinstance(known["crontab"], str) or not isinstance(known["timezone"], str):
            raise ScheduleError("crontab and timezone must be texts")
    elif not isinstance(known["solar"], (list, tuple)) or len(known["solar"]) != 3:
        raise ScheduleError(f"solar must be an event, a latitude and a longitude, not {known['solar']!r}")
    unknown = known.keys() - {*KINDS, "timezone"}
    if unknown:
        raise ScheduleError(f"a schedule has no {', '.join(sorted(map(str, unknown)))}")
    return known


def checked(when: Any) -> dict[str, Any]:
    """The map, if it is that of a schedule that is due at some time. Raises ScheduleError."""
    known = shaped(when)
    if "crontab" in known and next_after(known, 0) is None:
        raise ScheduleError(f"crontab {known['crontab']!r} is never due")
    if "solar" in known:
        _solar(tuple(known["solar"]))
    return known


def _whole(field: str, value: Any, least: int) -> None:
    if type(value) is not int or not least <= value < 1 << 53:
        raise ScheduleError(f"{field} must be a whole number from {least} on, not {value!r}")


@lru_cache(maxsize=1024)
def _fields(text: str) -> crontab:
    words = text.split()
    if len(words) != len(FIELDS):
        raise ScheduleError(
            f"crontab {text!r} has {len(words)} fields, not minute, hour, day, month, weekday"
        )
    try:
        return crontab(**dict(zip(FIELDS, words, strict=True)))
    except Exception as error:  # Celery's parser raises several kinds
        raise ScheduleError(f"crontab {text!r}: {error}") from error


@lru_cache(maxsize=256)
def _zone(name: str) -> tzinfo:
    try:
        return UTC if name == "UTC" else ZoneInfo(name)
    except (ValueError, OSError, KeyError) as error:
        raise ScheduleError(f"timezone {name!r} is not known here: {error}") from error


@lru_cache(maxsize=256)
def _solar(place: tuple[Any, ...]) -> solar:
    try:
        return solar(*place)
    except Exception as error:  # also if the package ephem is missing
        raise ScheduleError(f"solar {list(place)!r}: {error}") from error


def next_after(when: Mapping[str, Any], after_ms: int) -> int | None:
    """The first due time after `after_ms`, ms since 1970; None if there is none."""
    if "every_ms" in when:
        return after_ms + int(when["every_ms"])
    if "at_ms" in when:
        return int(when["at_ms"]) if when["at_ms"] > after_ms else None
    if "solar" in when:
        return _next_of_the_sun(_solar(tuple(when["solar"])), after_ms)
    return _next_of_crontab(_fields(when["crontab"]), _zone(when.get("timezone", "UTC")), after_ms)


def next_later(when: Mapping[str, Any], due_ms: int, now_ms: int) -> int | None:
    """The first due time after now of a schedule that was due at `due_ms`."""
    if "every_ms" in when:
        every_ms = int(when["every_ms"])
        return due_ms + (max(now_ms - due_ms, 0) // every_ms + 1) * every_ms
    return next_after(when, now_ms)


def _next_of_the_sun(known: solar, after_ms: int) -> int:
    after = datetime.fromtimestamp(after_ms / 1000, UTC)
    known.nowfun = lambda: after
    left: timedelta = known.remaining_estimate(after)
    return after_ms + max(round(left.total_seconds() * 1000), 1)


def _next_of_crontab(known: crontab, zone: tzinfo, after_ms: int) -> int | None:
    after = datetime.fromtimestamp(after_ms / 1000, zone)
    for number in range(DAYS_MOST):
        day = after.date() + timedelta(days=number)
        if (
            day.month in known.month_of_year
            and day.day in known.day_of_month
            and day.isoweekday() % 7 in known.day_of_week
        ):
            found = _first_of_day(known, zone, day, after_ms, 0 if number else after.hour - CHANGE_H)
            if found is not None:
                return found
    return None


def _first_of_day(known: crontab, zone: tzinfo, day: date, after_ms: int, begin_h: int) -> int | None:
    """The first due time of a local day that is later; hours before `begin_h` are over."""
    follows = set(known.hour) == WHOLE_DAY
    found: list[int] = []
    last_h = WHOLE_DAY_H
    for hour in sorted(known.hour):
        if hour > last_h:
            break
        if hour >= begin_h:
            for minute in known.minute:
                found += [ms for ms in _moments(zone, day, hour, minute, follows=follows) if ms > after_ms]
            if found:
                last_h = min(last_h, hour + CHANGE_H)
    return min(found, default=None)


def _moments(zone: tzinfo, day: date, hour: int, minute: int, *, follows: bool) -> Iterator[int]:
    """The moments of a local time, ms; `follows` real time, or is due once."""
    local = datetime(day.year, day.month, day.day, hour, minute, tzinfo=zone)
    moment = local.astimezone(UTC)
    exists = moment.astimezone(zone).replace(tzinfo=None) == local.replace(tzinfo=None)
    if exists or not follows:
        yield _ms(moment)
    if follows and exists:
        again = local.replace(fold=1).astimezone(UTC)
        if again != moment:
            yield _ms(again)


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def text_of(when: Mapping[str, Any]) -> str:
    """A schedule for people."""
    if max(when.get("every_ms", 0), when.get("at_ms", 0)) > CALENDAR_MS:  # another program wrote it
        return json.dumps(dict(when))
    if "every_ms" in when:
        return f"every {timedelta(milliseconds=when['every_ms'])}"
    if "at_ms" in when:
        return f"once, at {datetime.fromtimestamp(when['at_ms'] / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    if "solar" in when:
        return "{} at {}, {}".format(*when["solar"])
    return f"{when['crontab']} {when.get('timezone', 'UTC')}"
