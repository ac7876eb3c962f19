"""Calendar windows: days, weeks and months in time zones, with their changes of clocks."""

from datetime import UTC, date, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyed.errors import DefinitionError, TimestampError
from keyed.windows import CalendarProcessingTimeWindows, CalendarWindows

HOUR = 3_600_000


def ms(*parts, zone="UTC", fold=0):
    return int(datetime(*parts).replace(tzinfo=ZoneInfo(zone), fold=fold).timestamp()) * 1000


def window(assigner, time):
    (found,) = assigner.assign_windows("x", time, time)
    return found


@pytest.mark.parametrize(
    ("day", "hours"), [((2024, 3, 30), 24), ((2024, 3, 31), 23), ((2024, 10, 27), 25), ((2024, 10, 28), 24)]
)
def test_a_day_with_a_change_of_clocks_has_23_or_25_hours(day, hours):
    found = window(CalendarWindows.days("Europe/Berlin"), ms(*day, 12, zone="Europe/Berlin"))
    assert found.start == ms(*day, zone="Europe/Berlin")
    assert found.end - found.start == hours * HOUR


def test_both_of_two_equal_local_times_are_in_the_same_day():
    berlin = CalendarWindows.days("Europe/Berlin")
    first, second = (ms(2024, 10, 27, 2, 30, zone="Europe/Berlin", fold=fold) for fold in (0, 1))
    assert second - first == HOUR
    assert window(berlin, first) == window(berlin, second)


def test_a_day_without_midnight_starts_when_the_clocks_were_put_forward():
    # In São Paulo 2018-11-04 began at 01:00; in Beirut 2022-03-27 too.
    for zone, day in (("America/Sao_Paulo", (2018, 11, 4)), ("Asia/Beirut", (2022, 3, 27))):
        found = window(CalendarWindows.days(zone), ms(*day, 12, zone=zone))
        assert datetime.fromtimestamp(found.start / 1000, ZoneInfo(zone)).hour == 1
        assert found.end - found.start == 23 * HOUR
        assert window(CalendarWindows.days(zone), found.start - 1).end == found.start


def test_a_day_with_two_midnights_starts_at_the_first():
    # In Havana clocks go from 01:00 back to 00:00.
    found = window(CalendarWindows.days("America/Havana"), ms(2024, 11, 3, 12, zone="America/Havana"))
    assert found.start == ms(2024, 11, 3, zone="America/Havana", fold=0)
    assert found.end - found.start == 25 * HOUR


def test_a_day_that_a_zone_left_out_has_no_window():
    apia = CalendarWindows.days("Pacific/Apia")
    before = window(apia, ms(2011, 12, 29, 12, zone="Pacific/Apia"))
    after = window(apia, ms(2011, 12, 31, 12, zone="Pacific/Apia"))
    assert before.end == after.start
    assert after.end - after.start == 24 * HOUR


def test_weeks_and_months():
    monday = window(CalendarWindows.weeks("America/New_York"), ms(2013, 3, 10, 12, zone="America/New_York"))
    assert monday.start == ms(2013, 3, 4, zone="America/New_York")
    assert monday.end - monday.start == (7 * 24 - 1) * HOUR
    sunday = window(CalendarWindows.weeks("America/New_York", "sunday"), ms(2013, 3, 10, 12, zone="America/New_York"))
    assert sunday.start == ms(2013, 3, 10, zone="America/New_York")
    month = window(CalendarWindows.months("UTC"), ms(2024, 2, 29, 23, 59))
    assert (month.start, month.end) == (ms(2024, 2, 1), ms(2024, 3, 1))
    december = window(CalendarWindows.months("Asia/Kolkata"), ms(1969, 12, 31, 12, zone="Asia/Kolkata"))
    assert december.end == ms(1970, 1, 1, zone="Asia/Kolkata")


@given(
    st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1)),
    st.sampled_from(["UTC", "Europe/London", "America/Sao_Paulo", "Asia/Kathmandu", "Pacific/Apia", "Africa/Cairo"]),
    st.sampled_from(["days", "weeks", "months"]),
)
def test_windows_hold_their_time_and_leave_no_gap(time, zone, unit):
    assigner = getattr(CalendarWindows, unit)(zone)
    at = int(time.replace(tzinfo=UTC).timestamp() * 1000)
    found = window(assigner, at)
    assert found.start <= at < found.end
    assert window(assigner, found.start) == found == window(assigner, found.end - 1)
    assert window(assigner, found.end).start == found.end
    if unit == "days":
        local = datetime.fromtimestamp(at / 1000, ZoneInfo(zone)).date()
        assert found.start == assigner.start_of(local)


def test_processing_time_uses_the_other_clock():
    (found,) = CalendarProcessingTimeWindows.days("UTC").assign_windows("x", None, ms(2024, 1, 2, 5))
    assert found.start == ms(2024, 1, 2)
    assert not CalendarProcessingTimeWindows.days("UTC").event_time


def test_bad_parameters_are_refused():
    for make in (
        lambda: CalendarWindows.days("Europe/Nowhere"),
        lambda: CalendarWindows.days("../etc/passwd"),
        lambda: CalendarWindows.weeks("UTC", "Montag"),
    ):
        with pytest.raises(DefinitionError):
            make()
    with pytest.raises(TimestampError, match="years 1 to 9999"):
        window(CalendarWindows.days("UTC"), 2**62)


def test_the_start_of_a_date():
    assert CalendarWindows.days("Europe/Berlin").start_of(date(2024, 7, 1)) == ms(2024, 6, 30, 22)
