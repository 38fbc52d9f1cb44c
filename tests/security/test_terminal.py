"""Whatever the database holds, no command lets it steer a terminal or forge a line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import psycopg
from click.testing import CliRunner
from psycopg.sql import SQL, Identifier

from desk import Desk
from kept import App, Event, Retry, every
from kept.cli import main
from kept.config import Settings
from support import aeventually

# Sets a title, moves the cursor, ends a line and begins one that looks like ours, turns the direction of writing.
HOSTILE = "\x1b]0;owned\x07\x1b[2J\r\x9b31m\u202eback\u2028\nkept: done [red]x[/red] %s {0}"
STEERS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
# Words with a meaning to the code: nobody but the owner of the tables chooses them.
MEANT = {"state", "origin", "misfire", "overlap", "outcome", "zone", "cron", "blackout", "digest", "digests"}
MEANT_TABLES = {"migration", "partition", "purged", "test_clock", "route", "event_key", "reclaim"}
COLUMNS = """
select c.relname, a.attname, a.atttypid::regtype::text
  from pg_class c join pg_attribute a on a.attrelid = c.oid
 where c.relnamespace = 'kept'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition and a.attnum > 0
   and not a.attisdropped and a.atttypid::regtype::text in ('text', 'text[]', 'json', 'jsonb')
"""
CHECKS = """
select c.conrelid::regclass::text, c.conname from pg_constraint c
 where c.connamespace = 'kept'::regnamespace and c.contype in ('c', 'f') and c.coninhcount = 0 and c.conparentid = 0
   and pg_get_constraintdef(c.oid) !~ 'kept.partition'
"""
SHOWN = """
select (select count(*) from kept.run) * (select count(*) from kept.job_log) * (select count(*) from kept.occurrence)
       * (select count(*) from kept.history where state = 'failed') * (select count(*) from kept.inbox) > 0
"""


async def fill(database: str, conn: psycopg.Connection) -> None:
    """At least a row in every table that commands show."""
    app = App(database, settings=Settings(grace="1s"))
    app.publish("order.*", to=Desk(name="desk"))

    @app.task(retry=Retry.fixed("10ms", max_attempts=2, jitter="0s"))
    async def note(number: int) -> float:
        return 1 / number

    @app.on("order.*")
    async def told(event: Event) -> None: ...

    @app.schedule(every("1h"), owner="me", description="tidies")
    async def tidy() -> None: ...

    @app.runner("sweep", every="1s")
    async def sweep() -> int:
        return 1

    async with app.worker():
        await app.aemit("order.placed", {}, aggregate_type="order", aggregate_id="7", actor="a", headers={"h": "x"})
        await note.using(key="a", headers={"h": "x"}).aenqueue(0)
        await note.using(key="b", delay="1h").aenqueue(1)
        async with await psycopg.AsyncConnection.connect(database) as tx, app.inbox("shipping").once("event", tx):
            pass
        await app.schedules.arun_now("tidy")
        await aeventually(lambda: conn.execute(SHOWN).fetchone()[0], what="something to show")
    await app.aclose()


def spoil(conn: psycopg.Connection) -> None:
    """Write HOSTILE wherever a text is, past all checks, as somebody with another way in could."""
    for table, name in conn.execute(CHECKS).fetchall():
        conn.execute(SQL("alter table {} drop constraint {}").format(SQL(table), Identifier(name)))
    document = json.dumps({HOSTILE: HOSTILE, "deep": [HOSTILE]}, ensure_ascii=False)
    for table, column, type in conn.execute(COLUMNS).fetchall():
        if table in MEANT_TABLES or column in MEANT or (table, column) in {("event", "type"), ("event_type", "type")}:
            continue
        value = {"text": "%s || row_number", "text[]": "array[%s, 'b']"}.get(type, f"%s::{type}")
        what = SQL("update kept.{} t set {} = " + value.replace("row_number", "ctid::text") + " where {} is not null")
        given = document if type.startswith("json") else HOSTILE
        conn.execute(what.format(Identifier(table), Identifier(column), Identifier(column)), [given])
    conn.execute("update kept.worker set queues = array[%s]", [HOSTILE])
    conn.execute(
        "update kept.sink set last_code = %(h)s, last_error = %(h)s, last_error_at = kept.now()", {"h": HOSTILE}
    )


def commands(conn: psycopg.Connection) -> Iterator[list[str]]:
    """Every command that shows something."""
    shown = {"jobs": "kept.jobs", "events": "kept.event", "runs": "kept.runs"}
    for group, table in shown.items():
        yield [group, "list"]
        for (id,) in conn.execute(f"select id from {table} order by 1").fetchall():
            yield [group, "show", str(id)]
    for (name,) in conn.execute("select name from kept.schedule").fetchall():
        yield ["schedules", "show", name]
    yield from (["schedules", "list"], ["schedules", "next"], ["runners", "list"], ["workers", "--all"], ["lanes"])
    yield from (["subscriptions"], ["sinks"], ["inbox"], ["status"], ["doctor"], ["jobs", "retry", "--task", HOSTILE])
    yield from (["lanes", "pause", HOSTILE], ["jobs", "list", "--task", "x"], ["jobs", "show", HOSTILE])


async def test_no_command_shows_a_text_that_steers_the_terminal(database: str, conn: psycopg.Connection) -> None:
    await fill(database, conn)
    spoil(conn)
    seen = 0
    for words in commands(conn):
        for form in ([], ["--json"]):
            said = CliRunner().invoke(main, ["--database", database, *words, *form], prog_name="kept")
            assert said.exception is None or isinstance(said.exception, SystemExit), (words, said.exception)
            assert STEERS.search(said.output) is None, (words, said.output)
            assert not re.search("^kept: done", said.output, re.MULTILINE), (words, said.output)
            seen += "owned" in said.output
    assert seen > 25, "what was planted must be there to be shown"
