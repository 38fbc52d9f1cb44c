"""An App on a database of the test's own, and what tests of the outbox ask of both."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from kept import App, Job, Retry
from kept.db.connect import Link
from kept.worker.post import Declared, declare

ONCE = Retry.fixed("0s", max_attempts=1, jitter="0s")


@pytest.fixture
def app(database: str) -> Iterator[App]:
    app = App(database)
    yield app
    app.close()


@pytest.fixture
def sync() -> Callable[[App], Declared]:
    """What ``kept sync`` does."""
    return lambda app: asyncio.run(_declared(app, exact=True))


@pytest.fixture
def start() -> Callable[[App], Declared]:
    """What a worker does when it starts."""
    return lambda app: asyncio.run(_declared(app, exact=False))


async def _declared(app: App, *, exact: bool) -> Declared:
    link = await Link.open(app.database)
    try:
        return await declare(link, app.plan(kept=False), exact=exact)
    finally:
        await link.close()


@pytest.fixture
def drain() -> Callable[[App], list[Job[Any]]]:
    async def go(app: App) -> list[Job[Any]]:
        try:
            return await app.drain()
        finally:
            await app.aclose()

    return lambda app: asyncio.run(go(app))


@pytest.fixture
def ask(conn: psycopg.Connection) -> Callable[..., list[Any]]:
    """Rows; of one column, its values."""

    def rows(query: str, *params: object) -> list[Any]:
        found = conn.execute(query, params).fetchall()
        return [row[0] if len(row) == 1 else row for row in found]

    return rows
