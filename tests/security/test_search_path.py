"""What somebody plants in a schema that every session looks into is not run by Kept: not by workers, not by operators.

A planted function wins over PostgreSQL's own where its arguments fit better, as ``public.unnest(bigint[])`` does over
``unnest(anyarray)``. It then runs with the rights of whoever calls it.
"""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from kept import App, Event, cron
from kept.cli import main
from kept.config import Settings
from kept.db import migrate
from support import aeventually

ARRAYS = (
    "int",
    "bigint",
    "text",
    "uuid",
    "json",
    "boolean",
    "interval",
    "timestamptz",
    "double precision",
    "name",
    "oid",
)
JOINED = (("text", "int"), ("int", "text"), ("text", "bigint"), ("bigint", "text"), ("text", "uuid"), ("uuid", "text"))
TRAPS = """
create table public.trapped (who text, what text);
grant all on public.trapped to public;
create function public.format(text, regnamespace, text) returns text language plpgsql as
  $$ begin insert into public.trapped values (current_user, 'format'); return pg_catalog.format($1, $2, $3); end $$;
create function public.concat_ws(text, bigint, oid, oid) returns text language plpgsql as
  $$ begin insert into public.trapped values (current_user, 'concat_ws');
     return pg_catalog.concat_ws($1, $2, $3, $4); end $$;
"""
UNNEST = """
create function public.unnest({type}[]) returns setof {type} language plpgsql as
  $$ begin insert into public.trapped values (current_user, 'unnest {type}');
     return query select pg_catalog.unnest($1); end $$;
create function public.cardinality({type}[]) returns int language plpgsql as
  $$ begin insert into public.trapped values (current_user, 'cardinality {type}');
     return pg_catalog.cardinality($1); end $$;
"""
JOIN = """
create function public.joined({left}, {right}) returns text language plpgsql as
  $$ begin insert into public.trapped values (current_user, 'joined {left} {right}');
     return pg_catalog.concat($1, $2); end $$;
create operator public.|| (leftarg = {left}, rightarg = {right}, function = public.joined);
"""


def trapped(conn: psycopg.Connection) -> list[tuple[str, str]]:
    return conn.execute("select distinct who, what from public.trapped order by 1, 2").fetchall()


@pytest.fixture
def traps(database: str) -> psycopg.Connection:
    """A database in which somebody who may create things in ``public`` has done so."""
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(TRAPS)
        for type in ARRAYS:
            conn.execute(UNNEST.format(type=type))
        for left, right in JOINED:
            conn.execute(JOIN.format(left=left, right=right))
        yield conn


def test_the_traps_are_traps(traps: psycopg.Connection) -> None:
    traps.execute("select unnest('{1}'::bigint[]), 'a' || 1, format('%s.%I', 'kept'::regnamespace, 'x'::text)")
    assert {what for _, what in trapped(traps)} == {"unnest bigint", "joined text int", "format"}


async def test_neither_programs_nor_workers_run_what_was_planted_in_public(
    database: str, traps: psycopg.Connection
) -> None:
    app = App(database, settings=Settings(grace="1s"))

    @app.task(ordered=True)
    async def note(number: int) -> None: ...

    @app.on("order.*")
    async def told(event: Event[Any]) -> None: ...

    @app.schedule(cron("* * * * *"))
    async def tidy() -> None: ...

    async with app.worker():
        await note.using(order_key="a").aenqueue(1)
        await app.aenqueue_many([note.bind(number) for number in range(3)])
        await app.aemit("order.placed", {}, aggregate_type="order", aggregate_id="7")
        await aeventually(lambda: traps.execute("select count(*) = 5 from kept.history").fetchone()[0])
    await app.aclose()
    assert trapped(traps) == []


def test_an_operators_commands_run_nothing_that_was_planted_in_public(database: str, traps: psycopg.Connection) -> None:
    (id,) = traps.execute("select kept.enqueue('note', key => 'a')").fetchone()
    commands = [
        *("migrate", "status", "doctor", "jobs list", f"jobs show {id}", f"jobs cancel {id}", f"jobs retry {id}"),
        *("jobs delete --state cancelled --yes", "lanes", "lanes pause default", "workers", "events list"),
        *("subscriptions", "sinks", "inbox", "inbox purge", "schedules add x --every 1h --task note"),
        *("schedules list", "schedules show x", "schedules next", "schedules run-now x", "schedules pause x"),
        *("schedules remove x", "runs list", "runners list"),
    ]
    for command in commands:
        said = CliRunner().invoke(main, ["--database", database, *command.split()])
        assert said.exit_code in (0, 1), (command, said.output)
        assert "No such command" not in said.output
    assert trapped(traps) == []


@pytest.mark.parametrize("printed", [True, False])
def test_migrations_run_nothing_that_was_planted_in_public(traps: psycopg.Connection, printed: bool) -> None:
    if printed:
        traps.execute(migrate.script("other").replace("\\set ON_ERROR_STOP on", ""))
    else:
        migrate.apply(traps, "other")
    assert trapped(traps) == []
    assert migrate.status(traps, "other").problem is None
