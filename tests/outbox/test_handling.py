"""Handling: every handler has a job and retries of its own, old versions are lifted, newer ones wait."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from kept import App, Context, Event, Refused, Retry
from kept.config import Settings
from kept.signals import JobsSettled, Warned

ONCE = Retry.fixed("0s", max_attempts=1, jitter="0s")
TWICE = Retry.fixed("0s", max_attempts=2, jitter="0s")


@dataclass
class Made:
    id: int
    total: float = 0.0


def states(ask) -> dict[str, str]:
    return dict(ask("select task, state from kept.jobs"))


def test_a_handler_is_given_the_event_with_its_data_as_its_class(app, drain, sync):
    app.event("invoice.made", aggregate_id="id")(Made)
    seen: list[Any] = []

    @app.on("invoice.made")
    async def tell(ctx: Context, event: Event[Made]) -> None:
        seen.append((ctx.attempt, event))

    @app.on("invoice.*")
    def tell_in_a_thread(event: Event) -> None:
        seen.append((1, event))

    sync(app)
    id = app.emit(Made(7, 1.5), actor="user:1", headers={"a": "b"})
    assert [job.state for job in drain(app)] == ["done", "done"]
    (_, event), (_, other) = seen
    assert event == other
    assert (event.event_id, event.data, event.actor, event.headers) == (id, Made(7, 1.5), "user:1", {"a": "b"})
    assert (event.aggregate_type, event.aggregate_id) == ("invoice", "7")


def test_an_undeclared_type_gives_plain_data_or_what_the_handler_says(app, drain, sync, ask):
    seen: list[object] = []

    @app.on("a.b")
    async def plain(event: Event[Any]) -> None:
        seen.append(event.data)

    @app.on("a.b", retry=ONCE)
    async def typed(event: Event[Made]) -> None:
        seen.append(event.data)

    sync(app)
    app.emit("a.b", {"id": 1})
    drain(app)
    assert sorted(map(str, seen)) == sorted(map(str, [{"id": 1}, Made(1)]))
    app.emit("a.b", {"id": "one"})
    drain(app)
    assert ask("select task, code from kept.jobs where state = 'failed'") == [("typed", "invalid_arguments")]


def test_one_handler_failing_does_not_touch_the_others(app, drain, sync, ask):
    tries: list[str] = []

    @app.on("a.b", retry=TWICE)
    async def fails(event: Event) -> None:
        tries.append("fails")
        raise RuntimeError("no")

    @app.on("a.b")
    async def works(event: Event) -> None:
        tries.append("works")

    sync(app)
    app.emit("a.b")
    drain(app)
    drain(app)
    assert sorted(tries) == ["fails", "fails", "works"]
    assert states(ask) == {"fails": "failed", "works": "done"}


def test_an_old_version_is_lifted(database, app, drain, sync):
    app.emit("invoice.made", {"number": 7})
    newer = App(database)
    newer.event("invoice.made", version=3)(Made)
    newer.upcast("invoice.made", from_version=1)(lambda data: {"id": data["number"]})
    newer.upcast("invoice.made", from_version=2)(lambda data: {**data, "total": 9.5})
    seen: list[Event[Made]] = []
    newer.on("invoice.made", name="tell")(_into(seen))
    sync(newer)
    app.emit("invoice.made", {"number": 8})
    drain(newer)
    assert [(event.version, event.data) for event in seen] == [(3, Made(8, 9.5))]


def _into(seen: list[Any]):
    async def handler(event: Event[Made]) -> None:
        seen.append(event)

    return handler


def _raises(_data: object) -> dict[str, object]:
    raise KeyError("number")


@pytest.mark.parametrize(
    ("upcaster", "says"),
    [
        (None, "no upcaster from version 1"),
        (_raises, "its upcaster from version 1 failed: KeyError"),
        (lambda data: None, "does not fit Made"),
        (lambda data: {"id": object()}, "lifted"),
    ],
)
def test_what_cannot_be_lifted_fails_at_once_and_says_why(app, drain, sync, ask, conn, upcaster, says):
    app.event("invoice.made", version=2)(Made)
    if upcaster is not None:
        app.upcast("invoice.made", from_version=1)(upcaster)
    seen: list[object] = []
    app.on("invoice.made", name="tell")(_into(seen))
    sync(app)
    conn.execute("select kept.emit('invoice.made', '{\"number\": 7}', version => 1)")  # at Python's door it is refused
    drain(app)
    ((state, code, message),) = ask("select state, code, message from kept.jobs")
    assert (state, code, seen) == ("failed", "invalid_arguments", [])
    assert says in message


def test_a_newer_version_stays_pending_uncharged_and_is_reported(database, drain, sync, ask, clock):
    old, new = App(database), App(database, settings=Settings())
    old.event("invoice.made", version=1)(Made)
    new.event("invoice.made", version=2)(type("Made2", (Made,), {}))
    seen: list[object] = []
    old.on("invoice.made", name="tell", retry=ONCE)(_into(seen))
    sync(old)
    new.emit("invoice.made", {"id": 7}, version=2)
    told: list[str] = []
    warned: list[str] = []
    old.signals.subscribe(
        lambda s: told.extend(each.message or "" for each in s.jobs) if isinstance(s, JobsSettled) else None
    )
    old.signals.subscribe(
        lambda s: warned.append(s.message) if isinstance(s, Warned) and s.code == "newer_event" else None
    )
    for _ in range(3):
        assert drain(old) == []
        clock.advance("61s")
    assert ask("select worker is null, attempt - uncharged from kept.job") == [(True, 0)]
    assert seen == []
    assert any("version 2 is newer than this code, which knows 1" in each for each in told)
    assert len(warned) == 1, "once, not every time it is looked at"
    new.on("invoice.made", name="tell", retry=ONCE)(_into(seen))
    drain(new)
    assert states(ask) == {"tell": "done"}


def test_a_job_that_is_no_envelope_fails_and_says_so(app, drain, sync, ask, conn):
    app.on("a.b", name="tell")(_into([]))
    sync(app)
    conn.execute("select kept.enqueue('tell', '{\"event\": 1}')")
    drain(app)
    ((state, message),) = ask("select state, message from kept.jobs")
    assert state == "failed"
    assert "not the envelope of an event" in message


def test_a_handler_takes_one_event(app):
    async def none() -> None: ...
    async def two(event: Event, more: int) -> None: ...
    async def wrong(event: int) -> None: ...

    for handler in (none, two, wrong):
        with pytest.raises(Refused):
            app.on("a.b")(handler)
    with pytest.raises(Refused, match="name the events"):
        app.on()(_into([]))
    with pytest.raises(Refused, match="star elsewhere"):
        app.on("a.*.b", name="x")(_into([]))


def test_a_declaration_that_was_refused_leaves_nothing_behind(app):
    with pytest.raises(Refused):
        app.on("a b", name="tell")(_into([]))
    app.on("a.b", name="tell")(_into([]))
    assert len(app.subscriptions) == 1


def test_the_function_stays_as_it_is(app):
    handler = _into([])
    assert app.on("a.b", name="tell")(handler) is handler
