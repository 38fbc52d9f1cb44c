"""What counts, who may, how long: decided without a database."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kept.errors import Misconfigured, Refused
from kept.runners import rules
from kept.runners.model import Counted, Failed, Lost, Postponed, Stopped

finite = st.integers(-(2**62), 2**62) | st.floats(-1e18, 1e18)
names = st.text(st.characters(categories=("L", "N")), min_size=1, max_size=50)


@given(st.dictionaries(names, finite, max_size=50))
def test_numbers_by_name_are_counters_as_they_are(counters):
    assert rules.counters_of(counters, "sweep") == counters


def test_nothing_counts_nothing_and_a_number_counts_items():
    assert rules.counters_of(None, "sweep") == {}
    assert rules.counters_of(7, "sweep") == {"items": 7}
    assert rules.counters_of(2.5, "sweep") == {"items": 2.5}


@pytest.mark.parametrize(
    "odd",
    [
        *(True, "7", [1], object(), {"a": "1"}, {"a": True}, {1: 2}, {"": 1}, {"a\nb": 1}, {"a" * 101: 1}),
        *(float("nan"), float("inf"), 2**63, {"a": float("nan")}, {f"n{n}": 1 for n in range(51)}, b"1"),
    ],
)
def test_anything_else_is_an_error_that_names_the_runner(odd):
    with pytest.raises(Refused, match="'sweep'"):
        rules.counters_of(odd, "sweep")


@given(st.dictionaries(names, finite, max_size=5))
def test_a_pass_is_idle_if_and_only_if_all_its_counters_are_zero(counters):
    ending = rules.ending(Counted(counters))
    assert (ending.state == "idle") == all(value == 0 for value in counters.values())


def test_every_outcome_has_an_ending_and_a_lost_lease_has_none():
    assert rules.ending(Postponed(5.0)).state == "idle"
    assert rules.ending(Failed("boom", "it", retryable=True, after=3.0)).reason == "retryable"
    assert rules.ending(Failed("boom", "it", retryable=False)).reason == "fatal"
    assert rules.ending(Failed("boom", "it")).reason is None
    assert rules.ending(Stopped("shutdown")).state == "cancelled"
    assert rules.ending(Lost()) is None


# --- names and choice


@pytest.mark.parametrize(
    "name",
    [
        *("reclaim", "promote", "jobs", "upkeep", "schedules", "outbox", "figures", "occurrences"),
        *("sweep", "", "a b", "ä"),
    ],
)
def test_a_name_that_is_taken_ours_or_odd_is_refused(name):
    with pytest.raises(Refused):
        rules.check_runner_name(name, {"sweep"})


def test_a_name_that_is_no_text_is_a_type_error():
    with pytest.raises(TypeError):
        rules.check_runner_name(None, ())


KNOWN = [*rules.BUILT_IN, "sweep", "remind"]


def test_without_a_choice_all_run_in_their_order():
    assert rules.chosen(None, KNOWN) == KNOWN


def test_the_choice_is_the_order():
    assert rules.chosen(["remind", "jobs"], KNOWN) == ["remind", "jobs"]


def test_outbox_stands_for_what_it_is_here():
    assert rules.chosen(["outbox", "remind", "jobs"], KNOWN) == ["reclaim", "promote", "jobs", "remind"]


def test_an_unknown_runner_is_an_error_that_says_what_there_is():
    with pytest.raises(
        Misconfigured, match="'classesBilling'; there are: reclaim, promote, schedules, upkeep, jobs, sweep, remind"
    ):
        rules.chosen(["outbox", "classesBilling"], KNOWN)


# --- places and time


def test_a_singleton_has_one_place_and_others_one_for_each_shard():
    alone = rules.place_of("sweep", singleton=True, index=1, count=4)
    assert (alone.row, alone.key, alone.index, alone.count) == ("sweep", "worker:scheduler:sweep", 0, 1)
    part = rules.place_of("sweep", singleton=False, index=1, count=4)
    assert (part.name, part.row, part.index, part.count) == ("sweep", "sweep#1/4", 1, 4)
    assert rules.place_of("sweep", singleton=False, index=None, count=None).row == "sweep"


@given(st.integers(1, 64), st.data())
def test_no_two_shards_share_a_place(count, data):
    one, other = (data.draw(st.integers(0, count - 1)) for _ in range(2))
    places = [rules.place_of("sweep", singleton=False, index=index, count=count) for index in (one, other)]
    assert (places[0].row == places[1].row) == (one == other)


@given(st.floats(0.01, 1e6))
def test_only_a_tick_may_be_early_and_never_by_more_than_a_tenth(every):
    assert rules.early(every, once=False) == 0.0
    assert 0 < rules.early(every, once=True) <= every * 0.11


@given(st.floats(-1e6, 1e6), st.booleans(), st.floats(0.01, 60))
def test_the_next_look_is_neither_at_once_nor_far_away(wait, held, scan):
    look = rules.next_look(wait, held=held, scan=scan)
    assert 0.01 <= look <= max(rules.LOOK, scan)
    if held:
        assert look <= scan
    elif 0.01 < wait < rules.LOOK:
        assert look == wait


@given(st.floats(0.01, 1e6), st.none() | st.floats(0.01, 1e6))
def test_a_runners_own_limit_only_narrows(given, own):
    assert rules.narrowed(given, own) <= given


@pytest.mark.parametrize(
    ("function", "takes", "fits"),
    [
        (lambda: None, False, True),
        (lambda ctx: None, True, True),
        (lambda ctx, limit=3: None, True, True),
        (lambda *args, **more: None, False, True),
        (lambda ctx, limit: None, True, False),
        (lambda limit: None, False, False),
    ],
)
def test_a_function_that_needs_arguments_is_refused(function, takes, fits):
    if fits:
        rules.check_parameters(function, "sweep", takes_context=takes)
    else:
        with pytest.raises(Refused, match="'limit'"):
            rules.check_parameters(function, "sweep", takes_context=takes)
