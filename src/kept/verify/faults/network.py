"""The network between Kept and PostgreSQL: slow, broken around a commit, silent, or gone on one side only."""

from __future__ import annotations

import time
from abc import abstractmethod
from random import Random
from typing import ClassVar

from kept.verify import pooler
from kept.verify.conditions import (
    Blackhole,
    Condition,
    HalfOpen,
    ResetAfterCommit,
    ResetBeforeCommit,
    Slow,
    Trickle,
)
from kept.verify.faults.fault import Fault, Group, Need
from kept.verify.model import Repeats
from kept.verify.proxy import Proxy
from kept.verify.scene import Scene

LATENCY = (0.02, 0.25)  # seconds each way
SHORT, LOOK = (1.5, 3.0), 0.1  # seconds a condition lasts, and between looks
HITS = 5  # connections that break around a commit, at least, if there are that many within LONGEST
EVERY, LONGEST = 20, 15.0


def proxy(scene: Scene) -> Proxy:
    """The proxy, which is there: the fault said that it needs one."""
    assert scene.proxy is not None
    return scene.proxy


def _connections(count: int) -> str:
    """Whom it hit: nobody, if there was no connection."""
    return f"{count} connections" if count else ""


class _OnNetwork(Fault):
    group: ClassVar[Group] = "network"
    repeats: ClassVar[Repeats] = "whoever starves"
    needs: ClassVar[frozenset[Need]] = frozenset({"proxy"})

    def inject(self, scene: Scene, chance: Random) -> str:
        condition = self.condition(chance)
        concerned = proxy(scene).connections
        with proxy(scene).under(condition):
            time.sleep(self.lasts(scene, chance))
        return _connections(concerned)

    @abstractmethod
    def condition(self, chance: Random) -> Condition:
        """What the network is like."""

    def lasts(self, scene: Scene, chance: Random) -> float:  # noqa: ARG002  # those that outlast a lease ask for it
        """For how many seconds."""
        return chance.uniform(*SHORT)


class Latency(_OnNetwork):
    """Every packet is late."""

    name: ClassVar[str] = "latency"
    repeats: ClassVar[Repeats] = "nobody"  # for less than a lease, and renewals get through

    def condition(self, chance: Random) -> Condition:
        return Slow(chance.uniform(*LATENCY))


class Crumbs(_OnNetwork):
    """Everything arrives byte by byte."""

    name: ClassVar[str] = "trickle"

    def inject(self, scene: Scene, chance: Random) -> str:
        condition, concerned = Trickle(), proxy(scene).connections
        with proxy(scene).under(condition):
            time.sleep(self.lasts(scene, chance))
            condition.stop()
        return _connections(concerned)

    def condition(self, chance: Random) -> Condition:  # noqa: ARG002  # there is one
        return Trickle()


class Vanish(_OnNetwork):
    """Nothing arrives any more and nobody is told, for shorter or longer than a lease."""

    name: ClassVar[str] = "blackhole"

    def condition(self, chance: Random) -> Condition:  # noqa: ARG002  # there is one
        return Blackhole()

    def lasts(self, scene: Scene, chance: Random) -> float:
        return scene.lease * chance.uniform(0.3, 1.7)


class HalfGone(Vanish):
    """The server's side of a connection is gone, and the client waits."""

    name: ClassVar[str] = "half-open"

    def condition(self, chance: Random) -> Condition:  # noqa: ARG002  # there is one
        return HalfOpen()


class Cut(_OnNetwork):
    """Every connection breaks, wherever it stands."""

    name: ClassVar[str] = "reset"

    def inject(self, scene: Scene, chance: Random) -> str:  # noqa: ARG002  # nobody is left out
        concerned = proxy(scene).connections
        proxy(scene).cut()
        return _connections(concerned)

    def condition(self, chance: Random) -> Condition:
        raise NotImplementedError


class BeforeCommit(_OnNetwork):
    """Connections break just before what they ask for is committed: it never was."""

    name: ClassVar[str] = "reset-before-commit"
    needs: ClassVar[frozenset[Need]] = frozenset({"proxy", "clear"})

    def inject(self, scene: Scene, chance: Random) -> str:
        condition = self.condition(chance)
        until = time.monotonic() + LONGEST
        with proxy(scene).under(condition):
            while condition.hits < HITS and time.monotonic() < until:
                time.sleep(LOOK)
        return f"{condition.hits} commits" if condition.hits else ""

    def condition(self, chance: Random) -> ResetBeforeCommit | ResetAfterCommit:
        return ResetBeforeCommit(Random(chance.random()), EVERY)  # noqa: S311  # to be repeated


class AfterCommit(BeforeCommit):
    """Connections break when what they asked for is committed, and before they hear of it."""

    name: ClassVar[str] = "reset-after-commit"

    def condition(self, chance: Random) -> ResetBeforeCommit | ResetAfterCommit:
        return ResetAfterCommit(Random(chance.random()), EVERY)  # noqa: S311  # to be repeated


class KillPooler(_OnNetwork):
    """Everybody works through pgbouncer in transaction mode, and it dies.

    It reaches the server over TCP and not over a socket, which only the server's owner may open: so it needs the proxy.
    """

    name: ClassVar[str] = "pgbouncer"
    needs: ClassVar[frozenset[Need]] = frozenset({"own_server", "proxy", "pooler"})
    by_name_only: ClassVar[bool] = True

    def missing(self) -> str | None:
        return pooler.missing()

    def inject(self, scene: Scene, chance: Random) -> str:
        found: pooler.Pooler = scene.extras["pooler"]
        found.kill()
        time.sleep(chance.uniform(0, 1))
        found.start()
        return "pgbouncer"

    def condition(self, chance: Random) -> Condition:
        raise NotImplementedError


FAULTS: tuple[Fault, ...] = (
    Latency(),
    Crumbs(),
    Vanish(),
    HalfGone(),
    Cut(),
    BeforeCommit(),
    AfterCommit(),
    KillPooler(),
)
