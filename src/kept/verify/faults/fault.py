"""What a fault is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from random import Random
from typing import ClassVar, Literal

from kept.verify.model import Repeats
from kept.verify.scene import Scene

Group = Literal["worker", "handler", "server", "network", "clock"]
Need = Literal["own_server", "proxy", "disk", "replica", "pooler", "clear", "several"]


class Fault(ABC):
    """Something that goes wrong and is put right again, against a scene at work.

    Long enough to matter, short enough to be followed by the next: a few seconds.
    """

    name: ClassVar[str]
    group: ClassVar[Group]
    # What the scene must have been set up with; "clear" is a connection on which one can read what is said, "several"
    # are workers under a supervisor.
    needs: ClassVar[frozenset[Need]] = frozenset()
    by_name_only: ClassVar[bool] = False  # not part of a run that names no faults
    loses: ClassVar[bool] = False  # the server may lose commits that it has confirmed
    repeats: ClassVar[Repeats]  # whose jobs may run a second time because of it: for each fault to say

    def missing(self) -> str | None:
        """Why this cannot be done on this machine, if it cannot: a sentence for the report."""
        return None

    def promised(self, scene: Scene) -> float | None:  # noqa: ARG002  # most promise nothing
        """Within how many seconds the jobs of those it kills begin elsewhere, if nothing else goes wrong."""
        return None

    @abstractmethod
    def inject(self, scene: Scene, chance: Random) -> str:
        """Do it, and return when it is healed; the text names the victim.

        Whatever is drawn is drawn from *chance*. Processes that it kills or freezes go through ``scene.kill`` and
        ``scene.freeze``, which write down who and when.
        """
