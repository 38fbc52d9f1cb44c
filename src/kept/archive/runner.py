"""Upkeep: partitions, expired unique keys and markers of inboxes, workers long gone, sleepers that never woke up."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import psycopg

from kept.archive import partitions
from kept.archive.partitions import Changes
from kept.archive.rules import Retention
from kept.archive.steps import Flow, Step, arun
from kept.db.queries import DEFAULT_SCHEMA, Queries, load

BATCH = 1000


@dataclass(slots=True)
class Upkeep:
    """What a pass did: rows purged, and what happened to partitions."""

    keys: int = 0
    event_keys: int = 0
    markers: int = 0
    workers: int = 0
    sleepers: int = 0
    partitions: Changes = field(default_factory=Changes)


async def upkeep(
    conn: psycopg.AsyncConnection[Any],
    schema: str = DEFAULT_SCHEMA,
    keep: Retention | None = None,
    *,
    batch: int = BATCH,
) -> Upkeep:
    """One pass over everything that piles up. *conn* is in autocommit mode; no statement waits for a user."""
    return await arun(conn, _flow(load("kept.archive", schema), keep or Retention(), batch))


def _flow(sql: Queries, keep: Retention, batch: int) -> Flow[Upkeep]:
    # Partitions last: should one of them fail, the rest was done.
    done = Upkeep()
    done.keys = yield from _purge_keys(sql, batch)
    done.event_keys = yield from _purge_event_keys(sql, batch)
    done.markers = yield from purge_markers(sql, batch=batch)
    done.workers = yield from _count(sql, "purge_workers")
    done.sleepers = yield from _count(sql, "purge_sleepers")
    done.partitions = yield from partitions.flow(sql, keep)
    return done


def _purge_keys(sql: Queries, batch: int) -> Flow[int]:
    """Purge the keys that expired and whose job is not live, a batch at a time."""
    purged, last = 0, ("-infinity", 0, "")
    while True:
        after, lane, key = last
        params = {"after": after, "lane": lane, "key": key, "limit": batch}
        rows = yield Step(sql["purge_keys"], params)
        if not rows:
            return purged
        *place, gone = rows[0]
        purged, last = purged + gone, tuple(place)


def _purge_event_keys(sql: Queries, batch: int) -> Flow[int]:
    """Purge the keys of events that expired, a batch at a time."""
    purged = 0
    while True:
        rows = yield Step(sql["purge_event_keys"], {"limit": batch})
        purged += rows[0][0] if rows else 0
        if not rows or rows[0][0] < batch:
            return purged


def purge_markers(sql: Queries, consumer: str | None = None, *, batch: int = BATCH) -> Flow[int]:
    """Purge the expired markers of *consumer*, or of all consumers, a batch at a time; locked ones are left."""
    if consumer is not None:
        return (yield from _purge_consumer(sql, consumer, batch))
    purged, name = 0, ""
    while True:
        rows = yield Step(sql["next_consumer"], {"after": name})
        if not rows or rows[0][0] is None:
            return purged
        name = rows[0][0]
        purged += yield from _purge_consumer(sql, name, batch)


def _purge_consumer(sql: Queries, consumer: str, batch: int) -> Flow[int]:
    purged, after = 0, "-infinity"
    while True:
        rows = yield Step(sql["purge_markers"], {"consumer": consumer, "after": after, "limit": batch})
        if not rows:
            return purged
        last, gone = rows[0][0], int(rows[0][1])
        purged += gone
        if gone < batch:
            return purged
        after = last


def _count(sql: Queries, name: str) -> Flow[int]:
    rows = yield Step(sql[name])
    return int(rows[0][0]) if rows else 0
