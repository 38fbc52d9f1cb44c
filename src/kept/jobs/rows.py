"""What goes to the database and what comes back, as data: parameters made of decisions, jobs made of rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from msgspec import Struct

from kept.db.connect import array, numbers
from kept.db.wire import Reply
from kept.jobs.model import DONE, Claimed, Close, Lane, Leave, Note, Park, Settlement
from kept.signals import Figures, Waiting

Decision = tuple[Claimed, Settlement]


class Want(NamedTuple):
    """How many jobs of one lane and priority may be claimed, from which id upwards."""

    lane: int
    priority: int
    want: int
    floor: int
    strides: bool = False  # there may be more below the floor: passed over for our peers


class OrderWant(NamedTuple):
    """How many jobs of an ordered lane may be claimed: of how many keys, how many of each, after which key."""

    lane: int
    want: int
    keys: int
    reach: int
    after: str


class Looked(NamedTuple):
    """How far a claim looked: so many keys of a lane, so many of them with a free head, the last one."""

    keys: int
    free: int
    last: str


class Ordered(Struct, frozen=True):
    """What a claim of ordered lanes brought."""

    claimed: list[Claimed]  # in the order of their ids
    gaps: dict[tuple[int, str], int]  # (lane, order key) -> a job that another was quicker with: not to be overtaken
    looked: dict[int, Looked]  # by lane; one without keys is left out


class Stepped(Struct, frozen=True):
    """What a step brought: jobs under our lease, and ids whose lease was gone."""

    claimed: list[Claimed]
    lost: frozenset[int]

    @property
    def count(self) -> int:
        return len(self.claimed)

    def read(self) -> Stepped:
        """There is nothing left to read."""
        return self


class StepReply:
    """What a step brought, not yet read. *count* jobs were claimed."""

    def __init__(self, reply: Reply, worker: UUID, *, settles: bool = True) -> None:
        self._reply = reply
        self._worker = worker
        self._settles = settles
        self.count = reply.count - settles

    def read(self) -> Stepped:
        """Read it, once. The first row of a step that settles tells whose lease was gone."""
        rows, worker = self._reply.rows(), self._worker
        told = rows.pop(0)[-1] if self._settles else "{}"
        lost = frozenset() if told == "{}" else frozenset(map(int, told[1:-1].split(",")))
        return Stepped([Claimed(*[*row, worker]) for row in rows], lost)


class Survey(Struct):
    """What is there to do besides what the floors tell; times in seconds from now."""

    ready: dict[tuple[int, int], int]  # (lane, priority) -> lowest id nobody has claimed
    promoted: dict[tuple[int, int], int]
    due_in: float | None = None
    suspect_in: float | None = None
    schedule_in: float | None = None
    expired: bool = False
    newest_lane: int = 0
    count: int = 0
    peers: tuple[int, int] = (0, 1)  # our place among workers of the same tasks and queues, and how many there are


class Orphan(NamedTuple):
    """A dead worker's job and the numbers of its lane."""

    job: Claimed
    lane: Lane


def claim_params(worker: UUID, session: int, wants: Sequence[Want], most: int) -> dict[str, object]:
    return {
        "worker": worker,
        "session": session,
        "lanes": numbers([want.lane for want in wants]),
        "priorities": numbers([want.priority for want in wants]),
        "wants": numbers([want.want for want in wants]),
        "floors": numbers([want.floor for want in wants]),
        "most": most,
    }


def ordered_params(worker: UUID, session: int, wants: Sequence[OrderWant], looks: int) -> dict[str, object]:
    """The parameters of a claim of ordered lanes."""
    return {
        "worker": worker,
        "session": session,
        "lanes": array([want.lane for want in wants]),
        "wants": array([want.want for want in wants]),
        "keys": array([want.keys for want in wants]),
        "reaches": array([want.reach for want in wants]),
        "afters": array([want.after for want in wants]),
        "looks": looks,
    }


