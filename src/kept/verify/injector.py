"""One fault after the other, in an order that the seed decides, and a log of what was done when."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from random import Random

from msgspec import structs

from kept.verify.faults.fault import Fault
from kept.verify.ledger import FAULTS, Journal, clock
from kept.verify.model import Hit
from kept.verify.scene import Scene
from kept.verify.timing import LATE

Say = Callable[[str], None]
PAUSE = (0.5, 3.0)  # seconds between two faults
REST = 2.0  # seconds, after lease and scan, in which those whom the fault before harmed are at work again
TRIES = 3  # of a fault that finds nobody to hit
EACH = 6.0  # seconds that a fault and the pause after it take, about


def sequence(faults: Sequence[Fault], chance: Random) -> Iterator[Fault]:
    """Every fault once in a drawn order, then again in another, without end."""
    while faults:
        yield from chance.sample(faults, len(faults))


class Injector:
    """Injects into one scene."""

    def __init__(self, scene: Scene, faults: Sequence[Fault], *, seed: int, seconds: float) -> None:
        self._scene = scene
        self._faults = sequence(faults, Random(f"{seed}:order"))  # noqa: S311  # to be repeated, not to be secret
        self._chance = Random(f"{seed}:victims")  # noqa: S311
        self._pauses = Random(f"{seed}:pauses")  # noqa: S311
        # A short run has short pauses: every fault is to come at least once.
        self._hurry = min(1.0, seconds / (EACH * max(1, len(faults))))
        self._journal = Journal(scene.folder / FAULTS, synced=True)
        self._vain = {fault.name: 0 for fault in faults}  # how often those that never hit anybody were tried
        self._alone: set[str] = set()  # those whose last hit was undisturbed
        self.count = 0

    @property
    def over(self) -> bool:
        """Whether every fault has hit somebody, or was tried often enough."""
        return not self._vain or min(self._vain.values()) >= TRIES

    def next(self, say: Say) -> None:
        """Inject one fault and pause; without any, only pause."""
        fault = next(self._faults, None)
        if fault is not None:
            say(fault.name)
            hit = self._inject_alone(fault) if self._is_alone(fault) else self._inject(fault)
            self._journal.write(hit)
            self.count += 1
            if hit.victim:
                self._vain.pop(fault.name, None)
            elif fault.name in self._vain:
                self._vain[fault.name] += 1
        time.sleep(self._hurry * self._pauses.uniform(*PAUSE))

    def _is_alone(self, fault: Fault) -> bool:
        """Whether nothing else is to go wrong at the time: every other time, of those that promise something."""
        if fault.promised(self._scene) is None:
            return False
        self._alone ^= {fault.name}
        return fault.name in self._alone

    def _inject_alone(self, fault: Fault) -> Hit:
        promised = fault.promised(self._scene) or 0.0
        time.sleep(self._scene.lease + self._scene.scan + REST)
        hit = self._inject(fault)
        time.sleep(promised + LATE)
        return structs.replace(hit, promised=promised)

    def _inject(self, fault: Fault) -> Hit:
        scene = self._scene
        for each in (scene.killed, scene.frozen, scene.harmed, scene.jobs, scene.gone):
            each.clear()
        scene.struck = None
        began = clock()
        victim = fault.inject(scene, self._chance)
        return Hit(
            fault=fault.name,
            group=fault.group,
            victim=victim,
            began=scene.struck or began,
            healed=clock(),
            killed=tuple(scene.killed),
            frozen=tuple(scene.frozen),
            harmed=tuple(dict.fromkeys(scene.harmed)),
            jobs=tuple(scene.jobs),
            repeats=fault.repeats,
            loses=fault.loses,
            gone=tuple(scene.gone),
        )
