"""An event is handled once, in the transaction of its effect, whoever raises, rolls back or comes second."""

from __future__ import annotations

import asyncio
import threading
from uuid import UUID, uuid4

import psycopg
import pytest

from kept import App, Inbox, Refused, SchemaMismatch
from kept.signals import EventSeen
from support import Clock, eventually


def handle(inbox: Inbox, event_id: str | UUID, tx: psycopg.Connection) -> bool:
    """What a consumer does: the effect, if it is the first time."""
    with inbox.once(event_id, tx) as first:
        if first:
            tx.execute("insert into effect values (%s)", [str(event_id)])
    return first


async def ahandle(inbox: Inbox, event_id: str, tx: psycopg.AsyncConnection) -> bool:
    async with inbox.once(event_id, tx) as first:
        if first:
            await tx.execute("insert into effect values (%s)", [event_id])
    return first


def effects(conn: psycopg.Connection) -> list[str]:
    return [id for (id,) in conn.execute("select event_id from effect order by 1")]


def markers(conn: psycopg.Connection) -> list[tuple[str, str]]:
    return conn.execute("select consumer, event_id from kept.inbox order by 1, 2").fetchall()


def waits_for_another(conn: psycopg.Connection) -> bool:
    query = "select exists (select from pg_locks where not granted)"
    return conn.execute(query).fetchone()[0]


# --- once


def test_the_first_time_is_the_first_and_the_second_is_not(inbox, tx, conn):
    assert handle(inbox, "e1", tx) is True
    tx.commit()
    assert handle(inbox, "e1", tx) is False
    tx.commit()
    assert effects(conn) == ["e1"]


async def test_the_same_with_async_code(inbox, database, conn):
    async with await psycopg.AsyncConnection.connect(database) as tx:
        assert await ahandle(inbox, "e1", tx) is True
        await tx.commit()
        assert await ahandle(inbox, "e1", tx) is False
    assert effects(conn) == ["e1"]


def test_a_rollback_leaves_nothing(inbox, tx, conn):
    handle(inbox, "e1", tx)
    tx.rollback()
    assert (effects(conn), markers(conn)) == ([], [])
    assert handle(inbox, "e1", tx) is True


def test_within_one_transaction_the_second_time_is_not_the_first(inbox, tx):
    assert [handle(inbox, "e1", tx), handle(inbox, "e1", tx), handle(inbox, "e2", tx)] == [True, False, True]


def test_consumers_do_not_know_of_each_other(app, tx):
    assert handle(app.inbox("mailer"), "e1", tx)
    assert handle(app.inbox("biller"), "e1", tx)


def test_a_uuid_and_its_text_are_the_same_event(inbox, tx):
    event_id = uuid4()
    assert handle(inbox, event_id, tx) is True
    assert handle(inbox, str(event_id), tx) is False


def test_a_transaction_block_in_autocommit_will_do(inbox, conn, app):
    with conn.transaction():
        assert handle(inbox, "e1", conn) is True
    assert effects(conn) == ["e1"]


def test_a_batch_of_events_is_marked_in_one_transaction(inbox, tx, conn):
    assert all(handle(inbox, f"e{n}", tx) for n in range(200))
    tx.commit()
    assert len(effects(conn)) == len(markers(conn)) == 200


def test_the_apps_own_transaction_is_used_if_none_is_given(database, tx):
    app = App(database, default_tx=lambda: tx)
    with app.inbox("mailer").once("e1") as first:
        assert first
    tx.rollback()
    with app.inbox("mailer").once("e1") as first:
        assert first
    app.close()


def test_each_answer_is_a_signal(app, inbox, tx):
    seen: list[object] = []
    app.signals.subscribe(seen.append)
    handle(inbox, "e1", tx)
    handle(inbox, "e1", tx)
    assert seen == [
        EventSeen(consumer="mailer", answer="first"),
        EventSeen(consumer="mailer", answer="duplicate"),
    ]


# --- a body that raises


def test_an_exception_goes_on_and_a_caller_who_swallows_it_has_marked_nothing(inbox, tx, conn):
    with pytest.raises(ZeroDivisionError), inbox.once("e1", tx):
        1 / 0
    tx.commit()
    assert markers(conn) == []
    assert handle(inbox, "e1", tx) is True


async def test_the_same_with_async_code_and_cancellation(inbox, database, conn):
    async with await psycopg.AsyncConnection.connect(database) as tx:
        for error in (ZeroDivisionError, asyncio.CancelledError):
            with pytest.raises(error):
                async with inbox.once("e1", tx):
                    raise error
            await tx.commit()
            assert markers(conn) == []


def test_an_exception_in_a_duplicate_leaves_the_marker_alone(inbox, tx, conn):
    handle(inbox, "e1", tx)
    tx.commit()
    with pytest.raises(ZeroDivisionError), inbox.once("e1", tx):
        1 / 0
    tx.commit()
    assert markers(conn) == [("mailer", "e1")]


