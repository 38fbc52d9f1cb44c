"""What the jobs runner tells about jobs: signals, made once per batch."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from kept.jobs.lanes import LaneBook
from kept.jobs.model import DONE, Claimed, Close, Leave, LostLease, Outcome, Park, Settlement
from kept.signals import JobLeaseLost, JobsClaimed, JobsSettled, PickUp, Settled


class Finished(Struct, eq=False):
    """A settlement on its way to the database."""

    job: Claimed
    settlement: Settlement
    outcome: Outcome
    duration: float
    resent: bool = False  # a reply was lost: it may be settled already


def claimed(book: LaneBook, jobs: Iterable[Claimed]) -> JobsClaimed:
    """These jobs are under our lease now."""
    return JobsClaimed(jobs=[_pick_up(book, job) for job in jobs])


def settled(book: LaneBook, jobs: Iterable[Finished]) -> JobsSettled:
    """These settlements are written."""
    return JobsSettled(jobs=[_settled(book, each) for each in jobs])


def completed(book: LaneBook, jobs: Iterable[Finished]) -> JobsSettled:
    """The handlers' own transactions settled these, whatever the handlers did after that."""
    return JobsSettled(jobs=[_done(book, each) for each in jobs if not isinstance(each.outcome, LostLease)])


def lost(book: LaneBook, job: Claimed) -> JobLeaseLost:
    """This job's lease was gone."""
    lane = book.lane(job.lane)
    return JobLeaseLost(job_id=job.id, queue=lane.queue, task=lane.task, attempt=job.attempt)


def _pick_up(book: LaneBook, job: Claimed) -> PickUp:
    lane = book.lane(job.lane)
    return PickUp(job.id, lane.queue, lane.task, job.attempt, (job.claimed_at - job.due_at).total_seconds())


def _settled(book: LaneBook, each: Finished) -> Settled:
    if each.settlement is DONE:
        return _done(book, each)
    job = each.job
    lane = book.lane(job.lane)
    who = (job.id, lane.queue, lane.task, job.attempt)
    match each.settlement:
        case Close(state, code, reason, message):
            return Settled(*who, state, code, reason, message, True, each.duration, None)
        case Park(delay, charged, _, note):
            told = (note.code, note.event, note.message) if note else (None, "released", None)
            return Settled(*who, "pending", *told, charged, each.duration, delay)
        case Leave():
            return _done(book, each)


def _done(book: LaneBook, each: Finished) -> Settled:
    lane = book.lane(each.job.lane)
    return Settled(
        each.job.id, lane.queue, lane.task, each.job.attempt, "done", None, None, None, True, each.duration, None
    )
