"""For tests of runners: stores over real connections, and an App whose runners tell what they do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg

from kept.db.connect import Link
from kept.jobs.store import Store
from kept.runners.model import Answer
from kept.runners.rules import place_of
from kept.runners.store import RunnerStore
from kernel import rows

PLACE = place_of("sweep", singleton=True, index=None, count=None)


@asynccontextmanager
async def pair(database: str, count: int = 2) -> AsyncIterator[list[tuple[RunnerStore, Store]]]:
    """Stores of runners, each with a store of workers over the same connection."""
    links = [await Link.open(database, name=f"store {number}") for number in range(count)]
    try:
        yield [(RunnerStore(link), Store(link)) for link in links]
    finally:
        for link in links:
            await link.close()


async def take(
    store: RunnerStore, worker: Any, *, place=PLACE, every: float = 60.0, early: float = 0.0, singleton: bool = True
) -> Answer:
    """Ask for a pass, as ``worker``."""
    return await store.take(place, worker, "worker", every=every, early=early, singleton=singleton)


def runs(conn: psycopg.Connection, name: str | None = None) -> list[dict[str, Any]]:
    """What is on record, in order."""
    return rows(conn, "select * from kept.run where name = coalesce(%s, name) order by id", name)


def runner_row(conn: psycopg.Connection, row: str = "sweep") -> dict[str, Any]:
    (found,) = rows(conn, "select * from kept.runner where name = %s", row)
    return found
