"""The caller's own transaction: recognised, checked, used, and never ended by us."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.rows import dict_row, namedtuple_row

from kept.db.tx import arun, async_tx, run, sync_tx
from kept.errors import Refused


def doubling(number):
    """An operation of two statements."""
    rows = yield "select %(n)s * 2", {"n": number}
    rows = yield "select %(n)s * 2 where true", {"n": rows[0][0]}
    yield "set local application_name = 'used'", {}
    return rows[0][0]


def failing():
    yield "select 1", {}
    yield "select 1 / 0", {}


@pytest.fixture
def caller(database):
    with psycopg.connect(database) as caller:
        yield caller


def refusal(check, tx):
    with pytest.raises(Refused) as refused:
        check(tx)
    assert refused.value.field == "tx"
    return str(refused.value)


class Session:
    """Somebody else's."""


@pytest.mark.parametrize("tx", [None, 5, "postgresql://db", Session(), Session, object()])
def test_what_is_no_connection_is_refused_by_its_type(tx):
    for check in (sync_tx, async_tx):
        said = refusal(check, tx)
        assert "expected a psycopg connection" in said
        assert type(tx).__qualname__ in said


async def test_a_connection_of_the_other_colour_is_refused_with_the_call_to_use(database, caller):
    async with await psycopg.AsyncConnection.connect(database) as other:
        assert "async connection" in refusal(sync_tx, other)
        assert "sync connection" in refusal(async_tx, caller)
        assert sync_tx(caller) is caller
        assert async_tx(other) is other


async def test_a_closed_connection_is_refused(database, caller):
    other = await psycopg.AsyncConnection.connect(database)
    await other.close()
    caller.close()
    assert "closed" in refusal(sync_tx, caller)
    assert "closed" in refusal(async_tx, other)


def test_a_connection_the_server_ended_is_refused(caller, conn):
    conn.execute("select pg_terminate_backend(%s)", [caller.info.backend_pid])
    with pytest.raises(psycopg.OperationalError):
        caller.execute("select 1")
    assert "closed" in refusal(sync_tx, caller)


async def test_an_aborted_transaction_is_refused(database, caller):
    with pytest.raises(psycopg.errors.UndefinedColumn):
        caller.execute("select nonsense")
    assert "aborted" in refusal(sync_tx, caller)
    caller.rollback()
    assert sync_tx(caller) is caller
    async with await psycopg.AsyncConnection.connect(database) as other:
        with pytest.raises(psycopg.errors.UndefinedColumn):
            await other.execute("select nonsense")
        assert "aborted" in refusal(async_tx, other)
        await other.rollback()


async def test_autocommit_without_a_transaction_is_refused_and_within_one_accepted(database, conn):
    assert "autocommit" in refusal(sync_tx, conn)
    with conn.transaction():
        assert sync_tx(conn) is conn
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as other:
        assert "autocommit" in refusal(async_tx, other)
        async with other.transaction():
            assert async_tx(other) is other


@pytest.mark.parametrize("factory", [dict_row, namedtuple_row])
async def test_an_operation_gets_plain_rows_whatever_the_connection_makes_of_them(factory, database):
    with psycopg.connect(database, row_factory=factory) as caller:
        assert run(caller, doubling(3)) == 12
        assert caller.row_factory is factory
    async with await psycopg.AsyncConnection.connect(database, row_factory=factory) as caller:
        assert await arun(caller, doubling(3)) == 12


async def test_an_operation_works_in_a_pipeline(database, caller):
    with caller.pipeline():
        assert run(caller, doubling(3)) == 12
    async with await psycopg.AsyncConnection.connect(database) as other, other.pipeline():
        assert await arun(other, doubling(3)) == 12


def test_an_operation_neither_commits_nor_rolls_back(caller):
    caller.execute("create temporary table t as select 1 as n")
    assert run(caller, doubling(1)) == 4
    assert caller.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS
    caller.rollback()
    with pytest.raises(psycopg.errors.UndefinedTable):
        caller.execute("select * from t")


async def test_the_drivers_error_reaches_the_caller(database, caller):
    with pytest.raises(psycopg.errors.DivisionByZero):
        run(caller, failing())
    async with await psycopg.AsyncConnection.connect(database) as other:
        with pytest.raises(psycopg.errors.DivisionByZero):
            await arun(other, failing())


def test_an_operation_without_statements_is_fine(caller):
    def nothing():
        return 7
        yield

    assert run(caller, nothing()) == 7
