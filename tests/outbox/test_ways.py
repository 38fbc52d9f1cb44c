"""Whatever library a transaction is of, events and markers ride in it like the caller's own rows."""

from __future__ import annotations

import pytest

from kept import App, Event
from ways import WAYS, opened

every_way = pytest.mark.parametrize("name", WAYS)
ODD = '“it\'s” 100% \\n "$1" %(id)s {é,NULL} 日本'


@pytest.fixture(autouse=True)
def on_a_loop(monkeypatch):
    """Sync ways are tested on a loop as well; Django has to be told that this is meant."""
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")


@pytest.fixture
def app(database):
    app = App(database)

    @app.on("invoice.*")
    async def tell(event: Event) -> None: ...

    yield app
    app.close()


async def emit(app, way, *args, **options):
    return await app.aemit(*args, tx=way.tx, **options) if way.is_async else app.emit(*args, tx=way.tx, **options)


@every_way
async def test_an_event_and_its_jobs_commit_with_the_callers_rows_or_not_at_all(name, app, database, conn):
    await app.drain()  # registers the subscription
    counts = "select (select count(*) from kept.event), (select count(*) from kept.job)"
    async with opened(name, database) as way:
        await emit(app, way, "invoice.created", {"text": ODD}, actor=ODD, aggregate_type="invoice", aggregate_id="7")
        assert conn.execute(counts).fetchone() == (0, 0)
        await way.rollback()
    assert conn.execute(counts).fetchone() == (0, 0)
    async with opened(name, database) as way:
        id = await emit(app, way, "invoice.created", {"text": ODD}, actor=ODD, headers={"a": ODD}, key=ODD)
        again = await emit(app, way, "invoice.created", {"text": ODD}, key=ODD)
        await way.commit()
    assert again == id
    assert conn.execute(counts).fetchone() == (1, 1)
    stored = conn.execute("select id::text, actor, data, headers from kept.event").fetchone()
    assert stored == (id, ODD, {"text": ODD}, {"a": ODD})


@every_way
async def test_many_events_keep_their_order(name, app, database, conn):
    events = [Event(type="invoice.line", data={"n": n}) for n in range(100)]
    async with opened(name, database) as way:
        ids = await app.aemit_many(events, tx=way.tx) if way.is_async else app.emit_many(events, tx=way.tx)
        await way.commit()
    stored = conn.execute("select id::text, (data->>'n')::int from kept.event order by seq").fetchall()
    assert stored == list(zip(ids, range(100), strict=True))


@every_way
async def test_a_marker_commits_with_the_effect_or_not_at_all(name, app, database):
    inbox, seen = app.inbox("mailer"), []
    for end in ("rollback", "commit", "commit"):
        async with opened(name, database) as way:
            if way.is_async:
                async with inbox.once("e1", way.tx) as first:
                    seen.append(first)
            else:
                with inbox.once("e1", way.tx) as first:
                    seen.append(first)
            await (way.rollback() if end == "rollback" else way.commit())
    assert seen == [True, True, False]
