"""A broker that is away: its sink rests in the whole cluster, nobody is charged, and then everything goes out."""

from __future__ import annotations

import asyncio

import psycopg

from desk import AWAY, BRIEF, Desk, charged, emit, kept, make, settled, sink_row
from kept.db.queries import load
from kept.db.tx import arun
from kept.outbox import breaker
from kept.outbox.rules import Rest
from kept.outbox.sink import PUBLISHED, Gone, Unreachable
from kept.signals import SinkClosed, SinkDisabled, SinkOpened
from kernel import row, rows
from servers import NatsServer, running
from support import aeventually

SQL = load("kept.outbox")


async def test_while_the_broker_is_away_the_rests_double_and_nobody_is_charged_or_written_up(database, conn):
    app, told = make(database, **BRIEF)
    desk = Desk(lambda _: AWAY)
    app.publish("parcel.*", to=desk)
    await emit(app, 1200)
    async with app, app.worker():
        await aeventually(lambda: len(told.of(SinkOpened)) >= 6, what="six rests")
        desk.answer = lambda _: PUBLISHED
        assert await settled(conn) == {"done": 1200}
        await aeventually(lambda: told.of(SinkClosed), what="the end of it")
    opened = told.of(SinkOpened)
    assert [each.failures for each in opened] == list(range(1, len(opened) + 1))
    for each, most in zip(opened, [0.02, 0.04, *[0.08] * 20], strict=False):
        assert most * 0.8 <= each.pause <= most
    assert {r["c"] for r in rows(conn, "select attempt - uncharged as c from kept.history")} == {1}
    assert not rows(conn, "select from kept.job_log")
    assert len(told.of(SinkClosed)) == 1
    state = sink_row(conn)
    assert (state["failures"], state["opened_at"], state["last_code"]) == (0, None, "unreachable")


async def test_the_whole_cluster_rests_and_one_failure_is_counted_once(database, conn):
    desk = Desk(lambda _: AWAY)
    crew = []
    for _ in range(2):
        app, told = make(database)
        app.publish("parcel.*", to=desk)
        crew.append((app, told))
    await emit(crew[0][0], 2000)
    async with crew[0][0], crew[1][0], crew[0][0].worker(), crew[1][0].worker():
        await aeventually(lambda: sink_row(conn)["failures"] >= 3, 30, what="three failures")
        given = len(desk.batches)
        desk.answer = lambda _: PUBLISHED
        assert await settled(conn) == {"done": 2000}
    opened = sorted(each.failures for _, told in crew for each in told.of(SinkOpened))
    assert opened == list(range(1, len(opened) + 1)), "every failure was told once, by one of them"
    assert given <= 4 * len(opened), "a worker tries with what it has in hand, and then rests"
    assert sum(len(told.of(SinkClosed)) for _, told in crew) == 1


async def test_two_workers_that_fail_at_the_same_moment_make_one_rest(database, conn):
    app, _ = make(database)
    app.publish("parcel.*", to=Desk())
    await emit(app)
    lane = conn.execute("select lane from kept.subscription").fetchone()[0]
    met = breaker.Met("desk", lane, "away", "gone for lunch", took=False)
    conns = [await psycopg.AsyncConnection.connect(database) for _ in range(2)]
    rests = [breaker.rests(SQL, met, Rest(), None, 0.0) for _ in conns]
    first = await arun(conns[0], rests[0])  # not committed yet
    second = asyncio.create_task(arun(conns[1], rests[1]))
    pid = conns[1].info.backend_pid
    waits = "select wait_event_type = 'Lock' from pg_stat_activity where pid = %s"
    await aeventually(lambda: conn.execute(waits, [pid]).fetchone()[0], what="the second to wait")
    await conns[0].commit()
    assert (first, await second) == (breaker.Rested(1, 0.5), None)
    for each in conns:
        await each.commit()
        await each.close()
    assert sink_row(conn)["failures"] == 1


async def test_a_broker_that_says_how_long_is_left_alone_for_as_long(database, conn):
    app, told = make(database, **BRIEF)
    app.publish("parcel.*", to=Desk(lambda _: Unreachable("too_many_requests", "later", after=3600)))
    await emit(app, 10)
    async with app, app.worker():
        await aeventually(lambda: told.of(SinkOpened), what="a rest")
        await aeventually(lambda: charged(conn) == [0], what="all to be back")
    left = "select extract(epoch from paused_until - kept.now()) as s from kept.lane where task = 'publish:desk'"
    assert 3500 < row(conn, left)["s"] <= 3600


