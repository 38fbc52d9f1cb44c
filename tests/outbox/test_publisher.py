"""From events to a sink: what is handed over, and what becomes of an event by each answer."""

from __future__ import annotations

import asyncio
import json

import psycopg
import pytest

from desk import Desk, emit, kept, make, settled
from kept import Retry
from kept.errors import Refused
from kept.outbox.sink import HELD, PUBLISHED, Rejected
from kept.signals import EventsSent, SinkOpened
from kernel import row, rows
from servers import NatsServer, Valkey, running
from support import aeventually

NO = Rejected("refused", "not this one")
PAYLOADS = (
    "{}",
    '{"n": 1}',
    '{"event_id": 7, "type": "x"}',
    '{"event_id": "1", "type": "x", "headers": [1]}',
)
AT_ONCE = Retry(max_attempts=25, delay="1ms", max_delay="1ms", jitter="0s")


# --- messages


@pytest.mark.parametrize("broker", [NatsServer, Valkey])
async def test_a_message_is_the_envelope_byte_for_byte_and_names_its_event(broker, database, conn, tmp_path):
    with running(broker(tmp_path)) as server:
        app, told = make(database)
        app.publish("parcel.*", to=server.sink())
        trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
        (id,) = await emit(app, headers=trace, actor="ü:7")
        payload, created = conn.execute("select payload::text, created_at from kept.job").fetchone()
        async with app, app.worker():
            assert await settled(conn) == {"done": 1}
        (stored,) = await server.stored()
        assert stored.body == payload.encode()
        assert stored.headers == {
            "event_id": id,
            "event_type": "parcel.moved",
            "aggregate_type": "parcel",
            "aggregate_id": "p0",
            "created_at": created.isoformat(),
            **trace,
        }
        (sent,) = told.of(EventsSent)
        assert (sent.sink, sent.subscription, sent.batch_size) == (server.sink().kind, f"publish:{sent.sink}", 1)
        assert [(each.event_id, each.outcome) for each in sent.events] == [(id, "published")]


async def test_an_event_without_an_aggregate_has_no_headers_for_it(database, conn):
    app, _ = make(database)
    desk = Desk()
    app.publish("parcel.*", to=desk)
    await emit(app, parcels=None)
    await app.drain()
    assert (set(desk.sent[0].headers), desk.sent[0].key) == ({"event_id", "event_type", "created_at"}, None)


async def test_a_message_can_be_a_cloudevent(database):
    app, _ = make(database)
    desk = Desk()
    app.publish("parcel.*", to=desk, format="cloudevents", source="/depot")
    (id,) = await emit(app)
    await app.drain()
    body = json.loads(desk.sent[0].body)
    wanted = {"specversion": "1.0", "id": id, "source": "/depot", "type": "parcel.moved", "subject": "parcel/p0"}
    assert wanted.items() <= body.items()
    assert body["data"] == {"n": 0}


async def test_the_topic_goes_by_the_very_type_then_the_longest_pattern_then_the_default(database):
    app, _ = make(database)
    rules = {"parcel.lost": "alarm", "parcel.*": "parcels.{aggregate_id}"}
    desk = Desk(topic="all.{type}", topics=rules)
    app.publish("*", to=desk)
    for type in ("parcel.lost", "parcel.moved", "depot.opened"):
        await emit(app, type=type)
        await app.drain()
    assert [message.topic for message in desk.sent] == ["alarm", "parcels.p0", "all.depot.opened"]


async def test_ids_with_line_breaks_in_them_reach_a_broker_and_harm_nobody(database, conn, tmp_path):
    with running(NatsServer(tmp_path)) as server:
        app, _ = make(database)
        app.publish("parcel.*", to=server.sink())
        await emit(app, aggregate_id="a\r\nNats-Msg-Id: stolen\r\n\r\nb")
        plain = await emit(app)
        async with app, app.worker():
            await aeventually(lambda: rows(conn, "select from kept.history where state = 'done'"), what="a message")
            await settled(conn)
        assert plain[0] in {each.event_id for each in await server.stored()}


# --- answers


