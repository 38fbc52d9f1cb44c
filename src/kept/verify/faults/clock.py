"""Clocks that are wrong: a worker's must not matter, and the database's may jump."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import ClassVar, LiteralString

import psycopg
from psycopg.sql import SQL, Identifier, Literal

from kept.verify import clocks
from kept.verify.crew import Member
from kept.verify.faults.fault import Fault, Group
from kept.verify.model import Repeats
from kept.verify.scene import Scene

FAR = 600  # seconds
NOW: LiteralString = """
create or replace function {now}() returns timestamptz language sql stable parallel safe
  as $$select pg_catalog.statement_timestamp() + {off} * interval '1 second'$$
"""
LASTS, LOOK = (3.0, 5.0), 0.1  # seconds with a wrong clock, and between looks
WAIT = 20.0  # seconds for a worker to be replaced


class WorkerClock(Fault):
    """The workers of one host believe that it is ten minutes later, or earlier."""

    name: ClassVar[str] = "worker-clock"
    group: ClassVar[Group] = "clock"
    repeats: ClassVar[Repeats] = "victims"  # not by the clock: they are told to leave, before and after

    def missing(self) -> str | None:
        return clocks.missing()

    def inject(self, scene: Scene, chance: Random) -> str:
        member = chance.choice(scene.workers.members)
        seconds = chance.choice([FAR, -FAR])
        with _started_with(scene, member, clocks.off_by(seconds)):
            time.sleep(chance.uniform(*LASTS))
            wrong = member.process is not None and clocks.is_wrong(member.process.pid)
        return f"{seconds:+d} s" if wrong else ""


@contextmanager
def _started_with(scene: Scene, member: Member, environ: Mapping[str, str]) -> Iterator[None]:
    """A member that was told to leave comes back with *environ*, and without it after the block."""
    before = member.command
    member.command = replace(before, environ={**before.environ, **environ})
    try:
        _replaced(scene, member)
        yield
    finally:
        member.command = before
        _replaced(scene, member)


def _replaced(scene: Scene, member: Member) -> None:
    process = member.process
    if process is not None:
        scene.tell(process.pid, signal.SIGTERM)
    until = time.monotonic() + WAIT
    while (member.process is process or member.process is None) and time.monotonic() < until:
        time.sleep(LOOK)


class ServerClock(Fault):
    """The database's clock goes ahead by ten minutes, or back by a few leases, and stays so.

    What SQL of Kept asks for the time is told another one. Under libfaketime a server would lose its timeouts too,
    which no clock does. Not back by more: what was due at a certain time waits until it comes again, as it should.
    """

    name: ClassVar[str] = "server-clock"
    group: ClassVar[Group] = "clock"
    repeats: ClassVar[Repeats] = "everyone"

    def inject(self, scene: Scene, chance: Random) -> str:
        seconds = FAR if chance.random() < 0.5 else -int(scene.lease * chance.uniform(1, 3))
        off = scene.extras["off"] = scene.extras.get("off", 0) + seconds
        with psycopg.Connection.connect(scene.direct, autocommit=True) as conn:
            conn.execute(SQL(NOW).format(now=Identifier(scene.schema, "now"), off=Literal(off)))
        return f"{seconds:+d} s"


FAULTS: tuple[Fault, ...] = (WorkerClock(), ServerClock())
