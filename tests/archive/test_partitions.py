"""Partitions of history and log on a real PostgreSQL, with a clock that the test owns."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from kept.archive import partitions
from kept.archive.partitions import Changes
from kept.archive.rules import Retention
from kept.db import migrate
from support import Clock

DAY = timedelta(days=1)
BY_DAY = ("history_done", "job_log")


@pytest.fixture
def conn(conn: psycopg.Connection) -> psycopg.Connection:
    """Partitions as of now: the template may have been made before midnight."""
    partitions.ensure(conn)
    return conn


def value(conn: psycopg.Connection, query: str, *params: object) -> object:
    return conn.execute(query, params).fetchone()[0]


def now(conn: psycopg.Connection) -> datetime:
    return value(conn, "select kept.now()").astimezone(UTC)


def settle(conn: psycopg.Connection, state: str = "done", *, count: int = 1, at: datetime | None = None) -> None:
    """Put settled jobs into history, as of now by the database's clock."""
    conn.execute(
        """insert into kept.history
             (id, settled_at, created_at, lane, priority, attempt, uncharged, state, payload)
           select nextval('kept.job_id_seq'), coalesce(%s, kept.now()), kept.now(), 1, 0, 1, 0, %s, '{"n": 7}'
             from generate_series(1, %s)""",
        [at, state, count],
    )


def log(conn: psycopg.Connection) -> None:
    conn.execute("insert into kept.job_log (job, at, attempt, event) values (1, kept.now(), 1, 'requeued:stale')")


def in_default(conn: psycopg.Connection) -> int:
    return value(
        conn,
        """select (select count(*) from kept.history_done_default)
                + (select count(*) from kept.history_failed_default)
                + (select count(*) from kept.job_log_default)""",
    )


def names(conn: psycopg.Connection, parent: str) -> list[str]:
    rows = conn.execute("select name from kept.partition where parent = %s order by starts_at", [parent])
    return [name for (name,) in rows]


def attached(conn: psycopg.Connection, parent: str) -> list[str]:
    rows = conn.execute(
        """select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid
            where i.inhparent = ('kept.' || %s)::regclass and c.relname not like '%%default' order by 1""",
        [parent],
    )
    return [name for (name,) in rows]


def accounted(conn: psycopg.Connection) -> int:
    return value(
        conn,
        "select (select count(*) from kept.history) + (select coalesce(sum(jobs), 0) from kept.purged)",
    )


def purged(conn: psycopg.Connection) -> dict[str, int]:
    return dict(conn.execute("select state, jobs from kept.purged").fetchall())


# --- ahead of time


def test_a_fresh_schema_covers_the_next_thirty_days_and_needs_nothing_more(empty_database):
    with psycopg.connect(empty_database, autocommit=True) as conn:
        migrate.apply(conn)
        for parent in ("history_done", "history_failed", "job_log"):
            latest = value(conn, "select max(ends_at) from kept.partition where parent = %s", parent)
            assert latest > now(conn) + 30 * DAY
            assert attached(conn, parent) == names(conn, parent)
        assert partitions.ensure(conn) == Changes()


def test_rows_of_any_of_the_next_thirty_days_find_their_partition(conn):
    for days in (0, 1, 15, 30):
        settle(conn, "done", at=now(conn) + days * DAY)
        settle(conn, "failed", at=now(conn) + days * DAY)
    assert in_default(conn) == 0
    assert value(conn, "select count(*) from kept.history") == 8


def test_bounds_are_days_in_utc_wherever_the_session_is(conn, clock: Clock):
    clock.advance("3d")
    conn.execute("set timezone = 'America/Santiago'")
    partitions.ensure(conn)
    starts = conn.execute("select starts_at from kept.partition where parent = 'history_done'").fetchall()
    assert {start.astimezone(UTC).hour for (start,) in starts} == {0}
    assert len(starts) == 31 + 3


def test_a_schema_made_in_a_session_elsewhere_has_the_same_bounds(empty_database):
    with psycopg.connect(empty_database, autocommit=True) as conn:
        conn.execute("set timezone = 'Pacific/Pago_Pago'")
        migrate.apply(conn)
        rows = conn.execute("select name, starts_at, drop_eligible_at - ends_at, retention from kept.partition")
        for name, starts_at, kept_for, retention in rows.fetchall():
            assert name.endswith(f"{starts_at.astimezone(UTC):_%Y%m%d}")
            assert kept_for == retention


def test_a_partition_is_attached_without_reading_its_rows(conn, clock: Clock):
    said: list[str] = []
    conn.add_notice_handler(lambda notice: said.append(notice.message_primary))
    clock.advance("31d")
    settle(conn, count=10)
    conn.execute("set client_min_messages = debug1")
    partitions.ensure(conn)
    today = f"history_done_{now(conn):%Y%m%d}"
    skipped = f'partition constraint for table "{today}" is implied by existing constraints'
    assert skipped in said
    assert in_default(conn) == 0


