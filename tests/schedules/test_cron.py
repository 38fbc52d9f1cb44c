"""When slots are: against cronsim where it is right, against the clocks on the wall everywhere."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from kept.errors import Refused
from kept.schedules.cron import ALIASES, cron, every, next_cron, next_every
from kept.schedules.model import Cron, Every

SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)
# Moments at which clocks change, both ways; Apia left out a whole day.
CHANGES = {
    "Europe/Berlin": ["2026-03-29T01:00Z", "2026-10-25T01:00Z"],
    "America/Santiago": ["2026-04-05T03:00Z", "2026-09-06T04:00Z"],
    "Australia/Lord_Howe": ["2026-04-04T15:00Z", "2026-10-03T15:30Z"],
    "Pacific/Apia": ["2011-12-30T10:00Z"],
    "Africa/Casablanca": ["2026-02-15T02:00Z", "2026-03-22T02:00Z"],
    "UTC": ["2026-01-01T00:00Z"],
}
MOMENTS = [(zone, datetime.fromisoformat(at)) for zone, moments in CHANGES.items() for at in moments]


def number_or_range(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    between = st.tuples(number, number).map(lambda pair: f"{min(pair)}-{max(pair)}")
    stepped = st.tuples(between, st.integers(1, 7)).map(lambda pair: f"{pair[0]}/{pair[1]}")
    return st.lists(st.one_of(number.map(str), between, stepped), min_size=1, max_size=2).map(",".join)


def field(low: int, high: int) -> st.SearchStrategy[str]:
    return st.one_of(st.just("*"), st.integers(2, 30).map(lambda n: f"*/{n}"), number_or_range(low, high))


DAYS = st.sampled_from(["*", "*", "*", "1-15", "L", "4,5,25,29,30"])
WEEKDAYS = st.sampled_from(["*", "*", "*", "SUN", "1-5", "0#1", "5L", "7"])
MONTHS = st.sampled_from(["*", "*", "*/2", "3,4,10,12", "JAN-DEC"])
WALL_CLOCK = st.tuples(number_or_range(0, 59), number_or_range(0, 23), DAYS, MONTHS, WEEKDAYS).map(" ".join)
ANY = st.tuples(field(0, 59), field(0, 23), DAYS, MONTHS, WEEKDAYS).map(" ".join)
AROUND = st.integers(-36 * 3600, 30 * 3600).map(lambda n: timedelta(seconds=n))


def slots(rule: Cron, after: datetime, upto: datetime) -> list[datetime]:
    found, at = [], next_cron(rule, after)
    while at is not None and at <= upto:
        assert not found or at > found[-1], "slots go forward"
        found.append(at)
        at = next_cron(rule, at)
    return found


def shown_by_the_clocks(expression: str, zone: str, after: datetime, upto: datetime) -> list[datetime]:
    """Every minute at which the clocks of *zone* show a time of *expression*: by looking at each of them."""
    matching = CronSim(expression, after.replace(tzinfo=None))
    found, at = [], after.replace(second=0, microsecond=0)
    while (at := at + timedelta(minutes=1)) <= upto:
        shown = at.astimezone(ZoneInfo(zone)).replace(tzinfo=None)
        is_time = shown.minute in matching.minutes and shown.hour in matching.hours
        if is_time and shown.month in matching.months and matching.match_day(shown.date()):
            found.append(at)
    return found


def by_cronsim(expression: str, zone: str, after: datetime, upto: datetime) -> list[datetime]:
    """What cronsim itself says of an expression in five fields that names times of the day."""
    found: list[datetime] = []
    for at in CronSim(expression, (after - 26 * HOUR).astimezone(ZoneInfo(zone))):
        moment = at.astimezone(UTC)
        if moment > upto:
            return found
        if moment > after and moment not in found:
            found.append(moment)
    return found


@given(st.sampled_from(MOMENTS), WALL_CLOCK, AROUND)
def test_times_of_the_day_are_those_of_cronsim(change, expression, around):
    zone, moment = change
    after, upto = moment + around, moment + around + 30 * HOUR
    assert slots(Cron(expression, zone), after, upto) == by_cronsim(expression, zone, after, upto)


@settings(max_examples=60)
@given(st.sampled_from(MOMENTS), ANY, AROUND)
@example(("Australia/Lord_Howe", datetime(2026, 4, 4, 15, tzinfo=UTC)), "0 */2 * * *", -2 * HOUR)
@example(("Australia/Lord_Howe", datetime(2026, 4, 4, 15, tzinfo=UTC)), "45 * * * *", -2 * HOUR)
def test_with_a_star_slots_come_as_often_as_the_clocks_show_them(change, expression, around):
    assume(expression.startswith("*") or expression.split()[1].startswith("*"))
    zone, moment = change
    after, upto = moment + around, moment + around + 12 * HOUR
    assert slots(Cron(expression, zone), after, upto) == shown_by_the_clocks(expression, zone, after, upto)


@settings(max_examples=60)
@given(st.sampled_from(MOMENTS), ANY, st.sampled_from(["", "0 ", "30 ", "15,45 "]), AROUND, AROUND)
@example(("Australia/Lord_Howe", datetime(2026, 4, 4, 15, tzinfo=UTC)), "45 * * * *", "", -2 * HOUR, timedelta())
def test_slots_are_the_same_from_wherever_one_starts(change, expression, seconds, one, other):
    zone, moment = change
    rule = Cron(seconds + expression, zone)
    early, late = moment + min(one, other), moment + max(one, other)
    upto = late + 2 * HOUR
    assume((upto - early) < 12 * HOUR)
    assert [at for at in slots(rule, early, upto) if at > late] == slots(rule, late, upto)


@given(st.sampled_from(MOMENTS), WALL_CLOCK, AROUND)
def test_six_fields_follow_the_same_rule_as_five(change, expression, around):
    zone, moment = change
    after, upto = moment + around, moment + around + 30 * HOUR
    assert slots(Cron(f"0 {expression}", zone), after, upto) == slots(Cron(expression, zone), after, upto)


@given(st.sampled_from(MOMENTS), ANY, AROUND, st.integers(1, 999_999))
def test_a_fraction_of_a_second_changes_nothing(change, expression, around, fraction):
    zone, moment = change
    after = moment + around
    rule = Cron(expression, zone)
    assert next_cron(rule, after + timedelta(microseconds=fraction)) == next_cron(rule, after)


@pytest.mark.parametrize(
    ("expression", "zone", "after", "expected"),
    [
        ("30 2 * * *", "Europe/Berlin", "2026-03-29T00:00Z", ["2026-03-29T01:00Z", "2026-03-30T00:30Z"]),
        ("30 2 * * *", "Europe/Berlin", "2026-10-25T00:00Z", ["2026-10-25T00:30Z", "2026-10-26T01:30Z"]),
        ("30 2 * * *", "Europe/Berlin", "2026-10-25T01:10Z", ["2026-10-26T01:30Z"]),
        ("15 30 2 * * *", "Europe/Berlin", "2026-03-29T00:00Z", ["2026-03-29T01:00Z", "2026-03-30T00:30:15Z"]),
        ("0 0 * * *", "America/Santiago", "2026-09-05T12:00Z", ["2026-09-06T04:00Z", "2026-09-07T03:00Z"]),
        ("30 23 * * *", "America/Santiago", "2026-04-04T20:00Z", ["2026-04-05T02:30Z", "2026-04-06T03:30Z"]),
        ("10 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00Z", ["2026-10-03T15:30Z", "2026-10-04T15:10Z"]),
        ("45 1 * * *", "Australia/Lord_Howe", "2026-04-04T12:00Z", ["2026-04-04T14:45Z", "2026-04-05T15:15Z"]),
        ("0 12 * * *", "Pacific/Apia", "2011-12-29T23:00Z", ["2011-12-30T10:00Z", "2011-12-30T22:00Z"]),
        ("30 2 * * *", "Africa/Casablanca", "2026-03-22T00:00Z", ["2026-03-22T02:00Z", "2026-03-23T01:30Z"]),
        ("*/30 * * * *", "Europe/Berlin", "2026-10-25T00:30Z", ["2026-10-25T01:00Z", "2026-10-25T01:30Z"]),
        ("30 * * * *", "Europe/Berlin", "2026-10-25T00:00Z", ["2026-10-25T00:30Z", "2026-10-25T01:30Z"]),
    ],
)
def test_a_time_that_is_left_out_comes_at_the_change_and_one_that_is_shown_twice_once(
    expression, zone, after, expected
):
    rule, at, found = cron(expression, tz=zone), datetime.fromisoformat(after), []
    for _ in expected:
        at = next_cron(rule, at)
        found.append(at)
    assert found == [datetime.fromisoformat(each) for each in expected]


@pytest.mark.parametrize("alias", sorted(ALIASES))
@pytest.mark.parametrize("spell", [str.lower, str.upper])
def test_an_alias_is_its_expression(alias, spell):
    at = datetime(2026, 5, 5, 5, 5, tzinfo=UTC)
    assert next_cron(cron(spell(alias)), at) == next_cron(cron(ALIASES[alias]), at)


def test_a_leap_day_is_found_years_ahead_and_a_rule_ends_with_the_calendar():
    leap = cron("0 0 29 2 *", tz="Europe/Berlin")
    assert next_cron(leap, datetime(2097, 1, 1, tzinfo=UTC)) == datetime(2104, 2, 28, 23, tzinfo=UTC)
    for expression in ("0 0 29 2 *", "* * 29 2 *"):
        assert next_cron(Cron(expression, "UTC"), datetime(9996, 3, 1, tzinfo=UTC)) is None


@given(st.integers(1_000_000, 10**12), st.integers(0, 10**9), st.integers(0, 10**15))
def test_an_interval_keeps_its_phase(micros, anchor, later):
    rule, anchor = Every(timedelta(microseconds=micros)), datetime(2010, 1, 1, tzinfo=UTC) + anchor * SECOND
    after = anchor + timedelta(microseconds=later)
    slot = next_every(rule, anchor, after)
    assert after < slot <= after + rule.period
    assert (slot - anchor) % rule.period == timedelta()
    assert next_every(rule, anchor, anchor - SECOND) == anchor


@given(st.text(alphabet="0123456789*/,-#LWSUNMONJAN ?@", max_size=40))
@settings(max_examples=300)
def test_whatever_somebody_writes_is_a_rule_that_comes_or_refused_by_name(text):
    try:
        rule = cron(text)
    except Refused as error:
        assert error.field == "cron"
    else:
        assert next_cron(rule, datetime(2026, 1, 1, tzinfo=UTC)) is not None


@pytest.mark.parametrize(
    "expression",
    ["", "* * * *", "* * * * * * *", "60 * * * *", "0 0 31 2 *", "0 0 0 * *", "@never", "*/0 * * * *",
     "5-1 * * * *", "0 0 * * 8", "a b c d e", "0 0 1 1 * 2026", "*" * 300],
)  # fmt: skip
def test_an_expression_that_never_comes_is_refused(expression):
    with pytest.raises(Refused, match="cron:") as refusal:
        cron(expression)
    assert refusal.value.field == "cron"


@pytest.mark.parametrize(
    "zone", ["Mars/Olympus", "", "../etc/passwd", "/etc/localtime", "Europe", "Europe/Berlin\0", "é"]
)
def test_a_zone_that_is_not_known_is_refused(zone):
    for make in (lambda: cron("@daily", tz=zone), lambda: every("1h", tz=zone)):
        with pytest.raises(Refused, match="tz:") as refusal:
            make()
        assert refusal.value.field == "tz"


@pytest.mark.parametrize("period", ["0s", "999ms", "-1s", timedelta(seconds=-5), "11y", "4000d", "soon"])
def test_an_interval_shorter_than_a_second_or_longer_than_ten_years_is_refused(period):
    with pytest.raises(Refused, match="every:") as refusal:
        every(period)
    assert refusal.value.field == "every"


@pytest.mark.parametrize(("make", "told"), [(lambda: cron(5), "cron:"), (lambda: every(60), "every:"),
                                            (lambda: cron("@daily", tz=None), "tz:")])  # fmt: skip
def test_another_type_is_refused_by_name(make, told):
    with pytest.raises(TypeError, match=told):
        make()


def test_the_first_slots_of_a_rule_with_seconds_are_a_second_apart():
    rule = cron("*/1 * * * * *")
    start = datetime(2026, 1, 1, tzinfo=UTC)
    assert slots(rule, start, start + 5 * SECOND) == [start + n * SECOND for n in range(1, 6)]
    assert list(islice(slots(cron("0-59 0-59 0-23 * * *"), start, start + 3 * SECOND), 3)) == [
        start + n * SECOND for n in range(1, 4)
    ]
