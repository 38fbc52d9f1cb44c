"""``kept bench outbox``: what an event costs in the caller's transaction, and how fast it gets where it is to go."""

from __future__ import annotations

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from kept.app import App
from kept.bench import delivery
from kept.bench.delivery import sync
from kept.bench.drain import Say
from kept.bench.model import Emit, Outbox
from kept.bench.place import Conn, Place
from kept.bench.producer import TEXT, open_client
from kept.bench.rules import ratios, spread
from kept.config import Settings
from kept.db.queries import Queries
from kept.outbox.model import Event

BLOCK = 50  # transactions in a row; then it is another's turn
SUBSCRIPTIONS = (0, 1, 3)
BARE = -1

Rates = defaultdict[int, list[float]]


def measure(place: Place, *, events: int, rounds: int, many: int, drained: int, nats: str | None, say: Say) -> Outbox:
    """Emit one by one to nobody, to one and to three subscriptions, and in bulk; then drain in order, and to *nats*."""
    app = _app(place)
    for statement in place.sql["own_event_tables"].split(";"):
        place.conn.execute(statement)
    single: Rates = defaultdict(list)
    bulk: Rates = defaultdict(list)
    for number in range(1, rounds + 1):
        say(f"round {number} of {rounds}: one by one")
        _one_by_one(place, app, events, single)
        say(f"round {number} of {rounds}: {many} at once")
        _many(place, app, many, bulk)
    return Outbox(
        server=place.server,
        events=events,
        rounds=rounds,
        bare_per_s=spread(single[BARE]),
        emit={str(count): _emit(single, bulk, count) for count in SUBSCRIPTIONS},
        many=many,
        ordered=delivery.ordered(place, events=drained, rounds=rounds, say=say),
        published=None if nats is None else delivery.published(place, nats, events=drained, rounds=rounds, say=say),
    )


def _emit(single: Rates, bulk: Rates, subscriptions: int) -> Emit:
    return Emit(
        per_s=spread(single[subscriptions]),
        ratio_to_bare=ratios(single[subscriptions], single[BARE]),
        many_per_s=spread(bulk[subscriptions]),
    )


def _type(subscriptions: int) -> str:
    return f"thing.told_{subscriptions}"


def _app(place: Place) -> App:
    """An App whose events have no, one and three subscriptions, known to the database."""
    app = App(settings=Settings(database=place.url, schema=place.schema))

    async def handle(event: Event[dict[str, object]]) -> None:
        """Never run: what emitting costs is measured, not what comes of it."""

    for count in SUBSCRIPTIONS:
        for number in range(count):
            app.on(_type(count), name=f"told_{count}_{number}")(handle)
    asyncio.run(sync(app))
    return app


@dataclass(slots=True)
class Emitter:
    """One client with a connection and transactions of its own."""

    conn: Conn
    sql: Queries
    app: App

    def emit(self, subscriptions: int, number: int) -> None:
        """Your row and an event."""
        self.conn.execute(self.sql["add_thing"], {"name": TEXT})
        data = {"number": number, "text": TEXT}
        self.app.emit(_type(subscriptions), data, tx=self.conn, aggregate_type="thing", aggregate_id=str(number))
        self.conn.commit()

    def bare(self, number: int) -> None:
        """Your row and a row just like an event's."""
        self.conn.execute(self.sql["add_thing"], {"name": TEXT})
        data = json.dumps({"number": number, "text": TEXT})
        self.conn.execute(self.sql["add_bare_event"], {"type": _type(0), "id": str(number), "data": data})
        self.conn.commit()


def _fresh(place: Place) -> None:
    place.empty()
    place.conn.execute(place.sql["empty_own_event_tables"])
    place.settle_down()


def _one_by_one(place: Place, app: App, events: int, rates: Rates) -> None:
    """Small blocks in turn: whatever slows the disk for a second slows all."""
    _fresh(place)
    turns = [BARE, *SUBSCRIPTIONS]
    seconds = dict.fromkeys(turns, 0.0)
    done = 0
    with open_client(place.url) as conn:
        emitter = Emitter(conn, place.sql, app)
        for turn in turns:
            _run(emitter, turn, BLOCK)  # statements are prepared after a few calls
        while done < events:
            block = min(BLOCK, events - done)
            for turn in turns if done // BLOCK % 2 else reversed(turns):
                seconds[turn] += _run(emitter, turn, block)
            done += block
    for turn in turns:
        rates[turn].append(events / seconds[turn])


def _run(emitter: Emitter, turn: int, transactions: int) -> float:
    def work() -> None:
        for number in range(transactions):
            if turn == BARE:
                emitter.bare(number)
            else:
                emitter.emit(turn, number)

    return _timed(work)


def _many(place: Place, app: App, many: int, rates: Rates) -> None:
    """``emit_many`` as it is called, data checked and encoded."""
    _fresh(place)
    with open_client(place.url) as conn:

        def emit(subscriptions: int) -> None:
            data = {"number": 1, "text": TEXT}
            app.emit_many([Event(type=_type(subscriptions), data=data) for _ in range(many)], tx=conn)
            conn.commit()

        for count in SUBSCRIPTIONS:
            rates[count].append(many / _timed(lambda count=count: emit(count)))  # type: ignore[misc]


def _timed(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