async def test_one_rejected_event_is_charged_and_backs_off_while_the_others_are_settled(database, conn):
    app, told = make(database)
    desk = Desk(lambda message: NO if message.key == "parcel/p3" else PUBLISHED)
    app.publish("parcel.*", to=desk, retry=Retry(delay="1h", max_delay="1h", jitter="0s"))
    ids = await emit(app, 10, parcels=10)
    async with app, app.worker():
        await aeventually(lambda: len(rows(conn, "select from kept.history")) == 9, what="nine done")
    job = row(conn, "select attempt, uncharged, ready, due_at > kept.now() + '50 min' as later, id from kept.job")
    assert (job["attempt"], job["uncharged"], job["ready"], job["later"]) == (1, 0, False, True)
    log = row(conn, "select event, code, message from kept.job_log")
    assert log == {"event": "failed", "code": "refused", "message": "not this one"}
    assert [e.event_id for s in told.of(EventsSent) for e in s.events if e.outcome == "rejected"] == [ids[3]]
    assert not told.of(SinkOpened)


async def test_after_its_attempts_a_rejected_event_fails_with_its_code_and_can_be_retried_in_bulk(database, conn):
    app, _ = make(database, sink_attempts=3)
    desk = Desk(lambda _: NO)
    app.publish("parcel.*", to=desk)
    await emit(app, 4)
    await _hurry(app, conn, 4)
    failed = rows(conn, "select state, code, reason, attempt - uncharged as charged from kept.history")
    assert failed == [{"state": "failed", "code": "refused", "reason": "exhausted", "charged": 3}] * 4
    desk.answer = lambda _: PUBLISHED
    await asyncio.to_thread(kept, database, "jobs", "retry", "--task", "publish:desk", "--yes")
    await app.drain()
    assert len(rows(conn, "select from kept.history where state = 'done'")) == 4


async def test_by_default_an_event_has_twenty_five_attempts(database):
    app, _ = make(database)
    app.publish("parcel.*", to=Desk())
    assert app.registry["publish:desk"].retry.max_attempts == 25


async def test_what_cannot_help_fails_at_once(database, conn):
    app, _ = make(database)
    app.publish("parcel.*", to=Desk(lambda _: Rejected("too_large", "no", retryable=False)))
    await emit(app)
    await app.drain()
    assert row(conn, "select state, code, reason from kept.history") == {
        "state": "failed",
        "code": "too_large",
        "reason": "fatal",
    }


async def test_what_was_held_goes_back_uncharged_and_at_once(database, conn):
    app, _ = make(database)
    given = []
    desk = Desk(lambda message: given.append(message) or (HELD if len(given) <= 3 else PUBLISHED))
    app.publish("parcel.*", to=desk)
    await emit(app, 3)
    async with app, app.worker():
        assert await settled(conn) == {"done": 3}
    assert {(r["attempt"], r["uncharged"]) for r in rows(conn, "select attempt, uncharged from kept.history")} == {
        (2, 1)
    }
    assert not rows(conn, "select from kept.job_log")


async def test_a_rejected_head_holds_up_its_aggregate_and_no_other(database, conn):
    app, _ = make(database)
    refused = []

    def answer(message):
        if message.key == "parcel/p0" and len(refused) < 3:
            refused.append(message)
            return NO
        return PUBLISHED

    desk = Desk(answer)
    app.publish("parcel.*", to=desk, ordered=True, retry=AT_ONCE)
    await emit(app, 40, parcels=4)
    async with app, app.worker():
        assert await settled(conn) == {"done": 40}
    first = [n for n in desk.numbers if n % 4 == 0]
    assert first == [0, 0, 0, 0, *range(4, 40, 4)]
    assert max(i for i, n in enumerate(desk.numbers) if n % 4) < len(desk.numbers) - 1  # others went ahead
    assert {r["charged"] for r in rows(conn, "select attempt - uncharged as charged from kept.history")} == {1, 4}


async def test_a_rejected_head_that_steps_aside_lets_those_behind_it_pass(database, conn):
    app, _ = make(database)
    desk = Desk(lambda message: NO if b'"n":0' in message.body.replace(b" ", b"") else PUBLISHED)
    app.publish("parcel.*", to=desk, ordered="step_aside", retry=Retry(delay="1h", jitter="0s"))
    await emit(app, 10)
    async with app, app.worker():
        await aeventually(lambda: len(rows(conn, "select from kept.history")) == 9, what="all but the head")
    assert desk.numbers == list(range(10))


# --- what is no event, and what no broker takes


async def test_a_payload_that_is_no_envelope_fails_at_once_and_harms_nobody(database, conn):
    app, _ = make(database)
    desk = Desk()
    app.publish("parcel.*", to=desk)
    await emit(app, 2)
    for payload in PAYLOADS:
        conn.execute("select kept.enqueue('publish:desk', %s::json)", [payload])
    conn.execute("update kept.job set payload = '[]' where payload::text = '{}'")  # what the door would refuse
    await app.drain()
    failed = rows(conn, "select state, code, reason from kept.history where state <> 'done'")
    assert failed == [{"state": "failed", "code": "invalid_event", "reason": "fatal"}] * len(PAYLOADS)
    assert len(desk.sent) == 2


