"""Emitting: an event, and a job for whoever wants it, exist if and only if the caller's transaction committed."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from time import perf_counter

import msgspec
import psycopg
import pytest
from pydantic import BaseModel

from kept import App, Event, Refused
from kept.config import Settings
from kept.db import migrate
from kept.outbox.handling import read_envelope
from kept.outbox.model import cloudevent
from support import eventually


class Made(msgspec.Struct):
    id: int


@dataclass
class Paid:
    id: int


class Sent(BaseModel):
    id: int


async def heard(event: Event) -> None:
    """A handler."""


def listening(app: App, *patterns: str, names: tuple[str, ...] = ("one",)) -> App:
    for name in names:
        app.on(*patterns, name=name)(heard)
    return app


# --- with the caller's data, or not at all


def test_an_event_and_its_jobs_exist_if_and_only_if_the_transaction_committed(app, sync, database, ask):
    sync(listening(app, "invoice.*"))
    with psycopg.connect(database) as mine:
        app.emit("invoice.made", {"id": 1}, tx=mine)
        mine.rollback()
        assert ask("select id from kept.event") == ask("select id from kept.job") == []
        id = app.emit("invoice.made", {"id": 1}, tx=mine)
        mine.commit()
    assert ask("select id::text from kept.event") == [id]
    assert ask("select payload->>'event_id' from kept.job") == [id]


def test_without_a_transaction_it_is_committed_at_once(app, ask):
    id = app.emit("invoice.made")
    assert ask("select id::text, data::text from kept.event") == [(id, "{}")]


async def test_async_code_emits_as_sync_code_does(app, database, ask):
    async with await psycopg.AsyncConnection.connect(database) as mine:
        first = await app.aemit("a.b", {"n": 1}, tx=mine)
        rest = await app.aemit_many([Event(type="a.b", data={"n": n}) for n in (2, 3)], tx=mine)
        await mine.commit()
    assert ask("select id::text from kept.event order by seq") == [first, *rest]
    await app.aclose()


# --- what can be emitted


@pytest.mark.parametrize("cls", [Made, Paid, Sent])
def test_an_instance_of_a_declared_class_is_an_event(app, ask, cls):
    app.event("invoice.x", version=2, aggregate_id="id")(cls)
    app.emit(cls(id=7), actor="user:1")
    found = ask("select type, version, actor, aggregate_type, aggregate_id, data::text from kept.event")
    assert found == [("invoice.x", 2, "user:1", "invoice", "7", '{"id":7}')]


def test_everything_said_of_an_event_is_in_its_envelope(app, sync, ask):
    sync(listening(app, "invoice.made"))
    at = datetime(2026, 1, 2, 3, 4, 5, 678900, timezone(timedelta(hours=2)))
    odd = "quote ' \" back \\ {curly,null} \x07 \n ü 🎈"
    id = app.emit(
        "invoice.made",
        {"text": odd},
        version=3,
        occurred_at=at,
        actor=odd,
        aggregate_type=odd,
        aggregate_id=odd,
        headers={"traceparent": "00-1-2-3", odd: odd},
    )
    (payload,) = ask("select payload::text from kept.job")
    envelope = read_envelope(payload)
    event = envelope.event(msgspec.json.decode(envelope.data), envelope.version)
    assert event == Event(
        type="invoice.made", data={"text": odd}, version=3, event_id=id, occurred_at=at, actor=odd, aggregate_type=odd,
        aggregate_id=odd, headers={"traceparent": "00-1-2-3", odd: odd},
    )  # fmt: skip
    cloud = cloudevent(event, "shop")
    assert (cloud["specversion"], cloud["id"], cloud["type"], cloud["source"]) == ("1.0", id, "invoice.made", "shop")
    assert (cloud["time"], cloud["data"], cloud["traceparent"]) == (at, {"text": odd}, "00-1-2-3")


def test_many_keep_odd_texts_too(app, sync, ask):
    sync(listening(app, "*"))
    odd = "quote ' \" back \\ {curly,null} NULL \x07 \n ü"
    event = Event(type="a.b", data={"t": odd}, actor=odd, aggregate_type=odd, aggregate_id=odd, headers={odd: odd})
    app.emit_many([event, Event(type="a.b", data={}, actor="null")])
    first, second = map(read_envelope, ask("select payload::text from kept.job order by id"))
    assert (first.actor, first.aggregate_id, first.headers) == (odd, odd, {odd: odd})
    assert (second.actor, second.aggregate_type) == ("null", None)


def test_an_event_id_is_a_version_7_uuid_of_now(app):
    id = app.emit("a.b")
    assert id[14] == "7" and id[19] in "89ab"
    made = datetime.fromtimestamp(int(id.replace("-", "")[:12], 16) / 1000, UTC)
    assert abs(datetime.now(UTC) - made) < timedelta(minutes=1)


def test_many_are_recorded_and_told_in_order(app, sync, ask):
    sync(listening(app, "a.*", names=("one", "two")))
    ids = app.emit_many(Event(type=f"a.{'bc'[n % 2]}", data={"n": n}) for n in range(500))
    assert ask("select id::text from kept.event order by seq") == ids
    for lane in ask("select id from kept.lane"):
        assert ask("select payload->>'event_id' from kept.job where lane = %s order by id", lane) == ids
    assert app.emit_many([]) == []


def test_many_are_all_or_none(app, ask):
    with pytest.raises(Refused):
        app.emit_many([Event(type="a.b", data={}), Event(type="a b", data={})])
    assert ask("select id from kept.event") == []


# --- who is told


def test_every_subscription_gets_a_job_of_its_own_and_the_event_remembers(app, sync, ask):
    sync(listening(listening(app, "invoice.*", names=("one", "two")), "order.*", names=("three",)))
    app.emit("invoice.made")
    assert ask("select task from kept.jobs order by id") == ["one", "two"]
    names = (
        "select array(select name from kept.subscription where id = any(e.subscriptions) order by 1) from kept.event e"
    )
    assert ask(names) == [["one", "two"]]


def test_an_event_nobody_wants_is_recorded_and_its_type_known(app, ask):
    app.emit("invoice.made")
    assert ask("select subscriptions from kept.event") == [[]]
    assert ask("select type from kept.event_type") == ["invoice.made"]
    assert ask("select id from kept.job") == []


def test_a_new_type_is_routed_by_the_event_that_brings_it(app, sync, ask):
    sync(listening(app, "invoice.*"))
    app.emit("invoice.made")
    app.emit_many([Event(type="invoice.paid", data={}), Event(type="invoice.sent", data={})])
    assert ask("select payload->>'type' from kept.job order by id") == ["invoice.made", "invoice.paid", "invoice.sent"]


def test_a_sleeping_worker_is_woken(app, sync, database, ask, conn):
    sync(listening(app, "a.b", names=("one", "two")))
    lanes = ask("select id from kept.lane order by id")
    with psycopg.connect(database, autocommit=True) as listener:
        listener.execute('listen "kept:wake"')
        conn.execute(
            "insert into kept.sleeper values (%s, gen_random_uuid(), kept.now() + interval '1 min')", [lanes[1]]
        )
        app.emit("a.b")
        app.emit_many([Event(type="a.b", data={})] * 3)
        conn.execute("notify \"kept:wake\", 'end'")
        told = []
        for notice in listener.notifies(timeout=10):
            if notice.payload == "end":
                break
            told.append(notice.payload)
    assert told == [f"{lanes[1]}:0"] * 2


# --- keys


def test_a_key_makes_an_event_once(app, sync, ask, clock):
    sync(listening(app, "*"))
    first = app.emit("a.b", {"n": 1}, key="k")
    assert app.emit("a.b", {"n": 2}, key="k") == first
    assert app.emit("a.c", key="k") != first
    assert len(ask("select id from kept.event")) == len(ask("select id from kept.job")) == 2
    clock.advance("25h")
    assert app.emit("a.b", key="k") != first


def test_a_key_that_was_rolled_back_is_free(app, database, ask):
    with psycopg.connect(database) as mine:
        app.emit("a.b", key="k", tx=mine)
        mine.rollback()
    assert [app.emit("a.b", key="k")] == ask("select id::text from kept.event")


def test_two_emitters_with_one_key_make_one_event(app, database, ask):
    with psycopg.connect(database) as first, ThreadPoolExecutor() as pool:
        id = app.emit("a.b", key="k", tx=first)
        second = pool.submit(app.emit, "a.b", key="k")
        waits = "select exists (select from pg_locks where not granted)"
        eventually(lambda: ask(waits)[0], what="the second to wait")
        first.commit()
        assert second.result() == id
    assert ask("select id::text from kept.event") == [id]


# --- races with subscriptions


def test_a_type_learnt_in_an_open_transaction_meets_a_subscription_made_meanwhile(app, sync, database, ask):
    listening(app, "invoice.*")
    with psycopg.connect(database) as mine, ThreadPoolExecutor() as pool:
        app.emit("invoice.made", tx=mine)
        registering = pool.submit(sync, app)
        eventually(lambda: ask("select exists (select from pg_locks where not granted)")[0], what="it to wait")
        mine.commit()
        assert [each.missed for each in registering.result().registered.added] == [1]
    app.emit("invoice.made")
    assert ask("select task from kept.jobs") == ["one"]


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_an_old_snapshot_cannot_learn_a_type_past_a_new_subscription(app, sync, database, ask, level):
    listening(app, "invoice.*")
    with psycopg.connect(database) as mine:
        mine.execute(f"set transaction isolation level {level}")
        mine.execute("select from kept.event")
        sync(app)
        with pytest.raises(psycopg.errors.SerializationFailure):
            app.emit("invoice.made", tx=mine)
        mine.rollback()
        app.emit("invoice.made", tx=mine)
        mine.commit()
    assert ask("select task from kept.jobs") == ["one"]


def test_an_old_snapshot_emits_what_is_known(app, database, ask):
    app.emit("a.b")
    with psycopg.connect(database) as mine:
        mine.execute("set transaction isolation level repeatable read")
        app.emit("a.b", tx=mine)
        mine.commit()
    assert len(ask("select id from kept.event")) == 2


def test_many_emitters_of_one_new_type_at_once(app, sync, ask):
    sync(listening(app, "*"))
    start = threading.Barrier(4)

    def emit() -> str:
        start.wait()
        return app.emit("brand.new")

    with ThreadPoolExecutor() as pool:
        ids = {each.result() for each in [pool.submit(emit) for _ in range(4)]}
    assert len(ids) == len(ask("select id from kept.job")) == 4


# --- at size


def test_many_types_and_subscriptions_cost_what_they_must(app, sync, ask):
    for number in range(50):
        app.on("*" if number == 0 else f"kind{number}.*", name=f"s{number}")(heard)
    sync(app)
    app.emit_many([Event(type=f"kind{n % 50}.t{n}", data={}) for n in range(1000)])
    assert ask("select count(*) from kept.event_type") == [1000]
    assert ask("select count(*) from kept.route") == [1000 + 980]
    assert ask("select count(*) from kept.job") == [1000 + 980]


def test_emitting_ten_times_as_many_takes_about_ten_times_as_long(app, sync):
    for number in range(3):
        app.on("a.*", name=f"s{number}")(heard)
    sync(app)

    def seconds(count: int) -> float:
        began = perf_counter()
        app.emit_many([Event(type="a.b", data={"n": n}) for n in range(count)])
        return perf_counter() - began

    seconds(100)
    few = min(seconds(1000) for _ in range(3))
    assert seconds(10_000) < 40 * few, "a plan that is quadratic takes a hundred times as long"


# --- two schemas


def test_two_schemas_in_one_database_know_nothing_of_each_other(database, conn, sync, ask):
    migrate.apply(conn, "other_1")
    apps = [App(database, settings=Settings(schema=schema)) for schema in ("kept", "other_1")]
    sync(listening(apps[1], "*"))
    ids = [app.emit("a.b") for app in apps]
    assert ask("select id::text from kept.event") == ids[:1]
    assert ask('select id::text from "other_1".event') == ids[1:]
    assert ask("select id from kept.job") == []
    assert ask("select payload->>'event_id' from \"other_1\".job") == ids[1:]
    for app in apps:
        app.close()


# --- bad input


@pytest.mark.parametrize(
    ("about", "field"),
    [
        ({"event": ""}, "type"),
        ({"event": "a b"}, "type"),
        ({"event": "a.*"}, "type"),
        ({"data": [1]}, "data"),
        ({"data": {"a": "\0"}}, "data"),
        ({"data": {"a": "\ud800"}}, "data"),
        ({"data": {"a": float("nan")}}, "data"),
        ({"data": {"a": object()}}, "data"),
        ({"data": {"a": "x" * 1_048_576}}, "data"),
        ({"version": 0}, "version"),
        ({"occurred_at": datetime(2026, 1, 1, tzinfo=UTC).replace(tzinfo=None)}, "occurred_at"),
        ({"actor": ""}, "actor"),
        ({"actor": "a\0"}, "actor"),
        ({"actor": "\udfff"}, "actor"),
        ({"actor": "ü" * 257}, "actor"),
        ({"aggregate_type": "t"}, "aggregate_id"),
        ({"aggregate_id": "7"}, "aggregate_id"),
        ({"aggregate_type": "t", "aggregate_id": ""}, "aggregate_id"),
        ({"aggregate_type": "t" * 201, "aggregate_id": "7"}, "aggregate_type"),
        ({"aggregate_type": "t", "aggregate_id": "7" * 513}, "aggregate_id"),
        ({"headers": {"a": "\0"}}, "headers"),
        ({"headers": {"a": "x" * 16_384}}, "headers"),
        ({"key": ""}, "key"),
        ({"key": "k" * 513}, "key"),
    ],
)
def test_bad_input_is_refused_with_its_field_and_nothing_is_stored(app, ask, about, field):
    with pytest.raises(Refused) as refused:
        app.emit(**{"event": "a.b", "data": {}} | about)
    assert refused.value.field == field
    assert ask("select id from kept.event") == ask("select type from kept.event_type") == []


@pytest.mark.parametrize(
    "about",
    [
        *({"version": "1"}, {"version": True}, {"actor": 7}, {"aggregate_type": "t", "aggregate_id": 7}),
        *({"headers": {"a": 1}}, {"headers": "x"}, {"key": 7}, {"occurred_at": "2026-01-01"}),
    ],
)
def test_a_wrong_type_is_a_type_error(app, about):
    with pytest.raises(TypeError):
        app.emit("a.b", {}, **about)


def test_an_id_of_the_caller_s_own_and_data_beside_an_event_are_refused(app):
    with pytest.raises(Refused, match="event_id"):
        app.emit(Event(type="a.b", data={}, event_id="mine"))
    with pytest.raises(Refused, match="data goes with a type"):
        app.emit(Event(type="a.b", data={}), {"n": 1})
    with pytest.raises(Refused, match="not declared as an event"):
        app.emit(7)


def test_a_connection_that_ties_nothing_together_is_refused(app, conn, database):
    with pytest.raises(Refused, match="autocommit"):
        app.emit("a.b", tx=conn)
    with psycopg.connect(database) as mine:
        with pytest.raises(psycopg.errors.DivisionByZero):
            mine.execute("select 1/0")
        with pytest.raises(Refused, match="aborted"):
            app.emit("a.b", tx=mine)


def test_on_an_event_loop_sync_emit_without_a_transaction_is_refused(app):
    async def emit() -> None:
        app.emit("a.b")

    with pytest.raises(Refused):
        asyncio.run(emit())


def test_plain_data_of_a_declared_type_has_its_version_and_must_fit(app, ask):
    @app.event("invoice.made", version=2)
    @dataclass
    class Made:
        id: int

    app.emit("invoice.made", {"id": 7})
    assert ask("select version from kept.event") == [2]
    with pytest.raises(Refused, match="does not fit"):
        app.emit("invoice.made", {"id": "seven"})
    with pytest.raises(Refused, match="no upcaster from version 1") as refused:
        app.emit("invoice.made", {"number": 7}, version=1)
    assert refused.value.field == "version"
