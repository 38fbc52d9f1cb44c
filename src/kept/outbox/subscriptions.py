"""Who wants which events: declared by Apps, kept in the database, so that whoever emits need not know."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kept.db.connect import array
from kept.db.queries import Queries
from kept.db.tx import Rows, Steps
from kept.errors import Refused
from kept.outbox.publisher import Publisher
from kept.outbox.sink import Sink
from kept.outbox.types import EventTypes

MOST_COUNTED = 100_000


@dataclass(frozen=True, slots=True)
class Subscription:
    """What ``@app.on`` and ``app.publish`` wrote down: its task, by the same name, does the work."""

    name: str
    patterns: tuple[str, ...]
    queue: str
    publisher: Publisher | None = None  # if it publishes to a sink

    @property
    def sink(self) -> Sink | None:
        return None if self.publisher is None else self.publisher.sink


class Subscriptions:
    """The subscriptions of an App, by name."""

    def __init__(self) -> None:
        self._by_name: dict[str, Subscription] = {}

    def check(self, name: str, sink: Sink) -> None:
        """Refuse two sinks of one name, and one that publishes under a name that is taken."""
        if any(other.name == sink.name for other in self.sinks() if other is not sink):
            message = f"sink {sink.name!r}: there are two of this name; give one of them another with name=…"
            raise Refused(message, field="name")
        if name in self._by_name:
            message = f"subscription {name!r}: there is one of this name; give app.publish a name=… of its own"
            raise Refused(message, field="name")

    def add(self, subscription: Subscription) -> None:
        """Declare one. Its name is that of its task, which is unique; two sinks of one name are refused."""
        if subscription.sink is not None:
            self.check(subscription.name, subscription.sink)
        self._by_name[subscription.name] = subscription

    def __iter__(self) -> Iterator[Subscription]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def find(self, name: str) -> Subscription | None:
        return self._by_name.get(name)

    def sinks(self) -> list[Sink]:
        """Every sink once."""
        return list(dict.fromkeys(each.sink for each in self if each.sink is not None))


class Added(NamedTuple):
    """A new subscription, and how many recorded events it would have got; None: counting took too long."""

    name: str
    missed: int | None

    def __str__(self) -> str:
        if self.missed is None:
            return f"subscription {self.name} is new; `kept events replay {self.name} --dry-run` counts what it missed"
        if not self.missed:
            return f"subscription {self.name} is new"
        count = f"more than {MOST_COUNTED}" if self.missed > MOST_COUNTED else str(self.missed)
        return (
            f"subscription {self.name} is new; {count} earlier events match it: "
            f"`kept events replay {self.name}` brings them"
        )


class Unmatched(NamedTuple):
    """A pattern that no known type matches."""

    name: str
    pattern: str

    def __str__(self) -> str:
        return f"subscription {self.name}: no event matches {self.pattern!r} yet"


@dataclass(slots=True)
class Registered:
    """What a registration changed, and what looks odd."""

    new: list[tuple[str, int]] = field(default_factory=list)  # names and ids, to be counted for
    added: list[Added] = field(default_factory=list)
    unmatched: list[Unmatched] = field(default_factory=list)


def register(
    sql: Queries, subscriptions: Iterable[Subscription], types: EventTypes, *, exact: bool
) -> Steps[Registered]:
    """Make the database know what is declared; the lanes are known already. One transaction.

    What is not declared here is left alone: another version of the program may declare it. Patterns are only added,
    unless this is to be *exact*: a worker of the old version that starts once more must not take them away.
    """
    declared = sorted(subscriptions, key=lambda each: each.name)
    known = {each.type for each in types}
    handled = {pattern for each in declared for pattern in each.patterns if "*" not in pattern and each.sink is None}
    if not declared and not known:
        return Registered()
    params = _params(declared) | {"types": array(sorted(known | handled)), "exact": exact}
    yield from _declare_sinks(sql, declared)
    done = Registered()
    changed = yield sql["unknown"], params
    added: Rows = []
    if changed:
        yield sql["lock_routes"], {}
        yield sql["learn_types"], {"types": array(sorted(known))}
        added = yield sql["subscribe"], params
    # Before what is handled counts as known: a handler of a type that is new to everybody may be a slip of the pen.
    rows = yield sql["unmatched"], {"names": array([each.name for each in declared])}
    done.unmatched = [Unmatched(*row) for row in rows]
    if changed:
        yield sql["learn_types"], params
        yield sql["reroute"], {}
        yield sql["expand_routes"], {}
    done.new = [(name, int(id)) for name, id in added]
    return done


def missed(sql: Queries, subscription: int) -> Steps[int]:
    """How many recorded events a subscription was not told of. It reads the log, so it is given little time."""
    yield sql["be_quick"], {}
    rows = yield sql["missed"], {"subscription": subscription, "most": MOST_COUNTED + 1}
    return int(rows[0][0])


def _params(declared: Sequence[Subscription]) -> dict[str, object]:
    return {
        "names": array([each.name for each in declared]),
        "patterns": array([" ".join(each.patterns) for each in declared]),
        "queues": array([each.queue for each in declared]),
        "tasks": array([each.name for each in declared]),
        "sinks": array([None if each.sink is None else each.sink.name for each in declared]),
    }


def _declare_sinks(sql: Queries, declared: Iterable[Subscription]) -> Steps[None]:
    sinks = sorted({(each.sink.name, each.sink.kind) for each in declared if each.sink is not None})
    if sinks:
        yield sql["declare_sinks"], {"names": array([n for n, _ in sinks]), "kinds": array([k for _, k in sinks])}
