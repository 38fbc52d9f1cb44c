"""The role ``kept_producer`` produces, and does nothing else."""

from __future__ import annotations

import json

import psycopg
import pytest

from desk import make
from endpoint import Endpoint
from kept import Retry
from kept.outbox.sinks.webhook import WebhookSink
from support import aeventually


def test_a_producer_reads_nothing_back_and_forges_no_record(database: str, conn: psycopg.Connection) -> None:
    (secret,) = conn.execute("""select kept.enqueue('pay', '{"card": "4111"}', key => 'order-7')""").fetchone()
    with psycopg.connect(database, autocommit=True) as producer:
        producer.execute("set role kept_producer")
        (again,) = producer.execute("""select kept.enqueue('pay', '{"card": "0"}', key => 'order-7')""").fetchone()
        assert again == secret, "the same key is the same job: its number is all that is told"
        for statement in (
            "select * from kept.jobs",
            "select * from kept.job",
            "select payload from kept.history",
            "select nextval('kept.job_id_seq')",
            "select * from kept.find_settled(1)",
            "select * from kept.worker",
            "insert into kept.lane (queue, task) values ('a', 'b')",
            "update kept.job set payload = '{}'",
            "delete from kept.job",
            "truncate kept.job",
            "alter table kept.job disable trigger all",
            "create table kept.mine ()",
            "create or replace function kept.now() returns timestamptz language sql as 'select null::timestamptz'",
            "drop function kept.enqueue",
            "copy kept.job to stdout",
            "create trigger t before insert on kept.job execute function suppress_redundant_updates_trigger()",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                producer.execute(statement)
    assert conn.execute("select payload->>'card' from kept.job").fetchone() == ("4111",)


def test_only_the_two_doors_run_with_their_owners_rights_and_their_path_is_pinned(conn: psycopg.Connection) -> None:
    found = conn.execute(
        """select proname, proconfig from pg_proc
            where pronamespace = 'kept'::regnamespace and prosecdef order by 1"""
    ).fetchall()
    assert found == [(door, ["search_path=pg_catalog, pg_temp"]) for door in ("emit", "enqueue")]


def test_a_partition_made_later_is_as_closed_as_the_others(conn: psycopg.Connection) -> None:
    conn.execute("select kept.make_partition('job_log', '2030-01-01', '2030-01-02', '1 day')")
    allowed = "select has_table_privilege('kept_producer', 'kept.job_log_20300101', 'select, insert, update, delete')"
    assert conn.execute(allowed).fetchone() == (False,)


async def test_an_event_forged_into_the_lane_of_a_sink_fails_alone(database: str, conn: psycopg.Connection) -> None:
    async with Endpoint() as endpoint:
        app, _ = make(database)
        secret = "whsec_a2VwdCBrZWVwcyB3aGF0IGlzIHRvIGJlIGtlcHQ="
        sink = WebhookSink(endpoint.url(), secret=secret, name="hook", allow_http=True, allow_private=True)
        app.publish("a.*", to=sink, retry=Retry(max_attempts=1))
        async with app, app.worker():
            with conn.transaction():  # so that all of them are sent together
                conn.execute("set local role kept_producer")
                for id in ("x\r\nx-admin: yes", "é", "", "x" * 100_000):
                    forged = json.dumps({"event_id": id, "type": "a.b", "version": 1, "data": {}})
                    conn.execute("select kept.enqueue('publish:hook', %s::json)", [forged])
                conn.execute("select kept.emit('a.b')")
            await aeventually(lambda: conn.execute("select count(*) = 0 from kept.job").fetchone()[0])
        assert len(endpoint.requests) == 1
    ends = conn.execute("select state, code, attempt from kept.history order by id").fetchall()
    assert ends == [("failed", "invalid_event", 1)] * 4 + [("done", None, 1)]