# --- silence


def test_after_a_week_of_silence_thirty_days_lie_ahead_again(conn, clock: Clock):
    settle(conn)
    clock.advance("7d")
    changes = partitions.ensure(conn)
    assert changes.made >= 14
    assert changes.blocked == []
    for parent in BY_DAY:
        latest = value(conn, "select max(ends_at) from kept.partition where parent = %s", parent)
        assert latest > now(conn) + 30 * DAY


def test_rows_settled_during_two_months_without_upkeep_are_moved_to_their_days(conn, clock: Clock):
    for days in (32, 10, 15, 3):
        clock.advance(days * DAY)
        settle(conn, "done")
        settle(conn, "failed")
        log(conn)
    assert in_default(conn) > 0
    changes = partitions.ensure(conn)
    assert in_default(conn) == 0
    assert changes.moved >= 8
    assert changes.blocked == []
    assert value(conn, "select count(*) from kept.history where state = 'failed'") == 4


def test_after_two_months_what_is_too_old_goes_at_once_and_is_counted(conn, clock: Clock):
    settle(conn, "done", count=3)
    clock.advance("40d")
    settle(conn, "cancelled", count=5)
    clock.advance("20d")
    settle(conn, "done", count=7)
    partitions.ensure(conn)
    assert purged(conn) == {"done": 3, "cancelled": 5}
    assert value(conn, "select count(*) from kept.history") == 7
    assert accounted(conn) == 15


def test_a_moved_row_is_the_same_row(conn, clock: Clock):
    clock.advance("50d")
    settle(conn)
    before = conn.execute("select * from kept.history").fetchall()
    partitions.ensure(conn)
    assert in_default(conn) == 0
    assert conn.execute("select * from kept.history").fetchall() == before


def test_rows_of_a_clock_that_was_ahead_get_a_partition_too(conn, clock: Clock):
    clock.advance("100d")
    settle(conn)
    clock.set_back("100d")
    partitions.ensure(conn)
    assert in_default(conn) == 0
    assert value(conn, "select count(*) from kept.history") == 1


# --- retention


def test_done_jobs_go_after_a_week_and_failed_ones_stay(conn, clock: Clock):
    settle(conn, "done", count=2)
    settle(conn, "skipped")
    settle(conn, "failed")
    clock.advance("7d")
    assert partitions.ensure(conn).purged == 0
    clock.advance("24h")
    assert partitions.ensure(conn).purged == 3
    assert purged(conn) == {"done": 2, "skipped": 1}
    assert accounted(conn) == 4


def test_failed_jobs_are_kept_for_at_least_ninety_days_and_gone_a_month_later(conn, clock: Clock):
    settle(conn, "failed", count=2)
    clock.advance("90d")
    partitions.ensure(conn)
    assert value(conn, "select count(*) from kept.history") == 2
    clock.advance("32d")
    partitions.ensure(conn)
    assert value(conn, "select count(*) from kept.history") == 0
    assert purged(conn) == {"failed": 2}


def test_dropped_log_lines_are_not_counted_as_jobs(conn, clock: Clock):
    log(conn)
    clock.advance("92d")
    partitions.ensure(conn)
    assert value(conn, "select count(*) from kept.job_log") == 0
    assert purged(conn) == {}


def test_purged_counts_add_up_over_many_days(conn, clock: Clock):
    for _ in range(4):
        settle(conn, count=2)
        clock.advance("24h")
    clock.advance("8d")
    partitions.ensure(conn)
    assert purged(conn) == {"done": 8}


def test_a_dropped_partition_leaves_the_registry_and_the_catalog(conn, clock: Clock):
    clock.advance("20d")
    partitions.ensure(conn)
    for parent in BY_DAY:
        assert attached(conn, parent) == names(conn, parent)
    oldest = value(conn, "select min(starts_at) from kept.partition where parent = 'history_done'")
    assert oldest > now(conn) - 9 * DAY


def test_a_partition_whose_time_has_not_come_cannot_be_dropped_by_mistake(conn):
    settle(conn)
    for name in names(conn, "history_done"):
        assert value(conn, "select kept.drop_partition(%s)", name) is None
    assert attached(conn, "history_done") == names(conn, "history_done")
    assert accounted(conn) == 1


@pytest.mark.parametrize("until", [None, "infinity", "2999-01-01"])
def test_a_partition_that_is_held_back_stays(conn, clock: Clock, until):
    settle(conn, count=2)
    held = names(conn, "history_done")[0]
    conn.execute("update kept.partition set drop_eligible_at = %s where name = %s", [until, held])
    clock.advance("60d")
    assert partitions.ensure(conn).purged == 0
    assert value(conn, "select count(*) from kept.history") == 2
    conn.execute("update kept.partition set drop_eligible_at = kept.now() where name = %s", [held])
    assert partitions.ensure(conn).purged == 2


