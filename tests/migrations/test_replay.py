"""However a schema came about, it is the same schema."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from kept.archive import partitions
from kept.archive.partitions import Changes
from kept.db import migrate
from kept.db.embedded import Embedded, binaries

# A migrator of its own: starts when its standard input ends, tells what it applied.
MIGRATOR = """
import sys, psycopg
from kept.db import migrate
with psycopg.connect(sys.argv[1], autocommit=True) as conn:
    print("ready", flush=True)
    sys.stdin.read()
    print(*[one.version for one in migrate.apply(conn)], flush=True)
"""


def connect(url: str) -> psycopg.Connection:
    return psycopg.connect(url, autocommit=True)


def program(name: str, *args: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [str(binaries.find().program(name)), *args]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)


def psql(url: str, script: str) -> subprocess.CompletedProcess[str]:
    return program("psql", "-X", "-q", "-d", url, stdin=script)


def catalog(url: str, schema: str = "kept") -> str:
    """Everything there is in *schema*, rights included, as statements; without what differs by chance."""
    dumped = program("pg_dump", "--schema-only", "--schema", f'"{schema}"', "-d", url)
    assert dumped.returncode == 0, dumped.stderr
    lines = (line for line in dumped.stdout.splitlines() if not re.match(r"--|\\|$", line))
    return "\n".join(lines)


def versions(conn: psycopg.Connection, schema: str = "kept") -> list[tuple[object, ...]]:
    return conn.execute(f'select version, name, kind, checksum from "{schema}".migration order by 1').fetchall()


@pytest.mark.parametrize("schema", ["kept", "order", "Tenant-7"])
def test_the_printed_script_makes_the_same_schema_as_apply(empty_database, other_database, schema):
    ran = psql(empty_database, migrate.script(schema))
    assert (ran.returncode, ran.stderr) == (0, "")
    with connect(empty_database) as scripted, connect(other_database) as applied:
        migrate.apply(applied, schema)
        assert versions(scripted, schema) == versions(applied, schema)
        migrate.check(scripted, schema)
    assert catalog(empty_database, schema) == catalog(other_database, schema)


def test_the_script_since_a_version_brings_only_the_rest(empty_database, other_database):
    first, *rest = migrate.migrations()
    assert psql(empty_database, migrate.script()).returncode == 0
    assert psql(other_database, _only(first.version)).returncode == 0
    with connect(other_database) as conn:
        assert migrate.pending(conn) == rest
    assert psql(other_database, migrate.script(since=first.version)).returncode == 0
    assert catalog(other_database) == catalog(empty_database)


def test_a_script_that_ran_before_stops_at_its_first_error_and_changes_nothing(empty_database):
    assert psql(empty_database, migrate.script()).returncode == 0
    before = catalog(empty_database)
    assert psql(empty_database, migrate.script()).returncode != 0
    assert catalog(empty_database) == before


def test_applying_again_changes_nothing(empty_database):
    with connect(empty_database) as conn:
        migrate.apply(conn)
        before = catalog(empty_database)
        assert migrate.apply(conn) == []
    assert catalog(empty_database) == before


def test_migrations_applied_one_release_at_a_time_make_the_same_schema(empty_database, other_database, monkeypatch):
    everything = migrate.migrations()
    with connect(empty_database) as stepwise, connect(other_database) as at_once:
        migrate.apply(at_once)
        for count in range(1, len(everything) + 1):
            monkeypatch.setattr(migrate, "migrations", lambda count=count: everything[:count])
            assert migrate.apply(stepwise) == everything[count - 1 : count]
    assert catalog(empty_database) == catalog(other_database)


def test_a_creation_time_that_nobody_can_read_is_mended_by_the_migration_that_forbids_it(empty_database, monkeypatch):
    everything = migrate.migrations()
    with connect(empty_database) as conn:
        monkeypatch.setattr(migrate, "migrations", lambda: everything[:2])
        migrate.apply(conn)
        conn.execute("select kept.enqueue('send'), kept.enqueue('send')")
        conn.execute("update kept.job set created_at = 'infinity' where id = 1")
        monkeypatch.undo()
        migrate.apply(conn)
        assert conn.execute("select id from kept.job where created_at <= kept.now() order by id").fetchall() == [
            (1,),
            (2,),
        ]


@pytest.mark.parametrize("schema", ["order", "Tenant-7"])
def test_a_schema_of_another_name_works_end_to_end(empty_database, schema):
    with connect(empty_database) as conn:
        migrate.apply(conn, schema)
        migrate.check(conn, schema)
        assert conn.execute(f"""select "{schema}".enqueue('send', '{{"to": 7}}')""").fetchone() == (1,)
        assert conn.execute(f'select task, state from "{schema}".jobs').fetchall() == [("send", "pending")]
        assert partitions.ensure(conn, schema) == Changes()
        assert conn.execute("select to_regnamespace('kept')").fetchone() == (None,)


def test_two_schemas_live_in_one_database_without_knowing_of_each_other(empty_database):
    with connect(empty_database) as conn:
        migrate.apply(conn, "one")
        migrate.apply(conn, "two")
        conn.execute("select one.enqueue('send')")
        assert conn.execute("select count(*) from two.job").fetchone() == (0,)


def test_processes_that_migrate_at_the_same_time_apply_each_migration_once(empty_database):
    command = [sys.executable, "-c", MIGRATOR, empty_database]
    racers = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    for racer in racers:
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        racer.stdin.close()
    applied = " ".join(racer.stdout.read() for racer in racers).split()
    for racer in racers:
        racer.stdout.close()
        assert racer.wait() == 0
    assert sorted(map(int, applied)) == [one.version for one in migrate.migrations()]


def test_a_server_that_refuses_to_create_roles_is_migrated_without_the_producer_role(tmp_path: Path):
    with Embedded(tmp_path / "pg", options={"fsync": "off"}) as server, connect(server.url()) as conn:
        said: list[str] = []
        conn.add_notice_handler(lambda notice: said.append(notice.message_primary))
        conn.execute("create role owner; create schema kept authorization owner; set role owner")
        migrate.apply(conn)
        assert [line for line in said if "kept_producer is left out" in line] != []
        assert conn.execute("select kept.enqueue('send')").fetchone() == (1,)


def _only(version: int) -> str:
    """The script of the migrations up to *version*, as an older release would have printed it."""
    later = migrate.script(since=version)
    return migrate.script().removesuffix(later.removeprefix("\\set ON_ERROR_STOP on\n"))
