"""Whatever library a transaction is of, a job rides in it like the caller's own rows."""

from __future__ import annotations

from datetime import UTC, datetime

import asyncpg
import django.db
import psycopg
import psycopg2
import pytest
import sqlalchemy.exc

from kept import App, Context, LeaseLost, Refused, SchemaMismatch, Unavailable
from kept.db.tx import arun, async_tx, run, sync_tx
from ways import WAYS, opened

DUE = datetime(2031, 5, 4, 3, 2, 1, 500, tzinfo=UTC)
ODD = '“it\'s” 100% \\n "$1" %(id)s {é,NULL} 日本'

every_way = pytest.mark.parametrize("name", WAYS)


@pytest.fixture(autouse=True)
def on_a_loop(monkeypatch):
    """Sync ways are tested on a loop as well; Django has to be told that this is meant."""
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")


@pytest.fixture
def app(database):
    app = App(database)
    yield app
    app.close()


@pytest.fixture
def note(app):
    @app.task()
    def note(text: str = "") -> None: ...

    return note


@pytest.fixture
def table(conn):
    conn.execute("create table mine (n int)")


def count(conn, table):
    return conn.execute(f"select count(*) from {table}").fetchone()[0]


class Oops(Exception):
    """The caller's own."""


@every_way
async def test_the_job_and_the_callers_rows_commit_together(name, database, note, conn, table):
    async with opened(name, database) as way:
        job = await way.enqueue(note, "first")  # before anything else: it has to begin the transaction
        await way.execute("insert into mine values (1)")
        assert (count(conn, "mine"), count(conn, "kept.job")) == (0, 0)
        await way.commit()
    assert (count(conn, "mine"), count(conn, "kept.job")) == (1, 1)
    assert job.created


@every_way
async def test_a_rollback_takes_the_job_along(name, database, note, conn, table):
    async with opened(name, database) as way:
        await way.enqueue(note, "first")
        await way.execute("insert into mine values (1)")
        await way.rollback()
    assert (count(conn, "mine"), count(conn, "kept.job")) == (0, 0)


@every_way
async def test_a_savepoint_that_is_undone_takes_its_own_job_along_and_no_other(name, database, note, conn):
    async with opened(name, database) as way:
        kept = [await way.enqueue(note, "outside")]
        with pytest.raises(Oops):
            async with way.nested():
                await way.enqueue(note, "undone")
                raise Oops
        async with way.nested():
            kept.append(await way.enqueue(note, "inside"))
        await way.commit()
    assert conn.execute("select id from kept.job order by id").fetchall() == [(job.id,) for job in kept]


@every_way
async def test_options_are_stored_as_psycopg_stores_them(name, database, note, conn):
    options = {"priority": -7, "due_at": DUE, "headers": {"who": ODD}}
    async with opened("psycopg", database) as way:
        await way.enqueue(note, ODD, **options)
        await way.enqueue(note, ODD, **options, key=ODD)
        await way.commit()
    columns = "priority, ready, due_at, headers::text, payload::text"
    expected = conn.execute(f"delete from kept.job returning {columns}").fetchall()
    conn.execute("delete from kept.unique_key")
    async with opened(name, database) as way:
        await way.enqueue(note, ODD, **options)
        await way.enqueue(note, ODD, **options, key=ODD)
        await way.commit()
    assert conn.execute(f"select {columns} from kept.job order by id").fetchall() == expected
    assert conn.execute("select key from kept.unique_key").fetchall() == [(ODD,)]


@every_way
async def test_a_key_that_is_held_gives_the_job_as_any_look_up_shows_it(name, database, app, note):
    async with opened(name, database) as way:
        job = await way.enqueue(note, "first", key="k", priority=3, headers={"a": ODD})
        same = await way.enqueue(note, "second", key="k")  # seen inside the transaction that made it
        await way.commit()
    async with opened(name, database) as way:
        again = await way.enqueue(note, "third", key="k")
    assert [each.created for each in (job, same, again)] == [True, False, False]
    assert same.id == again.id == job.id
    found = await app.ajob(job.id)
    await app.aclose()
    for each in (same, again):
        assert (each.headers, each.priority, each.state) == ({"a": ODD}, 3, "pending")
        assert (each.created_at, each.due_at) == (found.created_at, found.due_at)
        assert each.created_at.tzinfo is not None


