"""A flow of statements written once, run on a sync or an async connection.

A flow is a generator: it yields a statement and is sent the rows, or None where a lock was not to be had.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, LiteralString, TypeVar

import psycopg

T = TypeVar("T")
Rows = list[tuple[Any, ...]] | None

# Each statement is a transaction of its own. It may take its time, but not stand in line for a lock, is
# planned for large tables whatever the session is set to, and reckons in UTC: a day more must not depend on
# somebody's daylight saving time.
_SETTINGS: LiteralString = """
select set_config('statement_timeout', '10min', true), set_config('lock_timeout', '1s', true),
       set_config('timezone', 'UTC', true),
       set_config('enable_seqscan', 'on', true), set_config('enable_sort', 'on', true),
       set_config('enable_hashjoin', 'on', true), set_config('plan_cache_mode', 'force_custom_plan', true)
"""
_REFUSED = (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected)


@dataclass(frozen=True, slots=True)
class Step:
    """One statement and its parameters."""

    query: LiteralString
    params: Mapping[str, object] = field(default_factory=dict)


Flow = Generator[Step, Rows, T]


def run(conn: psycopg.Connection[Any], flow: Flow[T]) -> T:
    """Run *flow* to its end; a lock that is not to be had ends only the statement that asked for it."""
    step = next(flow)
    while True:
        rows: Rows
        try:
            with conn.transaction():
                conn.execute(_SETTINGS)
                rows = conn.execute(step.query, step.params, prepare=False).fetchall()
        except _REFUSED:
            rows = None
        try:
            step = flow.send(rows)
        except StopIteration as end:
            value: T = end.value
            return value


async def arun(conn: psycopg.AsyncConnection[Any], flow: Flow[T]) -> T:
    """:func:`run` on an async connection."""
    step = next(flow)
    while True:
        rows: Rows
        try:
            async with conn.transaction():
                await conn.execute(_SETTINGS)
                rows = await (await conn.execute(step.query, step.params, prepare=False)).fetchall()
        except _REFUSED:
            rows = None
        try:
            step = flow.send(rows)
        except StopIteration as end:
            value: T = end.value
            return value
