"""For tests of publishing: a sink that answers as it is told, events for it, and an App that tells what it does."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, TypeVar

import psycopg
from click.testing import CliRunner

from kept import App, Event
from kept.cli import main
from kept.config import Settings
from kept.db.connect import Link
from kept.outbox.sink import PUBLISHED, Message, Sink, Unreachable
from kept.signals import Signal
from kept.worker.post import declare
from kernel import row
from support import aeventually

AWAY = Unreachable("unreachable", "nobody is at the desk")
BRIEF = {"sink_pause": timedelta(milliseconds=20), "sink_pause_max": timedelta(milliseconds=80)}

S = TypeVar("S", bound=Signal)


class Desk(Sink):
    """Takes messages in this process; *answer* says what becomes of each, and may wait."""

    kind = "desk"

    def __init__(
        self,
        answer: Callable[[Message], Any] = lambda _: PUBLISHED,
        *,
        name: str | None = None,
        topic: str = "events",
        topics: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(name=name, topic=topic, topics=topics)
        self.answer = answer
        self.sent: list[Message] = []
        self.batches: list[int] = []
        self.away: Unreachable | None = None
        self.closed = 0

    async def publish(self, messages, *, ordered):
        self.batches.append(len(messages))
        return await super().publish(messages, ordered=ordered)

    async def send(self, message):
        self.sent.append(message)
        answer = self.answer(message)
        return await answer if inspect.isawaitable(answer) else answer

    async def ping(self):
        return self.away

    async def close(self):
        self.closed += 1

    @property
    def ids(self) -> list[str]:
        """Ids of the events it was given, in order."""
        return [message.event_id for message in self.sent]

    @property
    def numbers(self) -> list[int]:
        """The numbers of the events it was given, in order."""
        return [int(message.body.rpartition(b'"n":')[2].strip(b" }")) for message in self.sent]


class Told(list[Signal]):
    """What an App reported."""

    def of(self, kind: type[S]) -> list[S]:
        return [each for each in self if isinstance(each, kind)]


def make(database: str, **settings: Any) -> tuple[App, Told]:
    """An App and what it tells from now on."""
    app, told = App(database, settings=Settings(**settings)), Told()
    app.signals.subscribe(told.append)
    return app, told


async def emit(app: App, count: int = 1, *, parcels: int | None = 1, type: str = "parcel.moved", **about) -> list[str]:
    """Have the database know what *app* declares, and emit events with numbers from 0 on, spread over parcels."""
    link = await Link.open(app.database, name="test")
    await declare(link, app.plan())
    await link.close()

    def event(n: int) -> Event[Any]:
        parcel = {} if parcels is None else {"aggregate_type": "parcel", "aggregate_id": f"p{n % parcels}"}
        return Event(type=type, data={"n": n}, **{**parcel, **about})

    return await app.aemit_many(map(event, range(count)))


async def settled(conn: psycopg.Connection, timeout: float = 20) -> dict[str, int]:
    """Wait until no job is live; how many ended in which state."""

    def over() -> bool:
        return not conn.execute("select count(*) from kept.job").fetchone()[0]

    await aeventually(over, timeout, what="the end of all jobs")
    return dict(conn.execute("select state, count(*) from kept.history group by state").fetchall())


def sink_row(conn: psycopg.Connection, name: str = "desk") -> dict[str, Any]:
    """What the database knows of a sink."""
    return row(conn, "select * from kept.sink where name = %s", name)


def charged(conn: psycopg.Connection) -> list[int]:
    """What live jobs have been charged so far, each value once."""
    rows = conn.execute("select distinct attempt - uncharged from kept.job where worker is null order by 1").fetchall()
    return [row[0] for row in rows]


def kept(database: str, *words: str) -> str:
    """What a command says that works."""
    said = CliRunner().invoke(main, ["--database", database, *words], prog_name="kept")
    assert said.exit_code == 0, said.output
    return said.output


def forever(_: Message) -> Any:
    """An answer that never comes."""
    return asyncio.get_running_loop().create_future()
