"""Decisions about a job: data in, data out. Time and chance are arguments. Pure."""

from __future__ import annotations

from datetime import timedelta
from typing import assert_never

from msgspec import structs

from kept.durations import LONGEST
from kept.jobs.model import (
    DONE,
    Claimed,
    Close,
    Completed,
    Deferred,
    Died,
    Lane,
    Leave,
    LostLease,
    Note,
    Outcome,
    Park,
    Raised,
    Released,
    Returned,
    Settlement,
    Skipped,
)
from kept.jobs.retry import Retry, backoff, retries

# Deaths after which jobs of a trusted lane are suspects like any other. They are held by the hundred: to run them one
# at a time after every kill would keep a broker's events waiting for minutes.
TRUST = 3


def settle(job: Claimed, outcome: Outcome, policy: Retry, draw: float) -> Settlement:  # noqa: PLR0911  # one per outcome
    """What becomes of *job* after an attempt that came to *outcome*."""
    match outcome:
        case Returned(result):
            return DONE if result is None else Close("done", result=result)
        case Raised():
            return _after_failure(job, outcome, policy, draw)
        case Deferred(delay, reason):
            note = Note("deferred", message=reason or None)
            return Park(delay, charged=False, suspect=job.suspect, note=note)
        case Skipped(reason):
            return Close("skipped", reason="skipped", message=reason or None)
        case Released(started, reason):
            return Park(0, charged=False, suspect=job.suspect, note=Note(reason) if started else None)
        case Died():
            return _after_death(job, outcome, policy, draw)
        case Completed() | LostLease():
            return Leave()
        case _:
            assert_never(outcome)


def step_aside(settlement: Settlement, outcome: Outcome) -> Settlement:
    """The same, but a job that failed and comes back leaves its order key to those behind it."""
    failed = isinstance(outcome, Raised) and isinstance(settlement, Park)
    return structs.replace(settlement, aside=True) if failed else settlement


def is_out_of_the_way(settlement: Settlement) -> bool:
    """Whether the next job of the same order key may run."""
    return isinstance(settlement, Close) or (isinstance(settlement, Park) and settlement.aside)


def reclaim(job: Claimed, lane: Lane, *, started: bool, draw: float) -> Settlement:
    """What becomes of a dead worker's job. The lane's numbers decide: we may not know the task."""
    outcome = Died() if started else Released()
    policy = Retry(
        max_attempts=lane.max_attempts,
        delay=_as_duration(lane.retry_base),
        max_delay=_as_duration(lane.retry_max),
        jitter="0s",
    )
    settlement = settle(job, outcome, policy, draw)
    if lane.trusted and not job.suspect and job.charged <= TRUST and isinstance(settlement, Park):
        return structs.replace(settlement, suspect=False)
    return settlement


def _after_failure(job: Claimed, outcome: Raised, policy: Retry, draw: float) -> Close | Park:
    note = Note("failed", outcome.code, outcome.message, outcome.detail or None)
    if not retries(policy, code=outcome.code, types=outcome.types, retryable=outcome.retryable):
        return Close("failed", outcome.code, "fatal", outcome.message, note=note)
    if job.charged >= policy.max_attempts:
        return Close("failed", outcome.code, "exhausted", outcome.message, note=note)
    delay = backoff(policy, job.charged, draw) if outcome.after is None else outcome.after
    if _too_late(job, policy, delay):
        return Close("failed", outcome.code, "out_of_time", outcome.message, note=note)
    return Park(delay, charged=True, suspect=job.suspect, note=note)


def _after_death(job: Claimed, outcome: Died, policy: Retry, draw: float) -> Close | Park:
    """A death charges its job, but convicts it only if it ran alone: others may have been bystanders.

    The first comes back at once, so that a take-over is quick; later ones back off.
    """
    note = Note("requeued:stale", message=outcome.message)
    if not job.suspect:
        return Park(0, charged=True, suspect=True, note=note)
    delay = backoff(policy, job.charged, draw)
    if job.charged < policy.max_attempts and not _too_late(job, policy, delay):
        return Park(delay, charged=True, suspect=True, note=note)
    message = f"{outcome.message}; this job ran alone in it"
    return Close("failed", "worker_died", "worker_died", message, note=Note("failed", "worker_died", message))


def _as_duration(seconds: float) -> timedelta:
    """A lane's number, which anybody may have written: an odd one must not stop a reclaim."""
    return timedelta(seconds=min(max(seconds, 0.0), LONGEST.total_seconds()))


def _too_late(job: Claimed, policy: Retry, delay: float) -> bool:
    if policy.max_total is None:
        return False
    age = (job.claimed_at - job.created_at).total_seconds()
    return age + delay > policy.max_total
