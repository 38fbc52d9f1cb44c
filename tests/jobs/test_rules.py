"""The decisions of the kernel as properties: total, and true to what they promise about counting attempts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kept.jobs import rules
from kept.jobs.model import (
    Claimed,
    Close,
    Completed,
    Deferred,
    Died,
    Lane,
    Leave,
    LostLease,
    Park,
    Raised,
    Released,
    Returned,
    Skipped,
)
from kept.jobs.retry import Retry, backoff

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
WORKER = UUID(int=7)


def job(*, attempt=1, uncharged=0, suspect=False, age=0.0):
    return Claimed(
        id=1,
        lane=1,
        priority=0,
        attempt=attempt,
        uncharged=uncharged,
        suspect=suspect,
        due_at=NOON,
        created_at=NOON - timedelta(seconds=age),
        claimed_at=NOON,
        key=None,
        retry_of=None,
        headers=None,
        payload="{}",
        worker=WORKER,
    )


def lane(**numbers):
    given = {"max_attempts": 3, "priority": 0, "retry_base": 5.0, "retry_max": 120.0}
    return Lane(id=1, queue="mail", task="send", **given | numbers)


seconds = st.floats(0, 1e6)
draws = st.floats(0, 1, exclude_max=True)
raised = st.builds(
    Raised,
    code=st.sampled_from(["boom", "fatal", "timeout"]),
    message=st.text(),
    types=st.sampled_from([(), ("builtins.ValueError",)]),
    detail=st.text(),
    retryable=st.sampled_from([None, True, False]),
    after=st.none() | seconds,
)
outcomes = st.one_of(
    st.builds(Returned, st.none() | st.just('{"a":1}')),
    raised,
    st.builds(Deferred, seconds, st.text()),
    st.builds(Skipped, st.text()),
    st.just(Completed()),
    st.builds(Released, st.booleans()),
    st.just(Died()),
    st.just(LostLease()),
)
policies = st.builds(
    Retry,
    max_attempts=st.integers(1, 10),
    max_total=st.none() | st.timedeltas(timedelta(), timedelta(days=30)),
    fail_on=st.sampled_from([(), ("fatal",)]),
    unknown=st.sampled_from(["retry", "fail"]),
)


@st.composite
def jobs(draw):
    attempt = draw(st.integers(1, 30))
    uncharged = draw(st.integers(0, attempt - 1))  # a claim in hand is charged until it is decided otherwise
    return job(attempt=attempt, uncharged=uncharged, suspect=draw(st.booleans()), age=draw(seconds))


@given(jobs(), outcomes, policies, draws)
def test_every_outcome_of_every_job_has_a_settlement(claimed, outcome, policy, draw):
    assert isinstance(rules.settle(claimed, outcome, policy, draw), Close | Park | Leave)


@given(jobs(), outcomes, policies, draws)
def test_what_comes_back_never_comes_back_in_the_past(claimed, outcome, policy, draw):
    settlement = rules.settle(claimed, outcome, policy, draw)
    assert not isinstance(settlement, Park) or settlement.delay >= 0


@given(jobs(), st.one_of(st.builds(Deferred, seconds), st.builds(Released, st.booleans())), policies, draws)
def test_a_defer_or_a_release_is_never_charged_and_never_ends_a_job(claimed, outcome, policy, draw):
    settlement = rules.settle(claimed, outcome, policy, draw)
    assert isinstance(settlement, Park)
    assert not settlement.charged
    assert settlement.suspect == claimed.suspect


@given(jobs(), st.one_of(raised, st.just(Died())), policies, draws)
def test_a_failure_or_a_death_is_always_charged(claimed, outcome, policy, draw):
    settlement = rules.settle(claimed, outcome, policy, draw)
    assert not isinstance(settlement, Park) or settlement.charged


@given(jobs(), raised, policies, draws)
def test_no_failure_gives_more_attempts_than_the_policy_allows(claimed, outcome, policy, draw):
    settlement = rules.settle(claimed, outcome, policy, draw)
    if claimed.charged >= policy.max_attempts:
        assert isinstance(settlement, Close)
        assert settlement.reason in ("fatal", "exhausted")


@given(jobs(), policies, draws)
def test_only_a_job_that_ran_alone_is_convicted_of_a_death(claimed, policy, draw):
    settlement = rules.settle(claimed, Died(), policy, draw)
    if not claimed.suspect:
        assert settlement == Park(0, charged=True, suspect=True, note=settlement.note)
    elif claimed.charged >= policy.max_attempts:
        assert isinstance(settlement, Close)
        assert (settlement.state, settlement.code, settlement.reason) == ("failed", "worker_died", "worker_died")
    else:
        assert isinstance(settlement, Close) or settlement.suspect


@given(jobs(), raised, policies, draws)
def test_a_suspect_stays_one_until_it_is_settled(claimed, outcome, policy, draw):
    settlement = rules.settle(claimed, outcome, policy, draw)
    assert not isinstance(settlement, Park) or settlement.suspect == claimed.suspect


@given(policies, st.lists(outcomes, min_size=60, max_size=60), draws)
def test_a_job_whose_attempts_are_charged_ends_within_its_attempts(policy, fates, draw):
    """The life of a job: it never has more charged attempts than allowed, but for deaths that were not its own."""
    attempt, uncharged, suspect, innocent = 0, 0, False, 0
    for fate in fates:
        attempt += 1
        claimed = job(attempt=attempt, uncharged=uncharged, suspect=suspect)
        assert claimed.charged <= policy.max_attempts + innocent
        settlement = rules.settle(claimed, fate, policy, draw)
        if not isinstance(settlement, Park):
            return
        uncharged += not settlement.charged
        innocent += isinstance(fate, Died) and not suspect
        suspect = settlement.suspect
    assert attempt - uncharged <= policy.max_attempts + innocent


@given(jobs(), draws, st.floats(0, 1e5))
def test_an_exceptions_own_delay_replaces_the_backoff(claimed, draw, after):
    settlement = rules.settle(claimed, Raised("boom", "", after=after), Retry(max_attempts=1000), draw)
    assert isinstance(settlement, Park)
    assert settlement.delay == after


@given(jobs(), draws)
def test_without_a_delay_of_its_own_a_failure_waits_for_the_backoff_of_its_charged_attempt(claimed, draw):
    policy = Retry(max_attempts=1000)
    settlement = rules.settle(claimed, Raised("boom", ""), policy, draw)
    assert isinstance(settlement, Park)
    assert settlement.delay == backoff(policy, claimed.charged, draw)


@pytest.mark.parametrize("outcome", [Raised("boom", "it broke"), Died()])
def test_a_job_whose_next_attempt_would_start_after_max_total_fails(outcome):
    policy = Retry(shape="fixed", delay="10s", max_attempts=99, jitter="0s", max_total="60s")
    assert isinstance(rules.settle(job(age=50, suspect=True), outcome, policy, 0.5), Park)
    late = rules.settle(job(age=50.1, suspect=True), outcome, policy, 0.5)
    assert isinstance(late, Close)
    assert late.state == "failed"
    assert late.reason == ("out_of_time" if isinstance(outcome, Raised) else "worker_died")


def test_a_return_is_done_with_its_result():
    assert rules.settle(job(), Returned('"x"'), Retry(), 0.5) == Close("done", result='"x"')


def test_a_skip_is_skipped_and_not_done():
    settlement = rules.settle(job(), Skipped("no longer wanted"), Retry(), 0.5)
    assert settlement == Close("skipped", reason="skipped", message="no longer wanted")


def test_a_failure_records_its_code_its_message_and_its_traceback():
    settlement = rules.settle(job(attempt=3), Raised("boom", "it broke", detail="Traceback"), Retry(), 0.5)
    assert isinstance(settlement, Close)
    assert (settlement.code, settlement.reason, settlement.message) == ("boom", "exhausted", "it broke")
    assert settlement.note is not None
    assert (settlement.note.event, settlement.note.code, settlement.note.detail) == ("failed", "boom", "Traceback")


def test_a_failure_nobody_wants_retried_is_fatal_on_the_first_attempt():
    settlement = rules.settle(job(), Raised("boom", "", retryable=False), Retry(), 0.5)
    assert isinstance(settlement, Close)
    assert settlement.reason == "fatal"


def test_a_release_leaves_a_line_only_if_the_handler_had_started():
    never = rules.settle(job(), Released(), Retry(), 0.5)
    begun = rules.settle(job(), Released(started=True, reason="aborted:shutdown"), Retry(), 0.5)
    assert isinstance(never, Park)
    assert isinstance(begun, Park)
    assert never.note is None
    assert begun.note is not None
    assert begun.note.event == "aborted:shutdown"


def test_what_was_settled_elsewhere_is_left_alone():
    assert rules.settle(job(), Completed(), Retry(), 0.5) == Leave()
    assert rules.settle(job(), LostLease(), Retry(), 0.5) == Leave()


# --- reclaim


def test_a_dead_workers_job_that_never_started_comes_back_at_once_and_uncharged():
    assert rules.reclaim(job(attempt=9), lane(), started=False, draw=0.5) == Park(0, charged=False)


def test_a_dead_workers_job_that_had_started_comes_back_at_once_charged_and_suspect():
    settlement = rules.reclaim(job(attempt=9), lane(), started=True, draw=0.5)
    assert isinstance(settlement, Park)
    assert (settlement.delay, settlement.charged, settlement.suspect) == (0, True, True)
    assert settlement.note is not None
    assert settlement.note.event == "requeued:stale"


def test_jobs_of_a_trusted_lane_are_suspects_only_after_several_deaths():
    """They are held by the hundred, by a handler of ours: whoever killed the worker, it was hardly one of them."""
    trusted = lane(trusted=True)
    for attempt in range(1, rules.TRUST + 3):
        settlement = rules.reclaim(job(attempt=attempt), trusted, started=True, draw=0.5)
        assert (settlement.charged, settlement.suspect) == (True, attempt > rules.TRUST)
    assert rules.reclaim(job(suspect=True), trusted, started=True, draw=0.5).suspect


@given(st.integers(1, 30), st.integers(1, 30), st.integers(0, 10**8).map(lambda ms: ms / 1000), draws)
def test_the_lanes_own_numbers_decide_about_a_suspect_that_died_again(attempt, most, base, draw):
    numbers = lane(max_attempts=most, retry_base=base, retry_max=600.0)
    settlement = rules.reclaim(job(attempt=attempt, suspect=True), numbers, started=True, draw=draw)
    if attempt >= most:
        assert isinstance(settlement, Close)
        assert settlement.reason == "worker_died"
    else:
        assert isinstance(settlement, Park)
        assert settlement.delay == pytest.approx(min(round(base, 6) * 2.0 ** (attempt - 1), 600), abs=1e-5)


@pytest.mark.parametrize("odd", [-1.0, 1e12, float("inf")])
def test_a_lane_with_odd_numbers_does_not_stop_a_reclaim(odd):
    numbers = lane(retry_base=odd, retry_max=odd, max_attempts=9)
    assert isinstance(rules.reclaim(job(suspect=True), numbers, started=True, draw=0.5), Park)
