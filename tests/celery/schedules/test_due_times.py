"""Goal: schedules are due when their definition says, also over changes of the clock. Method: known dates, and a search
of every minute beside (hypothesis)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.schedules import crontab, schedule, solar
from hypothesis import given
from hypothesis import strategies as st

from cystore.celery.schedules import due_times
from cystore.celery.schedules.due_times import ScheduleError, checked, next_after, next_later

BERLIN = ZoneInfo("Europe/Berlin")


def ms(*when: int, zone=BERLIN) -> int:
    return int(datetime(*when, tzinfo=zone).timestamp() * 1000)


def due(when, after_ms: int, count: int) -> list[str]:
    found = []
    for _ in range(count):
        after_ms = next_after(when, after_ms)
        found.append(f"{datetime.fromtimestamp(after_ms / 1000, BERLIN):%d %H:%M %Z}")
    return found


def test_a_time_that_the_clock_leaves_out_is_due_once_an_hour_later():
    when = {"crontab": "30 2 * * *", "timezone": "Europe/Berlin"}
    assert due(when, ms(2026, 3, 28, 0, 0), 3) == ["28 02:30 CET", "29 03:30 CEST", "30 02:30 CEST"]


def test_a_time_that_comes_twice_is_due_once():
    when = {"crontab": "30 2 * * *", "timezone": "Europe/Berlin"}
    assert due(when, ms(2026, 10, 24, 0, 0), 3) == ["24 02:30 CEST", "25 02:30 CEST", "26 02:30 CET"]


def test_every_half_hour_follows_real_time_over_a_change_of_the_clock():
    when = {"crontab": "*/30 * * * *", "timezone": "Europe/Berlin"}
    assert due(when, ms(2026, 3, 29, 1, 0), 3) == ["29 01:30 CET", "29 03:00 CEST", "29 03:30 CEST"]
    assert due(when, ms(2026, 10, 25, 1, 30), 5) == [
        "25 02:00 CEST", "25 02:30 CEST", "25 02:00 CET", "25 02:30 CET", "25 03:00 CET",
    ]  # fmt: skip


@given(
    minute=st.sets(st.integers(0, 59), min_size=1, max_size=3),
    hour=st.sets(st.integers(0, 23), min_size=1, max_size=3),
    weekday=st.sets(st.integers(0, 6), min_size=1), after=st.integers(0, 10**9),
)  # fmt: skip
def test_a_crontab_is_due_at_its_first_matching_minute(minute, hour, weekday, after):
    fields = [",".join(map(str, sorted(values))) for values in (minute, hour, weekday)]
    when = {"crontab": f"{fields[0]} {fields[1]} * * {fields[2]}", "timezone": "UTC"}
    found = datetime.fromtimestamp(next_after(when, after * 1000) / 1000, UTC)
    at = datetime.fromtimestamp(after, UTC).replace(second=0, microsecond=0) + timedelta(minutes=1)
    for day in range(9):
        dates = [(at + timedelta(days=day)).date()]
        times = [
            datetime(date.year, date.month, date.day, h, m, tzinfo=UTC)
            for date in dates
            for h in sorted(hour)
            for m in sorted(minute)
            if date.isoweekday() % 7 in weekday
        ]
        later = [time for time in times if time >= at]
        if later:
            assert found == later[0]
            return
    pytest.fail("no minute matches")


def test_intervals_and_single_times():
    assert next_after({"every_ms": 5000}, 7) == 5007
    assert next_later({"every_ms": 5000}, 1000, 17_000) == 21_000, "the grid stays"
    assert next_later({"every_ms": 5000}, 1000, 1000) == 6000
    assert next_after({"at_ms": 50}, 49) == 50 and next_after({"at_ms": 50}, 50) is None


def test_celerys_own_schedules_are_understood():
    app = Celery("test", set_as_current=False)
    app.conf.timezone = "Europe/Berlin"
    assert due_times.of_celery(app, 30) == {"every_ms": 30_000}
    assert due_times.of_celery(app, timedelta(minutes=5)) == {"every_ms": 300_000}
    assert due_times.of_celery(app, schedule(1.5)) == {"every_ms": 1500}
    night = due_times.of_celery(app, crontab(minute="30", hour="2", day_of_week="mon-fri"))
    assert night == {"crontab": "30 2 * * mon-fri", "timezone": "Europe/Berlin"}
    assert due_times.text_of(night) == "30 2 * * mon-fri Europe/Berlin"

    class Odd(schedule):
        pass

    with pytest.raises(ScheduleError, match="no schedules of the class Odd"):
        due_times.of_celery(app, Odd(3))


def test_the_sun():
    pytest.importorskip("ephem", reason="there is no ephem: pip install ephem")
    when = due_times.of_celery(Celery("test", set_as_current=False), solar("sunrise", 52.5, 13.4))
    first = next_after(when, ms(2026, 6, 1, 0, 0))
    assert ms(2026, 6, 1, 4, 0) < first < ms(2026, 6, 1, 6, 0)
    assert first < next_after(when, first) < first + 25 * 3_600_000


@pytest.mark.parametrize(
    ("when", "text"),
    [
        ({}, "a schedule has one of"), (None, "a schedule has one of"), ({"every_ms": 1, "at_ms": 2}, "has one of"),
        ({"every_ms": 5}, "every_ms must be a whole number from 1000 on"), ({"at_ms": 1.5}, "at_ms must be"),
        ({"crontab": "* *"}, "has 2 fields"), ({"crontab": "61 * * * *"}, "61"), ({"crontab": 5}, "must be texts"),
        ({"crontab": "0 0 31 2 *"}, "31"), ({"crontab": "* * * * *", "timezone": "Mars/A"}, "timezone 'Mars/A'"),
        ({"solar": ["dawn"]}, "an event, a latitude"), ({"every_ms": 1000, "often": 1}, "has no often"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_named(when, text):
    with pytest.raises(ScheduleError, match=text):
        checked(when)
