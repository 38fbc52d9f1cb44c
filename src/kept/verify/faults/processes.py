"""Processes that die, freeze and are told to leave."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Collection
from random import Random
from typing import ClassVar, TypeVar

from kept.verify.crew import Role, parent_of
from kept.verify.faults.fault import Fault, Group, Need
from kept.verify.ledger import effects
from kept.verify.model import Repeats
from kept.verify.scene import Scene

C = TypeVar("C", bound=Collection[int])
THAWED = 1.5  # seconds past lease and scan before the frozen go on: others have their jobs by then
WAIT, LOOK = 5.0, 0.1  # seconds for somebody to be there, and between looks
TOLD = 1.0  # seconds within which a worker's jobs run elsewhere when its keeper tells of its death
HURRY = 0.2  # seconds between two signals
BUSY = 1500  # milliseconds that a handler takes which is to be met in the midst of it
TURN = 10.0  # seconds for a job to have its turn, whatever waits before it


class _OnWorkers(Fault):
    group: ClassVar[Group] = "worker"
    repeats: ClassVar[Repeats] = "victims"


class Kill(_OnWorkers):
    """SIGKILL of a worker: its keeper is left to tell."""

    name: ClassVar[str] = "kill"
    role: ClassVar[Role] = "worker"

    def promised(self, scene: Scene) -> float | None:  # noqa: ARG002  # a keeper tells at once
        return TOLD if self.role == "worker" else None

    def inject(self, scene: Scene, chance: Random) -> str:
        pid = victim(scene, self.role, chance)
        if pid is None:
            return ""
        scene.kill(pid)
        return f"{self.role} {pid}"


class KillKeeper(Kill):
    """SIGKILL of a keeper: its worker has to notice and start another."""

    name: ClassVar[str] = "keeper"
    role: ClassVar[Role] = "keeper"
    repeats: ClassVar[Repeats] = "starved"  # if the other takes longer to start than the lease lasts

    def inject(self, scene: Scene, chance: Random) -> str:
        pid = victim(scene, self.role, chance)
        if pid is None:
            return ""
        if (worker := parent_of(pid)) in scene.workers.pids("worker"):  # else it has just died itself
            scene.harmed.append(worker)
        scene.kill(pid)
        return f"{self.role} {pid}"


class KillSupervisor(Kill):
    """SIGKILL of a supervisor: its workers end in order, without it."""

    name: ClassVar[str] = "supervisor"
    role: ClassVar[Role] = "supervisor"
    needs: ClassVar[frozenset[Need]] = frozenset({"several"})


class KillChild(Kill):
    """SIGKILL of the process in which a suspect runs alone, in the midst of it; or of one that stands by to."""

    name: ClassVar[str] = "child"
    role: ClassVar[Role] = "child"
    needs: ClassVar[frozenset[Need]] = frozenset({"several"})  # those on their own have none that stands by

    def inject(self, scene: Scene, chance: Random) -> str:
        job = scene.client.enqueue("exits", ms=BUSY)
        scene.jobs.append(job)
        for pid in eventually(lambda: _runs_alone(scene, job), TURN):
            scene.kill(pid)
            return f"child {pid} with job {job}"
        scene.client.settled(job, TURN)  # it has not come so far, and is not to end anybody later
        return super().inject(scene, chance)


class Host(_OnWorkers):
    """SIGKILL of a worker and its keeper at once, as when a host dies: nobody is left to tell."""

    name: ClassVar[str] = "host"

    def promised(self, scene: Scene) -> float | None:
        return scene.lease + scene.scan

    def inject(self, scene: Scene, chance: Random) -> str:
        pid = victim(scene, "worker", chance)
        if pid is None:
            return ""
        keeper = scene.workers.keeper_of(pid)
        scene.kill(*([keeper] if keeper else []), pid)  # the keeper first: it is quick
        return f"worker {pid} and its keeper"


class Stop(_OnWorkers):
    """SIGSTOP of a worker and its keeper past their lease, then SIGCONT: what they do now is too late."""

    name: ClassVar[str] = "stop"
    whole: ClassVar[bool] = True

    def inject(self, scene: Scene, chance: Random) -> str:
        _, pid = _about_to_write(scene, chance)
        pid = pid or victim(scene, "worker", chance)
        if pid is None:
            return ""
        frozen = (pid, *scene.workers.below(pid)) if self.whole else (pid,)
        scene.freeze(*frozen)
        try:
            time.sleep(scene.lease + scene.scan + THAWED)
        finally:
            scene.thaw(*frozen)
        return f"worker {pid}{' and its keeper' if self.whole else ''}"


class StopAlone(Stop):
    """SIGSTOP of a worker alone: its keeper must not go on for it."""

    name: ClassVar[str] = "stop-alone"
    whole: ClassVar[bool] = False


class StopThenKill(_OnWorkers):
    """SIGSTOP of a worker until its job runs elsewhere, then SIGKILL: its keeper must not take that job back."""

    name: ClassVar[str] = "stop-kill"

    def inject(self, scene: Scene, chance: Random) -> str:
        job, pid = _about_to_write(scene, chance)
        if pid is None:
            return ""
        scene.freeze(pid)
        try:
            eventually(lambda: _holders(scene, job) - {pid}, scene.lease + scene.scan + WAIT)
        finally:
            scene.kill(pid)
        return f"worker {pid}"


class Term(_OnWorkers):
    """SIGTERM twice, as by somebody in a hurry: what runs is given back at once."""

    name: ClassVar[str] = "term"

    def inject(self, scene: Scene, chance: Random) -> str:
        pid = victim(scene, "worker", chance)
        if pid is None:
            return ""
        scene.tell(pid, signal.SIGTERM)
        time.sleep(HURRY)
        scene.tell(pid, signal.SIGTERM)
        return f"worker {pid}"


def _about_to_write(scene: Scene, chance: Random) -> tuple[int, int | None]:
    """A job that commits its completion in a moment, and its worker: frozen now, that tries when the lease is gone."""
    job = scene.client.enqueue("completes", ms=BUSY + chance.randrange(2))  # in its transaction already, or before
    holders = eventually(lambda: _holders(scene, job), TURN)
    time.sleep(HURRY)
    return job, next(iter(holders & set(scene.workers.pids("worker"))), None)


def _holders(scene: Scene, job: int) -> set[int]:
    """Who has claimed *job*."""
    pid = scene.client.holder(job)
    return set() if pid is None else {pid}


def _runs_alone(scene: Scene, job: int) -> set[int]:
    """The process in which *job* runs alone."""
    return {
        pid
        for pid in scene.workers.pids("child")
        if any(line.job == job and line.what == "began" for line in effects(scene.folder, pid))
    }


def victim(scene: Scene, role: Role, chance: Random) -> int | None:
    """One of the processes that are *role*; waits for one to be there."""
    found = eventually(lambda: scene.workers.pids(role))
    return chance.choice(found) if found else None


def eventually(look: Callable[[], C], within: float = WAIT) -> C:
    """What *look* finds, as soon as it finds something; nothing if that takes too long."""
    until = time.monotonic() + within
    while not (found := look()) and time.monotonic() < until:
        time.sleep(LOOK)
    return found


FAULTS: tuple[Fault, ...] = (
    Kill(),
    KillKeeper(),
    KillSupervisor(),
    KillChild(),
    Host(),
    Stop(),
    StopAlone(),
    StopThenKill(),
    Term(),
)
