"""What a worker remembers of its lanes: floors, fairness, how much to claim."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kept.jobs.lanes import COLD_AFTER, LATE, QUICK, LaneBook
from kept.jobs.model import Claimed, Lane
from kept.jobs.rows import Survey, Want
from kernel import declared

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
ROOM = {"concurrency": 10, "batch": 500}


def handler() -> None: ...


DECLARED = declared(handler)


def lane(id, priority=0):
    return Lane(
        id=id, queue="mail", task=f"task{id}", max_attempts=3, priority=priority, retry_base=5.0, retry_max=120.0
    )


def book_of(*lanes):
    book = LaneBook()
    book.serve((each, DECLARED) for each in lanes)
    return book


def job(id, lane=1, priority=0):
    return Claimed(id, lane, priority, 1, 0, False, NOON, NOON, NOON, None, None, None, "{}", UUID(int=1))


def survey(ready=None, promoted=None):
    return Survey(ready=ready or {}, promoted=promoted or {})


def make_quick(book, lane, seconds=0.001):
    for _ in range(100):
        book.finished(lane, [seconds])


def claimed(book, *jobs):
    """Claims that brought *jobs*, until the floors have followed."""
    for now in (0.0, LATE, 2 * LATE):
        book.claimed([], jobs, now)


def floors(book):
    return {(want.lane, want.priority): want.floor for want in book.wants(10, **ROOM)}


def asked(wants):
    return {want.lane: want.want for want in wants}


# --- floors


def test_a_new_lane_is_claimed_from_the_bottom():
    assert book_of(lane(1), lane(2, priority=5)).wants(10, **ROOM) == [Want(2, 5, 1, 0), Want(1, 0, 1, 0)]


def test_a_claim_raises_the_floor_over_the_highest_id_it_brought():
    book = book_of(lane(1))
    claimed(book, job(7), job(9), job(8))
    assert floors(book) == {(1, 0): 10}


def test_a_floor_follows_the_claims_at_a_distance_so_that_a_late_commit_is_found():
    book = book_of(lane(1))
    book.claimed([], [job(9)], now=100.0)
    book.claimed([], [job(19)], now=100.0 + LATE / 2)
    assert floors(book) == {(1, 0): 0}
    book.claimed([], [job(29)], now=100.0 + LATE)
    book.claimed([], [job(39)], now=100.0 + 1.5 * LATE)
    assert floors(book) == {(1, 0): 0}
    book.claimed([], [job(49)], now=100.0 + 2 * LATE)
    assert floors(book) == {(1, 0): 30}


def test_a_floor_that_was_lowered_stays_until_claims_have_passed_it_again():
    book = book_of(lane(1))
    claimed(book, job(49))
    book.lower((1, 0), 5)
    book.claimed([], [job(59)], now=100.0)
    assert floors(book) == {(1, 0): 5}


def test_a_claim_below_the_floor_does_not_lower_it():
    book = book_of(lane(1))
    claimed(book, job(9))
    claimed(book, job(3))
    assert floors(book) == {(1, 0): 10}


def test_priorities_of_a_lane_have_floors_of_their_own():
    book = book_of(lane(1))
    claimed(book, job(9, priority=5), job(4, priority=-3))
    assert floors(book) == {(1, 5): 10, (1, 0): 0, (1, -3): 5}


def test_a_survey_lowers_floors_to_what_lies_below_and_never_raises_them():
    book = book_of(lane(1), lane(2))
    claimed(book, job(9), job(9, lane=2))
    book.surveyed(survey(ready={(1, 0): 4}, promoted={(2, 0): 50}), bottom=False)
    assert floors(book) == {(1, 0): 4, (2, 0): 10}


def test_a_survey_of_the_bottom_teaches_priorities_and_forgets_those_nobody_uses():
    book = book_of(lane(1))
    claimed(book, job(9, priority=5))
    book.surveyed(survey(ready={(1, 7): 20}), bottom=True)
    assert floors(book) == {(1, 7): 20, (1, 0): 0}


def test_a_priority_heard_of_while_a_survey_was_looking_is_not_forgotten():
    book = book_of(lane(1))
    book.lower((1, 5))
    book.surveyed(survey(), bottom=True)
    assert (1, 5) in floors(book)


def test_a_priority_that_brings_nothing_is_forgotten_in_the_end():
    book = book_of(lane(1))
    book.lower((1, 5))
    for _ in range(COLD_AFTER):
        book.claimed(book.wants(10, **ROOM), [], 0.0)
    book.surveyed(survey(), bottom=True)
    assert floors(book) == {(1, 0): 0}


def test_news_of_a_lane_that_is_not_served_is_ignored():
    book = book_of(lane(1))
    book.lower((2, 0), 5)
    book.surveyed(survey(ready={(3, 0): 1}), bottom=True)
    claimed(book, job(9, lane=4))
    assert floors(book) == {(1, 0): 0}


def test_lanes_that_stay_keep_their_floors_and_others_are_dropped():
    book = book_of(lane(1), lane(2))
    claimed(book, job(9), job(9, lane=2))
    book.serve([(lane(2), DECLARED), (lane(3), DECLARED)])
    assert floors(book) == {(2, 0): 10, (3, 0): 0}
    assert book.ids == [2, 3]
    assert 1 not in book


# --- order and fairness


def test_higher_priorities_are_asked_first():
    book = book_of(lane(1, -5), lane(2, 9), lane(3, 0))
    book.lower((1, 20))
    assert [want.priority for want in book.wants(10, **ROOM)] == [20, 9, 0, -5]


def test_lanes_of_one_priority_take_turns_at_being_first():
    book = book_of(lane(1), lane(2), lane(3))
    assert {book.wants(10, **ROOM)[0].lane for _ in range(3)} == {1, 2, 3}


def test_a_lane_of_higher_priority_stays_first_whatever_the_turn():
    book = book_of(lane(1), lane(2), lane(3, 1))
    assert {book.wants(10, **ROOM)[0].lane for _ in range(6)} == {3}


@pytest.mark.parametrize("priority", [0, 10])
def test_lanes_with_nothing_to_do_do_not_keep_one_that_has_from_being_asked(priority):
    book = book_of(*(lane(n, priority) for n in range(1, 31)), lane(31), lane(32))
    make_quick(book, 31)
    for _ in range(300):
        book.hinted((32, 0), deep=False)
        assert 32 in asked(book.wants(10, **ROOM))


def test_a_claim_that_brought_less_than_it_asked_for_everywhere_took_all_there_was():
    book = book_of(lane(1), lane(2))
    for entry in ((1, 0), (2, 0)):
        book.hinted(entry, deep=False)
    wants = book.wants(10, **ROOM)
    book.claimed(wants, [job(1), job(2, lane=2)], 0.0)
    assert book.exhausted
    book.claimed(wants, [job(n) for n in range(asked(wants)[1])], 0.0)
    assert not book.exhausted
    book.claimed([], [], 0.0)
    assert not book.exhausted, "nobody was asked"


def test_a_claim_that_could_not_ask_every_busy_lane_did_not_take_all_there_was():
    book = book_of(*(lane(n) for n in range(1, 6)))
    make_quick(book, 5)
    for n in range(1, 5):
        book.hinted((n, 0), deep=False)
    book.claimed(book.wants(2, **ROOM), [], 0.0)
    assert not book.exhausted


def test_busy_lanes_share_the_idle_slots():
    book = book_of(lane(1), lane(2), lane(3))
    book.claimed(book.wants(9, **ROOM), [job(1), job(2, lane=2)], 0.0)
    wants = asked(book.wants(9, **ROOM))
    assert wants == {1: 3, 2: 3, 3: 3}  # the third is asked as much until it has missed thrice
    for _ in range(COLD_AFTER):
        book.claimed(book.wants(9, **ROOM), [job(5), job(6, lane=2)], 0.0)
    assert asked(book.wants(9, **ROOM)) == {1: 5, 2: 5, 3: 1}


def test_a_lane_that_went_quiet_is_asked_for_one_job_until_it_brings_something():
    book = book_of(lane(1))
    for _ in range(COLD_AFTER):
        book.claimed(book.wants(10, **ROOM), [], 0.0)
    assert asked(book.wants(10, **ROOM)) == {1: 1}
    book.claimed(book.wants(10, **ROOM), [job(3)], 0.0)
    assert asked(book.wants(10, **ROOM)) == {1: 10}


# --- how much


def test_without_idle_slots_a_slow_lane_is_asked_for_nothing():
    book = book_of(lane(1), lane(2))
    book.finished(1, [3.0])
    assert book.wants(0, **ROOM) == []
    assert book.wants(-3, **ROOM) == []
    assert book.most(0, **ROOM) == 0


def test_quickness_has_to_be_shown_repeatedly():
    book = book_of(lane(1))
    book.finished(1, [0.001])
    assert book.prefetch(1, **ROOM) == 0
    make_quick(book, 1)
    assert book.prefetch(1, **ROOM) > 100


def test_one_slow_attempt_ends_prefetching_at_once():
    book = book_of(lane(1))
    make_quick(book, 1)
    book.finished(1, [2 * QUICK])
    assert book.prefetch(1, **ROOM) == 0


def test_a_lane_that_was_slow_once_can_become_quick_again():
    book = book_of(lane(1))
    book.finished(1, [10.0])
    for _ in range(20):
        book.finished(1, [0.001])
    assert book.prefetch(1, **ROOM) == 0
    for _ in range(200):
        book.finished(1, [0.001])
    assert book.prefetch(1, **ROOM) > 0


def test_what_is_prefetched_is_some_milliseconds_of_work():
    book = book_of(lane(1))
    for _ in range(300):
        book.finished(1, [0.0049])
    assert book.prefetch(1, 10, 500) == 40
    assert book.prefetch(1, 10, 10) == 30  # three batches: worked on, to be read, on its way
    assert asked(book.wants(4, **ROOM)) == {1: 44}
    assert book.most(4, **ROOM) == 44


def test_jobs_waiting_in_hand_count_against_the_prefetch():
    book = book_of(lane(1))
    for _ in range(300):
        book.finished(1, [0.0049])
    assert asked(book.wants(-15, **ROOM)) == {1: 25}
    assert book.most(-15, **ROOM) == 25
    assert book.wants(-40, **ROOM) == []
    assert book.most(-40, **ROOM) == 0


def test_a_backlog_of_quick_jobs_does_not_keep_slow_ones_out():
    book = book_of(lane(1), lane(2))
    make_quick(book, 1)
    book.finished(2, [3.0])
    quick_only = [1] * 40
    assert asked(book.wants(-30, in_hand=quick_only, **ROOM))[2] >= 1
    slots_full_of_slow_ones = [1] * 30 + [2] * 10
    assert 2 not in asked(book.wants(-30, in_hand=slots_full_of_slow_ones, **ROOM))


@given(
    st.integers(1, 60),
    st.integers(-20, 10),
    st.sets(st.integers(1, 60)),
    st.sets(st.integers(1, 60)),
    st.lists(st.integers(1, 60), max_size=10),
)
def test_slow_lanes_are_never_asked_for_more_than_there_is_room_for(count, idle, quick, hot, in_hand):
    book = book_of(*(lane(id) for id in range(1, count + 1)))
    for id in quick:
        make_quick(book, id)
    for id in hot:
        book.lower((id, 0))
    wants = book.wants(idle, **ROOM)
    most = book.most(idle, **ROOM)
    brought = sorted((want.want for want in wants if want.lane not in quick), reverse=True)
    assert min(sum(brought), most) <= max(0, idle)
    slow_in_hand = sum(id not in quick for id in in_hand if id <= count)
    in_hand = [id for id in in_hand if id <= count]
    wants = book.wants(idle, in_hand=in_hand, **ROOM)
    slow = sum(want.want for want in wants if want.lane not in quick)
    if quick & set(range(1, count + 1)):
        assert slow <= max(0, ROOM["concurrency"] - slow_in_hand)


@pytest.mark.parametrize("idle", [-500, -1, 0, 1, 10])
def test_no_claim_is_larger_than_a_batch(idle):
    book = book_of(lane(1), lane(2))
    make_quick(book, 1, 0.0)
    assert book.most(idle, concurrency=10, batch=50) <= 50
    assert all(0 < want.want <= 50 for want in book.wants(idle, concurrency=10, batch=50))


def test_a_claim_that_did_not_ask_a_lane_with_work_did_not_take_all_there_was():
    book = book_of(lane(1), lane(2))
    book.hinted((1, 0), deep=True)
    want = book.early_want((1, 0), 10, 10, 500, deep=True)
    book.claimed([want], [job(5)], 0.0)
    assert book.exhausted
    book.hinted((2, 0), deep=True)
    book.claimed([want], [job(6)], 0.0)
    assert not book.exhausted


def test_an_early_claim_asks_for_what_there_is_room_for_from_the_bottom_or_the_floor():
    book = book_of(lane(1))
    book.lower((1, 0), 7)
    book.claimed([], [job(20)], 0.0)
    assert book.early_want((1, 0), 4, 10, 500, deep=True) == Want(1, 0, 4, 0)
    assert book.early_want((1, 3), 4, 10, 500, deep=False) == Want(1, 3, 4, 0)
    assert book.early_want((2, 0), 4, 10, 500, deep=True) is None
    make_quick(book, 1)
    assert book.early_want((1, 0), 4, 10, 500, deep=True).want > 4
