"""Which faults can have had a job run a second time: when each struck, and whom. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from kept.verify.books import Deeds
from kept.verify.evidence import Terms
from kept.verify.model import Hit, Moment

NS = 1_000_000_000
BEFORE = 3 * NS  # an effect may come so long before the fault that kept it from being settled
AFTER = 60.0  # seconds in which what was begun because of it is begun, however many wait for their turn before it
BEYOND = 1.0  # seconds that a handler may go on for, longer than a lease lasts
RENEWED = 1.0  # seconds since which a lease may not have been renewed, though all is well


class Cause(Struct, frozen=True, kw_only=True):
    """One fault, and those whose work may be repeated because of it."""

    fault: str
    began: int
    healed: int
    until: int  # what is begun later than this may not be lost because of it
    pids: frozenset[int] | None = None  # None: whoever works there
    frozen: frozenset[int] = frozenset()  # of them, those that were frozen: they go on late, with what they had in hand
    shows: int = 0  # not before this moment: a lease has to run out first
    job: int | None = None  # that killed its process, if that is what happened

    def concerns(self, one: Moment) -> bool:
        """Whether what this process did at this moment may be lost to its job."""
        at, pid = one
        return self.began - BEFORE <= at <= self.until and (self.pids is None or pid in self.pids)

    def explains(self, one: Moment, other: Moment) -> bool:
        """Whether an effect may have come after another because of it.

        Either of them was made by somebody whom it struck: who died did not settle his, who was frozen makes it late.
        """
        struck = self.pids is None or one[1] in self.pids or other[1] in self.pids
        return struck and self.began - BEFORE <= one[0] <= self.until and self._is_early_enough_for(other)

    def spans(self, one: Moment, other: Moment) -> bool:
        """Whether a job that was begun may have been begun once more because of it.

        By others, for who was struck did not end it; or, late, by one who was frozen when others took it over.
        """
        struck = self.pids is None or one[1] in self.pids
        late = other[1] in self.frozen and self.began <= one[0]
        return (struck or late) and one[0] <= self.until and self._is_early_enough_for(other)

    def _is_early_enough_for(self, other: Moment) -> bool:
        """Whether something may have been begun again, then, because of it: neither before it nor for ever after."""
        return max(self.began, self.shows) <= other[0] <= self.until + int(AFTER * NS)

    def distance(self, at: int) -> int:
        """How far away it was."""
        return max(self.began - at, at - self.healed, 0)


def causes(hits: Iterable[Hit], deeds: Deeds, terms: Terms) -> list[Cause]:
    """What can explain that something ran twice."""
    able = [hit for hit in hits if _struck(hit) and hit.repeats != "nobody"]
    return [cause for hit in able for cause in _causes(hit, deeds, terms)]


def _causes(hit: Hit, deeds: Deeds, terms: Terms) -> Iterator[Cause]:
    """Of a hit whose jobs do the harm, each death that they cause; and what was done to processes beside that."""
    if hit.jobs:
        yield from _deaths(hit, deeds, terms)
    if hit.killed or hit.frozen or hit.harmed or not hit.jobs:
        yield from _strike(hit, deeds, terms)


def _struck(hit: Hit) -> bool:
    """Whether it did anything; what could not be seen through to its end may have."""
    return bool(hit.victim or hit.killed or hit.frozen or hit.harmed or hit.jobs)


def _deaths(hit: Hit, deeds: Deeds, terms: Terms) -> Iterator[Cause]:
    """Jobs that end their process: each time that one of them begins, in vain, is a death of its own."""
    for job, (at, pid) in deeds.vain(hit.jobs):
        until = at + int((terms.lease + terms.scan) * NS)
        yield Cause(fault=hit.fault, began=at, healed=at, until=until, pids=deeds.family([pid]), job=job)


def _strike(hit: Hit, deeds: Deeds, terms: Terms) -> Iterator[Cause]:
    starved = hit.repeats in ("starved", "whoever starves")
    anybody = hit.repeats in ("everyone", "whoever starves")
    gone = terms.lease + terms.scan
    yield Cause(
        fault=hit.fault,
        began=hit.began,
        healed=hit.healed,
        # Who lives on without a lease ends what he has begun, and that may take longer than a lease.
        until=hit.healed + int((gone + terms.lease + BEYOND if starved else gone) * NS),
        pids=None if anybody else deeds.family((*hit.killed, *hit.frozen, *hit.harmed)),
        frozen=deeds.family(hit.frozen),
        shows=hit.began + int((terms.lease - RENEWED) * NS) if starved else 0,
    )


def nearest(found: Iterable[Cause], at: int) -> str | None:
    """The name of the cause that was nearest to *at*, if there is one."""
    by_distance = min(found, key=lambda cause: cause.distance(at), default=None)
    return None if by_distance is None else by_distance.fault
