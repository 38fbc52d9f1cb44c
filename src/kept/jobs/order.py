"""Where a worker is in its ordered lanes: which key it looked at last, whether to look again, how far to reach. Pure.

A *sweep* goes over the keys of a lane from the first to the last, a part of it with each claim. A lane is left alone
after a sweep that found nothing, until somebody says that there is something.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from msgspec import Struct

from kept.jobs.rows import Ordered, OrderWant

LOOKS = 1000  # keys of a lane that one claim looks at, at most
SELDOM = 20  # times what a sweep takes, before another that nobody asked for
LATEST = 10.0  # seconds, but not longer: a sweep may have taken long because an answer was late


class Place(Struct, eq=False):
    """What is known of one lane."""

    after: str = ""  # the key looked at last; empty: a sweep begins
    looking: bool = True  # there may be something
    again: bool = False  # this sweep found something, or somebody says that there is more: another one is to follow
    reach: int = 1  # jobs to claim of one key
    cost: float = 0.0  # seconds that the sweep under way, or the last one, took
    ended: float = 0.0


class OrderBook:
    """The ordered lanes this worker serves."""

    def __init__(self) -> None:
        self._places: dict[int, Place] = {}
        self._turn = 0
        self._passed_over = False

    def __contains__(self, lane: int) -> bool:
        return lane in self._places

    def serve(self, lanes: Iterable[int]) -> None:
        """These lanes and no others."""
        self._places = {lane: self._places.get(lane) or Place() for lane in lanes}

    @property
    def looking(self) -> bool:
        """Whether there may be something in some lane."""
        return any(place.looking for place in self._places.values())

    def in_turn(self) -> list[int]:
        """Lanes in which there may be something; another one is first each time."""
        self._turn += 1
        lanes = [lane for lane, place in self._places.items() if place.looking]
        at = self._turn % len(lanes) if lanes else 0
        return lanes[at:] + lanes[:at]

    def passed_over(self) -> None:
        """Other lanes took slots."""
        self._passed_over = True

    @property
    def comes_first(self) -> bool:
        """Whether idle slots are for ordered lanes this time: if others took them last time."""
        return self._passed_over and self.looking

    def after(self, lane: int) -> str:
        return self._places[lane].after

    def reach(self, lane: int) -> int:
        return self._places[lane].reach

    def hint(self, lane: int) -> None:
        """There may be something anywhere in this lane."""
        place = self._places.get(lane)
        if place is not None:
            place.looking = place.again = True

    def look(self, now: float) -> None:
        """Nobody said anything for a while. Wake-ups get lost, so look; seldom where a look takes long."""
        for place in self._places.values():
            if not place.looking and now - place.ended >= min(LATEST, SELDOM * place.cost):
                place.looking, place.cost = True, 0.0

    def cut_short(self, lane: int) -> None:
        """A run ended before its last job: what was claimed with it was claimed in vain."""
        place = self._places.get(lane)
        if place is not None:
            place.reach = max(1, place.reach // 2)

    def claimed(self, wants: Sequence[OrderWant], brought: Ordered, now: float, seconds: float) -> None:
        """Go on from what a claim of *seconds* brought by *now*."""
        self._passed_over = False
        keys: dict[int, list[str]] = {want.lane: [] for want in wants}
        for job in brought.claimed:
            keys[job.lane].append(job.order_key or "")
        for want in wants:
            place = self._places.get(want.lane)
            if place is not None:
                place.cost += seconds / len(wants)
                self._went_on(place, want, keys[want.lane], brought, now)

    def _went_on(self, place: Place, want: OrderWant, keys: Collection[str], brought: Ordered, now: float) -> None:
        looked = brought.looked.get(want.lane)
        if keys:
            place.again = True
            place.reach = min(2 * place.reach, max(want.want, place.reach))
        if len(keys) >= want.want:
            place.after = max(keys)
        elif looked is not None and (looked.keys >= LOOKS or looked.free >= want.keys):
            place.after = looked.last
        else:
            place.after = ""
            place.looking, place.again, place.ended = place.again, False, now
            if place.looking:
                place.cost = 0.0
