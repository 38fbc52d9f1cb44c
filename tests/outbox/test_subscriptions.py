"""Subscriptions: registered with an App, changed, retired, brought back; who was missed, what matches nothing."""

from __future__ import annotations

import pytest

from kept import App, Event, NotFound, Refused
from kept.db.tx import run
from kept.outbox import log


async def heard(event: Event) -> None:
    """A handler."""


def declaring(database: str, **handlers: tuple[str, ...]) -> App:
    app = App(database)
    for name, patterns in handlers.items():
        app.on(*patterns, name=name)(heard)
    return app


def routes(ask) -> list[tuple[str, str]]:
    return ask(
        "select s.name, r.type from kept.route r join kept.subscription s on s.id = r.subscription order by 1, 2"
    )


def retire(app: App, conn, name: str):
    with conn.transaction():
        return run(conn, log.retire(app.outbox_sql, name))


def test_registering_makes_routes_and_doing_it_again_changes_nothing(database, sync, ask):
    app = declaring(database, one=("a.b", "c.*"))
    assert [each.name for each in sync(app).registered.added] == ["one"]
    before = ask("select id, patterns, declared_at from kept.subscription")
    assert routes(ask) == [("one", "a.b")]
    assert sync(app).registered.added == []
    assert ask("select id, patterns, declared_at from kept.subscription") == before


def test_declared_classes_are_known_before_anybody_emits(database, sync, ask):
    app = declaring(database, one=("invoice.*",))
    app.event("invoice.made")(type("Made", (dict,), {"__annotations__": {}}))
    assert sync(app).registered.unmatched == []
    assert routes(ask) == [("one", "invoice.made")]


def test_changed_patterns_change_the_routes(database, sync, ask):
    sync(declaring(database, one=("a.b", "a.c"), two=("a.b",)))
    sync(declaring(database, one=("a.c", "a.d")))
    assert routes(ask) == [("one", "a.c"), ("one", "a.d"), ("two", "a.b")]


def test_a_handler_moved_to_another_queue_takes_its_routes_along(database, sync, ask):
    sync(declaring(database, one=("a.b",)))
    moved = App(database)
    moved.on("a.b", name="one", queue="mail")(heard)
    sync(moved)
    moved.emit("a.b")
    assert ask("select queue from kept.jobs") == ["mail"]
    moved.close()


def test_two_versions_of_a_program_do_not_fight(database, sync, ask):
    old, new = declaring(database, one=("a.b",)), declaring(database, two=("a.b",))
    for _ in range(2):
        sync(old)
        sync(new)
    assert routes(ask) == [("one", "a.b"), ("two", "a.b")]
    assert ask("select retired_at from kept.subscription") == [None, None]


def test_a_retired_subscription_is_passed_by_until_somebody_declares_it(database, sync, ask, conn):
    app = declaring(database, one=("a.b",))
    sync(app)
    assert retire(app, conn, "one").name == "one"
    app.emit("a.b")
    assert ask("select id from kept.job") == []
    with pytest.raises(Refused, match="retired already"):
        retire(app, conn, "one")
    sync(app)
    app.emit("a.b")
    assert ask("select task from kept.jobs") == ["one"]
    app.close()


def test_a_new_type_does_not_bring_a_retired_subscription_back(database, sync, ask, conn):
    app = declaring(database, one=("*",))
    sync(app)
    retire(app, conn, "one")
    app.emit("brand.new")
    sync(declaring(database, two=("*",)))
    assert routes(ask) == [("two", "brand.new")]
    app.close()


def test_retiring_what_is_not_there_names_what_is_near(database, sync, conn):
    app = declaring(database, mailer=("a.b",))
    sync(app)
    with pytest.raises(NotFound, match="there is no subscription 'mialer'; did you mean 'mailer'"):
        retire(app, conn, "mialer")


def test_a_new_subscription_says_how_many_events_it_missed(database, sync):
    app = declaring(database, one=("a.*",))
    app.emit_many([Event(type=type, data={}) for type in ("a.b", "a.c", "b.a")])
    (added,) = sync(app).registered.added
    assert str(added) == ("subscription one is new; 2 earlier events match it: `kept events replay one` brings them")
    app.close()


def test_a_pattern_that_matches_nothing_is_warned_of(database, sync):
    app = declaring(database, one=("a.*", "typo"))
    assert [str(each) for each in sync(app).registered.unmatched] == [
        "subscription one: no event matches 'a.*' yet",
        "subscription one: no event matches 'typo' yet",
    ]
    app.emit("a.b")
    assert [each.pattern for each in sync(app).registered.unmatched] == []
    app.close()


def test_a_worker_of_the_old_version_that_starts_again_takes_nothing_away(database, sync, start, ask):
    old, new = App(database), App(database)
    old.on("a.b", name="tell")(heard)
    new.on("a.b", "c.d", name="tell", ordered=True)(heard)
    sync(new)
    start(old)
    assert ask("select patterns from kept.subscription") == [["a.b", "c.d"]]
    assert ask("select ordered from kept.lane where task = 'tell'") == [True]
    old.emit("c.d")
    assert ask("select payload->>'type', order_key from kept.job") == [("c.d", "#1")]
    sync(old)  # when everybody is old again, exactly that
    assert ask("select patterns from kept.subscription") == [["a.b"]]
    assert ask("select ordered from kept.lane where task = 'tell'") == [False]
    for app in (old, new):
        app.close()


def test_a_worker_of_the_new_version_adds_what_it_wants(database, sync, start, ask):
    old, new = App(database), App(database)
    old.on("a.b", name="tell")(heard)
    new.on("c.d", name="tell")(heard)
    sync(old)
    start(new)
    assert ask("select patterns from kept.subscription") == [["a.b", "c.d"]]
    for app in (old, new):
        app.close()
