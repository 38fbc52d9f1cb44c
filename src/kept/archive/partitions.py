"""Partitions of history and log: made ahead of time, dropped when their time is over.

The connection is in autocommit mode; every partition is a short transaction of its own. Whoever uses one of
the tables in an open transaction is not waited for: the partition is named as blocked, its parent left alone
for this pass, and the next pass tries again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import psycopg

from kept.archive.rules import Parent, Partition, Retention, Stray, parents, to_drop, to_make
from kept.archive.steps import Flow, Rows, Step, arun, run
from kept.db.queries import DEFAULT_SCHEMA, Queries, load

# Each try waits for a moment inside the database, so there is no need to pause between them.
_TRIES = 3


@dataclass(slots=True)
class Changes:
    """What a pass did: partitions made and dropped, rows moved out of a default partition, jobs purged."""

    made: int = 0
    moved: int = 0
    dropped: int = 0
    purged: int = 0
    blocked: list[str] = field(default_factory=list)


def ensure(conn: psycopg.Connection[Any], schema: str = DEFAULT_SCHEMA, keep: Retention | None = None) -> Changes:
    """Make the partitions that are missing and drop those whose time is over."""
    return run(conn, flow(load("kept.archive", schema), keep or Retention()))


async def aensure(
    conn: psycopg.AsyncConnection[Any], schema: str = DEFAULT_SCHEMA, keep: Retention | None = None
) -> Changes:
    """:func:`ensure` for async code."""
    return await arun(conn, flow(load("kept.archive", schema), keep or Retention()))


def flow(sql: Queries, keep: Retention) -> Flow[Changes]:
    """One pass: missing partitions first, since settling needs them; then the drops."""
    changes, wanted = Changes(), parents(keep)
    yield from _reckon(sql, wanted)
    yield from _make(sql, wanted, changes)
    yield from _drop(sql, changes)
    return changes


def _reckon(sql: Queries, wanted: Iterable[Parent]) -> Flow[None]:
    for parent in wanted:
        yield Step(sql["reckon"], {"parent": parent.name, "keep": parent.keep})


def _make(sql: Queries, wanted: Iterable[Parent], changes: Changes) -> Flow[None]:
    ((now,),) = (yield Step(sql["clock"])) or []
    existing = yield from _registry(sql)
    strays = [Stray(*row) for row in (yield Step(sql["strays"])) or []]
    blocked: set[str] = set()
    for make in to_make(now, existing, strays, wanted):
        if make.parent in blocked:
            continue
        rows = yield from _try(Step(sql["make_partition"], asdict(make)))
        if rows is None:
            blocked.add(make.parent)
            changes.blocked.append(f"{make.parent} from {make.starts_at:%Y-%m-%d}")
        elif rows[0][0] is not None:
            changes.made += 1
            changes.moved += rows[0][0]


def _drop(sql: Queries, changes: Changes) -> Flow[None]:
    # Read anew: a partition just made for old rows may be due at once.
    blocked: set[str] = set()
    for partition in to_drop((yield from _registry(sql))):
        if partition.parent in blocked:
            continue
        rows = yield from _try(Step(sql["drop_partition"], {"name": partition.name}))
        if rows is None:
            blocked.add(partition.parent)
            changes.blocked.append(partition.name)
        elif rows[0][0] is not None:
            changes.dropped += 1
            changes.purged += rows[0][0]


def _registry(sql: Queries) -> Flow[list[Partition]]:
    return [Partition(*row) for row in (yield Step(sql["registry"])) or []]


def _try(step: Step) -> Flow[Rows]:
    rows = None
    for _ in range(_TRIES):
        rows = yield step
        if rows is not None:
            break
    return rows
