"""Connections of our own: lazily, a few, per process and per event loop, and never a dead one."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import textwrap
import threading
import warnings

import psycopg
import pytest

from kept.db import pool
from kept.db.pool import MOST_CONNECTIONS, MOST_IDLE, AsyncPool, SyncPool
from kept.errors import Misconfigured, Unavailable
from support import eventually


def backends(conn):
    found = conn.execute(
        "select pid from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
        " and backend_type = 'client backend'"
    )
    return {row[0] for row in found}


def ended(conn, pids):
    return eventually(lambda: not (backends(conn) & set(pids)), what="the end of the connections")


def kill(conn, pid):
    conn.execute("select pg_terminate_backend(%s)", [pid])
    assert ended(conn, [pid])


@pytest.fixture(params=[pool.STALE_AFTER, 0.0], ids=["just used", "idle for long"])
def stale_after(request, monkeypatch):
    monkeypatch.setattr(pool, "STALE_AFTER", request.param)


# --- sync


def test_nothing_is_opened_before_it_is_needed(database, conn):
    SyncPool(database)
    AsyncPool(database)
    assert backends(conn) == set()


def test_a_connection_is_used_again(database, conn):
    ours = SyncPool(database)
    with ours.connection() as first:
        pid = first.info.backend_pid
        assert first.autocommit
    with ours.connection() as second:
        assert second.info.backend_pid == pid
    ours.close()
    assert ended(conn, [pid])


def test_a_pool_that_was_closed_can_be_used_again(database):
    ours = SyncPool(database)
    for _ in range(2):
        with ours.connection() as conn:
            assert conn.execute("select 1").fetchone() == (1,)
        ours.close()


def test_a_connection_the_server_ended_is_replaced_before_anybody_sees_it(database, conn, stale_after):
    ours = SyncPool(database)
    with ours.connection() as first:
        pid = first.info.backend_pid
    kill(conn, pid)
    with ours.connection() as second:
        assert second.execute("select 1").fetchone() == (1,)
        assert second.info.backend_pid != pid
    ours.close()


def test_a_connection_that_broke_in_use_is_not_kept(database, conn):
    ours = SyncPool(database)
    with pytest.raises(psycopg.OperationalError), ours.connection() as broken:
        kill(conn, broken.info.backend_pid)
        broken.execute("select 1")
    with ours.connection() as next_one:
        assert next_one.execute("select 1").fetchone() == (1,)
    ours.close()


def test_a_transaction_somebody_left_open_is_not_handed_to_the_next(database, conn):
    ours = SyncPool(database)
    with ours.connection() as careless:
        pid = careless.info.backend_pid
        careless.execute("begin")
        careless.execute("create table public.left_behind ()")
    with ours.connection() as next_one:
        assert next_one.info.backend_pid != pid
        assert next_one.execute("select to_regclass('public.left_behind')").fetchone() == (None,)
    ours.close()


def test_there_are_never_more_connections_than_allowed_and_few_are_kept(database, conn):
    ours, inside, go = SyncPool(database), [], threading.Event()
    let_in = threading.Semaphore(0)

    def use():
        with ours.connection() as mine:
            inside.append(mine.info.backend_pid)
            let_in.release()
            assert go.wait(30)

    threads = [threading.Thread(target=use) for _ in range(MOST_CONNECTIONS + 5)]
    for thread in threads:
        thread.start()
    for _ in range(MOST_CONNECTIONS):
        assert let_in.acquire(timeout=30)
    assert not let_in.acquire(blocking=False)
    assert len(backends(conn)) == MOST_CONNECTIONS
    go.set()
    for thread in threads:
        thread.join(30)
    assert len(inside) == MOST_CONNECTIONS + 5
    assert eventually(lambda: len(backends(conn)) <= MOST_IDLE)
    ours.close()


def test_an_error_in_the_block_gives_the_connection_back(database, conn):
    ours = SyncPool(database)
    for _ in range(MOST_CONNECTIONS + 1):
        with pytest.raises(LookupError), ours.connection():
            raise LookupError
    assert len(backends(conn)) == 1
    ours.close()


async def test_a_database_that_is_not_there_is_one_sentence_and_takes_no_room():
    url = "postgresql://ada:s3cret@127.0.0.1:1/app"
    ours, theirs = SyncPool(url), AsyncPool(url)
    for _ in range(MOST_CONNECTIONS + 1):
        with pytest.raises(Unavailable) as error, ours.connection():
            raise AssertionError("opened")
        assert "s3cret" not in str(error.value)
        with pytest.raises(Unavailable) as error:
            async with theirs.connection():
                raise AssertionError("opened")
        assert "s3cret" not in str(error.value)
    with pytest.raises(Misconfigured), SyncPool("postgresql://ada:s3%zz@db").connection():
        raise AssertionError("opened")


def quiet(action):
    """What *action* warns of, garbage collection included."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        action()
        gc.collect()
    return [str(warning.message) for warning in heard]


