"""``kept events``: what was emitted, everything about one, and telling a subscription again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from kept import App, Event
from kept.db.connect import Link
from kept.worker.post import declare


async def mailer(event: Event) -> None:
    """A handler."""


def sync(app: App) -> None:
    async def go() -> None:
        link = await Link.open(app.database)
        await declare(link, app.plan(kept=False))
        await link.close()

    asyncio.run(go())


@pytest.fixture
def app(database: str) -> Iterator[App]:
    app = App(database)
    yield app
    app.close()


def late(app: App) -> list[str]:
    """Three events; then somebody subscribes."""
    ids = [app.emit("invoice.made", {"n": n}, aggregate_type="invoice", aggregate_id=str(n)) for n in range(2)]
    ids.append(app.emit("order.made", actor="user:\x1b[31m7", headers={"traceparent": "00"}))
    app.on("invoice.*")(mailer)
    sync(app)
    return ids


# --- list


def test_events_are_listed_newest_first(kept, app):
    ids = late(app)
    head, *rows = kept("events", "list").out.splitlines()
    assert head.split() == ["event", "type", "version", "aggregate", "actor", "emitted", "told"]
    assert [row.split()[0] for row in rows] == ids[::-1]
    assert "\x1b" not in kept("events", "list").out


def test_filters(kept, app, clock):
    ids = late(app)

    def found(*words: str) -> list[str]:
        return [each["event_id"] for each in kept("events", "list", "--json", *words).json["events"]]

    assert found("--type", "invoice.*") == [ids[1], ids[0]]
    assert found("--type", "order.made") == [ids[2]]
    assert found("--aggregate", "invoice/1") == [ids[1]]
    assert found("--aggregate", "invoice") == [ids[1], ids[0]]
    clock.advance("2h")
    assert found("--newer-than", "1h") == []
    assert kept("events", "list", "--newer-than", "1h").out == "no event matches\n"


def test_pages(kept, app):
    ids = late(app)
    first = kept("events", "list", "--limit", 2, "--json").json
    assert first["more"] is True
    rest = kept("events", "list", "--before", first["before"], "--json").json
    assert [each["event_id"] for each in first["events"] + rest["events"]] == ids[::-1]
    assert "go on with --before" in kept("events", "list", "--limit", 2).err


@pytest.mark.parametrize("pattern", ["a*b", "", "a b", "'"])
def test_a_pattern_that_is_none_is_refused(kept, pattern):
    said = kept("events", "list", "--type", pattern)
    assert said.code == (0 if pattern == "" else 2)


# --- show


def test_show_tells_everything(kept, app):
    late(app)
    app.emit("invoice.made", {"n": 7}, actor="user:7", aggregate_type="invoice", aggregate_id="7", headers={"a": "b"})
    id = kept("events", "list", "--limit", 1, "--json").json["events"][0]["event_id"]
    out = kept("events", "show", id).out
    for part in (id, "invoice.made, version 1", "invoice/7", "user:7", "mailer", '"n": 7', '"a": "b"'):
        assert part in out
    found = kept("events", "show", id, "--json").json
    assert (found["data"], found["told"], found["headers"]) == ({"n": 7}, ["mailer"], {"a": "b"})


def test_show_as_a_cloudevent(kept, app):
    ids = late(app)
    found = kept("events", "show", ids[0], "--cloudevents", "--source", "shop").json
    assert (found["specversion"], found["id"], found["source"]) == ("1.0", ids[0], "shop")
    assert (found["type"], found["subject"], found["data"]) == ("invoice.made", "invoice/0", {"n": 0})
    assert set(found) == set(map(str.lower, found))


def test_an_event_that_is_not_there(kept):
    said = kept("events", "show", "01890000-0000-7000-8000-000000000000")
    assert (said.code, "there is no event" in said.err) == (1, True)
    assert kept("events", "show", "x\x1b").code == 2


# --- replay


def test_replay_counts_first_and_then_tells(kept, app, conn):
    late(app)
    assert kept("events", "replay", "mailer", "--dry-run").out == "2 events would be replayed to mailer\n"
    assert conn.execute("select count(*) from kept.job").fetchone() == (0,)
    said = kept("events", "replay", "mailer")
    assert (said.code, "say --yes" in said.err) == (2, True)
    assert kept("events", "replay", "mailer", "--yes").out == "2 events replayed to mailer\n"
    assert conn.execute("select count(*) from kept.job").fetchone() == (2,)
    assert kept("events", "replay", "mailer", "--yes").out == "0 events would be replayed to mailer\n"


def test_replay_of_some(kept, app):
    ids = late(app)
    words = ("events", "replay", "mailer", "--json", "--dry-run")
    assert kept(*words, "--event", ids[0], "--event", ids[2]).json["matched"] == 1
    assert kept(*words, "--type", "order.*").json["matched"] == 0
    assert kept(*words, "--until", "2020-01-01").json["matched"] == 0
    assert kept(*words, "--since", "2020-01-01T08:00+02:00").json["matched"] == 2


@pytest.mark.parametrize(
    "words",
    [
        ("--event", "x"),
        ("--since", "yesterday"),
        ("--type", "*a"),
        ("--rate", "0"),
        ("--rate", "nan"),
        ("--rate", "inf"),
    ],
)
def test_bad_options_are_refused(kept, app, words):
    late(app)
    assert kept("events", "replay", "mailer", "--yes", *words).code == 2


def test_replay_to_nobody(kept, app, conn):
    late(app)
    said = kept("events", "replay", "mialer")
    assert (said.code, "did you mean 'mailer'" in said.err) == (1, True)
    kept("subscriptions", "retire", "mailer")
    said = kept("events", "replay", "mailer", "--yes")
    assert (said.code, "is retired" in said.err) == (2, True)