def ordered_of(rows: Iterable[Sequence[Any]], worker: UUID) -> Ordered:
    """What the rows of a claim of ordered lanes say."""
    brought = Ordered([], {}, {})
    for row in rows:
        id, lane, attempt, order_key = row[0], row[1], row[3], row[13]
        if id is None:
            brought.looked[lane] = Looked(row[2], row[4], order_key)
        elif attempt is None:
            brought.gaps[lane, order_key] = min(id, brought.gaps.get((lane, order_key), id))
        else:
            brought.claimed.append(Claimed(*[*row[:13], worker, order_key]))
    brought.claimed.sort(key=lambda job: job.id)
    return brought


def settle_params(decisions: Sequence[Decision]) -> dict[str, object]:
    """Settlements as arrays, those with details first: arrays of details end where the plain ones begin."""
    plain: list[Claimed] = []
    closed: list[tuple[Claimed, Close]] = []
    parked: list[tuple[Claimed, Park]] = []
    notes: list[tuple[Claimed, Note]] = []
    for job, settlement in decisions:
        if settlement is DONE:
            plain.append(job)
            continue
        match settlement:
            case Close():
                closed.append((job, settlement))
            case Park():
                parked.append((job, settlement))
            case Leave():
                continue
        if settlement.note is not None:
            notes.append((job, settlement.note))
    jobs = [job for job, _ in closed] + plain
    return {
        "ids": numbers([job.id for job in jobs]),
        "attempts": numbers([job.attempt for job in jobs]),
        "states": array([close.state for _, close in closed]),
        "codes": array([close.code for _, close in closed]),
        "reasons": array([close.reason for _, close in closed]),
        "messages": array([close.message for _, close in closed]),
        "results": array([close.result for _, close in closed]),
        "park_ids": array([job.id for job, _ in parked]),
        "park_attempts": array([job.attempt for job, _ in parked]),
        "park_delays": array([park.delay for _, park in parked]),
        "park_charged": array([park.charged for _, park in parked]),
        "park_suspect": array([park.suspect for _, park in parked]),
        "park_aside": array([park.aside for _, park in parked]),
        "note_jobs": array([job.id for job, _ in notes]),
        "note_attempts": array([job.attempt for job, _ in notes]),
        "note_events": array([note.event for _, note in notes]),
        "note_codes": array([note.code for _, note in notes]),
        "note_messages": array([note.message for _, note in notes]),
        "note_details": array([note.detail for _, note in notes]),
    }


def unrecordable(decision: Decision) -> Decision:
    """The same job, failed, with nothing of what the database would not take."""
    job, settlement = decision
    code = settlement.code if isinstance(settlement, Close) else None
    if code == "unrecordable":
        raise ValueError(f"job {job.id}: even the plainest record was refused")
    return job, Close("failed", "unrecordable", "fatal", "the database refused the record of this attempt")


def survey_of(rows: Iterable[Sequence[Any]]) -> Survey:
    seen = Survey(ready={}, promoted={})
    for what, lane, priority, id, seconds in rows:
        match what:
            case "ready":
                seen.ready[lane, priority] = id
            case "promoted":
                seen.promoted[lane, priority] = id
                seen.count += int(seconds)
            case "due":
                seen.due_in = seconds if seen.due_in is None else min(seen.due_in, seconds)
            case "suspect":
                seen.suspect_in = seconds if seen.suspect_in is None else min(seen.suspect_in, seconds)
            case "schedule":
                seen.schedule_in = seconds
            case "expired":
                seen.expired = True
            case "peers":
                seen.peers = (priority, id)
            case "lanes":
                seen.newest_lane = id or 0
    return seen


def figures_of(rows: Iterable[Sequence[Any]]) -> Figures:
    lanes: dict[int, Waiting] = {}
    workers = {"live": 0, "expired": 0}
    for what, lane, queue, task, count, seconds in rows:
        if what == "lane":
            lanes[lane] = Waiting(queue, task, count, None if seconds is None else max(0.0, seconds))
        else:
            workers[what] += count
    return Figures(lanes=[lanes[lane] for lane in sorted(lanes)], **workers)


def orphan(row: Sequence[Any]) -> Orphan:
    lane = Lane(
        id=row[1],
        queue=row[14],
        task=row[15],
        max_attempts=row[16],
        priority=row[17],
        retry_base=row[18],
        retry_max=row[19],
        trusted=row[20],
    )
    return Orphan(Claimed(*row[:14]), lane)
