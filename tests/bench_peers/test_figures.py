"""What the bench of peers makes of its measurements."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peers.figures import decades, last_to_first, nice_ticks, percentile, rate, spread, tens

positive = st.floats(min_value=1e-3, max_value=1e9)


def test_a_spread_is_least_middle_and_most():
    across = spread([30.0, 10.0, 20.0])
    assert (across.low, across.median, across.high) == (10.0, 20.0, 30.0)


@given(st.lists(positive, min_size=1), st.floats(min_value=0.01, max_value=1.0))
def test_a_percentile_is_a_measured_value_that_enough_of_them_do_not_exceed(values, part):
    found = percentile(values, part)
    assert found in values
    assert sum(value <= found for value in values) >= part * len(values) - 1e-9


def test_the_99th_percentile_of_a_hundred_leaves_one_above():
    assert percentile(list(range(1, 101)), 0.99) == 99
    assert percentile(list(range(1, 101)), 0.5) == 50


def test_the_last_fifth_is_compared_by_the_time_it_took():
    # The same amount of work in each tenth: at 10/s and 30/s a fifth takes as long as at 15/s.
    assert last_to_first([15.0, 15.0, 99.0, 99.0, 10.0, 30.0]) == pytest.approx(1.0)
    assert last_to_first([100.0] * 8 + [50.0] * 2) == pytest.approx(0.5)


@given(positive)
def test_ticks_enclose_the_highest_value_with_few_round_steps(top):
    ticks = nice_ticks(top)
    assert ticks[0] == 0
    assert ticks[-1] >= top * (1 - 1e-9)
    assert 3 <= len(ticks) <= 7


@given(positive, positive)
def test_decades_enclose_both_ends(one, other):
    low, high = min(one, other), max(one, other)
    powers = decades(low, high)
    assert powers[0] <= low * (1 + 1e-9)
    assert powers[-1] >= high * (1 - 1e-9)
    assert len(powers) > 1


def test_a_rate_shows_no_more_digits_than_it_is_worth():
    assert rate(24_349.2) == "24,300"
    assert rate(767.4) == "767"


@given(st.floats(min_value=0, max_value=1e7))
def test_work_can_always_be_cut_into_tenths(value):
    assert tens(value) % 10 == 0
    assert tens(value) >= 10
