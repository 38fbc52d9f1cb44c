"""Documents that are too deep, ambiguous or impossible: refused at every door, or read as one thing by all."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from desk import Desk
from kept import App, Context, Event, Refused, Retry
from kept.cli import main
from kept.config import Settings
from kept.signals import ConnectionLost, RunnerFailed, Signal
from support import aeventually

DEEP = [100, 500, 1_000, 5_000, 100_000]


def app_of(database: str) -> App:
    return App(database, settings=Settings(grace="1s"))


def nested(depth: int) -> str:
    return '{"value": ' + "[" * depth + "]" * depth + "}"


@pytest.mark.parametrize("door", ["enqueue", "emit"])
def test_nesting_without_end_does_not_pass_the_doors_in_sql(conn: psycopg.Connection, door: str) -> None:
    with pytest.raises(psycopg.Error):
        conn.execute(f"select kept.{door}('a.b', %s::json)", [nested(100_000)])
    assert conn.execute("select (select count(*) from kept.job) + (select count(*) from kept.event)").fetchone() == (0,)


@pytest.mark.parametrize("hostile", ["1e400", "-1e400", "NaN", "Infinity", '"\\u0000"', '"\\ud800"', "[" * 9])
@pytest.mark.parametrize("door", ["enqueue", "emit"])
def test_what_is_no_json_or_no_number_does_not_pass_the_doors_in_sql_unread(
    conn: psycopg.Connection, door: str, hostile: str
) -> None:
    try:
        conn.execute(f"select kept.{door}('a.b', %s::json)", ['{"value": ' + hostile + "}"])
    except psycopg.DataError:
        return
    assert hostile.endswith("1e400"), "PostgreSQL has numbers of that size; see how a worker takes them"


async def test_whatever_came_in_by_sql_fails_its_own_job_and_no_other(database: str, conn: psycopg.Connection) -> None:
    app = app_of(database)
    bad: list[Signal] = []
    app.signals.subscribe(lambda told: bad.append(told) if isinstance(told, RunnerFailed | ConnectionLost) else None)
    seen: list[Any] = []

    @app.task(retry=Retry(max_attempts=1))
    async def take(ctx: Context, value: Any) -> None:
        seen.append(value)

    documents = [nested(depth) for depth in (500, 1_000, 5_000)]
    documents += ['{"value": 1e400}', '{"value": 1e-400}', '{"value": ' + "9" * 5_000 + "}", '{"value": 1, "value": 2}']
    documents += ['{"value": "\\u001b[2J"}', '{"value": 1, "__class__": "os.system"}', '{"VALUE": 1}', '{"ctx": 1}']
    async with app.worker():
        for document in documents:
            try:
                conn.execute("select kept.enqueue('take', %s::json)", [document])
            except psycopg.errors.StatementTooComplex:
                continue
        conn.execute("""select kept.enqueue('take', '{"value": "the last"}')""")
        await aeventually(lambda: "the last" in seen, what="the job after them")
        await aeventually(
            lambda: conn.execute("select count(*) = 0 from kept.job").fetchone()[0], what="the end of all"
        )
    assert bad == []
    assert 2 in seen
    assert 1 not in seen, "of a key that stands twice the last counts, as for PostgreSQL"
    failed = conn.execute("select payload::text from kept.history where state = 'failed'").fetchall()
    assert {'{"VALUE": 1}', '{"ctx": 1}', '{"value": 1, "__class__": "os.system"}'} <= {text for (text,) in failed}


def test_of_a_key_that_stands_twice_everybody_reads_the_last(database: str, conn: psycopg.Connection) -> None:
    conn.execute("""select kept.enqueue('take', '{"value": 1, "value": 2}')""")
    assert conn.execute("select payload::jsonb->>'value' from kept.job").fetchone() == ("2",)
    (text,) = conn.execute("select payload::text from kept.job").fetchone()
    assert json.loads(text)["value"] == 2


@pytest.mark.parametrize("depth", DEEP)
def test_nesting_is_limited_at_the_doors_in_python(database: str, conn: psycopg.Connection, depth: int) -> None:
    app = app_of(database)
    value: Any = []
    for _ in range(depth):
        value = [value]

    @app.task()
    async def take(value: Any) -> None: ...

    with pytest.raises(Refused, match=r"value|deep"):
        take.enqueue(value)
    with psycopg.connect(database) as tx, pytest.raises(Refused, match=r"data|deep"):
        app.emit("a.b", {"value": value}, tx=tx)
    app.close()
    assert conn.execute("select count(*) from kept.job").fetchone() == (0,)


@pytest.mark.parametrize("depth", [500, 900, 1_000, 3_000])
async def test_an_event_that_came_in_by_sql_harms_no_subscription(
    database: str, conn: psycopg.Connection, depth: int
) -> None:
    app = app_of(database)
    desk = Desk(name="desk")
    app.publish("a.*", to=desk)
    bad: list[Signal] = []
    app.signals.subscribe(lambda told: bad.append(told) if isinstance(told, RunnerFailed | ConnectionLost) else None)
    seen: list[str] = []

    @app.on("a.*", retry=Retry(max_attempts=1))
    async def take(event: Event[Any]) -> None:
        seen.append(event.type)

    async with app.worker():
        with conn.transaction():  # so that all of them are sent together
            for type, data in (("a.deep", nested(depth)), ("a.odd", '{"value": 1e400}'), ("a.last", "{}")):
                conn.execute("select kept.emit(%s, %s::json)", [type, data])
        await aeventually(lambda: "a.last" in seen, what="the event after them")
        await aeventually(
            lambda: conn.execute("select count(*) = 0 from kept.job").fetchone()[0], what="the end of all"
        )
    await app.aclose()
    assert bad == []
    ends = """select h.payload->>'type', h.state, h.attempt
                from kept.history h join kept.lane l on l.id = h.lane where l.task = 'publish:desk'"""
    told = {type: (state, attempt) for type, state, attempt in conn.execute(ends).fetchall()}
    assert told["a.last"] == told["a.odd"] == ("done", 1)
    assert told["a.deep"] in (("done", 1), ("failed", 1)), "how deep Python reads is its own business"
    for (id,) in conn.execute("select id from kept.event").fetchall():
        for form in ([], ["--json"], ["--cloudevents"]):
            said = CliRunner().invoke(main, ["--database", database, "events", "show", str(id), *form])
            assert said.exception is None or isinstance(said.exception, SystemExit), (form, said.exception)
