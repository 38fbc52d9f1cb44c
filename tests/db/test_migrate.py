"""Bringing a schema up to the code, and refusing one that does not fit."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import psycopg
import pytest

from kept.db import migrate
from kept.db.migrate import Applied, Migration, Server
from kept.errors import Misconfigured, SchemaMismatch, Unavailable
from support import eventually

GOOD = Server(version=18, read_only=False, present=True)
KNOWN = [
    Migration(1, "first", "expand", "select 1", "aaa"),
    Migration(2, "second", "expand", "select 2", "bbb"),
]
DONE = [Applied(m.version, m.name, m.kind, m.checksum) for m in KNOWN]


@pytest.fixture
def empty(empty_database: str):
    with psycopg.connect(empty_database, autocommit=True) as conn:
        yield conn


def record(conn: psycopg.Connection, version: int, kind: str) -> None:
    conn.execute(
        "insert into kept.migration (version, name, kind, checksum) values (%s, 'from_the_future', %s, 'x')",
        [version, kind],
    )


# --- the decision, without a database


def test_a_schema_with_everything_applied_is_accepted():
    assert migrate.problem("kept", GOOD, DONE, KNOWN) is None


@pytest.mark.parametrize("kind", ["expand", "contract"])
def test_a_newer_schema_is_accepted_as_long_as_nothing_breaks(kind):
    newer = [*DONE, Applied(3, "third", kind, "ccc")]
    assert migrate.problem("kept", GOOD, newer, KNOWN) is None


def test_a_breaking_migration_that_the_code_does_not_know_is_refused():
    found = migrate.problem("kept", GOOD, [*DONE, Applied(3, "third", "breaking", "ccc")], KNOWN)
    assert isinstance(found, SchemaMismatch)
    assert "0003_third" in str(found)


def test_a_breaking_migration_that_the_code_knows_is_accepted():
    known = [*KNOWN, Migration(3, "third", "breaking", "select 3", "ccc")]
    assert migrate.problem("kept", GOOD, [*DONE, Applied(3, "third", "breaking", "ccc")], known) is None


def test_an_older_schema_is_refused_with_what_is_pending_and_what_to_do():
    found = migrate.problem("kept", GOOD, DONE[:1], KNOWN)
    assert isinstance(found, SchemaMismatch)
    assert "0002_second" in str(found)
    assert "kept migrate" in str(found)


def test_a_gap_is_pending_even_if_later_migrations_were_applied():
    assert migrate.missing(DONE[1:], KNOWN) == (KNOWN[0],)


def test_a_migration_that_changed_after_it_was_applied_is_refused():
    found = migrate.problem("kept", GOOD, [DONE[0], replace(DONE[1], checksum="zzz")], KNOWN)
    assert isinstance(found, SchemaMismatch)
    assert "0002_second" in str(found)


def test_a_missing_schema_is_refused_with_what_to_do():
    found = migrate.problem("kept", replace(GOOD, present=False), [], KNOWN)
    assert isinstance(found, SchemaMismatch)
    assert "kept migrate" in str(found)


def test_a_server_that_is_too_old_is_refused_whatever_its_schema():
    found = migrate.problem("kept", replace(GOOD, version=14), DONE, KNOWN)
    assert isinstance(found, SchemaMismatch)
    assert "15" in str(found)
    assert "14" in str(found)


def test_a_read_only_server_is_unavailable_not_mismatched():
    assert isinstance(migrate.problem("kept", replace(GOOD, read_only=True), DONE, KNOWN), Unavailable)


# --- the files


def test_the_files_are_numbered_from_one_and_say_their_kind():
    found = migrate.migrations()
    assert [one.version for one in found] == list(range(1, len(found) + 1))
    assert {one.kind for one in found} <= {"expand", "contract", "breaking"}


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("0001_a.sql", "select 1"),
        ("0001_a.sql", "-- kind: harmless\nselect 1"),
        ("1_a.sql", "-- kind: expand\nselect 1"),
        ("0001-a.sql", "-- kind: expand\nselect 1"),
    ],
)
def test_a_file_without_a_number_or_a_kind_is_an_error(file, text):
    with pytest.raises(ValueError, match="kind: expand"):
        migrate.parse(file, text)


def test_the_checksum_tells_any_change_of_a_file():
    one = migrate.parse("0001_a.sql", "-- kind: expand\nselect 1")
    other = migrate.parse("0001_a.sql", "-- kind: expand\nselect 1 ")
    assert one.checksum != other.checksum


# --- on a database


def test_a_database_without_the_schema_is_refused_until_it_is_migrated(empty):
    with pytest.raises(SchemaMismatch, match="kept migrate"):
        migrate.check(empty)
    assert migrate.apply(empty) == migrate.migrations()
    migrate.check(empty)
    assert migrate.status(empty).problem is None


def test_applying_twice_does_nothing(conn):
    assert migrate.pending(conn) == []
    assert migrate.apply(conn) == []


async def test_async_code_comes_to_the_same_verdict(database, empty_database):
    async with await psycopg.AsyncConnection.connect(database) as conn:
        await migrate.acheck(conn)
        assert (await migrate.astatus(conn)).pending == ()
    async with await psycopg.AsyncConnection.connect(empty_database) as conn:
        with pytest.raises(SchemaMismatch):
            await migrate.acheck(conn)


def test_an_unknown_breaking_migration_stops_the_check_and_the_migrator(conn):
    record(conn, 999, "breaking")
    for attempt in (migrate.check, migrate.apply):
        with pytest.raises(SchemaMismatch, match="0999_from_the_future"):
            attempt(conn)


def test_an_unknown_expanding_migration_is_fine(conn):
    record(conn, 999, "expand")
    migrate.check(conn)
    assert [row.version for row in migrate.status(conn).applied][-1] == 999


def test_a_changed_checksum_is_refused(conn):
    conn.execute("update kept.migration set checksum = 'x' where version = 1")
    with pytest.raises(SchemaMismatch, match="0001_kernel"):
        migrate.check(conn)


def test_a_read_only_connection_is_refused(conn):
    conn.execute("set default_transaction_read_only = on")
    for attempt in (migrate.check, migrate.apply):
        with pytest.raises(Unavailable, match="read-only"):
            attempt(conn)


@pytest.mark.parametrize("name", ["", "pg_kept", "a'b", 'a"b', "a.b", "1st", "x" * 59, "a\nb", "a$$b"])
def test_a_schema_name_that_would_not_work_everywhere_is_refused(empty, name):
    with pytest.raises(Misconfigured, match="schema"):
        migrate.apply(empty, name)


def test_the_owner_of_an_existing_schema_needs_no_right_on_the_database(role, empty):
    empty.execute(f"create schema kept authorization {role}")
    empty.execute(f"set role {role}")
    assert migrate.apply(empty) == migrate.migrations()


def test_a_migration_that_fails_leaves_nothing_behind(empty, monkeypatch):
    broken = Migration(1, "broken", "expand", "create table kept.half (); select 1 / 0", "x")
    monkeypatch.setattr(migrate, "migrations", lambda: [broken])
    with pytest.raises(psycopg.errors.DivisionByZero):
        migrate.apply(empty)
    assert empty.execute("select to_regnamespace('kept')").fetchone() == (None,)


# --- races


def test_migrators_at_the_same_time_apply_each_migration_once(empty_database):
    start = threading.Barrier(4)

    def migrator() -> list[Migration]:
        with psycopg.connect(empty_database, autocommit=True) as conn:
            start.wait()
            return migrate.apply(conn)

    with ThreadPoolExecutor() as pool:
        applied = [f.result() for f in [pool.submit(migrator) for _ in range(4)]]
    everything = [one for some in applied for one in some]
    assert sorted(one.version for one in everything) == [one.version for one in migrate.migrations()]


def test_a_migration_waits_impatiently_and_tries_again(conn, database, monkeypatch):
    one = Migration(1000, "alter", "expand", "alter table kept.lane add column extra int", "x")
    monkeypatch.setattr(migrate, "migrations", lambda: [one])
    monkeypatch.setattr(migrate, "_PREPARE", migrate._PREPARE.replace("'5s'", "'50ms'"))
    with psycopg.connect(database) as reader, ThreadPoolExecutor() as pool:
        reader.execute("select from kept.lane")
        applying = pool.submit(migrate.apply, conn)
        _refused(reader)
        reader.rollback()
        assert applying.result() == [one]


def test_a_migration_that_never_gets_its_locks_gives_up_with_a_sentence(conn, database, monkeypatch):
    one = Migration(1000, "alter", "expand", "alter table kept.lane add column extra int", "x")
    monkeypatch.setattr(migrate, "migrations", lambda: [one])
    monkeypatch.setattr(migrate, "_PREPARE", migrate._PREPARE.replace("'5s'", "'50ms'"))
    monkeypatch.setattr(migrate, "_PAUSES", (0.01, 0.01))
    with psycopg.connect(database) as reader:
        reader.execute("select from kept.lane")
        with pytest.raises(Unavailable, match="1000_alter"):
            migrate.apply(conn)
    assert migrate.pending(conn) == [one]


def _refused(conn: psycopg.Connection) -> None:
    """Wait until the migrator has asked for a lock on lane and has given up on it."""
    asks = "select exists (select from pg_locks where not granted and relation = 'kept.lane'::regclass)"
    eventually(lambda: conn.execute(asks).fetchone()[0], what="the migrator to ask for its lock")
    eventually(lambda: not conn.execute(asks).fetchone()[0], what="the migrator to give up")
