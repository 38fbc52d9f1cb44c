"""A sink at the side of others: one that is silent or slow delays nobody; ticks and shutdowns."""

from __future__ import annotations

import asyncio

import pytest

from desk import Desk, emit, forever, make, settled
from kept.jobs.model import DONE
from kept.outbox.sink import PUBLISHED
from kept.signals import JobsSettled, SinkOpened
from kernel import row, rows
from servers import NatsServer, running
from support import aeventually


@pytest.mark.parametrize("concurrency", [1, 10])
@pytest.mark.parametrize("ordered", [False, True])
async def test_a_sink_that_never_answers_delays_no_other_sink_and_no_handler(concurrency, ordered, database, conn):
    app, _told = make(database)
    dead, quick, handled = Desk(forever, name="dead"), Desk(name="quick"), []
    app.publish("parcel.*", to=dead, ordered=ordered)
    app.publish("parcel.*", to=quick, ordered=ordered)

    @app.on("parcel.*")
    async def note(event):
        handled.append(event.event_id)

    await emit(app, 2000, parcels=50)
    worker = app.worker(concurrency=concurrency)
    async with app, worker:
        await aeventually(lambda: dead.sent, what="the dead sink to be asked")
        began = asyncio.get_running_loop().time()
        await aeventually(lambda: len(handled) == len(quick.sent) == 2000, 15, what="the others to be done")
        ids = await emit(app, 1)
        await aeventually(lambda: ids[0] in handled and ids[0] in quick.ids, 2, what="one more, soon")
        assert asyncio.get_running_loop().time() - began < 15
        await worker.stop("200ms")
    assert row(conn, "select count(*) n, max(attempt - uncharged) c from kept.job") == {"n": 2001, "c": 0}


async def test_silence_until_the_timeout_is_a_broker_away_and_charges_nobody(database, conn):
    app, told = make(database)
    desk = Desk(forever)
    app.publish("parcel.*", to=desk, timeout="100ms")
    await emit(app, 20)
    async with app, app.worker():
        opened = await aeventually(lambda: told.of(SinkOpened), what="the breaker")
        desk.answer = lambda _: PUBLISHED
        await settled(conn)
    assert (opened[0].code, opened[0].message) == ("timeout", "sink 'desk' did not answer within 0.1 s")
    assert {r["c"] for r in rows(conn, "select attempt - uncharged as c from kept.history")} == {1}


async def test_a_tick_publishes_all_and_closes_the_connection(database, conn, tmp_path):
    with running(NatsServer(tmp_path)) as server:
        app, _ = make(database)
        app.publish("parcel.*", to=server.sink())
        await emit(app, 1200)
        await app.drain()
        assert await settled(conn) == {"done": 1200}
        assert len(await server.stored()) == 1200
        desk = Desk(name="here")
        app.publish("parcel.*", to=desk)
        await emit(app)
        await app.drain()
        assert desk.closed == 1


async def test_an_event_is_done_only_when_the_broker_has_said_so(database, conn):
    word = asyncio.get_running_loop().create_future()
    app, told = make(database)
    desk = Desk(lambda _: asyncio.shield(word))
    app.publish("parcel.*", to=desk)
    await emit(app)
    async with app, app.worker():
        await aeventually(lambda: desk.sent, what="the message")
        assert not rows(conn, "select from kept.history")
        assert not any(each.state == DONE.state for s in told.of(JobsSettled) for each in s.jobs)
        word.set_result(PUBLISHED)
        assert await settled(conn) == {"done": 1}
