"""Redis accelerates and decides nothing: empty, evicting, lying, slow, frozen or gone, the answers stay the same."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from datetime import timedelta

import psycopg
import pytest

from kept import App, Inbox, Misconfigured, Refused, Unavailable
from kept.outbox.inbox.redis import LIMIT
from kept.signals import EventSeen, Warned
from support import Clock, eventually


def handle(inbox: Inbox, event_id: str, tx: psycopg.Connection) -> bool:
    with inbox.once(event_id, tx) as first:
        pass
    tx.commit()
    return first


async def ahandle(inbox: Inbox, event_id: str, tx: psycopg.AsyncConnection) -> bool:
    async with inbox.once(event_id, tx) as first:
        pass
    await tx.commit()
    return first


def answers(app: App) -> list[str]:
    """What the inbox says from now on."""
    told: list[str] = []
    app.signals.subscribe(lambda signal: told.append(signal.answer) if isinstance(signal, EventSeen) else None)
    return told


def warnings(app: App) -> list[str]:
    told: list[str] = []
    app.signals.subscribe(lambda signal: told.append(signal.message) if isinstance(signal, Warned) else None)
    return told


@pytest.fixture
def quick(app: App, valkey) -> Inbox:
    return app.inbox("mailer", redis=valkey.patient)


# --- what it does


def test_the_third_time_redis_answers_alone(app, quick, tx, other):
    told = answers(app)
    assert [handle(quick, "e1", tx) for _ in range(4)] == [True, False, False, False]
    assert told == ["first", "duplicate", "cached", "cached"]
    tx.execute("set statement_timeout = '5s'")
    other.execute("lock table kept.inbox")  # nobody can read it any more
    assert handle(quick, "e1", tx) is False


async def test_the_same_with_async_code(app, quick, database):
    told = answers(app)
    async with app, await psycopg.AsyncConnection.connect(database) as tx:
        assert [await ahandle(quick, "e1", tx) for _ in range(4)] == [True, False, False, False]
    assert told == ["first", "duplicate", "cached", "cached"]


def test_nothing_is_written_to_redis_before_the_commit_is_a_fact(quick, tx, other, valkey):
    """The flaw that loses events: a mark in Redis, then a crash before the effect."""
    with quick.once("e1", tx) as first:
        assert first
        assert valkey.all_keys() == []
    with quick.once("e1", tx) as first:  # of this very transaction: known, but not committed
        assert not first
    assert valkey.all_keys() == []
    tx.rollback()
    assert handle(quick, "e1", other) is True
    assert valkey.all_keys() == []
    assert handle(quick, "e1", other) is False
    assert len(valkey.all_keys()) == 1


def test_a_marker_of_a_savepoint_of_this_transaction_is_not_committed_either(quick, tx, valkey):
    with tx.transaction():
        with tx.transaction(), quick.once("e1", tx) as first:
            assert first
        with quick.once("e1", tx) as again:
            assert not again
    assert valkey.all_keys() == []


def test_a_key_lives_no_longer_than_its_marker_nor_a_day(app, tx, valkey, clock: Clock):
    for consumer, ttl in (("long", "720h"), ("short", "1h")):
        inbox = app.inbox(consumer, ttl=ttl, redis=valkey.patient)
        handle(inbox, "e1", tx)
    clock.advance("50min")
    for consumer, ttl in (("long", "720h"), ("short", "1h")):
        handle(app.inbox(consumer, ttl=ttl, redis=valkey.patient), "e1", tx)
    long, short = (int(valkey.ask("PTTL", key)) for key in valkey.all_keys())
    assert 0 < long <= timedelta(hours=24) / timedelta(milliseconds=1)
    assert 0 < short <= timedelta(minutes=10) / timedelta(milliseconds=1)


def test_forgetting_reaches_redis_too(quick, tx, valkey):
    for _ in range(3):
        handle(quick, "e1", tx)
    assert quick.forget("e1") is True
    assert valkey.all_keys() == []
    assert handle(quick, "e1", tx) is True


async def test_forgetting_reaches_redis_from_async_code_too(app, quick, database, valkey):
    async with app, await psycopg.AsyncConnection.connect(database) as tx:
        for _ in range(3):
            await ahandle(quick, "e1", tx)
        assert await quick.aforget("e1") is True
        assert await ahandle(quick, "e1", tx) is True


def test_another_database_on_the_same_redis_has_keys_of_its_own(app, quick, tx, valkey, server, template):
    from conftest import _fresh, at

    for _ in range(3):
        handle(quick, "e1", tx)
    with _fresh(server, template) as name:
        twin = App(at(server, name))
        with psycopg.connect(at(server, name)) as there:
            inbox = twin.inbox("mailer", redis=valkey.patient)
            assert [handle(inbox, event, there) for event in ("e0", "e1", "e1")] == [True, True, False]
            with pytest.raises(Refused, match="tx: is in another database than before"):
                handle(inbox, "e2", tx)
            tx.rollback()
        twin.close()
    assert len(valkey.all_keys()) == 2


def test_a_role_without_rights_on_the_server_can_use_it(role, app, quick, database, conn):
    conn.execute(f"grant usage on schema kept to {role}")
    conn.execute(f"grant select, insert, update, delete on kept.inbox to {role}")
    conn.execute(f"grant execute on function kept.inbox_identity() to {role}")
    conn.execute(f"grant select on kept.test_clock to {role}")
    conn.execute("revoke execute on function pg_control_system() from public")
    with psycopg.connect(database) as tx:
        tx.execute(f"set role {role}")
        tx.commit()
        assert [handle(quick, "e1", tx) for _ in range(3)] == [True, False, False]
    conn.execute(f"drop owned by {role}")


def test_a_wrong_transaction_is_refused_whatever_redis_knows(quick, tx, conn):
    for _ in range(3):
        handle(quick, "e1", tx)
    with pytest.raises(Refused, match="autocommit"), quick.once("e1", conn):
        pass
    with pytest.raises(Refused, match="tx: is missing"), quick.once("e1"):
        pass


# --- what may happen to it


def test_an_emptied_redis_is_filled_again(app, quick, tx, valkey):
    for _ in range(3):
        handle(quick, "e1", tx)
    valkey.ask("FLUSHALL")
    told = answers(app)
    assert [handle(quick, event, tx) for event in ("e1", "e1", "e2")] == [False, False, True]
    assert told == ["duplicate", "cached", "first"]


def test_a_redis_that_evicts_everything_changes_no_answer(app, quick, tx, valkey):
    valkey.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-random")
    valkey.ask("CONFIG", "SET", "maxmemory", "1")
    assert [handle(quick, "e1", tx) for _ in range(4)] == [True, False, False, False]


def test_a_redis_that_takes_no_writes_changes_no_answer(quick, tx, valkey):
    valkey.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
    valkey.ask("CONFIG", "SET", "maxmemory", "1")
    assert [handle(quick, "e1", tx) for _ in range(4)] == [True, False, False, False]
    assert handle(quick, "e2", tx) is True


def test_a_value_that_is_not_ours_is_no_hit(app, quick, tx, valkey):
    for _ in range(2):
        handle(quick, "e1", tx)
    (key,) = valkey.all_keys()
    assert quick.forget("e1")
    valkey.ask("SET", key, "1")
    assert handle(quick, "e1", tx) is True
    valkey.ask("DEL", key)
    valkey.ask("LPUSH", key, "1")
    assert handle(quick, "e1", tx) is False


def test_a_frozen_redis_costs_its_limit_a_few_times_and_is_then_left_alone(app, tx, valkey):
    inbox = app.inbox("mailer", redis=valkey.url)
    told = warnings(app)
    assert handle(inbox, "e0", tx)
    valkey.freeze()
    took = []
    for number in range(1, 21):
        began = time.monotonic()
        assert handle(inbox, f"e{number}", tx) is True
        took.append(time.monotonic() - began)
    slow = [seconds for seconds in took if seconds >= LIMIT]
    assert 1 <= len(slow) <= 5, took
    assert max(took) < 1, "a limit, not a wait for Redis"
    assert told == [told[0]] and "left alone" in told[0] and "inbox mailer" in told[0]
    valkey.thaw()
    seen = answers(app)
    eventually(lambda: handle(inbox, "e1", tx) or "cached" in seen, what="Redis to be asked again")
    assert set(seen) == {"duplicate", "cached"}


async def test_a_frozen_redis_costs_async_code_no_more(app, database, valkey):
    inbox = app.inbox("mailer", redis=valkey.url)
    async with app, await psycopg.AsyncConnection.connect(database) as tx:
        assert await ahandle(inbox, "e0", tx)
        valkey.freeze()
        began = time.monotonic()
        for number in range(1, 21):
            assert await ahandle(inbox, f"e{number}", tx) is True
        assert time.monotonic() - began < 20 * LIMIT
        valkey.thaw()


def test_a_killed_redis_changes_no_answer(app, quick, tx, valkey):
    for _ in range(3):
        handle(quick, "e1", tx)
    valkey.kill()
    assert [handle(quick, event, tx) for event in ("e1", "e1", "e2", "e2")] == [False, False, True, False]


async def test_a_killed_redis_changes_no_answer_for_async_code(app, quick, database, valkey):
    async with app, await psycopg.AsyncConnection.connect(database) as tx:
        for _ in range(3):
            await ahandle(quick, "e1", tx)
        valkey.kill()
        assert [await ahandle(quick, event, tx) for event in ("e1", "e1", "e2", "e2")] == [False, False, True, False]


def test_forgetting_without_an_answer_of_redis_says_so(quick, tx, valkey, conn):
    handle(quick, "e1", tx)
    valkey.kill()
    with pytest.raises(Unavailable, match="'e1' is forgotten in PostgreSQL, but Redis did not answer"):
        quick.forget("e1")
    assert conn.execute("select count(*) from kept.inbox").fetchone() == (0,)


def test_something_else_on_that_port_changes_no_answer(app, tx):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        inbox = app.inbox("mailer", redis=f"redis://127.0.0.1:{listener.getsockname()[1]}")
        assert [handle(inbox, "e1", tx) for _ in range(4)] == [True, False, False, False]


def test_a_wrong_password_changes_no_answer_and_is_not_told(app, tx, valkey):
    told = warnings(app)
    inbox = app.inbox("mailer", redis=valkey.patient.replace("redis://", "redis://:s3cret@"))
    assert [handle(inbox, f"e{n % 2}", tx) for n in range(8)] == [True, True] + [False] * 6
    assert len(told) == 1 and "s3cret" not in told[0]


async def test_a_cancelled_question_is_never_answered_by_the_next_reply(app, quick, database, valkey):
    async with app, await psycopg.AsyncConnection.connect(database) as tx:
        for _ in range(3):
            await ahandle(quick, "known", tx)
        for number in range(20):
            asking = asyncio.create_task(ahandle(quick, "known", tx))
            await asyncio.sleep(0)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            await tx.rollback()
            assert await ahandle(quick, f"new {number}", tx) is True


# --- bad input


@pytest.mark.parametrize("url", ["", "localhost:6379", "http://x", "postgresql://x"])
def test_what_is_no_url_of_a_redis_is_refused(app, url):
    with pytest.raises(Refused, match="redis: is not the URL of a Redis"):
        app.inbox("mailer", redis=url)


def test_an_unreadable_url_is_refused_without_its_password(app):
    with pytest.raises(Refused, match="redis: the URL is not readable") as raised:
        app.inbox("mailer", redis="redis://:s3cret@host:port/0")
    assert "s3cret" not in str(raised.value)
    with pytest.raises(TypeError, match="redis: expected a URL"):
        app.inbox("mailer", redis=6379)


def test_without_the_library_the_extra_is_named():
    code = """
import sys
sys.modules["redis"] = sys.modules["redis.asyncio"] = None
from kept import App, Misconfigured
app = App("postgresql://nowhere")
app.inbox("mailer")
try:
    app.inbox("mailer", redis="redis://localhost")
except Misconfigured as error:
    print(error)
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == 'redis is not installed; this inbox needs it: pip install "kept[redis]"\n'
    assert Misconfigured.code == "misconfigured"