def test_a_longer_retention_holds_for_partitions_that_exist_already(conn, clock: Clock):
    settle(conn)
    clock.advance("20d")
    assert partitions.ensure(conn, keep=Retention(done=30 * DAY)).purged == 0
    assert partitions.ensure(conn, keep=Retention(done=10 * DAY)).purged == 1


def test_a_changed_retention_leaves_a_partition_alone_that_is_held_back(conn, clock: Clock):
    settle(conn)
    held = names(conn, "history_done")[0]
    conn.execute("update kept.partition set drop_eligible_at = null where name = %s", [held])
    clock.advance("20d")
    assert partitions.ensure(conn, keep=Retention(done=DAY)).purged == 0
    assert held in attached(conn, "history_done")


def test_a_partition_dropped_by_hand_leaves_the_registry(conn, clock: Clock):
    first = names(conn, "history_done")[0]
    conn.execute(f"drop table kept.{first}")
    clock.advance("9d")
    partitions.ensure(conn)
    assert first not in names(conn, "history_done")


# --- other people's transactions


def test_a_drop_gives_up_on_an_open_transaction_and_succeeds_when_it_has_ended(conn, clock: Clock, database):
    settle(conn)
    due = names(conn, "history_done")[0]
    clock.advance("9d")
    with psycopg.connect(database) as reader:
        reader.execute("select count(*) from kept.history")
        changes = partitions.ensure(conn)
        assert due in changes.blocked
        assert changes.dropped == 0
        assert purged(conn) == {}
        assert reader.execute("select count(*) from kept.history").fetchone() == (1,)
    assert partitions.ensure(conn).blocked == []
    assert purged(conn) == {"done": 1}


def test_settling_goes_on_while_a_drop_meets_an_open_transaction(conn, clock: Clock, database):
    clock.advance("9d")
    stop = threading.Event()

    def settle_on() -> int:
        with psycopg.connect(database, autocommit=True) as other:
            other.execute("set lock_timeout = '1s'")
            count = 0
            while not stop.is_set():
                settle(other)
                count += 1
            return count

    with psycopg.connect(database) as reader, ThreadPoolExecutor() as pool:
        reader.execute("select count(*) from kept.history")
        settling = pool.submit(settle_on)
        try:
            changes = partitions.ensure(conn)
        finally:
            stop.set()
        settled = settling.result()
    assert changes.blocked != []
    assert settled > 0
    assert accounted(conn) == settled


def test_one_parent_in_use_does_not_keep_the_others_from_being_dropped(conn, clock: Clock, database):
    log(conn)
    oldest = names(conn, "history_done")[0]
    clock.advance("92d")
    with psycopg.connect(database) as reader:
        reader.execute("select count(*) from kept.history")
        partitions.ensure(conn)
    assert value(conn, "select count(*) from kept.job_log") == 0
    assert oldest in attached(conn, "history_done")


def test_passes_at_the_same_time_make_and_drop_everything_once(conn, clock: Clock, database):
    settle(conn, count=5)
    clock.advance("45d")
    settle(conn, count=5)
    start = threading.Barrier(3)

    def one_pass() -> Changes:
        with psycopg.connect(database, autocommit=True) as other:
            start.wait()
            return partitions.ensure(other)

    with ThreadPoolExecutor() as pool:
        passes = [f.result() for f in [pool.submit(one_pass) for _ in range(3)]]
    partitions.ensure(conn)
    assert sum(p.purged for p in passes) <= 5
    assert purged(conn) == {"done": 5}
    assert accounted(conn) == 10
    assert attached(conn, "history_done") == names(conn, "history_done")


# --- elsewhere


def test_partitions_come_and_go_in_a_schema_of_another_name(empty_database):
    with psycopg.connect(empty_database, autocommit=True) as conn:
        migrate.apply(conn, "order")
        conn.execute('update "order".partition set drop_eligible_at = "order".now() where parent = %s', ["job_log"])
        changes = partitions.ensure(conn, "order")
        assert changes.dropped == 31
        assert partitions.ensure(conn, "order").made == 31
        assert value(conn, "select to_regnamespace('kept') is null")


async def test_the_async_pass_does_the_same(database, clock: Clock):
    clock.advance("7d")
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as conn:
        changes = await partitions.aensure(conn)
        assert changes.made >= 14
        assert await partitions.aensure(conn) == Changes()


def test_analyze_reads_few_rows_of_a_partition_old_or_new(conn: psycopg.Connection, clock: Clock) -> None:
    clock.advance("45d")
    partitions.ensure(conn)
    targets = """select distinct a.attstattarget from pg_attribute a
                   join kept.partition p on a.attrelid = format('kept.%I', p.name)::regclass where a.attnum > 0"""
    assert conn.execute(targets).fetchall() == [(10,)]
