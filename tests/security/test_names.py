"""Names that are SQL, format strings, paths or modules: refused at every door, or nothing but names."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner
from psycopg.sql import SQL, Identifier

from kept import App, Event, Refused, every
from kept.cli import main
from kept.config import Settings
from kept.db import migrate
from kept.errors import Misconfigured
from kept.signals import TaskUnknown
from support import aeventually

NAMES = [
    'x"; drop table kept.job;--',
    "x'; drop table kept.job;--",
    "x'); drop table kept.job;--",
    "kept.job; drop table kept.job",
    "%(id)s",
    "%s",
    "%I",
    "{0.__class__}",
    "$$ drop table kept.job $$",
    "$1",
    "../../etc/passwd",
    "x\x00y",
    "x\ny",
    "x\u202ey",
    "x y",
    "é",
    "x" * 201,
]
names = pytest.mark.parametrize("name", NAMES, ids=ascii)


def app_of(database: str) -> App:
    return App(database, settings=Settings(grace="1s"))


async def nothing() -> None: ...


async def told(event: Event) -> None: ...


DECLARED: dict[str, Callable[[App, str], object]] = {
    "task": lambda app, name: app.task(name=name)(nothing),
    "queue": lambda app, name: app.task(queue=name)(nothing),
    "alias": lambda app, name: app.task(aliases=[name])(nothing),
    "event": lambda app, name: app.event(name)(type("Made", (), {"__annotations__": {"id": int}})),
    "pattern": lambda app, name: app.on(name)(told),
    "subscription": lambda app, name: app.on("a.b", name=name)(told),
    "consumer": lambda app, name: app.inbox(name),
    "schedule": lambda app, name: app.schedule(every("1h"), name=name)(nothing),
    "runner": lambda app, name: app.runner(name)(nothing),
}


@pytest.mark.parametrize("what", DECLARED)
@names
def test_no_declaration_takes_it(what: str, name: str) -> None:
    with pytest.raises(Refused):
        DECLARED[what](App("postgresql://nowhere"), name)


def test_no_enqueue_takes_it_for_a_queue_and_no_emit_for_a_type(database: str, conn: psycopg.Connection) -> None:
    app = app_of(database)
    task = app.task()(nothing)
    for name in NAMES:
        with pytest.raises(Refused, match="queue"):
            task.using(queue=name)
        with psycopg.connect(database) as tx, pytest.raises(Refused):
            app.emit(name, {}, tx=tx)
    assert conn.execute("select count(*) from kept.event_type").fetchone() == (0,)


# --- values: anything may be in them


def test_as_a_key_a_header_or_an_id_it_is_only_a_text(database: str, conn: psycopg.Connection) -> None:
    app = app_of(database)
    task = app.task(name="note")(nothing)
    fit = [name for name in NAMES if "\x00" not in name]
    for name in fit:
        job = task.using(key=name, headers={"h": name}).enqueue()
        with conn.transaction():
            app.emit("a.b", {"v": name}, aggregate_type="t", aggregate_id=name, actor=name, key=name, tx=conn)
        stored = "select key, headers->>'h' from kept.job where id = %s"
        assert conn.execute(stored, [job.id]).fetchone() == (name, name)
    app.close()
    told = conn.execute("select aggregate_id, actor, data->>'v' from kept.event order by seq").fetchall()
    assert told == [(name, name, name) for name in fit]


def test_a_filter_of_a_command_finds_nothing_and_harms_nothing(database: str, conn: psycopg.Connection) -> None:
    conn.execute("select kept.enqueue('note')")
    for name in NAMES:
        asked = [["jobs", "list", "--task", name], ["jobs", "list", "--queue", name], ["jobs", "list", "--key", name]]
        asked += [["jobs", "cancel", "--task", name, "--yes"], ["schedules", "show", name], ["lanes", "pause", name]]
        asked += [["subscriptions", "retire", name], ["sinks", "enable", name], ["inbox", "forget", name, name]]
        for words in asked if "\x00" not in name else ():  # which no command line can hold
            said = CliRunner().invoke(main, ["--database", database, *words])
            assert said.exception is None or isinstance(said.exception, SystemExit), (words, said.exception)
            assert "syntax error" not in said.output, words
    assert conn.execute("select count(*) from kept.job").fetchone() == (1,)


# --- the schema


def test_no_way_in_takes_it_for_a_schema(database: str, conn: psycopg.Connection) -> None:
    for name in NAMES:
        with pytest.raises(Misconfigured):
            Settings(schema=name)
        for act in (migrate.apply, migrate.status, migrate.check):
            with pytest.raises(Misconfigured):
                act(conn, name)
        with pytest.raises(Misconfigured):
            migrate.script(name)
        for words in (["migrate"], ["migrate", "--print"], ["status"], ["doctor"], ["jobs", "list"]):
            environ = {"KEPT_SCHEMA": name.replace("\x00", "'")}  # no environment can hold a NUL
            said = CliRunner(env=environ).invoke(main, ["--database", database, *words])
            assert (said.exit_code, "KEPT_SCHEMA" in said.output) == (2, True), (words, said.output)
    assert conn.execute("select to_regclass('kept.job') is not null").fetchone() == (True,)


def test_two_schemas_whose_names_would_be_cut_to_one_are_refused() -> None:
    for name in ("x" * 63, "x" * 64, "x" * 63 + "y"):
        with pytest.raises(Misconfigured):
            Settings(schema=name)
        with pytest.raises(Misconfigured):
            migrate.script(name)


def test_a_schema_somebody_named_like_a_measurement_is_dropped_by_name_or_not_at_all(
    conn: psycopg.Connection, database: str
) -> None:
    planted = ('kept_bench_00000000"; drop schema kept cascade;--', "kept_bench_0000000g", "kept_bench_000000000")
    for name in planted:
        conn.execute(SQL("create schema {}").format(Identifier(name)))
    said = CliRunner().invoke(main, ["--database", database, "bench", "clean"])
    assert said.exit_code == 0, said.output
    left = conn.execute("select nspname from pg_namespace where nspname ~ '^kept'").fetchall()
    assert {name for (name,) in left} == {"kept", *planted}


# --- modules


async def test_a_task_that_names_a_module_is_not_imported(
    database: str, conn: psycopg.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "planted_module.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    app = app_of(database)
    unknown: list[str] = []
    app.signals.subscribe(lambda told: unknown.append(told.task) if isinstance(told, TaskUnknown) else None)
    app.task(name="note")(nothing)
    asked = ("planted_module:run", "planted_module.run", "os:system", "builtins.exec", "kept.cli:main")
    for name in asked:
        conn.execute('select kept.enqueue(%s, \'{"app": "planted_module:app"}\')', [name])
    async with app.worker():
        conn.execute("select kept.enqueue('note')")
        await aeventually(lambda: conn.execute("select count(*) from kept.history").fetchone()[0] == 1)
        await aeventually(lambda: set(unknown) == set(asked), what="all of them named as unknown")
    assert "planted_module" not in sys.modules
    assert conn.execute("select count(*) from kept.job where attempt > 0").fetchone() == (0,)
