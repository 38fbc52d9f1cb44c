"""What became of the slots of the schedule: each fires once, and its job is done. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from kept.verify.causes import BEFORE, Cause
from kept.verify.evidence import Evidence, Findings, Terms
from kept.verify.model import UNSETTLED, Hit, Moment

FIRST = 5  # seconds after workers are at work within which the schedule fires, on a machine that is this busy


class Slots(NamedTuple):
    """How many there were."""

    due: int
    fired: int
    twice: int


def slots(seen: Evidence, terms: Terms, causes: Sequence[Cause], states: Mapping[int, str], found: Findings) -> Slots:
    """Slots by the occurrences in the database and by the ledger; *states* are those of jobs that no producer sent."""
    recorded = {slot.job: slot.slot for slot in seen.slots if slot.job is not None}
    fired: dict[int, set[int]] = {}
    for job, moment in recorded.items():
        fired.setdefault(moment, set()).add(job)
    for moment, ran in seen.deeds.slots.items():
        fired.setdefault(moment, set()).update(ran)
    due = _due(fired, terms, found)
    for moment in sorted(due - fired.keys()):
        found.add(9, "a slot did not fire", str(moment))
    twice = _twice(fired, recorded, states, seen, found)
    _done(recorded, states, seen, found)
    _repeated(causes, seen, found)
    return Slots(len(due | fired.keys()), len(fired), twice)


def _due(fired: Iterable[int], terms: Terms, found: Findings) -> set[int]:
    """The seconds in which there should have been a slot: from when workers were at work until the calm."""
    moments = sorted(fired)
    if terms.slots is None:  # nobody looked at the clock
        return set(range(moments[0], moments[-1] + 1)) if moments else set()
    since, until = terms.slots
    if not moments:
        found.add(9, "the schedule never fired", f"from {since} to {until}")
    first = min([since + FIRST, *moments])
    return set(range(first, max([until, *moments]) + 1))


def _twice(
    fired: Mapping[int, set[int]],
    recorded: Mapping[int, int],
    states: Mapping[int, str],
    seen: Evidence,
    found: Findings,
) -> int:
    """A server that forgot a slot has it fired again: the job that it forgot as well is none too many."""
    lossy = [hit for hit in seen.hits if hit.loses and hit.victim]
    for moment, jobs in fired.items():
        ran = seen.deeds.slots.get(moment, {})
        left = {job for job in jobs if job in recorded or job in states or not _forgotten(ran[job], lossy)}
        if len(left) > 1:
            found.add(9, "a slot fired twice", f"{moment}: jobs {', '.join(map(str, sorted(jobs)))}")
        for job in left - recorded.keys():
            found.add(9, "a job of the schedule ran that no slot became", f"job {job}")
    return sum(len(jobs) > 1 for jobs in fired.values())


def _forgotten(runs: Iterable[Moment], lossy: Sequence[Hit]) -> bool:
    """Whether a job of which nothing is on record ran just before a failover that may have lost it."""
    return all(any(hit.began - BEFORE <= at <= hit.healed for hit in lossy) for at, _ in runs)


def _done(recorded: Mapping[int, int], states: Mapping[int, str], seen: Evidence, found: Findings) -> None:
    for job, moment in recorded.items():
        state = states.get(job)
        what = f"job {job} of slot {moment}"
        ran = job in seen.deeds.slots.get(moment, ())
        if state is None:
            found.lost += 1
            found.add(2, "a job of the schedule is gone", what)
        elif state in UNSETTLED:
            found.unsettled += 1
            found.add(3, "a job was not settled by the end", f"{what} is {state}")
        elif state == "done" and not ran:
            found.lost += 1
            found.without_effect += 1
            found.add(3, "a job is done, and its handler never did it", what)
        if ran and state != "done":
            found.without_job += 1


def _repeated(causes: Sequence[Cause], seen: Evidence, found: Findings) -> None:
    for moment, ran in seen.deeds.slots.items():
        for job, runs in ran.items():
            for one, other in pairwise(sorted(runs)):
                if not any(cause.explains(one, other) for cause in causes):
                    found.add(3, "a job ran twice, and no fault explains it", f"job {job} of slot {moment}")
