"""The primary dies for good, and its standby takes over.

Workers know the proxies only, which are turned to the new primary: whether they would work on an old one that is there
again is not seen here, but in tests/acceptance/test_standby.py.
"""

from __future__ import annotations

import time
from random import Random
from typing import ClassVar

from kept.verify.faults.fault import Fault, Group, Need
from kept.verify.faults.network import proxy
from kept.verify.model import Repeats
from kept.verify.proxy import Proxy
from kept.verify.replica import Pair, only_on
from kept.verify.scene import Scene
from kept.verify.server import Server

BEHIND = (0.2, 1.0)  # seconds that the standby has not heard of when it takes over
STEP = (1.0, 2.0)  # seconds that both go in step before


class Promote(Fault):
    """A standby that copies asynchronously takes over: what it had not heard of is lost, with the server's commits."""

    name: ClassVar[str] = "promote"
    group: ClassVar[Group] = "server"
    repeats: ClassVar[Repeats] = "everyone"
    needs: ClassVar[frozenset[Need]] = frozenset({"own_server", "proxy", "replica"})
    by_name_only: ClassVar[bool] = True
    loses: ClassVar[bool] = True
    in_step: ClassVar[bool] = False

    def inject(self, scene: Scene, chance: Random) -> str:
        pair: Pair = scene.extras["replica"]
        if self.in_step:
            pair.keep_in_step(on=True)
            time.sleep(chance.uniform(*STEP))
        pair.fall_silent()
        time.sleep(chance.uniform(*BEHIND))
        old = pair.fail_over()
        new = scene.server = pair.primary
        for each in (proxy(scene), self._aside(scene)):
            each.turn_to(new.url)
        scene.gone += self._lost_with(old, new, scene)
        pair.renew()
        return f"the primary; {len(scene.gone)} jobs were on it alone"

    def _lost_with(self, old: Server, new: Server, scene: Scene) -> list[int]:
        """What the old primary alone knew: it is started once more, to be asked."""
        old.start()
        gone = only_on(old, new, scene.schema)
        old.remove()
        return gone

    def _aside(self, scene: Scene) -> Proxy:
        found: Proxy = scene.extras["aside"]
        return found


class PromoteInStep(Promote):
    """A standby that copies synchronously takes over: nothing may be lost."""

    name: ClassVar[str] = "promote-sync"
    loses: ClassVar[bool] = False
    in_step: ClassVar[bool] = True


FAULTS: tuple[Fault, ...] = (Promote(), PromoteInStep())
