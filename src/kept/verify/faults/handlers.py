"""Handlers that harm the process they run in. Each is one job, enqueued like any other, and waited for."""

from __future__ import annotations

from random import Random
from typing import ClassVar

from kept.verify.faults.fault import Fault, Group
from kept.verify.model import Repeats
from kept.verify.scene import Scene

PATIENCE = 30.0  # seconds for such a job to be settled; one that takes longer is judged at the end like any other


class _InHandler(Fault):
    group: ClassVar[Group] = "handler"
    repeats: ClassVar[Repeats] = "nobody"  # its process lives, and keeps its lease
    task: ClassVar[str]

    def inject(self, scene: Scene, chance: Random) -> str:  # noqa: ARG002  # nothing is left to chance
        job = scene.client.enqueue(self.task)
        scene.jobs.append(job)
        scene.client.settled(job, PATIENCE)
        return f"job {job}"


class Exit(_InHandler):
    """``os._exit`` in the middle of the first attempt: the job is a suspect, and done in the end."""

    name: ClassVar[str] = "exit"
    repeats: ClassVar[Repeats] = "victims"
    task: ClassVar[str] = "exits"


class Poison(_InHandler):
    """A job that kills its process every time: it fails, and nobody beside it does."""

    name: ClassVar[str] = "poison"
    repeats: ClassVar[Repeats] = "victims"
    task: ClassVar[str] = "poison"


class Memory(_InHandler):
    """A handler that asks for more memory than there is."""

    name: ClassVar[str] = "memory"
    task: ClassVar[str] = "hogs"


class Recursion(_InHandler):
    """A handler that calls itself until Python refuses."""

    name: ClassVar[str] = "recursion"
    task: ClassVar[str] = "recurses"


class Gil(_InHandler):
    """A handler that holds the GIL for longer than the lease."""

    name: ClassVar[str] = "gil"
    task: ClassVar[str] = "holds_gil"


class Block(_InHandler):
    """A handler that blocks the event loop for longer than the lease."""

    name: ClassVar[str] = "block"
    task: ClassVar[str] = "blocks"


FAULTS: tuple[Fault, ...] = (Exit(), Poison(), Memory(), Recursion(), Gil(), Block())
