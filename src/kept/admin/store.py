"""One typed function per question an operator asks, as steps over any connection (see :mod:`kept.db.tx`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple

from kept.admin.model import Detail, Filter, JobRow, LaneRow, LogLine, Page, Recent, Status, WorkerRow
from kept.db.connect import array
from kept.db.queries import Queries
from kept.db.tx import Steps
from kept.errors import NotFound, Refused

NEWEST = 2**63 - 1
MOST_LINES = 200
LATELY = 3600.0  # seconds
_COLUMNS = len(JobRow.__struct_fields__)


class LaneName(NamedTuple):
    """A lane by its names."""

    id: int
    queue: str
    task: str


# --- jobs


def list_jobs(sql: Queries, wanted: Filter, *, limit: int, before: int = NEWEST) -> Steps[Page]:
    """The newest jobs with ids below *before*, at most *limit*."""
    # Said apart from the states, so that the planner knows: a list of failures must not walk over the live.
    live = wanted.code is None and not {"pending", "running"}.isdisjoint(wanted.states)
    rows = yield sql["list"], {**params(wanted), "live": live, "limit": limit + 1, "before": before}
    return Page(tuple(JobRow(*row) for row in rows[:limit]), more=len(rows) > limit)


def show_job(sql: Queries, id: int) -> Steps[Detail]:
    """Everything about one job, with the newest lines of its log."""
    rows = yield sql["show"], {"id": id}
    if not rows:
        raise NotFound(f"there is no job {id}; it may have been purged")
    lines = yield sql["log"], {"id": id, "limit": MOST_LINES}
    log = tuple(LogLine(*line) for line in reversed(lines))
    headers, payload, result = rows[0][_COLUMNS:]
    return Detail(
        job=JobRow(*rows[0][:_COLUMNS]),
        headers=headers,
        payload=payload,
        result=result,
        log=log,
        retries=tuple(int(line.detail) for line in log if line.event == "retried" and line.detail),
    )


def params(wanted: Filter) -> dict[str, object]:
    """A filter as the statements take it."""
    return {
        "lanes": None if wanted.lanes is None else array(wanted.lanes),
        "states": array(wanted.states),
        "older_than": wanted.older_than,
        "newer_than": wanted.newer_than,
        "code": wanted.code,
        "key": wanted.key,
        "ids": None if wanted.ids is None else array(wanted.ids),
    }


# --- lanes


def lanes(sql: Queries) -> Steps[list[LaneRow]]:
    """Every lane with what waits and runs in it."""
    rows = yield sql["lanes"], {}
    return [LaneRow(*row) for row in rows]


def lanes_of(sql: Queries, queue: str | None, task: str | None) -> Steps[tuple[int, ...] | None]:
    """The lanes of *queue* and *task*, None for all; an unknown name is NotFound, which names near ones."""
    if queue is None and task is None:
        return None
    known = yield from _names(sql)
    _check("queue", queue, (lane.queue for lane in known))
    _check("task", task, (lane.task for lane in known))
    return tuple(lane.id for lane in known if queue in (None, lane.queue) and task in (None, lane.task))


def find_lanes(sql: Queries, name: str) -> Steps[list[LaneName]]:
    """The lanes that ``QUEUE`` or ``QUEUE/TASK`` means."""
    known = yield from _names(sql)
    whole = [lane for lane in known if lane.queue == name]
    single = [lane for lane in known if f"{lane.queue}/{lane.task}" == name]
    if whole and single:  # queues may have a slash in their names
        raise Refused(
            f"{name!r} is both a queue and the task {single[0].task!r} in queue {single[0].queue!r}",
            field="lane",
        )
    if not whole and not single:
        names = {lane.queue for lane in known} | {f"{lane.queue}/{lane.task}" for lane in known}
        raise NotFound(f"there is no lane {name!r}{_near(name, names)}")
    return whole or single


def pause(sql: Queries, ids: Iterable[int], seconds: float | None) -> Steps[int]:
    """Stop claiming from these lanes, for a while or until resumed; how many."""
    rows = yield sql["pause"], {"lanes": array(list(ids)), "seconds": seconds}
    return len(rows)


def resume(sql: Queries, ids: Iterable[int]) -> Steps[int]:
    """Claim from these lanes again; how many were paused."""
    rows = yield sql["resume"], {"lanes": array(list(ids))}
    return len(rows)


def _names(sql: Queries) -> Steps[list[LaneName]]:
    rows = yield sql["lane_names"], {}
    return [LaneName(*row) for row in rows]


def _check(what: str, name: str | None, known: Iterable[str]) -> None:
    names = set(known)
    if name is not None and name not in names:
        raise NotFound(f"there is no {what} {name!r}{_near(name, names)}")


def _near(name: str, names: Iterable[str]) -> str:
    found = get_close_matches(name, sorted(names), n=3)
    return f"; near: {', '.join(found)}" if found else ""


# --- workers, and how the whole is doing


def workers(sql: Queries, *, all: bool = False) -> Steps[list[WorkerRow]]:
    """Workers that live or whose jobs are being taken back, live ones first; with *all*, those gone too."""
    rows = yield sql["workers"], {"all": all}
    return [_worker(row) for row in rows]


def status(sql: Queries) -> Steps[Status]:
    """Every lane with what was settled in it within the last hour."""
    found = yield from lanes(sql)
    rows = yield sql["recent"], {"seconds": LATELY}
    recent = {row[0]: Recent(*row[1:]) for row in rows}
    return Status(tuple((lane, recent.get(lane.id, Recent())) for lane in found))


def _worker(row: Sequence[Any]) -> WorkerRow:
    id, name, host, pid, version, queues, *rest = row
    return WorkerRow(id, name, host, pid, version, None if queues is None else tuple(queues), *rest)
