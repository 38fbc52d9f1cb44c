"""A worker's lease: how long it is from its first moment on, and when nothing is to be begun under it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from time import monotonic

import pytest

from kept.worker import lease as module
from kept.worker.board import clock
from kept.worker.lease import Lease
from kernel import rows, stores
from support import aeventually

NS = 1_000_000_000


def lease_of(database, **options):
    given = {"seconds": 3.0, "renew": 1.0, "stall": 600.0, "concurrency": 1, "batch": 1, "queues": None}
    return Lease(database=database, schema="kept", name="one", declared={}, **given | options)


@asynccontextmanager
async def begun(database, **options):
    """A lease that has begun, and its keeper gone at the end."""
    async with stores(database) as [store]:
        lease = lease_of(database, **options)
        await lease.begin(store)
        try:
            yield lease
        finally:
            lease.end(closed=True)


def left(conn):
    (row,) = rows(conn, "select extract(epoch from lease_until - kept.now())::float8 as seconds from kept.worker")
    return row["seconds"]


@pytest.mark.parametrize("seconds", [3.0, 20.0, 60.0])
async def test_a_lease_lasts_as_long_as_it_is_set_from_its_first_moment_on(database, conn, seconds):
    async with begun(database, seconds=seconds) as lease:
        assert seconds - 2.5 < left(conn) <= seconds
        assert not lease.gone


async def test_a_short_lease_is_in_its_keepers_hands_before_anything_can_be_in_its_name(database):
    async with begun(database) as lease:
        assert lease.board.renewals >= 1


async def test_a_long_lease_is_not_waited_for(database):
    async with begun(database, seconds=60.0) as lease:
        assert lease.board.renewals == 0
        await aeventually(lambda: lease.board.renewals, what="the keeper's first renewal")


async def test_the_keeper_of_a_long_lease_begins_when_the_backlog_is_worked_off(database, monkeypatch):
    monkeypatch.setattr(module, "VIGIL", 600.0)
    async with begun(database, seconds=6000.0, renew=2000.0) as lease:
        lease.board.say_calm()
        await aeventually(lambda: lease.board.renewals, what="the keeper's first renewal")


async def test_a_keeper_is_not_left_behind_by_a_lease_that_did_not_come_about(database):
    async with stores(database) as [store]:
        lease = lease_of(database)
        beginning = asyncio.create_task(lease.begin(store))
        await aeventually(lambda: lease._keeper, what="a keeper")
        beginning.cancel()
        with suppress(asyncio.CancelledError):
            await beginning
        assert lease._keeper.poll() is not None


async def test_what_lies_in_the_working_directory_is_no_part_of_a_keeper(database, tmp_path, monkeypatch):
    for name in ("platform", "select", "logging"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('a file of the user')")
    monkeypatch.chdir(tmp_path)
    async with begun(database) as lease:
        assert lease.board.renewals >= 1


async def test_a_keeper_that_cannot_be_started_is_not_tried_all_the_time(database, monkeypatch):
    tried = []

    def refused(*args, **kwargs):
        tried.append(args)
        raise BlockingIOError("no process to be had")

    async with begun(database) as lease:
        lease._keeper.kill()
        lease._keeper.wait()
        lease._keeper_since = 0.0
        monkeypatch.setattr(module.subprocess, "Popen", refused)
        for _ in range(10):
            with suppress(BlockingIOError):
                lease.look_after_keeper()
        assert len(tried) == 1


async def test_the_worker_holds_a_short_lease_while_no_keeper_comes(database, conn, monkeypatch):
    monkeypatch.setattr(module, "STARTING", 1.6)
    monkeypatch.setattr(Lease, "_start_keeper", lambda self, vigil=0.0: None)
    began = monotonic()
    async with begun(database, seconds=0.8, renew=0.1) as lease:
        assert monotonic() - began >= 1.6
        assert lease.board.renewals == 0
        assert left(conn) > 0
        assert not lease.gone


async def test_a_lease_whose_renewal_is_overdue_is_not_secure_and_still_there(database):
    async with begun(database, seconds=60.0, renew=20.0) as lease:
        assert lease.secure
        for age, secure, gone in ((39, True, False), (41, False, False), (61, False, True)):
            lease.board.renewed(clock() - age * NS)
            assert (lease.secure, lease.gone) == (secure, gone), age


async def test_a_lease_without_a_keeper_is_secure_until_it_is_gone(database):
    async with begun(database, seconds=60.0, renew=20.0, kept=False) as lease:
        lease.board.renewed(clock() - 50 * NS)
        assert lease.secure
        assert not lease.gone
