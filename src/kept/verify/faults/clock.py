"""Clocks that are wrong: a worker's must not matter, and the database's may jump."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import ClassVar

from kept.verify import clocks
from kept.verify.crew import Member
from kept.verify.faults.fault import Fault, Group, Need
from kept.verify.scene import Scene

FAR = 600  # seconds
LASTS, LOOK = (3.0, 5.0), 0.1  # seconds with a wrong clock, and between looks
WAIT = 20.0  # seconds for a worker to be replaced


class _OnClocks(Fault):
    group: ClassVar[Group] = "clock"

    def missing(self) -> str | None:
        return clocks.missing()


class WorkerClock(_OnClocks):
    """The workers of one host believe that it is ten minutes later, or earlier."""

    name: ClassVar[str] = "worker-clock"

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


class ServerClock(_OnClocks):
    """The server's clock is turned ahead by ten minutes, or back by a few leases, and stays so.

    Not back by more: what was due at a certain time waits until that time comes again, as it should.
    """

    name: ClassVar[str] = "server-clock"
    needs: ClassVar[frozenset[Need]] = frozenset({"own_server", "clock"})

    def inject(self, scene: Scene, chance: Random) -> str:
        seconds = FAR if chance.random() < 0.5 else -int(scene.lease * chance.uniform(1, 3))
        clock: clocks.Clock = scene.extras["clock"]
        clock.turn(seconds)
        return f"{seconds:+d} s"


FAULTS: tuple[Fault, ...] = (WorkerClock(), ServerClock())
