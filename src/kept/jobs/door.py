"""The front door: enqueue and look-ups as steps that run in anybody's transaction (see :mod:`kept.db.tx`)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from msgspec import Struct, structs

from kept.db.connect import array, numbers
from kept.db.queries import Queries
from kept.db.tx import Copy, Rows, Steps
from kept.jobs import copying

AT_A_TIME = 500  # rows sent together
COPY_FROM = 50  # jobs from which on it pays to copy them in
SOON = timedelta(seconds=2)  # a job due within this is worth a wake-up


class Request(Struct, frozen=True, gc=False):
    """One job to be: checked, encoded, ready to be written."""

    queue: str
    task: str
    payload: str
    priority: int | None = None
    due_at: datetime | None = None
    delay: float = 0.0  # seconds
    key: str | None = None
    unique_for: float = 86_400.0  # seconds
    headers: str | None = None
    retry_of: int | None = None
    order_key: str | None = None


class Ticket(Struct, frozen=True, gc=False):
    """The job that answers a request; *created* is False if its key was held already."""

    id: int
    created: bool


class _Lane(NamedTuple):
    id: int
    priority: int | None  # None: the lane was made just now
    ordered: bool | None


class Record(NamedTuple):
    """A row of the public view ``kept.jobs``."""

    id: int
    queue: str
    task: str
    state: str
    key: str | None
    priority: int
    attempt: int
    charged: int
    max_attempts: int
    suspect: bool
    created_at: datetime
    due_at: datetime | None
    claimed_at: datetime | None
    settled_at: datetime | None
    locked_by: str | None
    locked_until: datetime | None
    code: str | None
    reason: str | None
    message: str | None
    retry_of: int | None
    headers: Any
    payload: Any
    result: Any
    order_key: str | None


class Outcome(NamedTuple):
    """How a settled job ended."""

    state: str
    code: str | None
    reason: str | None
    message: str | None
    result: str | None


def enqueue(sql: Queries, request: Request) -> Steps[Ticket]:
    """Write one job; one statement when its lane exists and it has no key and no order."""
    if request.key is None and request.retry_of is None and request.order_key is None:
        later = request.delay > 0 or request.due_at is not None
        rows = yield sql["enqueue_later" if later else "enqueue"], structs.asdict(request)
        if rows:
            return Ticket(rows[0][0], True)
    tickets = yield from enqueue_many(sql, [request])
    return tickets[0]


def enqueue_many(sql: Queries, requests: Sequence[Request]) -> Steps[list[Ticket]]:
    """Write many jobs in a few statements; the same key twice gives the same job twice."""
    if not requests:
        return []
    lanes = yield from _lanes(sql, requests)
    if len(requests) >= COPY_FROM and all(map(_can_be_copied, requests)):
        tickets = yield from _copied(sql, requests, lanes)
        if tickets:
            return tickets
    # ON CONFLICT cannot meet a key twice in one statement: a later call with a key already named waits for its id.
    firsts: dict[tuple[int, str], int] = {}
    written: list[tuple[int, Request]] = []
    places: list[tuple[int, bool]] = []
    for request in requests:
        lane = lanes[request.queue, request.task].id
        place = firsts.get((lane, request.key)) if request.key is not None else None
        places.append((len(written) if place is None else place, place is None))
        if place is None:
            if request.key is not None:
                firsts[lane, request.key] = len(written)
            written.append((lane, request))
    rows = yield sql["enqueue_many"], _many(written)
    return [Ticket(rows[place][1], rows[place][2] and first) for place, first in places]


def _can_be_copied(request: Request) -> bool:
    return request.key is None and request.retry_of is None and request.order_key is None


def _lanes(sql: Queries, requests: Sequence[Request]) -> Steps[dict[tuple[str, str], _Lane]]:
    wanted = sorted({(request.queue, request.task) for request in requests})
    rows: Rows = yield (
        sql["lane_ids"],
        {"queues": array([queue for queue, _ in wanted]), "tasks": array([task for _, task in wanted])},
    )
    return {(row[0], row[1]): _Lane(row[2], row[3], row[4]) for row in rows}


def _copied(
    sql: Queries, requests: Sequence[Request], lanes: Mapping[tuple[str, str], _Lane]
) -> Steps[list[Ticket] | None]:
    """Copy jobs without keys in, the quickest way there is; None if it cannot be gone."""
    if any(lane.priority is None for lane in lanes.values()):
        lanes = yield from _lanes(sql, requests)  # made just now, in a statement that could not see them
    if any(lane.ordered for lane in lanes.values()):
        return None
    rows = yield sql["reserve"], {"count": len(requests)}
    now, ids = datetime.fromisoformat(rows[0][0]), [int(id) for id in rows[0][1][1:-1].split(",")]
    soon: set[tuple[int, int]] = set()
    if not (yield Copy(sql["copy_jobs"], _rows(zip(ids, requests, strict=True), lanes, now, soon))):
        return None
    if soon:
        woken = sorted(soon)
        yield (
            sql["wake_sleepers"],
            {"lanes": numbers([lane for lane, _ in woken]), "priorities": numbers([p for _, p in woken])},
        )
    return [Ticket(id, True) for id in ids]


def _rows(
    jobs: Iterable[tuple[int, Request]],
    lanes: Mapping[tuple[str, str], _Lane],
    now: datetime,
    soon: set[tuple[int, int]],
) -> Iterator[bytes]:
    """Rows for COPY, some at a time: the server works while we write the next. What is due goes into *soon*."""
    rows, plain = [copying.BEGIN], dict[tuple[str, str, int | None], bytes]()
    for id, request in jobs:
        if request.due_at is None and not request.delay and request.headers is None:
            kind = (request.queue, request.task, request.priority)
            middle = plain.get(kind)
            if middle is None:
                middle = plain[kind] = _between(request, lanes, now, soon)
        else:
            middle = _between(request, lanes, now, soon)
        rows.append(copying.row(id, middle, request.payload))
        if len(rows) >= AT_A_TIME:
            yield b"".join(rows)
            rows.clear()
    rows.append(copying.END)
    yield b"".join(rows)


def _between(
    request: Request, lanes: Mapping[tuple[str, str], _Lane], now: datetime, soon: set[tuple[int, int]]
) -> bytes:
    """What a row says besides the id and the payload."""
    lane = lanes[request.queue, request.task]
    priority = (lane.priority or 0) if request.priority is None else request.priority
    due_at = request.due_at or now + timedelta(seconds=request.delay)
    if due_at <= now + SOON:
        soon.add((lane.id, priority))
    return copying.between(
        lane.id, priority, ready=due_at <= now, due_at=due_at, created_at=now, headers=request.headers
    )


def _many(written: Sequence[tuple[int, Request]]) -> dict[str, object]:
    requests = [request for _, request in written]
    order_keys = [request.order_key for request in requests]
    return {
        "lanes": array([lane for lane, _ in written]),
        "priorities": array([request.priority for request in requests]),
        "due_at": array([request.due_at for request in requests]),
        "delays": array([request.delay for request in requests]),
        "keys": array([request.key for request in requests]),
        "unique_for": array([request.unique_for for request in requests]),
        "headers": array([request.headers for request in requests]),
        "payloads": array([request.payload for request in requests]),
        "retry_of": array([request.retry_of for request in requests]),
        "order_keys": array(order_keys if any(order_keys) else []),
    }


def find(sql: Queries, id: int) -> Steps[Record | None]:
    """The public record of this job, live or settled; None if there is no such job."""
    rows = yield sql["find"], {"id": id}
    return _record(rows[0]) if rows else None


def find_many(sql: Queries, ids: Sequence[int]) -> Steps[list[Record]]:
    """The public records of these jobs, in the order of their ids."""
    rows = yield sql["find_many"], {"ids": array(ids)}
    return [_record(row) for row in rows]


def _record(row: Sequence[Any]) -> Record:
    *facts, headers, payload, result, order_key = row
    read = [None if text is None else json.loads(text) for text in (headers, payload, result)]
    return Record(*[*facts, *read, order_key])


def outcome(sql: Queries, id: int) -> Steps[Outcome | None]:
    """How the job ended, or None while it lives."""
    rows = yield sql["outcome"], {"id": id}
    return Outcome(*rows[0]) if rows else None


def complete(sql: Queries, *, id: int, attempt: int, worker: UUID, result: str | None) -> Steps[bool]:
    """Settle one job as done, fenced, in whatever transaction this runs; False if the lease is gone."""
    rows = yield sql["complete"], {"id": id, "attempt": attempt, "worker": worker, "result": result}
    return bool(rows)


def cancel(sql: Queries, id: int) -> Steps[str | None]:
    """Settle a pending job as cancelled. The state it was found in; None if there is no such job."""
    rows = yield sql["cancel"], {"ids": array([id])}
    if rows:
        return "pending"
    found = yield from find(sql, id)
    return found.state if found else None