def test_an_error_of_the_database_comes_through_as_it_is_and_nothing_can_be_committed(inbox, tx, conn):
    with pytest.raises(psycopg.errors.UndefinedTable) as raised, inbox.once("e1", tx):
        tx.execute("insert into nowhere values (1)")
    assert not hasattr(raised.value, "__notes__")
    tx.commit()
    assert markers(conn) == []


def test_a_savepoint_of_the_callers_own_undoes_effect_and_marker(inbox, tx, conn):
    with pytest.raises(psycopg.errors.UndefinedTable), tx.transaction(), inbox.once("e1", tx):
        tx.execute("insert into effect values ('e1')")
        tx.execute("insert into nowhere values (1)")
    tx.commit()
    assert (effects(conn), markers(conn)) == ([], [])


def test_what_was_committed_inside_the_block_stays_whatever_is_raised_after(inbox, tx, conn):
    with pytest.raises(ZeroDivisionError), inbox.once("e1", tx):
        tx.execute("insert into effect values ('e1')")
        tx.commit()
        1 / 0
    tx.commit()
    assert (effects(conn), markers(conn)) == (["e1"], [("mailer", "e1")])


def test_a_commit_inside_the_block_is_fine(inbox, tx, conn):
    with inbox.once("e1", tx) as first:
        assert first
        tx.commit()
    assert markers(conn) == [("mailer", "e1")]


def test_a_marker_that_cannot_be_taken_back_is_told_with_the_exception(inbox, tx, conn):
    with pytest.raises(ZeroDivisionError) as raised, inbox.once("e1", tx):
        conn.execute("select pg_terminate_backend(%s)", [tx.info.backend_pid])
        1 / 0
    assert "roll the transaction back" in raised.value.__notes__[0]
    assert markers(conn) == []


# --- two at the same time


@pytest.mark.parametrize("commits", [True, False])
def test_a_second_delivery_waits_for_the_first_and_gets_the_right_answer(inbox, tx, other, conn, commits):
    answers: list[bool] = []
    assert handle(inbox, "e1", tx) is True
    second = threading.Thread(target=lambda: answers.append(handle(inbox, "e1", other)))
    second.start()
    eventually(lambda: waits_for_another(conn), what="the second to wait")
    assert answers == []
    tx.commit() if commits else tx.rollback()
    second.join(10)
    other.commit()
    assert answers == [not commits]
    assert effects(conn) == ["e1"]


@pytest.mark.parametrize("commits", [True, False])
async def test_a_second_delivery_waits_in_async_code_too(inbox, database, conn, commits):
    async with (
        await psycopg.AsyncConnection.connect(database) as one,
        await psycopg.AsyncConnection.connect(database) as two,
    ):
        assert await ahandle(inbox, "e1", one) is True
        second = asyncio.create_task(ahandle(inbox, "e1", two))
        await asyncio.to_thread(eventually, lambda: waits_for_another(conn), what="the second to wait")
        await (one.commit() if commits else one.rollback())
        assert await second is not commits
    assert effects(conn) == ["e1"]


def test_different_events_do_not_wait_for_each_other(inbox, tx, other):
    assert handle(inbox, "e1", tx)
    other.execute("set statement_timeout = '5s'")
    assert handle(inbox, "e2", other)


def test_duplicates_of_a_committed_event_do_not_wait_for_each_other(inbox, tx, other):
    handle(inbox, "e1", tx)
    tx.commit()
    assert handle(inbox, "e1", tx) is False
    other.execute("set statement_timeout = '5s'")
    assert handle(inbox, "e1", other) is False


def test_under_repeatable_read_what_the_snapshot_does_not_show_is_a_serialisation_error(inbox, tx, other):
    other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    other.execute("select 1 from effect")
    handle(inbox, "e1", tx)
    tx.commit()
    with pytest.raises(psycopg.errors.SerializationFailure):
        handle(inbox, "e1", other)
    other.rollback()
    assert handle(inbox, "e1", other) is False


# --- time


def test_a_marker_lasts_for_720_hours_and_an_expired_one_counts_as_gone(inbox, tx, conn, clock: Clock):
    handle(inbox, "e1", tx)
    tx.commit()
    clock.advance("719h")
    assert handle(inbox, "e1", tx) is False
    tx.commit()
    clock.advance("2h")
    assert handle(inbox, "e1", tx) is True
    tx.commit()
    assert handle(inbox, "e1", tx) is False
    assert effects(conn) == ["e1", "e1"]


def test_of_two_who_find_an_expired_marker_one_is_first(inbox, tx, other, conn, clock: Clock):
    handle(inbox, "e1", tx)
    tx.commit()
    clock.advance("721h")
    answers: list[bool] = []
    assert handle(inbox, "e1", tx) is True
    second = threading.Thread(target=lambda: answers.append(handle(inbox, "e1", other)))
    second.start()
    eventually(lambda: waits_for_another(conn), what="the second to wait")
    tx.commit()
    second.join(10)
    assert answers == [False]


def test_an_expired_marker_taken_over_by_a_body_that_raises_is_gone(inbox, tx, conn, clock: Clock):
    handle(inbox, "e1", tx)
    tx.commit()
    clock.advance("721h")
    with pytest.raises(ZeroDivisionError), inbox.once("e1", tx):
        1 / 0
    tx.commit()
    assert handle(inbox, "e1", tx) is True


