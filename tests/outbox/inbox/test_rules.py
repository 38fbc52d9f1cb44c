"""Keys that cannot collide, times that are never too long, and when Redis is left alone."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from kept.outbox.inbox.rules import FIRST_PAUSE, LONGEST_KEY, LONGEST_PAUSE, PATIENCE, Breaker, key, key_ttl

texts = st.text(st.characters(codec="utf-8"), max_size=20)
parts = st.tuples(texts, texts, texts, texts)


@given(parts, parts)
def test_two_markers_share_no_key(one, other):
    assume(one != other)
    assert key(*one).name.rpartition(":")[2] != key(*other).name.rpartition(":")[2]


def test_parts_are_told_apart_wherever_they_end():
    assert key("1", "kept", "a", "b:c").name.rpartition(":")[2] != key("1", "kept", "a:b", "c").name.rpartition(":")[2]


def test_a_key_names_its_consumer_and_holds_what_only_it_can_hold():
    made = key("1", "kept", "mailer", "e1")
    assert made.name.startswith("kept:inbox:mailer:")
    assert made.name.encode().endswith(made.value)


@given(st.floats(-10, 1e9), st.floats(0, 100))
def test_a_key_never_outlives_its_marker_nor_a_day(left, spent):
    assert key_ttl(left, spent) <= max(0, (left - spent) * 1000)
    assert key_ttl(left, spent) <= LONGEST_KEY * 1000


def test_some_failures_in_a_row_leave_redis_alone():
    breaker = Breaker()
    for _ in range(PATIENCE - 1):
        breaker = breaker.failed(100.0)
        assert breaker.closed(100.0)
    last = breaker.failed(100.0)
    assert last.opens(breaker) and not last.failed(100.0).opens(last)
    assert not last.closed(100.0 + FIRST_PAUSE / 2)
    assert last.closed(100.0 + FIRST_PAUSE)


def test_after_a_pause_one_tries_and_the_others_go_on_without():
    breaker = Breaker(PATIENCE, 100.0)
    assert breaker.closed(100.0)
    assert not breaker.asking(100.0).closed(100.0)


@given(st.integers(0, 10_000), st.floats(0, 1e6))
def test_pauses_grow_up_to_a_limit(failures, now):
    breaker = Breaker(failures).failed(now)
    assert breaker.until <= now + LONGEST_PAUSE
    assert breaker.failed(now).until >= breaker.until


@given(st.integers(0, PATIENCE - 1), st.floats(0, 1e6))
def test_who_was_not_left_alone_is_asked_by_everybody(failures, now):
    assert Breaker(failures).asking(now).closed(now)
