"""What is told of sinks: readiness, metrics, signals, `kept sinks`."""

from __future__ import annotations

import asyncio
import json

from desk import AWAY, BRIEF, Desk, emit, kept, make, settled
from kept.integrations.prometheus import Metrics
from kept.outbox.sink import PUBLISHED, Rejected, Unreachable
from kept.signals import EventsSent, SinkDisabled, SinkOpened
from servers import NatsServer, running
from support import aeventually


async def test_readiness_names_the_sink_while_its_broker_is_away_and_is_well_again(
    database, conn, tmp_path, monkeypatch
):
    monkeypatch.setattr("kept.worker.sinks.ASK_EVERY", 0.1)
    with running(NatsServer(tmp_path)) as server:
        app, _ = make(database, **BRIEF)
        app.publish("parcel.*", to=server.sink(timeout="1s"))
        worker = app.worker()
        async with app, worker:
            assert worker.not_ready() is None
            server.kill()
            reason = await aeventually(worker.not_ready, what="the reason")
            assert reason.startswith("sink nats: ")
            assert f"127.0.0.1:{server.port}" in reason
            server.start()
            await aeventually(lambda: worker.not_ready() is None, what="to be ready again")


async def test_a_broker_that_answers_but_takes_nothing_is_not_ready(database, conn, monkeypatch):
    monkeypatch.setattr("kept.worker.sinks.ASK_EVERY", 0.02)
    app, told = make(database)
    desk = Desk(lambda _: Unreachable("no_stream", "create one"))
    app.publish("parcel.*", to=desk)
    await emit(app)
    worker = app.worker()
    seen = set()
    async with app, worker:
        await aeventually(lambda: told.of(SinkOpened), what="a rest")
        await aeventually(lambda: seen.add(worker.not_ready()) or len(told.of(SinkOpened)) >= 3, what="two more")
        assert seen == {"sink desk: no_stream: create one"}
        desk.answer = lambda _: PUBLISHED
        await aeventually(lambda: worker.not_ready() is None, what="to be ready")


async def test_a_sink_that_never_says_whether_it_is_there_hides_no_other(database, monkeypatch):
    monkeypatch.setattr("kept.worker.sinks.ASK_EVERY", 0.02)

    class Mute(Desk):
        async def ping(self):
            await asyncio.get_running_loop().create_future()

    app, _ = make(database)
    mute, other = Mute(name="mute"), Desk(name="other")
    app.publish("parcel.*", to=mute)
    app.publish("parcel.*", to=other)
    worker = app.worker()
    async with app, worker:
        other.away = AWAY
        assert await aeventually(worker.not_ready, what="the reason") == f"sink other: unreachable: {AWAY.message}"
        other.away = None
        await aeventually(lambda: worker.not_ready() is None, what="to be ready")


async def test_metrics_count_events_by_outcome_and_tell_whether_a_sink_is_open(database, conn):
    app, _told = make(database, **BRIEF)
    metrics = Metrics()
    app.signals.subscribe(metrics)
    answers = {"parcel/p0": Rejected("no", "no", retryable=False), "parcel/p1": PUBLISHED, "parcel/p2": AWAY}
    desk = Desk(lambda message: answers[message.key])
    app.publish("parcel.*", to=desk)
    await emit(app, 3, parcels=3)

    def value(name, **labels):
        return metrics.registry.get_sample_value(name, {"sink": "desk", **labels})

    async with app, app.worker():
        await aeventually(lambda: value("kept_sink_open") == 1, what="the gauge")
        answers["parcel/p2"] = PUBLISHED
        await settled(conn)
        await aeventually(lambda: value("kept_sink_open") == 0, what="the gauge")
    assert value("kept_events_sent_total", outcome="rejected") == 1
    assert value("kept_events_sent_total", outcome="published") == 2
    assert value("kept_events_sent_total", outcome="unreachable") >= 1


def test_a_sink_that_another_worker_has_tried_since_does_not_stay_open_here(monkeypatch):
    metrics, now = Metrics(), [1000.0]
    monkeypatch.setattr("kept.integrations.tallies.monotonic", lambda: now[0])

    def is_open():
        return metrics.registry.get_sample_value("kept_sink_open", {"sink": "desk"})

    metrics(SinkOpened(sink="desk", code="away", message="", failures=9, pause=10.0))
    now[0] += 11
    assert is_open() == 1, "nobody need have tried yet"
    now[0] += 60
    assert is_open() == 0, "somebody has, and would have told"
    metrics(SinkDisabled(sink="desk", code="gone", message=""))
    now[0] += 10**6
    assert is_open() == 1


async def test_each_attempt_is_told_with_its_event_and_the_size_of_its_batch(database, conn):
    app, told = make(database)
    app.publish("parcel.*", to=Desk())
    ids = await emit(app, 3, parcels=3)
    await app.drain()
    (sent,) = told.of(EventsSent)
    assert sent.batch_size == 3
    assert [(e.event_id, e.event_type, e.aggregate_type, e.aggregate_id) for e in sent.events] == [
        (id, "parcel.moved", "parcel", f"p{n}") for n, id in enumerate(ids)
    ]


def test_kept_sinks_tells_the_backlog_and_the_last_error(database, conn):
    app, _ = make(database)
    desk = Desk(lambda _: AWAY)
    app.publish("parcel.*", to=desk)
    asyncio.run(emit(app, 12))
    asyncio.run(app.drain())
    (told,) = json.loads(kept(database, "sinks", "--json"))["sinks"]
    assert (told["name"], told["state"], told["backlog"], told["failures"]) == ("desk", "open", 12, 1)
    assert (told["last_code"], told["last_error"]) == ("unreachable", AWAY.message)
    assert told["oldest"] is not None
    assert "open since" in kept(database, "sinks")
