"""``kept.emit``: events from every language, in the caller's transaction."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import psycopg
import pytest


def emit(conn: psycopg.Connection, type: str | None = "invoice.made", **options: object) -> str:
    named = "".join(f", {name} => %({name})s" for name in options)
    return conn.execute(f"select kept.emit(%(type)s{named})::text", {"type": type, **options}).fetchone()[0]


@pytest.fixture
def subscribed(conn: psycopg.Connection) -> None:
    conn.execute(
        """insert into kept.lane (queue, task, home, priority) values ('mail', 'mailer', true, 5);
           insert into kept.subscription (name, patterns, lane) select 'mailer', '{invoice.*}', id from kept.lane"""
    )


def test_an_event_exists_if_and_only_if_the_transaction_committed(conn, subscribed):
    counts = "select (select count(*) from kept.event), (select count(*) from kept.job)"
    with pytest.raises(ZeroDivisionError), conn.transaction():
        emit(conn)
        raise ZeroDivisionError
    assert conn.execute(counts).fetchone() == (0, 0)
    emit(conn)
    assert conn.execute(counts).fetchone() == (1, 1)


def test_the_job_holds_the_envelope(conn, subscribed):
    at = datetime(2026, 1, 2, 3, 4, 5, 6, UTC)
    id = emit(
        conn, data='{"b":1,  "a":[1.50]}', aggregate_type="invoice", aggregate_id="7", version=2, actor="user:1",
        occurred_at=at, headers='{"a": "b"}',
    )  # fmt: skip
    payload, priority = conn.execute("select payload, priority from kept.job").fetchone()
    assert payload == {
        "event_id": id,
        "type": "invoice.made",
        "version": 2,
        "occurred_at": "2026-01-02T03:04:05.000006Z",
        "actor": "user:1",
        "aggregate_type": "invoice",
        "aggregate_id": "7",
        "headers": {"a": "b"},
        "data": {"a": [1.5], "b": 1},
    }
    assert priority == 5


def test_the_same_key_gives_the_same_event(conn, subscribed, clock):
    first = emit(conn, key="k", unique_for=timedelta(hours=1))
    assert emit(conn, key="k") == first
    assert emit(conn, "invoice.paid", key="k") != first
    assert conn.execute("select count(*) from kept.job").fetchone() == (2,)
    clock.advance("1h")
    assert emit(conn, key="k") != first


def test_the_time_is_in_utc_wherever_the_session_is(conn, subscribed):
    conn.execute("set timezone = 'Pacific/Pago_Pago'; set datestyle = 'German'; set intervalstyle = 'sql_standard'")
    emit(conn, occurred_at="2026-06-01T00:00:00Z")
    assert conn.execute("select payload->>'occurred_at' from kept.job").fetchone() == ("2026-06-01T00:00:00.000000Z",)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"type": None}, "type: null"),
        ({"type": ""}, "type: ''"),
        ({"type": "a b"}, "type: 'a b'"),
        ({"type": "a.*"}, "type: 'a.*'"),
        ({"type": "a\n"}, "type: "),
        ({"type": "a'); drop table kept.event; --"}, "type: "),
        ({"type": "a" * 201}, "type: "),
        ({"data": None}, "data: must be a JSON object"),
        ({"data": "[1]"}, "data: must be a JSON object"),
        ({"data": '{"a": "\\u0000"}'}, "data: "),
        ({"data": '{"a": "\\ud800"}'}, "data: "),
        ({"data": '{"a": "%s"}' % ("x" * 1_048_576)}, "data: 1048585 bytes exceed the limit"),
        ({"headers": "[]"}, "headers: must be"),
        ({"headers": '{"a": 1}'}, "headers: must be a JSON object of texts"),
        ({"headers": '{"a": "\\u0000"}'}, "headers"),
        ({"aggregate_type": "t"}, "give both or neither"),
        ({"aggregate_id": "t"}, "give both or neither"),
        ({"aggregate_type": "", "aggregate_id": "7"}, "1 to 200"),
        ({"aggregate_type": "t", "aggregate_id": "7" * 513}, "1 to 512"),
        ({"actor": ""}, "actor: must have 1 to 512 bytes"),
        ({"version": 0}, "version: must lie between"),
        ({"version": None}, "version: must lie between"),
        ({"occurred_at": "infinity"}, "occurred_at: must lie"),
        ({"occurred_at": "0001-01-01 BC"}, "occurred_at: must lie"),
        ({"key": ""}, "key: must have"),
        ({"key": "k", "unique_for": None}, "unique_for: must lie"),
        ({"key": "k", "unique_for": timedelta(days=9999)}, "unique_for: must lie"),
    ],
)
def test_bad_input_is_refused_with_a_sentence_and_nothing_is_stored(conn, options, says):
    with pytest.raises(psycopg.Error) as refused:
        emit(conn, **{"type": "a.b", **options})
    diag = refused.value.diag
    assert says in f"{diag.message_primary} {diag.message_detail}"
    assert diag.sqlstate in ("22023", "54000")
    tables = "select (select count(*) from kept.event), (select count(*) from kept.event_type)"
    assert conn.execute(tables).fetchone() == (0, 0)


# --- the role


def test_a_producer_can_emit_a_new_type_with_a_key(conn, database, subscribed):
    with psycopg.connect(database, autocommit=True) as producer:
        producer.execute("set role kept_producer")
        id = emit(producer, key="k")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            producer.execute("select from kept.event")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            producer.execute("select kept.learn_type('a.b')")
    assert conn.execute("select payload->>'event_id' from kept.job").fetchone() == (id,)


def test_a_stranger_can_do_nothing(role, database):
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(f"set role {role}")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            emit(conn)


def test_emit_is_not_fooled_by_tables_and_functions_of_the_caller(conn, database):
    conn.execute("create schema trap; grant all on schema trap to kept_producer")
    with psycopg.connect(database, autocommit=True) as producer:
        producer.execute("set role kept_producer; set search_path = trap, pg_catalog")
        producer.execute(
            """create function trap.octet_length(text) returns int language plpgsql
               as $$ begin raise 'trapped as %', current_user; end $$"""
        )
        assert emit(producer, key="k")