async def test_an_operators_longer_pause_is_not_shortened_and_does_not_keep_another_lane_from_resting(database, conn):
    app, told = make(database, **BRIEF)
    desk = Desk(lambda _: AWAY)
    app.publish("parcel.*", to=desk)
    app.publish("parcel.*", to=desk, name="other")
    await emit(app, 10)
    kept(database, "lanes", "pause", "default/publish:other", "--for", "1h")
    async with app, app.worker():
        await aeventually(lambda: len(told.of(SinkOpened)) >= 4, what="rests of the lane that is not paused")
        assert len(desk.batches) <= len(told.of(SinkOpened)) + 1, "no batch is sent without a rest after it"
    until = {
        r["task"]: r["s"] for r in rows(conn, "select task, paused_until > kept.now() + '50 min' as s from kept.lane")
    }
    assert until == {"publish:desk": False, "publish:other": True}


async def test_a_broker_that_took_a_part_begins_anew_and_rests_briefly(database, conn):
    app, told = make(database, **BRIEF)
    desk = Desk(lambda message: AWAY if len(desk.sent) % 10 == 0 else PUBLISHED)
    app.publish("parcel.*", to=desk)
    await emit(app, 500)
    async with app, app.worker():
        assert await settled(conn) == {"done": 500}
    assert {each.failures for each in told.of(SinkOpened)} == {1}


async def test_the_backlog_drains_without_pauses_once_the_broker_is_back(database, conn, tmp_path):
    with running(NatsServer(tmp_path)) as server:
        app, told = make(database)
        app.publish("parcel.*", to=server.sink(timeout="2s"))
        server.kill()
        await emit(app, 5000)
        async with app, app.worker():
            await aeventually(lambda: len(told.of(SinkOpened)) >= 2, what="rests")
            assert charged(conn) in ([0], [])
            server.start()
            assert await settled(conn, 30) == {"done": 5000}
            opened = len(told.of(SinkOpened))
            await aeventually(lambda: told.of(SinkClosed), 15, what="the end of it")
        assert (len(told.of(SinkOpened)), len(told.of(SinkClosed))) == (opened, 1)
        assert {r["c"] for r in rows(conn, "select attempt - uncharged as c from kept.history")} == {1}
        assert len(await server.stored()) == 5000


async def test_a_worker_that_published_a_moment_ago_still_says_that_the_sink_works_again(database, conn, monkeypatch):
    monkeypatch.setattr("kept.worker.sinks.ASK_EVERY", 0.05)
    desk = Desk()
    app, told = make(database)
    app.publish("parcel.*", to=desk)
    await emit(app)
    async with app, app.worker():
        await settled(conn)
        conn.execute("update kept.sink set failures = 3, opened_at = kept.now()")  # another worker's word
        await emit(app)
        await settled(conn)
        await aeventually(lambda: told.of(SinkClosed), what="its word")
    assert sink_row(conn)["failures"] == 0


# --- gone


async def test_a_receiver_that_is_gone_is_sent_nothing_until_it_is_enabled_and_then_everything(database, conn):
    app, told = make(database, **BRIEF)
    desk = Desk(lambda _: Gone("gone", "410: moved away"))
    app.publish("parcel.*", to=desk)
    ids = await emit(app, 700)
    async with app, app.worker():
        await aeventually(lambda: told.of(SinkDisabled), what="the end of it")
        await aeventually(lambda: charged(conn) == [0], what="all to be back")
        given = len(desk.batches)
        more = await emit(app, 3)
        shown = await asyncio.to_thread(kept, database, "sinks")
        assert "disabled since" in shown
        assert "410: moved away" in shown
        assert len(desk.batches) == given
        desk.answer = lambda _: PUBLISHED
        await asyncio.to_thread(kept, database, "sinks", "enable", "desk")
        assert await settled(conn) == {"done": 703}
    assert len(told.of(SinkDisabled)) == 1
    assert set(desk.ids) == {*ids, *more}
    assert "closed" in await asyncio.to_thread(kept, database, "sinks")


# --- ticks and clocks


async def test_a_tick_meets_a_broker_that_is_away_once_and_ends(database, conn):
    app, _told = make(database)
    desk = Desk(lambda _: AWAY)
    app.publish("parcel.*", to=desk)
    await emit(app, 1200)
    await app.drain()
    assert 1 <= len(desk.batches) <= 2
    assert (charged(conn), desk.closed) == ([0], 1)


async def test_the_databases_clock_ends_a_rest_and_no_other(database, conn, clock):
    app, _told = make(database)
    desk = Desk(lambda _: Unreachable("busy", "in an hour", after=3600))
    app.publish("parcel.*", to=desk)
    await emit(app)
    async with app, app.worker():
        await aeventually(lambda: charged(conn) == [0], what="it to be back")
        desk.answer = lambda _: PUBLISHED
        clock.advance("2h")
        assert await settled(conn) == {"done": 1}