@every_way
@pytest.mark.parametrize("keys", [False, True])
async def test_many_jobs_go_in_at_once_in_their_order(name, keys, database, app, note, conn):
    calls = [note.using(key=f"k{n}" if keys else None).bind(f"{ODD} {n}") for n in range(100)]
    async with opened(name, database) as way:
        jobs = await way.enqueue_many(app, calls)
        assert count(conn, "kept.job") == 0
        await way.commit()
    rows = conn.execute("select id, payload ->> 'text', ready from kept.job order by id").fetchall()
    assert rows == [(job.id, f"{ODD} {n}", True) for n, job in enumerate(jobs)]


@every_way
@pytest.mark.parametrize(("end", "state", "rows"), [("commit", "done", 1), ("rollback", "pending", 0)])
async def test_a_job_is_completed_with_its_effect_or_not_at_all(name, end, state, rows, database, app, conn, table):
    @app.task()
    async def effect(ctx: Context) -> None:
        async with opened(name, database) as way:
            await way.execute("insert into mine values (1)")
            await way.complete(ctx, {"by": ODD})
            await getattr(way, end)()

    async with app:
        job = await effect.aenqueue()
        await app.drain()
        found = await app.ajob(job.id)
        assert (found.state, count(conn, "mine")) == (state, rows)
        if state == "done":
            assert await found.aresult() == {"by": ODD}


@every_way
async def test_a_job_that_is_no_longer_ours_cannot_be_completed(name, database, app, conn):
    raised = []

    @app.task()
    async def late(ctx: Context) -> None:
        conn.execute("update kept.job set attempt = attempt + 1")  # as if another had it now
        async with opened(name, database) as way:
            try:
                await way.complete(ctx, None)
            except LeaseLost as error:
                raised.append(error)

    async with app:
        await late.aenqueue()
        await app.drain()
    assert len(raised) == 1


@every_way
async def test_an_aborted_transaction_is_refused_and_rolled_back_it_is_fine_again(name, database, note, conn):
    async with opened(name, database) as way:
        with pytest.raises(Exception, match="division by zero"):
            await way.execute("select 1 / 0")
        with pytest.raises(Refused, match=r"^tx: the transaction is aborted by an earlier error; roll it back first$"):
            await way.enqueue(note)
        await way.rollback()
    assert count(conn, "kept.job") == 0


@every_way
async def test_a_database_without_the_schema_is_named_with_the_command(name, empty_database, note):
    async with opened(name, empty_database) as way:
        with pytest.raises(SchemaMismatch, match="run `kept migrate`") as raised:
            await way.enqueue(note)
        await way.rollback()
    assert raised.value.__cause__ is not None


@every_way
async def test_a_read_only_transaction_is_named(name, database, note):
    async with opened(name, database) as way:
        await way.execute("set transaction read only")
        with pytest.raises(Unavailable, match="read-only"):
            await way.enqueue(note)
        await way.rollback()


def failing():
    yield "select 1 / 0", {}


OWN = {"asyncpg": asyncpg.PostgresError, "psycopg2": psycopg2.Error, "Django": django.db.Error}


@every_way
async def test_other_errors_are_those_of_the_callers_library(name, database):
    library = name.partition(",")[0]
    own = OWN.get(library, psycopg.Error if "psycopg" in library else sqlalchemy.exc.DBAPIError)
    async with opened(name, database) as way:
        with pytest.raises(own, match="division by zero"):
            await arun(async_tx(way.tx), failing()) if way.is_async else run(sync_tx(way.tx), failing())
        await way.rollback()


@every_way
async def test_a_call_of_the_other_colour_is_refused_with_the_call_to_use(name, database, note):
    async with opened(name, database) as way:
        with pytest.raises(
            Refused, match="make the sync call" if not way.is_async else "await the async call"
        ) as refused:
            note.using(tx=way.tx).enqueue() if way.is_async else await note.using(tx=way.tx).aenqueue()
    assert refused.value.field == "tx"
