"""Statements of the hot path: prepared once, and sent without waiting where that is wanted."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import psycopg
import pytest

from kept.db.connect import Link
from support import aeventually

TWICE = "select 2 * %(number)s::int"


@asynccontextmanager
async def opened(database):
    link = await Link.open(database)
    try:
        yield link
    finally:
        await link.close()


async def test_a_statement_is_prepared_once(database):
    async with opened(database) as link:
        for number in (1, 40_000, 2_000_000_000 // 2):
            assert await link.rows(TWICE, {"number": number}) == [(2 * number,)]
        assert await link.rows("select count(*) from pg_prepared_statements where name like 'kept%%'") == [(2,)]


async def test_a_text_is_not_cut_off_at_a_zero_byte(database):
    async with opened(database) as link:
        with pytest.raises(psycopg.DataError):
            await link.rows("select %(text)s::text", {"text": "before\0after"})
        assert await link.rows("select %(text)s::text", {"text": "ä€ 😀"}) == [("ä€ 😀",)]


async def test_an_error_of_the_server_is_raised_and_the_connection_goes_on(database):
    async with opened(database) as link:
        with pytest.raises(psycopg.errors.DivisionByZero):
            await link.rows("select 1 / %(number)s::int", {"number": 0})
        assert await link.rows(TWICE, {"number": 1}) == [(2,)]


async def test_only_what_the_server_knows_can_be_made_up(database):
    async with opened(database) as link:
        assert link.made_up(TWICE, {"number": 1}) is None
        await link.rows(TWICE, {"number": 1})
        assert link.made_up(TWICE, {"number": 1}) is not None


async def test_whoever_asks_while_a_statement_is_on_its_way_waits_and_both_get_their_answers(database):
    async with opened(database) as link:
        await link.rows(TWICE, {"number": 1})
        sent = link.made_up(TWICE, {"number": 21}).send()
        assert link.made_up(TWICE, {"number": 5}).send() is None
        assert await link.rows(TWICE, {"number": 4}) == [(8,)]
        assert (await sent.reply()).rows() == [(42,)]
        assert (await sent.reply()).rows() == [(42,)]
        assert link.made_up(TWICE, {"number": 5}).send() is not None


async def test_a_statement_that_was_sent_and_failed_lets_go_of_the_connection(database):
    async with opened(database) as link:
        divide = "select 1 / %(number)s::int"
        await link.rows(divide, {"number": 1})
        sent = link.made_up(divide, {"number": 0}).send()
        with pytest.raises(psycopg.errors.DivisionByZero):
            await sent.reply()
        with pytest.raises(psycopg.OperationalError):
            await sent.reply()
        assert await link.rows(divide, {"number": 1}) == [(1,)]


async def test_a_statement_that_nobody_waits_for_any_more_lets_go_of_the_connection(database, conn):
    sleeps = "select wait_event = 'PgSleep' from pg_stat_activity where pid = %s"
    async with opened(database) as link:
        wait = "select pg_sleep(%(seconds)s::float8)"
        await link.rows(wait, {"seconds": 0})
        waiting = asyncio.create_task(link.made_up(wait, {"seconds": 60}).send().reply())
        await asyncio.sleep(0)  # it waits now
        pid = link.conn.info.backend_pid
        await aeventually(lambda: conn.execute(sleeps, [pid]).fetchone()[0], what="the server to be at it")
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await link.rows(TWICE, {"number": 1}) == [(2,)]
