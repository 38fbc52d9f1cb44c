"""A broker that is away, and something else amiss: the database, credentials, rows that somebody changed."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import psycopg
import pytest

from desk import AWAY, BRIEF, Desk, charged, emit, kept, make, settled, sink_row
from kept.db.queries import load
from kept.db.tx import arun
from kept.integrations.logs import LogSubscriber
from kept.jobs.reclaim import reclaim_expired
from kept.outbox import breaker
from kept.outbox.rules import Rest
from kept.outbox.sink import PUBLISHED, Unreachable
from kept.outbox.sinks.nats import NatsSink
from kept.outbox.sinks.redis import RedisStreamSink
from kept.signals import SinkOpened
from kernel import claim, live, rows, stores
from proxy import Proxy
from servers import NatsServer, Valkey, running
from support import aeventually

SQL = load("kept.outbox")


# --- the database, credentials, other people's transactions


async def test_without_the_database_events_wait_a_moment_and_are_not_charged(database, conn):
    proxy = Proxy(database)
    app, _told = make(proxy.url)
    away = asyncio.Event()

    def answer(_):
        if not away.is_set():
            away.set()
            proxy.lose_answer_to(lambda asked: b".sink" in asked)
        return AWAY if len(desk.batches) < 2 else PUBLISHED

    desk = Desk(answer)
    app.publish("parcel.*", to=desk)
    await emit(app, 20)
    async with app, app.worker():
        await aeventually(away.is_set, what="the first batch")
        assert await asyncio.to_thread(proxy.lost.wait, 10)
        proxy.admit()
        assert await settled(conn, 30) == {"done": 20}
    proxy.close()
    assert {r["c"] for r in rows(conn, "select attempt - uncharged as c from kept.history")} <= {1}


async def test_the_breaker_does_not_write_in_a_transaction_of_the_users(database, conn):
    app, told = make(database, **BRIEF)
    desk = Desk(lambda _: AWAY)
    app.publish("parcel.*", to=desk)
    await emit(app, 5)
    with psycopg.connect(database) as users:
        app._default_tx = lambda: users
        async with app, app.worker():
            await aeventually(lambda: len(told.of(SinkOpened)) >= 2, what="rests")
        users.rollback()
    assert sink_row(conn)["failures"] >= 2


@pytest.mark.parametrize("broker", ["nats", "redis"])
async def test_wrong_credentials_open_the_breaker_and_are_shown_nowhere(broker, database, conn, tmp_path, capsys):
    secret = f"s3cret-{uuid4().hex}"
    if broker == "nats":
        server = NatsServer(tmp_path, 'authorization { user: "a", password: "right" }\n')
        url = f"nats://a:{secret}@127.0.0.1:{server.port}"
        sink = NatsSink(url, stream="EVENTS", create_stream=True, timeout="2s")
    else:
        server = Valkey(tmp_path, "--requirepass", "right")
        sink = RedisStreamSink(f"redis://:{secret}@127.0.0.1:{server.port}", timeout="2s")
    with running(server):
        app, told = make(database)
        app.signals.subscribe(LogSubscriber())
        app.publish("parcel.*", to=sink)
        await emit(app, 10)
        worker = app.worker()
        async with app, worker:
            opened = (await aeventually(lambda: told.of(SinkOpened), what="the breaker"))[0]
            ready = await aeventually(worker.not_ready, what="the reason why it is not ready")
            await aeventually(lambda: charged(conn) == [0], what="all to be back")
        shown = kept(database, "sinks") + kept(database, "sinks", "--json")
    assert opened.code == "unauthorized"
    assert ready.startswith(f"sink {broker}: unauthorized: ")
    assert "unauthorized" in shown
    written = str(told) + ready + shown + str(sink_row(conn, broker)) + "".join(capsys.readouterr())
    assert secret not in written


async def test_what_a_broker_says_is_made_fit_to_be_written(database, conn):
    app, told = make(database, **BRIEF)
    app.publish("parcel.*", to=Desk(lambda _: Unreachable("odd", "at postgresql://a:hidden@b/ \0 " + "x" * 10_000)))
    await emit(app)
    async with app, app.worker():
        await aeventually(lambda: told.of(SinkOpened), what="a rest")
    written = sink_row(conn)["last_error"]
    assert "hidden" not in written
    assert len(written) <= 4000


# --- what should not happen, and does


async def test_a_lane_whose_subscription_was_given_another_sink_rests_all_the_same(database, conn):
    app, told = make(database)
    desk = Desk(lambda _: AWAY)
    app.publish("parcel.*", to=desk)
    await emit(app, 5)
    async with app, app.worker():
        conn.execute("update kept.subscription set sink = 'another'")
        await aeventually(lambda: len(told.of(SinkOpened)) >= 3, what="rests")
        assert len(desk.batches) <= len(told.of(SinkOpened)) + 1


async def test_a_sink_that_the_database_does_not_know_is_not_tried_without_a_pause(database, conn):
    app, _ = make(database)
    desk = Desk(lambda _: AWAY)
    app.publish("parcel.*", to=desk)
    await emit(app, 5)
    async with app, app.worker():
        conn.execute("delete from kept.sink")
        later = "select from kept.job where not ready and due_at > kept.now() and attempt = uncharged"
        await aeventually(lambda: len(rows(conn, later)) == 5, what="all to wait for a moment")
    assert len(desk.batches) <= 2


async def test_a_worker_that_dies_before_it_gave_its_events_back_leaves_a_rest_and_no_suspects(database, conn):
    app, _ = make(database)
    app.publish("parcel.*", to=Desk())
    await emit(app, 3)
    lane = conn.execute("select lane from kept.subscription").fetchone()[0]
    async with stores(database) as (store,):
        worker = await live(store)
        assert len(await claim(store, worker, lanes=[lane])) == 3
        async with await psycopg.AsyncConnection.connect(database) as tx:
            await arun(tx, breaker.rests(SQL, breaker.Met("desk", lane, "away", "", took=False), Rest(), 3600.0, 0.0))
        conn.execute("update kept.worker set lease_until = kept.now()")
        assert [each.jobs for each in await reclaim_expired(store)] == [3]
        assert rows(conn, "select distinct suspect, ready, worker from kept.job") == [
            {"suspect": False, "ready": True, "worker": None}
        ]
        assert await claim(store, await live(store), lanes=[lane]) == []
