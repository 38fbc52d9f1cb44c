"""app.schedules in the caller's own transaction, whatever its library: together with it or not at all."""

from __future__ import annotations

import pytest

from kept import App, every
from kernel import rows
from timetables import fired, firings
from ways import WAYS, opened


@pytest.fixture(autouse=True)
def allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sync ways are tested on a loop as well; Django has to be told that this is meant."""
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")


def app_of(database: str) -> App:
    app = App(database)

    @app.task(name="send")
    async def send(n: int) -> None: ...

    app.send = send
    return app


async def use(app: App, way, name: str) -> list[object]:
    """Every verb once, in one transaction."""
    book, tx, call = app.schedules, way.tx, app.send.bind(7)
    if way.is_async:
        await book.aadd(name, every("1h"), call, tx=tx, blackout=["12-25"], overlap="allow")
        await book.aedit(name, rule=every("2h"), tx=tx)
        said = [await book.apause(name, tx=tx), await book.apause(name, tx=tx), await book.aresume(name, tx=tx)]
        job = await book.arun_now(name, tx=tx)
        found = [(await book.aget(name, tx=tx)).name, len(await book.aall(tx=tx))]
        return [*said, *found, [each.job == job for each in await book.aoccurrences(name, tx=tx)]]
    book.add(name, every("1h"), call, tx=tx, blackout=["12-25"], overlap="allow")
    book.edit(name, rule=every("2h"), tx=tx)
    said = [book.pause(name, tx=tx), book.pause(name, tx=tx), book.resume(name, tx=tx)]
    job = book.run_now(name, tx=tx)
    found = [book.get(name, tx=tx).name, len(book.all(tx=tx))]
    return [*said, *found, [each.job == job for each in book.occurrences(name, tx=tx)]]


@pytest.mark.parametrize("way", sorted(WAYS))
async def test_schedules_are_changed_with_the_callers_transaction_or_not_at_all(database, conn, clock, way) -> None:
    app = app_of(database)
    expected = [True, False, True, "it", 1, [True]]
    async with opened(way, database) as tx:
        assert await use(app, tx, "it") == expected
        await tx.rollback()
    assert rows(conn, "select from kept.schedule") == rows(conn, "select from kept.job") == []
    async with opened(way, database) as tx:
        assert await use(app, tx, "it") == expected
        await tx.commit()
    async with app:
        clock.advance("2h")
        async with firings(database) as (worker,):
            assert (await worker.fire()).jobs == 1
    assert len(fired(conn)) == 2


@pytest.mark.parametrize("way", ["psycopg", "asyncpg", "Session, psycopg", "AsyncSession, asyncpg"])
async def test_in_a_transaction_that_sees_one_moment_they_work_too(database, conn, way) -> None:
    app = app_of(database)
    async with app, opened(way, database) as tx:
        await tx.execute("set transaction isolation level repeatable read")
        assert await use(app, tx, "it") == [True, False, True, "it", 1, [True]]
        await tx.commit()
    assert len(rows(conn, "select from kept.schedule")) == 1