def test_the_ttl_is_the_inboxs_own_or_the_settings(app, tx, clock: Clock):
    short = app.inbox("short", ttl="1h")
    assert handle(short, "e1", tx)
    tx.commit()
    clock.advance("61min")
    assert handle(short, "e1", tx)
    assert app.inbox("long").ttl.total_seconds() == 720 * 3600


def test_the_ttl_can_be_set_under_either_name(database, monkeypatch):
    monkeypatch.setenv("PACKFINDERZ_EVENTING_IDEMPOTENCY_TTL", "48h")
    assert App(database).inbox("mailer").ttl.total_seconds() == 48 * 3600
    monkeypatch.setenv("KEPT_INBOX_TTL", "24h")
    assert App(database).inbox("mailer").ttl.total_seconds() == 24 * 3600


# --- forget


def test_a_forgotten_event_is_handled_again(inbox, tx, conn):
    handle(inbox, "e1", tx)
    tx.commit()
    assert inbox.forget("e1") is True
    assert inbox.forget("e1") is False
    assert handle(inbox, "e1", tx) is True


async def test_the_same_with_await(app, inbox, database):
    async with app, await psycopg.AsyncConnection.connect(database) as tx:
        await ahandle(inbox, "e1", tx)
        await tx.commit()
        assert await inbox.aforget("e1") is True
        assert await ahandle(inbox, "e1", tx) is True


# --- bad input


@pytest.mark.parametrize(
    ("event_id", "says"),
    [
        ("", "event_id: has 0 characters; allowed are 1 to 200"),
        ("x" * 201, "event_id: has 201 characters; allowed are 1 to 200"),
        ("a\0b", "event_id: holds a NUL character"),
        ("a\ud800", "event_id: holds a lone surrogate"),
    ],
)
def test_an_event_id_that_is_none_is_refused(inbox, tx, event_id, says):
    with pytest.raises(Refused, match=says) as raised:
        inbox.once(event_id, tx)
    assert raised.value.field == "event_id"


@pytest.mark.parametrize("event_id", [7, None, b"e1"])
def test_an_event_id_of_another_type_is_a_type_error(inbox, tx, event_id):
    with pytest.raises(TypeError, match="event_id: expected a string or a UUID"):
        inbox.once(event_id, tx)


@pytest.mark.parametrize("event_id", ["x" * 200, "ü€😀" * 66, "'; drop table kept.inbox; --", "%s %(x)s $1", "\\"])
def test_any_text_up_to_the_limit_is_an_event_id(inbox, tx, event_id):
    assert handle(inbox, event_id, tx) is True
    tx.commit()
    assert handle(inbox, event_id, tx) is False


@pytest.mark.parametrize("consumer", ["", "a b", "x" * 101, "über", "a\0"])
def test_a_consumer_that_is_no_name_is_refused(app, consumer):
    with pytest.raises(Refused, match=r"consumer: .* is not a name; use up to 100"):
        app.inbox(consumer)


def test_a_ttl_that_is_none_is_refused(app):
    with pytest.raises(Refused, match="ttl: must be at least 1s"):
        app.inbox("mailer", ttl="0s")
    with pytest.raises(TypeError, match="ttl: expected a duration"):
        app.inbox("mailer", ttl=30)


def test_no_transaction_is_refused(inbox, conn):
    with pytest.raises(Refused, match="tx: is missing") as raised, inbox.once("e1"):
        pass
    assert raised.value.field == "tx"
    with pytest.raises(Refused, match="autocommit"), inbox.once("e1", conn):
        pass
    with pytest.raises(Refused, match="tx: expected"), inbox.once("e1", object()):
        pass
    assert markers(conn) == []


def test_an_aborted_transaction_is_refused(inbox, tx):
    with pytest.raises(psycopg.errors.UndefinedTable):
        tx.execute("select from nowhere")
    with pytest.raises(Refused, match="aborted"), inbox.once("e1", tx):
        pass


async def test_the_wrong_colour_of_transaction_is_refused(inbox, database, tx):
    with pytest.raises(Refused, match="sync connection"):
        async with inbox.once("e1", tx):
            pass
    async with await psycopg.AsyncConnection.connect(database) as other:
        with pytest.raises(Refused, match="async connection"), inbox.once("e1", other):
            pass


def test_a_database_without_the_schema_is_told(empty_database):
    app = App(empty_database)
    with psycopg.connect(empty_database) as tx, pytest.raises(SchemaMismatch), app.inbox("mailer").once("e1", tx):
        pass
    app.close()


def test_another_schema_has_markers_of_its_own(empty_database):
    from kept import Settings
    from kept.db import migrate

    with psycopg.connect(empty_database, autocommit=True) as conn:
        for schema in ("one", "two"):
            migrate.apply(conn, schema)
        for schema in ("one", "two"):
            app = App(empty_database, settings=Settings(schema=schema))
            with conn.transaction(), app.inbox("mailer").once("e1", conn) as first:
                assert first
