"""What becomes of slots: whatever moments it is looked at, each of them is decided on once."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from kept.errors import Refused
from kept.jobs.door import Request
from kept.schedules import rules
from kept.schedules.book import define
from kept.schedules.cron import cron, every
from kept.schedules.model import Decision, Standing, Terms, Timetable
from kept.schedules.rules import MOST_COUNTED, ON_TIME, check_table, check_terms, decide, latest, next_slot, slots

START = datetime(2026, 3, 28, 12, tzinfo=UTC)
SECOND, MINUTE, HOUR, DAY = (timedelta(seconds=n) for n in (1, 60, 3600, 86400))
RULES = [every("7m"), every("90s"), cron("*/20 * * * *"), cron("30 2 * * *", tz="Europe/Berlin"), cron("@daily")]
TERMS = st.one_of(
    st.builds(Terms, misfire=st.sampled_from(["skip", "once"]), overlap=st.sampled_from(["allow", "skip", "queue"])),
    st.builds(Terms, within=st.sampled_from([MINUTE, HOUR]), overlap=st.sampled_from(["allow", "skip", "queue"])),
    st.builds(
        Terms,
        misfire=st.just("all"),
        most=st.integers(1, 5),
        within=st.sampled_from([None, HOUR]),
        overlap=st.just("allow"),
    ),
)
LOOKS = st.lists(st.tuples(st.sampled_from([0, 1, 59, 61, 420, 3600, 7200, 86400, -3600]), st.booleans()), max_size=20)


def table_of(rule=RULES[0], **given) -> Timetable:
    return Timetable(rule=rule, anchor=START, **given)


def standing(rule=RULES[0], terms: Terms | None = None, **given) -> Standing:
    return Standing(
        id=1, revision=1, name="it", table=table_of(rule), terms=terms or Terms(), **{"last_slot": START} | given
    )


def after(schedule: Standing, decision: Decision) -> Standing:
    """Where a schedule stands when *decision* has been carried out."""
    return structs.replace(schedule, last_slot=decision.last_slot, queued_slot=decision.queued_slot)


# --- decisions, one after the other


@settings(max_examples=300)
@given(st.sampled_from(RULES), TERMS, LOOKS)
def test_over_any_looks_no_slot_is_decided_on_twice_and_each_is_accounted_for(rule, terms, looks):
    schedule, now, furthest = standing(rule, terms), START, START
    final: dict[datetime, str] = {}
    missed, waiting = 0, None
    for seconds, busy in looks:
        now += seconds * SECOND
        furthest = max(furthest, now)
        decision = decide(structs.replace(schedule, busy=busy), now)
        for slot in decision.slots:
            assert slot.at not in final or slot.at == waiting, "decided on twice"
            final[slot.at] = slot.state
            if slot.state == "missed":
                missed += slot.missed - 1  # it counts itself
            else:
                missed += slot.missed
            assert slot.state != "fired" or slot.due_at >= now
        assert decision.last_slot >= schedule.last_slot
        assert decision.next_slot is None or decision.next_slot > max(decision.last_slot, now - DAY)
        assert decision.look_at is None or decision.look_at > now or decision.last_slot > now
        waiting = decision.queued_slot
        assert [at for at, state in final.items() if state == "queued"] == ([] if waiting is None else [waiting])
        schedule = after(schedule, decision)
    all_slots = list(slots(schedule.table, START, furthest))
    undecided = [at for at in all_slots if at > schedule.last_slot]
    assert set(final) <= set(all_slots)
    assert undecided == []
    if len(all_slots) < MOST_COUNTED:
        assert len(final) + missed == len(all_slots)


@given(st.sampled_from(RULES), TERMS, st.integers(0, 5 * 86400), st.booleans())
def test_a_second_look_at_the_same_moment_finds_nothing_to_decide(rule, terms, seconds, busy):
    schedule = structs.replace(standing(rule, terms), busy=busy)
    first = decide(schedule, START + seconds * SECOND)
    again = decide(structs.replace(after(schedule, first), busy=True), START + seconds * SECOND)
    assert again.slots == ()
    assert again.last_slot == first.last_slot


@given(st.sampled_from(RULES), TERMS, st.integers(1, 5 * 86400))
def test_a_clock_that_was_set_back_decides_on_nothing(rule, terms, seconds):
    schedule = standing(rule, terms, last_slot=START)
    decision = decide(schedule, START - seconds * SECOND)
    assert (decision.slots, decision.last_slot) == ((), START)
    assert decision.next_slot == next_slot(schedule.table, START)


def states(decision: Decision) -> list[tuple[float, str, int]]:
    """Minutes after the start, state, and how many went by unfired before it."""
    return [((slot.at - START) / MINUTE, slot.state, slot.missed) for slot in decision.slots]


def test_once_fires_the_last_slot_of_a_downtime():
    assert states(decide(standing(), START + 30 * MINUTE)) == [(28, "fired", 3)]


def test_skip_fires_only_a_slot_that_is_on_time():
    skipping = standing(terms=Terms(misfire="skip"))
    assert states(decide(skipping, START + 28 * MINUTE + ON_TIME)) == [(28, "fired", 3)]
    assert states(decide(skipping, START + 28 * MINUTE + ON_TIME + SECOND)) == [(28, "missed", 4)]


def test_all_fires_as_many_as_it_may_the_latest_ones():
    making_up = standing(terms=Terms(misfire="all", most=2, overlap="allow"))
    assert states(decide(making_up, START + 30 * MINUTE)) == [(21, "fired", 2), (28, "fired", 0)]


@pytest.mark.parametrize(("within", "expected"), [(5, [(28, "fired", 3)]), (1, [(28, "missed", 4)])])
def test_a_window_bounds_what_is_made_up_for(within, expected):
    bounded = standing(terms=Terms(within=within * MINUTE))
    assert states(decide(bounded, START + 30 * MINUTE)) == expected


def test_an_earlier_job_that_lives_makes_skip_pass_by_and_allow_fire():
    for overlap, state in (("skip", "skipped"), ("allow", "fired")):
        schedule = standing(terms=Terms(overlap=overlap), busy=True)
        assert states(decide(schedule, START + 7 * MINUTE)) == [(7, state, 0)]


def test_one_slot_waits_in_line_the_first_that_came():
    schedule = standing(terms=Terms(overlap="queue"), busy=True)
    first = decide(schedule, START + 7 * MINUTE)
    assert states(first) == [(7, "queued", 0)]
    assert first.look_at == START + 7 * MINUTE + SECOND
    second = decide(after(schedule, first), START + 14 * MINUTE)
    assert states(second) == [(14, "skipped", 0)]
    third = decide(structs.replace(after(schedule, second), busy=False), START + 21 * MINUTE)
    assert states(third) == [(7, "fired", 0), (21, "queued", 0)]


@pytest.mark.parametrize(
    ("overlap", "busy", "expected"),
    [
        ("allow", True, [(7, "fired", 0), (14, "fired", 0)]),
        ("skip", False, [(7, "fired", 0), (14, "skipped", 0)]),
        ("skip", True, [(7, "skipped", 0), (14, "skipped", 0)]),
    ],
)
def test_a_slot_left_in_line_by_an_edit_is_decided_on(overlap, busy, expected):
    at = START + 7 * MINUTE
    schedule = standing(terms=Terms(overlap=overlap), last_slot=at, queued_slot=at, busy=busy)
    decision = decide(schedule, START + 14 * MINUTE)
    assert states(decision) == expected
    assert decision.queued_slot is None
    assert decision.look_at == START + 21 * MINUTE


def test_jitter_delays_a_job_by_less_than_it_says_and_by_the_same_whoever_asks():
    schedule = standing(terms=Terms(jitter=5 * MINUTE))
    (slot,) = decide(schedule, START + 7 * MINUTE).slots
    assert slot.at <= slot.due_at < slot.at + 5 * MINUTE
    assert decide(schedule, START + 7 * MINUTE).slots == (slot,)


# --- cost


TEN_YEARS = 3650 * DAY


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[datetime]:
    """Every question for a next slot by the rule alone."""
    asked: list[datetime] = []
    ask = rules._next

    def counted(table, after):
        asked.append(after)
        return ask(table, after)

    monkeypatch.setattr(rules, "_next", counted)
    return asked


@pytest.mark.parametrize("rule", [every("1s"), cron("* * * * * *"), cron("@yearly"), every("1h")])
@pytest.mark.parametrize(
    ("given", "most"),
    [
        ({}, 1),
        ({}, 100),
        ({"ends_at": START + 5 * 365 * DAY}, 1),
        ({"ends_at": START + 5 * 365 * DAY}, 100),
        ({"blackout": ("2035-03-01..2036-03-30",)}, 1),
        ({"blackout": ("2036-03-22..2036-03-30",)}, 100),
    ],
)
def test_ten_years_of_downtime_cost_no_more_than_what_is_made_up_for(rule, given, most, calls):
    terms = Terms(misfire="all", most=most, overlap="allow")
    schedule = structs.replace(standing(rule, terms), table=table_of(rule, **given))
    decision = decide(schedule, START + TEN_YEARS)
    assert len(calls) < 5000 + 60 * most, len(calls)  # a day left out is a call
    fired = [slot.at for slot in decision.slots if slot.state == "fired"]
    assert fired == sorted(set(fired))
    assert len(fired) == most or rule == cron("@yearly")
    calls.clear()
    assert next_slot(schedule.table, fired[-1]) == decision.next_slot
    end = given.get("ends_at", START + TEN_YEARS)
    assert end - fired[-1] < 800 * DAY


@given(st.sampled_from(RULES), st.integers(0, 20 * 86400), st.integers(1, 7))
def test_the_latest_slots_are_the_last_of_all(rule, seconds, most):
    table = table_of(rule, blackout=("2026-03-30..2026-04-02", "2026-04-10"), ends_at=START + 15 * DAY)
    upto = START + seconds * SECOND
    assert latest(table, START, upto, most) == list(slots(table, START, upto))[-most:]


# --- starts, ends, days left out


def test_an_interval_begins_with_its_start_and_no_slot_is_after_its_end():
    table = Timetable(rule=every("10m"), anchor=START, starts_at=START, ends_at=START + 20 * MINUTE)
    assert list(slots(table, START - DAY, START + DAY)) == [START + n * MINUTE for n in (0, 10, 20)]


def test_a_cron_rule_begins_after_its_start_if_that_is_no_slot():
    table = Timetable(rule=cron("5 * * * *"), anchor=START, starts_at=START)
    assert next_slot(table, START - DAY) == START + 5 * MINUTE


def test_days_left_out_are_those_of_the_zone():
    table = table_of(cron("0 */6 * * *", tz="America/Santiago"), blackout=("2026-04-05",))
    found = list(slots(table, datetime(2026, 4, 4, 12, tzinfo=UTC), datetime(2026, 4, 6, 12, tzinfo=UTC)))
    assert [at.isoformat()[:13] for at in found] == ["2026-04-04T15", "2026-04-04T21", "2026-04-06T04", "2026-04-06T10"]


def test_a_day_is_left_out_every_year_or_in_one():
    every_year = table_of(cron("0 9 25 12 *"), blackout=("12-25",))
    once = table_of(cron("0 9 25 12 *"), blackout=("2026-12-25",))
    assert next_slot(once, START) == datetime(2027, 12, 25, 9, tzinfo=UTC)
    assert next_slot(every_year, START) is None


@pytest.mark.parametrize("rule", [every("1s"), cron("* * * * * *"), cron("0 9 * * 1-5", tz="Europe/Berlin")])
def test_when_every_day_is_left_out_the_search_ends(rule, calls):
    table = table_of(rule, blackout=("2000-01-01..2999-12-31",))
    assert next_slot(table, START) is None
    assert len(calls) <= rules.BLACKED_OUT
    with pytest.raises(Refused, match="never fires"):
        check_table(table, START)


def test_a_schedule_that_ended_is_looked_at_no_more():
    table = table_of(ends_at=START + 10 * MINUTE)
    decision = decide(structs.replace(standing(), table=table), START + DAY)
    assert states(decision) == [(7, "fired", 0)]
    assert (decision.next_slot, decision.look_at) == (None, None)


# --- bad input


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"start": START, "end": START}, "end"),
        ({"start": START, "end": START - DAY}, "end"),
        ({"start": START.replace(tzinfo=None)}, "start"),
        ({"end": START.replace(year=9999)}, "end"),
        ({"blackout": ["tomorrow"]}, "blackout"),
        ({"blackout": ["2026-02-30"]}, "blackout"),
        ({"blackout": ["02-30"]}, "blackout"),
        ({"blackout": ["2026-12-31..2026-12-24"]}, "blackout"),
        ({"blackout": ["2026-12-24.."]}, "blackout"),
        ({"blackout": ["..2026-12-24"]}, "blackout"),
        ({"blackout": ["12-24..12-26"]}, "blackout"),
        ({"blackout": ["٢٠٢٦-١٢-٢٤"]}, "blackout"),
        ({"blackout": [f"{n // 12 % 9000 + 1000}-01-01" for n in range(1001)]}, "blackout"),
        ({"jitter": "-1s"}, "jitter"),
        ({"jitter": "soon"}, "jitter"),
        ({"misfire": "twice"}, "misfire"),
        ({"misfire": None}, "misfire"),
        ({"misfire": "all", "most": 3}, "misfire"),
        ({"misfire": "all", "overlap": "allow"}, "most"),
        ({"misfire": "all", "overlap": "allow", "most": 0}, "most"),
        ({"misfire": "all", "overlap": "allow", "most": 1001}, "most"),
        ({"most": 3}, "most"),
        ({"within": "0s"}, "within"),
        ({"within": "1h", "misfire": "skip"}, "within"),
        ({"overlap": "replace"}, "overlap"),
    ],
)
def test_bad_terms_are_refused_and_the_field_is_named(asked, field):
    with pytest.raises(Refused) as refusal:
        check_terms(**asked)
    assert refusal.value.field == field


@pytest.mark.parametrize(
    "asked",
    [
        {"start": "2026-01-01"},
        {"end": date(2026, 1, 1)},
        {"blackout": "2026-12-24"},
        {"blackout": [START]},
        {"blackout": None},
        {"blackout": date(2026, 12, 24)},
        {"jitter": 5},
        {"within": 5},
        {"misfire": "all", "overlap": "allow", "most": True},
        {"misfire": "all", "overlap": "allow", "most": 2.5},
    ],
    ids=str,
)
def test_another_type_is_refused_and_the_field_is_named(asked):
    with pytest.raises(TypeError, match=f"^{list(asked)[-1]}: "):
        check_terms(**asked)


class Asks:
    """A task with its arguments."""

    def __init__(self, **options: object) -> None:
        self.request = Request(**{"queue": "default", "task": "send", "payload": "{}"} | options)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"name": "two words"}, "schedule"),
        ({"name": ""}, "schedule"),
        ({"name": "n" * 201}, "schedule"),
        ({"owner": "o" * 201}, "owner"),
        ({"owner": "a\0b"}, "owner"),
        ({"description": "d" * 2001}, "description"),
        ({"description": "\ud800"}, "description"),
        ({"call": Asks(key="a")}, "key"),
        ({"call": Asks(order_key="a")}, "order_key"),
        ({"overlap": "never"}, "overlap"),
    ],
)
def test_a_bad_definition_is_refused_and_the_field_is_named(given, field):
    with pytest.raises(Refused) as refusal:
        define(**{"name": "it", "rule": every("1h"), "call": Asks()} | given)
    assert refusal.value.field == field


@pytest.mark.parametrize(
    ("given", "told"),
    [({"rule": "1h"}, "rule:"), ({"call": "send"}, "call:"), ({"name": 7}, "schedule:"), ({"owner": 7}, "owner:")],
)
def test_a_definition_of_another_type_is_refused_and_the_field_is_named(given, told):
    with pytest.raises(TypeError, match=told):
        define(**{"name": "it", "rule": every("1h"), "call": Asks()} | given)
