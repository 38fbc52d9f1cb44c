"""Retry policies: what is accepted, how long a job waits, which failures are worth another attempt."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kept.errors import Refused
from kept.jobs.retry import MOST_ATTEMPTS, Retry, backoff, retries, type_name

durations = st.timedeltas(min_value=timedelta(), max_value=timedelta(days=3650))
attempts = st.integers(1, MOST_ATTEMPTS)
draws = st.floats(0, 1, exclude_max=True)
growing = st.sampled_from(["fixed", "linear", "exponential"])


@st.composite
def policies(draw):
    shape = draw(st.sampled_from(["fixed", "linear", "exponential", "series"]))
    return Retry(
        shape=shape,
        delay=draw(st.lists(durations, min_size=1, max_size=5)) if shape == "series" else draw(durations),
        max_delay=draw(durations),
        jitter=draw(durations),
        max_attempts=draw(attempts),
        max_total=draw(st.none() | durations),
    )


@given(policies(), st.integers(0, 5000), draws)
def test_a_backoff_stays_between_zero_and_the_longest_delay_plus_jitter(policy, charged, draw):
    assert 0 <= backoff(policy, charged, draw) <= policy.max_delay + policy.jitter


@given(growing, durations, durations, st.integers(1, 2000), draws)
def test_a_backoff_never_gets_shorter_from_attempt_to_attempt(shape, delay, max_delay, charged, draw):
    policy = Retry(shape=shape, delay=delay, max_delay=max_delay)
    assert backoff(policy, charged, draw) <= backoff(policy, charged + 1, draw)


@given(policies(), st.integers(1, 50), draws, draws)
def test_only_the_draw_makes_two_backoffs_of_one_attempt_differ(policy, charged, one, other):
    shorter, longer = sorted([one, other])
    assert backoff(policy, charged, shorter) <= backoff(policy, charged, longer)
    assert backoff(policy, charged, one) == backoff(policy, charged, one)


def test_the_shapes_are_what_their_names_say():
    def waits(policy):
        return [backoff(policy, charged, 0.0) for charged in range(1, 6)]

    assert waits(Retry.fixed("7s")) == [7, 7, 7, 7, 7]
    assert waits(Retry.linear("7s", max_delay="30s")) == [7, 14, 21, 28, 30]
    assert waits(Retry.exponential("5s")) == [5, 10, 20, 40, 80]
    assert waits(Retry()) == [5, 10, 20, 40, 80]
    assert backoff(Retry(), 6, 0.0) == 120
    assert waits(Retry.series(["1s", "1m", "3s"])) == [1, 60, 3, 3, 3]


def test_jitter_is_added_on_top_of_the_longest_delay_too():
    assert backoff(Retry(max_delay="10s", jitter="4s"), 9, 0.5) == 12


def test_a_series_has_one_attempt_more_than_delays():
    assert Retry.series(["1s", "2s"]).max_attempts == 3


def test_two_policies_of_equal_numbers_are_equal():
    assert Retry(delay="1s", fail_on=["a", "b"]) == Retry(delay="1000ms", fail_on=["b", "a"])
    assert hash(Retry(delay="1s")) == hash(Retry(delay="1000ms"))
    assert Retry(delay="1s") != Retry(delay="2s")


def test_a_policy_cannot_be_changed():
    with pytest.raises(AttributeError):
        Retry().max_attempts = 9


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"max_attempts": 0}, "max_attempts"),
        ({"max_attempts": MOST_ATTEMPTS + 1}, "max_attempts"),
        ({"unknown": "ignore"}, "unknown"),
        ({"shape": "random"}, "shape"),
        ({"delay": "5"}, "delay"),
        ({"delay": ["1s", "2s"]}, "delay"),
        ({"delay": [], "shape": "series"}, "delay"),
        ({"delay": timedelta(seconds=-1)}, "delay"),
        ({"max_delay": "11y"}, "max_delay"),
        ({"max_delay": "4000d"}, "max_delay"),
        ({"jitter": "often"}, "jitter"),
        ({"max_total": "-1s"}, "max_total"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused_and_the_field_is_named(given, field):
    with pytest.raises(Refused) as refused:
        Retry(**given)
    assert refused.value.field == field
    assert str(refused.value).startswith(field)


@pytest.mark.parametrize(
    "given",
    [
        {"max_attempts": "3"},
        {"max_attempts": 3.0},
        {"max_attempts": True},
        {"delay": 5},
        {"delay": 0.5},
        {"delay": [5], "shape": "series"},
        {"max_delay": 120},
        {"jitter": 1},
        {"max_total": 60},
        {"retry_on": ValueError},
        {"fail_on": "timeout"},
        {"fail_on": [5]},
        {"retry_on": [int]},
        {"retry_on": [ValueError("an instance")]},
    ],
)
def test_a_value_of_the_wrong_type_is_a_type_error_with_a_sentence(given):
    with pytest.raises(TypeError, match=r"expected|take a list|neither"):
        Retry(**given)


def classify(policy, *, code="boom", types=(ValueError,), retryable=None):
    return retries(policy, code=code, types=[type_name(kind) for kind in types], retryable=retryable)


def test_what_nobody_names_is_retried_unless_the_policy_says_otherwise():
    assert classify(Retry())
    assert not classify(Retry(unknown="fail"))


def test_an_exception_that_says_it_is_not_retryable_has_the_last_word():
    assert not classify(Retry(retry_on=[ValueError, "boom"]), retryable=False)


def test_fail_on_goes_before_retry_on_and_before_an_exception_that_says_it_is_retryable():
    both = Retry(retry_on=[ValueError], fail_on=["boom"])
    assert not classify(both)
    assert not classify(both, retryable=True)
    assert classify(both, code="other")


def test_an_exception_that_says_it_is_retryable_is_retried_where_unknown_ones_fail():
    assert classify(Retry(unknown="fail"), retryable=True)


def test_a_class_in_a_list_stands_for_its_subclasses():
    assert classify(Retry(unknown="fail", retry_on=[LookupError]), types=KeyError.__mro__)
    assert not classify(Retry(fail_on=[OSError]), types=ConnectionResetError.__mro__)


def test_classes_of_one_name_in_two_modules_are_told_apart():
    theirs = type("TimeoutError", (Exception,), {"__module__": "their.library"})
    assert not classify(Retry(unknown="fail", retry_on=[TimeoutError]), types=[theirs])
    assert classify(Retry(unknown="fail", retry_on=[theirs]), types=[theirs])


names = st.sampled_from(["a", "b", "c"])


@given(
    st.frozensets(names),
    st.frozensets(names),
    st.sampled_from(["retry", "fail"]),
    names,
    st.lists(names),
    st.sampled_from([None, True, False]),
)
def test_the_precedence_holds_for_every_combination(retry_on, fail_on, unknown, code, types, retryable):
    policy = Retry(retry_on=retry_on, fail_on=fail_on, unknown=unknown)
    named = {code, *types}
    answer = retries(policy, code=code, types=types, retryable=retryable)
    if retryable is False or named & fail_on:
        assert answer is False
    elif retryable or named & retry_on:
        assert answer is True
    else:
        assert answer is (unknown == "retry")
