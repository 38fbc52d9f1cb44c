"""``kept migrate``."""

from __future__ import annotations

import psycopg

from kept.db import migrate
from kept.errors import Error

LABELS = [migrate.label(one) for one in migrate.migrations()]


def test_migrate_says_what_it_applied_and_then_that_nothing_is_left(at, empty_database):
    kept = at(empty_database)
    first, second = kept("migrate"), kept("migrate")
    assert first.out.splitlines() == [f"applied {label}" for label in LABELS]
    assert (second.code, second.out) == (0, 'schema "kept" is up to date: nothing to apply\n')


def test_check_fails_with_a_sentence_until_migrated_and_changes_nothing(at, empty_database):
    kept = at(empty_database)
    said = kept("migrate", "--check")
    assert said.code == 1
    assert said.err == 'kept: schema "kept" is not set up in this database; run `kept migrate`\n'
    assert kept("migrate", "--check").code == 1
    kept("migrate")
    assert (kept("migrate", "--check").code, kept("migrate", "--check").out) == (0, 'schema "kept" is up to date\n')


def test_migrate_and_check_as_json_have_the_same_keys(at, empty_database):
    kept = at(empty_database)
    before = kept("migrate", "--check", "--json")
    assert before.code == 1
    assert before.json["pending"] == LABELS
    assert "not set up" in before.json["problem"]
    applied = kept("migrate", "--json")
    assert applied.json == {"schema": "kept", "applied": LABELS, "pending": [], "problem": None}
    after = kept("migrate", "--check", "--json")
    assert (after.code, after.json) == (0, {"schema": "kept", "applied": [], "pending": [], "problem": None})


def test_the_printed_script_needs_no_database_and_names_every_migration(nowhere):
    said = nowhere("migrate", "--print")
    assert said.code == 0
    assert all(f"-- {label}" in said.out for label in LABELS)
    later = nowhere("migrate", "--print", "--since", 1)
    assert f"-- {LABELS[0]}" not in later.out


def test_the_printed_script_is_for_the_schema_configured(nowhere):
    assert 'create table "jobs_of_ours".migration' in nowhere("migrate", "--print", KEPT_SCHEMA="jobs_of_ours").out


def test_print_and_check_exclude_each_other(nowhere):
    said = nowhere("migrate", "--print", "--check")
    assert (said.code, said.err) == (2, "kept: --print goes with neither --check nor --json\n")


def test_another_schema_is_migrated_beside_the_first(kept, conn):
    said = kept("migrate", KEPT_SCHEMA="second")
    assert said.code == 0
    assert conn.execute("select count(*) from second.migration").fetchone() == (len(LABELS),)


def test_a_role_that_may_not_create_is_told_so(at, role, empty_database):
    with psycopg.connect(empty_database, autocommit=True) as admin:
        admin.execute(f"alter role {role} login")
    said = at(empty_database.replace("postgres@", f"{role}@", 1))("migrate")
    assert said.code == 1
    assert said.err.startswith("kept: the database refused: permission denied")


def test_a_migration_that_was_changed_is_refused(kept, conn):
    conn.execute("update kept.migration set checksum = 'other' where version = 1")
    for words in (["migrate"], ["migrate", "--check"], ["jobs", "list"]):
        said = kept(*words)
        assert said.code == 1
        assert "a migration must not change once it was applied" in said.err
    assert issubclass(migrate.SchemaMismatch, Error)