async def test_a_topic_that_no_broker_takes_fails_its_event_by_name_and_no_other(database, conn, tmp_path):
    with running(NatsServer(tmp_path)) as server:
        app, told = make(database)
        app.publish("parcel.*", to=server.sink(topic="events.{aggregate_id}"))
        (bad,) = await emit(app, aggregate_id="a b")
        await emit(app, 3)
        async with app, app.worker():
            assert await settled(conn) == {"done": 3, "failed": 1}
        assert row(conn, "select code, reason from kept.history where state = 'failed'") == {
            "code": "bad_topic",
            "reason": "fatal",
        }
        assert [e.event_id for s in told.of(EventsSent) for e in s.events if e.code == "bad_topic"] == [bad]


async def test_a_subject_without_a_stream_does_not_hold_up_those_that_have_one(database, conn, tmp_path):
    with running(NatsServer(tmp_path)) as server:
        app, told = make(database)
        sink = server.sink(topics={"parcel.lost": "nowhere.{aggregate_id}"}, create_stream=False, stream=None)
        maker = server.sink()
        assert await maker.ping() is None
        await maker.close()
        app.publish("parcel.*", to=sink, retry=Retry(delay="1h", jitter="0s"))
        await emit(app, type="parcel.lost")
        await emit(app, 50, parcels=50)
        async with app, app.worker():
            await aeventually(lambda: len(rows(conn, "select from kept.history")) == 50, what="the others")
        assert row(conn, "select attempt - uncharged as charged from kept.job")["charged"] == 1
        assert not told.of(SinkOpened)


async def test_a_sink_that_answers_for_too_few_is_told_so(database, conn):
    class Careless(Desk):
        async def publish(self, messages, *, ordered):
            return (await super().publish(messages, ordered=ordered))[:-1]

    app, _ = make(database)
    app.publish("parcel.*", to=Careless(), retry=Retry(max_attempts=1))
    await emit(app, 2)
    await app.drain()
    failed = rows(conn, "select state, message from kept.history")
    assert failed == [{"state": "failed", "message": "sink 'desk' gave 1 answers to 2 messages"}] * 2


# --- declaring


def test_two_sinks_of_one_name_are_refused_and_leave_nothing_behind(database):
    app, _ = make(database)
    app.publish("a.*", to=Desk())
    with pytest.raises(Refused, match="sink 'desk': there are two of this name"):
        app.publish("b.*", to=Desk())
    with pytest.raises(Refused, match="sink 'desk': there are two of this name"):
        app.publish("b.*", to=Desk(), name="other")
    assert len(app.registry) == len(app.subscriptions) == 1


def test_a_second_subscription_of_a_sink_needs_a_name_of_its_own(database):
    app, _ = make(database)
    desk = Desk()
    app.publish("a.*", to=desk)
    with pytest.raises(Refused, match="'publish:desk': there is one of this name"):
        app.publish("b.*", to=desk)
    app.publish("b.*", to=desk, name="desk-b")
    assert [each.name for each in app.subscriptions] == ["publish:desk", "publish:desk-b"]


def test_a_timeout_of_nothing_is_refused(database):
    app, _ = make(database)
    with pytest.raises(Refused, match="timeout"):
        app.publish("a.*", to=Desk(), timeout="0s")


async def test_one_sink_serves_two_subscriptions(database):
    app, _ = make(database)
    desk = Desk()
    app.publish("parcel.*", to=desk)
    app.publish("parcel.moved", to=desk, name="again")
    ids = await emit(app, 5)
    await app.drain()
    assert sorted(desk.ids) == sorted(ids * 2)


@pytest.mark.parametrize("size", [1, 2, 7])
async def test_a_sink_is_handed_no_more_than_a_batch(size, database, conn):
    app, _ = make(database, sink_batch=size)
    desk = Desk()
    app.publish("parcel.*", to=desk)
    await emit(app, 20)
    await app.drain()
    assert (len(desk.sent), max(desk.batches)) == (20, size)


async def _hurry(app, conn: psycopg.Connection, count: int) -> None:
    """Work until *count* jobs are settled, without waiting for any of their backoffs."""
    for _ in range(30):
        await app.drain()
        if len(rows(conn, "select from kept.history")) == count:
            return
        conn.execute("update kept.job set due_at = kept.now()")
    raise AssertionError("they never ended")