def test_a_pool_nobody_closed_leaves_neither_a_connection_nor_a_warning(database, conn):
    def forget():
        ours = SyncPool(database)
        with ours.connection() as used:
            assert used.execute("select 1").fetchone() == (1,)

    assert quiet(forget) == []
    assert eventually(lambda: not backends(conn))


# --- async


async def pid_of(ours):
    async with ours.connection() as conn:
        await conn.execute("select 1")
        return conn.info.backend_pid


async def test_an_async_connection_is_used_again_until_it_is_closed(database, conn):
    ours = AsyncPool(database)
    assert await pid_of(ours) == await pid_of(ours)
    pid = await pid_of(ours)
    await ours.close()
    assert ended(conn, [pid])
    assert await pid_of(ours) != pid
    await ours.close()


async def test_an_async_connection_the_server_ended_is_replaced(database, conn, stale_after):
    ours = AsyncPool(database)
    pid = await pid_of(ours)
    kill(conn, pid)
    assert await pid_of(ours) != pid
    await ours.close()


async def test_coroutines_wait_for_a_connection_when_all_are_taken(database, conn):
    ours, go, inside = AsyncPool(database), asyncio.Event(), asyncio.Semaphore(0)

    async def use():
        async with ours.connection():
            inside.release()
            await go.wait()

    tasks = [asyncio.create_task(use()) for _ in range(MOST_CONNECTIONS + 3)]
    for _ in range(MOST_CONNECTIONS):
        await inside.acquire()
    assert inside.locked()
    assert len(backends(conn)) == MOST_CONNECTIONS
    go.set()
    await asyncio.gather(*tasks)
    assert eventually(lambda: len(backends(conn)) <= MOST_IDLE)
    await ours.close()


def test_each_event_loop_has_connections_of_its_own(database, conn):
    ours = AsyncPool(database)
    first = asyncio.run(pid_of(ours))
    second = asyncio.run(pid_of(ours))
    assert first != second
    assert ended(conn, [first])


def test_loops_that_end_without_a_close_leave_neither_connections_nor_warnings(database, conn):
    async def busy(ours):
        await asyncio.gather(*(pid_of(ours) for _ in range(MOST_CONNECTIONS + 5)))

    def forget():
        ours = AsyncPool(database)
        for _ in range(5):
            asyncio.run(busy(ours))
        assert eventually(lambda: len(backends(conn)) <= MOST_IDLE)

    assert quiet(forget) == []
    assert eventually(lambda: not backends(conn))


def test_two_loops_at_once_do_not_share_a_connection(database):
    ours, meet = AsyncPool(database), threading.Barrier(2)

    async def use():
        async with ours.connection() as conn:
            meet.wait(30)
            await conn.execute("select 1")
            return conn.info.backend_pid

    pids = []
    threads = [threading.Thread(target=lambda: pids.append(asyncio.run(use()))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(set(pids)) == 2


# --- fork


FORK = """
import asyncio, os, sys
from kept.db.pool import AsyncPool, SyncPool

database, how = sys.argv[1:]
sync, later = SyncPool(database), AsyncPool(database)

def pid():
    with sync.connection() as conn:
        return conn.execute("select pg_backend_pid()").fetchone()[0]

async def apid():
    async with later.connection() as conn:
        return (await (await conn.execute("select pg_backend_pid()")).fetchone())[0]

async def main():
    before = pid(), await apid()
    child = os.fork()
    if child == 0:
        try:
            assert pid() not in before
        except BaseException as error:
            print("child:", repr(error), flush=True)
            os._exit(1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what it warns of at its end is no concern of ours
        os._exit(0) if how == "abrupt" else sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert (pid(), await apid()) == before, "the child closed its parent's connections"

try:
    asyncio.run(main())
except SystemExit:
    sys.exit(0)
print("parent: ok", flush=True)
"""


@pytest.mark.parametrize("how", ["abrupt", "in good order"])
def test_a_forked_child_opens_its_own_and_leaves_its_parents_connections_alone(how, database):
    script = textwrap.dedent(FORK)
    ran = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", script, database, how],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.stdout == "parent: ok\n", ran.stdout + ran.stderr
    assert ran.returncode == 0
    assert "Exception ignored" not in ran.stderr, ran.stderr
