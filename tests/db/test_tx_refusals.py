"""What is no usable transaction is turned away, and the sentence says what to do."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from contextlib import contextmanager

import asyncpg
import django.core.cache
import django.db
import psycopg
import psycopg2
import pytest
import sqlalchemy as sa
from django.db import transaction
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from kept.db.tx import arun, async_tx, run, sync_tx
from kept.errors import Refused
from ways import async_engine_for, django_connection, engine_for, over


def one():
    rows = yield "select %(n)s::int", {"n": 1}
    return rows[0][0]


@contextmanager
def refused(because):
    with pytest.raises(Refused, match=because) as raised:
        yield
    assert raised.value.field == "tx"
    assert str(raised.value).startswith("tx: ")


@pytest.fixture
def engine(database):
    with engine_for(database, "psycopg") as engine:
        yield engine


# --- autocommit


def test_psycopg2_in_autocommit_is_refused_unless_a_transaction_was_opened(database):
    conn = psycopg2.connect(database)
    conn.autocommit = True
    with refused("autocommit.*`conn.autocommit = False`"):
        sync_tx(conn)
    with conn.cursor() as cursor:
        cursor.execute("begin")
    assert run(sync_tx(conn), one()) == 1
    conn.close()


async def test_asyncpg_outside_of_a_transaction_is_refused(database):
    conn = await asyncpg.connect(database)
    with refused("autocommit.*`async with conn.transaction\\(\\):`"):
        async_tx(conn)
    async with conn.transaction():
        assert await arun(async_tx(conn), one()) == 1
    await conn.close()


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_sqlalchemy_in_autocommit_is_refused_wherever_that_was_said(driver, database):
    with engine_for(database, driver, isolation_level="AUTOCOMMIT") as always, engine_for(database, driver) as engine:
        for each in (always, engine.execution_options(isolation_level="AUTOCOMMIT")):
            with each.connect() as conn, Session(each) as session:
                for tx in (conn, session):
                    with refused("autocommit.*AUTOCOMMIT"):
                        sync_tx(tx)
        with engine.connect() as conn:
            assert run(sync_tx(conn), one()) == 1
            conn.rollback()
            conn.execution_options(isolation_level="AUTOCOMMIT")
            with refused("autocommit.*AUTOCOMMIT"):
                sync_tx(conn)


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_async_sqlalchemy_in_autocommit_is_refused(driver, database):
    async with (
        async_engine_for(database, driver, isolation_level="AUTOCOMMIT") as engine,
        engine.connect() as conn,
        AsyncSession(engine) as session,
    ):
        for tx in (conn, session):
            with refused("autocommit.*AUTOCOMMIT"):
                await arun(async_tx(tx), one())


def test_django_outside_of_atomic_is_refused_unless_it_was_told_not_to_commit(database):
    with django_connection(database) as connection:
        for tx in (connection, django.db.connection, django.db.connections["default"]):
            with refused("autocommit.*`with transaction.atomic\\(\\):`"):
                sync_tx(tx)
        with transaction.atomic():
            assert run(sync_tx(django.db.connection), one()) == 1
        transaction.set_autocommit(False)
        assert run(sync_tx(connection), one()) == 1
        transaction.rollback()


# --- closed


async def test_a_closed_connection_is_refused_whatever_library_it_is_of(database, engine):
    plain = psycopg2.connect(database)
    plain.close()
    with engine.connect() as alchemy:
        pass
    for tx in (plain, alchemy):
        with refused("the connection is closed"):
            sync_tx(tx)
    conn = await asyncpg.connect(database)
    await conn.close()
    with refused("the connection is closed"):
        async_tx(conn)
    async with async_engine_for(database, "asyncpg") as async_engine:
        async with async_engine.connect() as conn:
            pass
        with refused("the connection is closed"):
            await arun(async_tx(conn), one())


async def test_a_connection_that_went_back_to_its_pool_is_refused(database):
    async with asyncpg.create_pool(database, min_size=1) as pool:
        async with pool.acquire() as conn:
            pass
        with refused("given back to its pool"):
            async_tx(conn)


def test_django_whose_connection_was_closed_inside_atomic_is_refused(database):
    with django_connection(database) as connection, transaction.atomic():
        connection.close()
        with refused("the connection is closed"):
            sync_tx(connection)


# --- aborted, as the library sees it


class Base(DeclarativeBase):
    pass


class Thing(Base):
    __tablename__ = "things"
    id: Mapped[int] = mapped_column(primary_key=True)


def test_a_session_whose_flush_failed_is_refused(engine):
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add(Thing(id=1))
        session.commit()
    with Session(engine) as session:
        session.add(Thing(id=1))
        with pytest.raises(sa.exc.IntegrityError):
            session.flush()
        with refused("the transaction is aborted"):
            sync_tx(session)
        session.rollback()
        assert run(sync_tx(session), one()) == 1


def test_django_that_must_roll_back_is_refused(database):
    with django_connection(database) as connection, transaction.atomic():
        transaction.set_rollback(True)
        with refused("the transaction is aborted"):
            sync_tx(connection)


# --- nothing of the caller's is touched


def test_a_session_is_not_flushed(engine):
    with Session(engine) as session:
        session.add(Thing(id=1))  # its table does not exist: a flush would fail
        assert run(sync_tx(session), one()) == 1
        assert len(session.new) == 1
        assert session.in_transaction()
        session.expunge_all()


def writing():
    rows = yield "insert into things values (%(id)s::int) returning id", {"id": 7}
    return rows


streaming = pytest.mark.parametrize("option", [{"stream_results": True}, {"yield_per": 10}])


@streaming
def test_a_connection_that_streams_can_write_all_the_same(option, engine):
    Base.metadata.create_all(engine)
    with engine.connect().execution_options(**option) as conn:
        assert run(sync_tx(conn), writing()) == [(7,)]


@streaming
@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_an_async_connection_that_streams_can_write_all_the_same(driver, option, database, engine):
    Base.metadata.create_all(engine)
    async with async_engine_for(database, driver, execution_options=option) as it, it.connect() as conn:
        assert await arun(async_tx(conn), writing()) == [(7,)]


async def test_codecs_that_the_caller_set_up_do_not_matter(database):
    def typed():
        rows = yield "select %(a)s::json::text, %(b)s::int[]::text", {"a": '{"x": 1}', "b": "{1,2}"}
        return rows

    conn = await asyncpg.connect(database)
    await conn.set_type_codec("json", schema="pg_catalog", encoder=repr, decoder=repr)
    async with conn.transaction():
        assert await arun(async_tx(conn), typed()) == [('{"x": 1}', "{1,2}")]
    await conn.close()


# --- what is no transaction


@pytest.fixture
def mistakes(database, engine):
    """What people give by mistake, and a word of the hint."""
    cursor = psycopg2.connect(database).cursor()
    with engine.connect() as alchemy, psycopg.connect(database) as conn, conn.transaction() as block:
        begun, session = alchemy.begin(), Session(engine)
        yield [
            (engine, "engine.begin()"),
            (create_async_engine(over(database, "asyncpg")), "engine.begin()"),
            (sessionmaker(engine), "Session.begin()"),
            (async_sessionmaker(), "Session.begin()"),
            (begun, "give the connection or session it belongs to"),
            (session.begin(), "give the connection or session it belongs to"),
            (block, "give the connection or session it belongs to"),
            (conn.cursor(), "give the connection it belongs to"),
            (cursor, "give the connection it belongs to"),
            (transaction, "inside `with transaction.atomic():`"),
            (transaction.atomic(), "inside `with transaction.atomic():`"),
            (django.db, "inside `with transaction.atomic():`"),
            (django.db.connections, "inside `with transaction.atomic():`"),
            (asyncpg, ""),
            (django.core.cache.cache, ""),
        ]
        begun.rollback()
        session.close()
    cursor.connection.close()


def test_a_near_miss_is_refused_with_what_to_give_instead(mistakes):
    for tx, hint in mistakes:
        for check in (sync_tx, async_tx):
            kind = f"{type(tx).__module__}.{type(tx).__qualname__}"
            with refused(f"expected a psycopg connection.*got {re.escape(kind)}.*{re.escape(hint)}"):
                check(tx)


async def test_an_asyncpg_pool_or_transaction_is_refused_with_what_to_give_instead(database):
    async with asyncpg.create_pool(database, min_size=1) as pool, pool.acquire() as conn:
        with refused("a pool has many connections; give the one that your transaction is on"):
            async_tx(pool)
        with refused("give the connection or session it belongs to"):
            async_tx(conn.transaction())


def test_another_database_than_postgresql_is_refused_by_its_name():
    engine = sa.create_engine("sqlite://")
    with engine.connect() as conn, refused("over sqlite"):
        sync_tx(conn)
    engine.dispose()
    other = django.db.ConnectionHandler({"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})
    with refused("one to sqlite"):
        sync_tx(other["default"])


def test_a_session_of_several_databases_is_told_to_name_one(engine):
    with Session(binds={Thing: engine}) as session:
        with refused("session.connection\\(bind_arguments=…\\)"):
            sync_tx(session)
        assert run(sync_tx(session.connection(bind_arguments={"mapper": Thing})), one()) == 1


def test_what_stands_for_a_connection_is_taken_for_it(database):
    """Tracing libraries hand out such objects."""

    class Traced:
        def __init__(self, conn):
            self._conn = conn

        def __getattr__(self, name):
            return getattr(self._conn, name)

        @property
        def __class__(self):
            return type(self._conn)

    conn = psycopg2.connect(database)
    assert run(sync_tx(Traced(conn)), one()) == 1
    conn.close()


def test_django_on_a_loop_says_so_itself(database):
    async def enqueue(connection):
        return run(sync_tx(connection), one())

    with django_connection(database) as connection, transaction.atomic():
        with pytest.raises(django.core.exceptions.SynchronousOnlyOperation):
            asyncio.run(enqueue(connection))
        with refused("sync_to_async"):
            async_tx(connection)


def test_no_library_of_the_callers_is_imported_by_us():
    program = "import sys, kept; print({'asyncpg', 'django', 'psycopg2', 'sqlalchemy'} & set(sys.modules))"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert said.stdout == "set()\n"
