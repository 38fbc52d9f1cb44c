"""``kept.enqueue``: the door for every language, in the caller's transaction."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import psycopg
import pytest

from support import Clock, eventually


def enqueue(conn: psycopg.Connection, task: str | None = "send", **options: object) -> int:
    named = ", ".join(f"{name} => %({name})s" for name in options)
    query = f"select kept.enqueue(%(task)s{', ' if named else ''}{named})"
    return conn.execute(query, {"task": task, **options}).fetchone()[0]


def job(conn: psycopg.Connection, id: int, column: str) -> object:
    return conn.execute(f"select {column} from kept.job where id = %s", [id]).fetchone()[0]


def settle_all(conn: psycopg.Connection) -> None:
    conn.execute("delete from kept.job")


# --- what is accepted


def test_a_job_exists_if_and_only_if_the_transaction_committed(conn):
    with pytest.raises(ZeroDivisionError), conn.transaction():
        enqueue(conn)
        raise ZeroDivisionError
    assert conn.execute("select count(*) from kept.job").fetchone() == (0,)
    with conn.transaction():
        enqueue(conn)
    assert conn.execute("select count(*) from kept.job").fetchone() == (1,)


def test_a_job_is_pending_in_the_default_queue_with_the_defaults(conn):
    id = enqueue(conn, args='{"to": 7}')
    row = conn.execute(
        "select queue, task, state, priority, attempt, max_attempts, payload from kept.jobs where id = %s",
        [id],
    ).fetchone()
    assert row == ("default", "send", "pending", 0, 0, 3, {"to": 7})


def test_a_task_goes_to_the_queue_it_was_declared_with(conn):
    conn.execute("insert into kept.lane (queue, task, home, priority) values ('mail', 'send', true, 5)")
    id = enqueue(conn)
    assert conn.execute("select queue, priority from kept.jobs where id = %s", [id]).fetchone() == ("mail", 5)


def test_a_lane_made_for_another_queue_takes_over_the_task_s_numbers(conn):
    conn.execute(
        """insert into kept.lane (queue, task, home, priority, max_attempts)
           values ('mail', 'send', true, 5, 9)"""
    )
    id = enqueue(conn, queue="bulk")
    row = conn.execute("select queue, priority, max_attempts from kept.jobs where id = %s", [id]).fetchone()
    assert row == ("bulk", 5, 9)


def test_a_priority_of_the_job_s_own_wins(conn):
    assert job(conn, enqueue(conn, priority=-1000), "priority") == -1000
    assert job(conn, enqueue(conn, priority=1000), "priority") == 1000


def test_a_job_without_a_due_time_is_ready_at_once(conn):
    assert job(conn, enqueue(conn), "ready") is True


def test_a_job_of_the_past_is_ready_and_one_of_the_future_is_parked(conn):
    now = conn.execute("select kept.now()").fetchone()[0]
    assert job(conn, enqueue(conn, due_at=now - timedelta(hours=1)), "ready") is True
    assert job(conn, enqueue(conn, due_at=now + timedelta(hours=1)), "ready") is False


def test_the_payload_is_kept_as_it_was_written(conn):
    written = '{"b":1,  "a":[1.50, "ü"]}'
    assert job(conn, enqueue(conn, args=written), "payload::text") == written


# --- what is refused


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"task": None}, "task: null"),
        ({"task": ""}, "task: ''"),
        ({"task": "../x"}, "task: '../x'"),
        ({"task": "a" * 201}, "task: "),
        ({"task": "two words"}, "task: "),
        ({"queue": ""}, "queue: ''"),
        ({"queue": "a b"}, "queue: 'a b'"),
        ({"queue": "q" * 101}, "queue: "),
        ({"args": None}, "args: must be a JSON object"),
        ({"args": "[1]"}, "args: must be a JSON object"),
        ({"args": '"x"'}, "args: must be a JSON object"),
        ({"args": '{"a": "\\u0000"}'}, "args: "),
        ({"args": '{"a": "\\ud800"}'}, "args: "),
        ({"args": '{"a": "%s"}' % ("x" * 1_048_576)}, "args: 1048585 bytes exceed the limit of 1048576"),
        ({"headers": "[]"}, "headers: must be a JSON object of at most 16384 bytes"),
        (
            {"headers": '{"a": "%s"}' % ("x" * 16_384)},
            "headers: must be a JSON object of at most 16384 bytes",
        ),
        ({"headers": '{"a": "\\u0000"}'}, "headers"),
        ({"key": ""}, "key: must have 1 to 512 bytes"),
        ({"key": "ü" * 257}, "key: must have 1 to 512 bytes"),
        ({"priority": 1001}, "priority: must lie between -1000 and 1000"),
        ({"priority": -1001}, "priority: must lie between -1000 and 1000"),
        ({"key": "k", "unique_for": None}, "unique_for: must lie between 0 and 3650 days"),
        ({"key": "k", "unique_for": timedelta(seconds=-1)}, "unique_for: must lie between 0 and 3650 days"),
        ({"key": "k", "unique_for": timedelta(days=9999)}, "unique_for: must lie between 0 and 3650 days"),
    ],
)
def test_bad_input_is_refused_with_a_sentence_and_nothing_is_stored(conn, options, says):
    with pytest.raises(psycopg.Error) as refused:
        enqueue(conn, **{"task": "send", **options})
    diag = refused.value.diag
    assert says in f"{diag.message_primary} {diag.message_detail}"
    assert diag.sqlstate in ("22023", "54000")
    assert conn.execute("select (select count(*) from kept.job), (select count(*) from kept.lane)").fetchone() == (0, 0)


# --- unique keys


def test_the_same_key_gives_the_same_job(conn):
    assert enqueue(conn, key="a") == enqueue(conn, key="a")
    assert conn.execute("select count(*) from kept.job").fetchone() == (1,)


def test_a_key_belongs_to_its_task_and_queue(conn):
    ids = {
        enqueue(conn, "one", key="a"),
        enqueue(conn, "two", key="a"),
        enqueue(conn, "one", queue="q", key="a"),
    }
    assert len(ids) == 3


def test_a_key_holds_after_its_job_is_settled_until_it_expires(conn, clock: Clock):
    first = enqueue(conn, key="a")
    settle_all(conn)
    clock.advance("23h")
    assert enqueue(conn, key="a") == first
    clock.advance("1h")
    second = enqueue(conn, key="a")
    assert second != first
    assert enqueue(conn, key="a") == second


def test_a_key_holds_while_its_job_lives_however_long_that_is(conn, clock: Clock):
    first = enqueue(conn, key="a")
    clock.advance("30d")
    assert enqueue(conn, key="a") == first


def test_unique_for_is_counted_from_the_enqueue_that_made_the_job(conn, clock: Clock):
    first = enqueue(conn, key="a", unique_for=timedelta(hours=2))
    settle_all(conn)
    clock.advance("90min")
    assert enqueue(conn, key="a", unique_for=timedelta(hours=2)) == first
    clock.advance("31min")
    assert enqueue(conn, key="a") != first


def test_a_key_of_a_transaction_that_rolled_back_is_free(conn):
    with pytest.raises(ZeroDivisionError), conn.transaction():
        first = enqueue(conn, key="a")
        raise ZeroDivisionError
    assert enqueue(conn, key="a") != first
    assert conn.execute("select count(*) from kept.job").fetchone() == (1,)


@pytest.mark.parametrize("expired", [False, True])
def test_callers_at_the_same_time_with_one_key_get_one_job(conn, database, clock: Clock, expired):
    if expired:
        enqueue(conn, key="a")
        settle_all(conn)
        clock.advance("25h")
    start = threading.Barrier(4)

    def caller() -> int:
        with psycopg.connect(database, autocommit=True) as own:
            start.wait()
            return enqueue(own, key="a")

    with ThreadPoolExecutor() as pool:
        ids = {f.result() for f in [pool.submit(caller) for _ in range(4)]}
    assert len(ids) == 1
    assert conn.execute("select array_agg(id) from kept.job").fetchone() == (list(ids),)


def test_a_second_caller_waits_for_the_first_transaction_with_that_key(conn, database):
    with psycopg.connect(database) as first, ThreadPoolExecutor() as pool:
        made = enqueue(first, key="a")
        second = pool.submit(enqueue, conn, key="a")
        waits = "select exists (select from pg_locks where not granted)"
        eventually(lambda: first.execute(waits).fetchone()[0], what="the second caller to wait")
        first.commit()
        assert second.result() == made


# --- wake-ups


def heard(listener: psycopg.Connection, conn: psycopg.Connection) -> list[str]:
    """What the listener was told up to now: everything before a mark of our own."""
    conn.execute("select pg_notify('kept:wake', 'mark')")
    told: list[str] = []
    for notice in listener.notifies(timeout=10):
        if notice.payload == "mark":
            return told
        told.append(notice.payload)
    raise AssertionError("the mark never came")


@pytest.fixture
def listener(database: str):
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute('listen "kept:wake"')
        yield conn


def lane(conn: psycopg.Connection) -> int:
    return conn.execute("select kept.lane_id('send', null)").fetchone()[0]


def sleep(conn: psycopg.Connection, lane: int, seconds: int) -> None:
    query = "insert into kept.sleeper values (%s, gen_random_uuid(), kept.now() + make_interval(secs => %s))"
    conn.execute(query, [lane, seconds])


def test_a_new_lane_is_announced(conn, listener):
    enqueue(conn)
    assert heard(listener, conn) == ["lanes"]


def test_nobody_is_told_when_nobody_sleeps(conn, listener):
    sleep(conn, lane(conn) + 1, 60)
    heard(listener, conn)
    enqueue(conn)
    assert heard(listener, conn) == []


def test_a_sleeper_is_told_lane_and_priority(conn, listener):
    sleep(conn, lane(conn), 60)
    heard(listener, conn)
    enqueue(conn, priority=7)
    assert heard(listener, conn) == [f"{lane(conn)}:7"]


def test_a_sleeper_whose_time_is_over_is_not_told(conn, listener, clock: Clock):
    sleep(conn, lane(conn), 60)
    heard(listener, conn)
    clock.advance("61s")
    enqueue(conn)
    assert heard(listener, conn) == []


def test_a_job_of_the_far_future_wakes_nobody(conn, listener):
    sleep(conn, lane(conn), 60)
    heard(listener, conn)
    enqueue(conn, due_at=conn.execute("select kept.now() + interval '1 hour'").fetchone()[0])
    assert heard(listener, conn) == []


def test_a_repeated_key_wakes_nobody(conn, listener):
    enqueue(conn, key="a")
    sleep(conn, lane(conn), 60)
    heard(listener, conn)
    enqueue(conn, key="a")
    assert heard(listener, conn) == []


# --- the role


@pytest.fixture
def producer(database: str):
    """A session that may do what the role kept_producer may."""
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("set role kept_producer")
        yield conn


def test_a_producer_can_enqueue(producer, conn):
    id = enqueue(producer, key="a")
    assert job(conn, id, "key") == "a"


def test_a_producer_can_touch_no_table_view_or_sequence(producer, conn):
    rows = conn.execute(
        """select relname from pg_class
            where relnamespace = 'kept'::regnamespace and relkind in ('r', 'p', 'v', 'S')
              and case when relkind = 'S'
                       then has_sequence_privilege('kept_producer', oid, 'usage, select, update')
                       else has_table_privilege('kept_producer', oid,
                                                'select, insert, update, delete, truncate') end"""
    ).fetchall()
    assert rows == []
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        producer.execute("select from kept.jobs")


def test_a_producer_can_call_nothing_but_emit_enqueue_and_the_clock(producer, conn):
    rows = conn.execute(
        """select proname from pg_proc where pronamespace = 'kept'::regnamespace
              and has_function_privilege('kept_producer', oid, 'execute') order by 1"""
    ).fetchall()
    assert [name for (name,) in rows] == ["emit", "enqueue", "now"]
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        producer.execute("select kept.lane_id('send', null)")


def test_a_producer_cannot_create_anything(producer):
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        producer.execute("create table kept.mine ()")


def test_a_stranger_can_do_nothing(role, database):
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(f"set role {role}")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            enqueue(conn)


def test_enqueue_is_not_fooled_by_tables_and_functions_of_the_caller(conn, database):
    conn.execute("create schema trap; grant all on schema trap to kept_producer")
    with psycopg.connect(database, autocommit=True) as producer:
        producer.execute("set role kept_producer; set search_path = trap, pg_catalog")
        producer.execute(
            """create function trap.octet_length(text) returns int language plpgsql
               as $$ begin raise 'trapped as %', current_user; end $$"""
        )
        assert enqueue(producer, key="a") == 1


def test_a_due_time_that_is_no_moment_is_refused(conn):
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="due_at"):
        conn.execute("select kept.enqueue('tidy', due_at => 'infinity')")
