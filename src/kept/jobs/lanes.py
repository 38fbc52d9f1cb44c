"""What a worker remembers of its lanes: where to claim from, and how much. Pure.

A *floor* is the id below which a claim does not look: what lies there was claimed by us or seen by others.
Dead index entries pile up there while some long transaction holds its snapshot, and skipping them keeps a
claim cheap. Jobs that come back below a floor (late commits, other workers' releases) are found by the next
survey.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import inf

from kept.jobs.declaration import Declaration
from kept.jobs.model import Claimed, Lane
from kept.jobs.order import OrderBook
from kept.jobs.rows import OrderWant, Survey, Want
from kept.jobs.strides import Strides

QUICK = 0.010  # seconds: lanes whose attempts take longer are never prefetched
LATE = 0.015  # seconds a commit may come after the id was drawn and still be found by the next claim
INSTANT = 0.001  # seconds: lanes whose attempts take less gain nothing from running side by side
AHEAD = 0.020  # seconds of work to hold in hand for a quick lane
COLD_AFTER = 3  # claims in a row that found nothing


class LaneBook:
    """The lanes this worker serves."""

    def __init__(self) -> None:
        self._lanes: dict[int, Lane] = {}
        self._declared: dict[int, Declaration] = {}
        self._floors: dict[tuple[int, int], int] = {}
        self._rising: dict[
            tuple[int, int], tuple[float, int, int]
        ] = {}  # since when, the next floor, the highest claim
        self._misses: dict[tuple[int, int], int] = {}
        self._pace: dict[int, float] = {}
        self._strides = Strides()
        self.order = OrderBook()
        self.apart: frozenset[int] = frozenset()  # lanes that are claimed by themselves: ordered ones, and batches
        self._turn = 0
        self._unasked = False  # there was no room to ask a lane that had something lately
        self.exhausted = False  # the last claim brought less than it might have, wherever there may be something

    @property
    def ids(self) -> list[int]:
        return list(self._lanes)

    def lane(self, id: int) -> Lane:
        return self._lanes[id]

    def declaration(self, id: int) -> Declaration:
        return self._declared[id]

    def __contains__(self, id: int) -> bool:
        return id in self._lanes

    def serve(self, lanes: Iterable[tuple[Lane, Declaration]]) -> None:
        """These lanes and no others; what is known of those that stay is kept."""
        served = list(lanes)
        self._lanes = {lane.id: lane for lane, _ in served}
        self._declared = {lane.id: declaration for lane, declaration in served}
        for lane, _ in served:
            self._floors.setdefault((lane.id, lane.priority), 0)
        self.order.serve(lane.id for lane, _ in served if lane.ordered)
        self.apart = frozenset(lane.id for lane, declaration in served if lane.ordered or declaration.batch)
        self._floors = {entry: floor for entry, floor in self._floors.items() if entry[0] in self._lanes}
        self._rising = {entry: rise for entry, rise in self._rising.items() if entry[0] in self._lanes}
        self._strides.serve(self._lanes)

    # --- claiming

    def wants(self, idle: int, *, concurrency: int, batch: int, in_hand: Iterable[int] | None = None) -> list[Want]:
        """What to claim when *idle* slots have nothing to do (negative: jobs wait in hand already).

        Higher priorities first; lanes of one priority take turns. A lane that had nothing lately comes after all
        others, however high its priority, and is asked for one job only. Slow lanes together are asked for no more
        than there is room for: idle slots, or, given the lanes of the jobs *in hand*, also the slots of quick ones,
        which will be free in a moment; without that a backlog of quick jobs would keep slow ones waiting for as long
        as it lasts.
        """
        self._turn += 1
        entries = self._in_turn(hot=True) + self._in_turn(hot=False)
        ahead = {lane: self.prefetch(lane, concurrency, batch) for lane in self._lanes}
        hot = sum(1 for entry in entries if self._is_hot(entry) and not ahead[entry[0]])
        room = idle if in_hand is None else concurrency - sum(not ahead.get(lane) for lane in in_hand)
        left = room if any(ahead.values()) else len(entries) * batch  # else `most` is limit enough
        wants: list[Want] = []
        self._unasked = False
        for entry in entries:
            quick = ahead[entry[0]]
            want = min(batch, idle + quick) if quick else min(left, self._want(entry, room, hot))
            if want > 0:
                ours = self._strides.next(entry, min(want, max(0, batch - sum(each.want for each in wants))), batch)
                wants.append(Want(*entry, want, self._floors[entry] if ours is None else ours, ours is not None))
                left -= 0 if quick else want
            elif self._is_hot(entry):
                self._unasked = True
        return wants

    def early_want(self, entry: tuple[int, int], idle: int, concurrency: int, batch: int, *, deep: bool) -> Want | None:
        """What to claim on a hint at *entry*, before anybody has had a look at the others; *deep*: from the bottom."""
        if entry[0] not in self._lanes or entry[0] in self.apart:
            return None
        want = min(batch, idle + self.prefetch(entry[0], concurrency, batch))
        return Want(*entry, want, 0 if deep else self._floors.get(entry, 0))

    def _in_turn(self, *, hot: bool) -> list[tuple[int, int]]:
        """Entries that had something lately, or had not: by priority; within one, another is first each time."""
        entries = [entry for entry in self._floors if self._is_hot(entry) is hot and entry[0] not in self.apart]
        return _rotated_within_priority(sorted(entries, key=lambda entry: -entry[1]), self._turn)

    def most(self, idle: int, *, concurrency: int, batch: int) -> int:
        """The most jobs one claim may bring."""
        lanes = (lane for lane in self._lanes if lane not in self.apart)
        ahead = max((self.prefetch(lane, concurrency, batch) for lane in lanes), default=0)
        return max(0, min(batch, idle + ahead))

    @property
    def batched(self) -> list[int]:
        """Lanes whose jobs are run in batches."""
        return [lane for lane in self.apart if self._declared[lane].batch]

    def order_wants(
        self, idle: int, room: Mapping[int, int], *, concurrency: int, batch: int, in_hand: Iterable[int]
    ) -> list[OrderWant]:
        """What to claim of ordered lanes, given the lanes of the jobs *in hand* and the *room* of those with batches.

        As with other lanes: those that take long get no more than there are slots for, and one job of a key at a time;
        of those that are over in no time some are held in hand, and a key brings what stands behind its head.
        """
        lanes, held = self.order.in_turn(), Counter(in_hand)
        ahead = {lane: self.prefetch(lane, concurrency, batch) for lane in self._lanes}
        left = concurrency - sum(count for lane, count in held.items() if not ahead.get(lane))
        slow = sum(1 for lane in lanes if not ahead[lane] and lane not in room)
        share = -(-left // slow) if slow else 0
        wants = []
        for lane in lanes:
            reach = 1
            if lane in room:
                want, reach = room[lane], min(room[lane], self._declared[lane].batch)
            elif ahead[lane]:
                want = min(batch, ahead[lane] + max(0, idle) - held[lane]) if left > 0 else 0
                reach = min(want, self.order.reach(lane))
            else:
                want = min(left, share)
                left -= max(0, want)
            if want > 0:
                wants.append(OrderWant(lane, want, want, reach, self.order.after(lane)))
        return wants

    def batch_wants(self, room: Mapping[int, int]) -> list[Want]:
        """What to claim of lanes whose jobs are run in batches, given the *room* for each; but not of ordered ones."""
        return [
            Want(*entry, room[entry[0]], floor)
            for entry, floor in self._floors.items()
            if room.get(entry[0], 0) > 0 and entry[0] not in self.order and self._is_hot(entry)
        ]

    def prefetch(self, lane: int, concurrency: int, batch: int) -> int:
        """Jobs to hold in hand beyond the free slots: only where attempts take milliseconds.

        Up to three batches: one that is worked on, one to be read, one on its way.
        """
        pace = self._pace.get(lane)
        if pace is None or pace > QUICK:
            return 0
        return min(3 * batch, int(concurrency * AHEAD / max(pace, 1e-6)))

    def claimed(self, wants: Collection[Want], jobs: Collection[Claimed], now: float, most: float = inf) -> None:
        """Go on from what a claim of at most *most* jobs brought by *now*."""
        met = self.brought(wants, jobs, now)
        if len(jobs) < most and self._stop_striding(wants, jobs):
            met = False  # there may be more below
        asked = {(want.lane, want.priority) for want in wants}
        unasked = (entry for entry in self._floors if entry not in asked and entry[0] not in self.apart)
        self.exhausted = bool(wants) and not self._unasked and met and not any(map(self._is_hot, unasked))

    def brought(self, wants: Collection[Want], jobs: Iterable[Claimed], now: float) -> bool:
        """Raise the floors over what was brought; remember which entries had nothing. Whether all gave all they had."""
        highest: dict[tuple[int, int], int] = {}
        brought: Counter[tuple[int, int]] = Counter()
        for job in jobs:
            entry = (job.lane, job.priority)
            brought[entry] += 1
            if job.id >= highest.get(entry, 0):
                highest[entry] = job.id
        striding = {want[:2] for want in wants if want.strides}
        for entry, id in highest.items():
            if entry[0] in self._lanes and entry not in striding:  # what strides pass over is above the floor
                self._raise(entry, id + 1, now)
        for want in wants:
            entry = (want.lane, want.priority)
            self._misses[entry] = 0 if entry in highest or entry in striding else self._misses.get(entry, 0) + 1
            if brought[entry] == want.want:
                self._strides.gave_all(entry, want.want, highest[entry])
        return all(brought[want.lane, want.priority] < want.want for want in wants)

    def _stop_striding(self, wants: Collection[Want], jobs: Iterable[Claimed]) -> bool:
        """Where strides brought less than was asked for, what they passed over comes next; whether there are such."""
        brought = Counter((job.lane, job.priority) for job in jobs)
        short = [want[:2] for want in wants if want.strides and brought[want[:2]] < want.want]
        for entry in short:
            self._strides.stop(entry)
        return bool(short)

    def _raise(self, entry: tuple[int, int], floor: int, now: float) -> None:
        """A floor follows the claims at a distance: ids are drawn before they are committed, not always in turn."""
        self._floors.setdefault(entry, 0)
        since, coming, top = self._rising.get(entry, (now, 0, 0))
        top = max(top, floor)
        if now - since >= LATE:
            self._floors[entry] = max(self._floors[entry], coming)
            since, coming = now, top
        self._rising[entry] = (since, coming, top)

    def finished(self, lane: int, seconds: Sequence[float]) -> None:
        """Attempts took this long: a slow one is believed at once, quickness has to be shown repeatedly."""
        pace, slowest = self._pace.get(lane, 2 * QUICK), max(seconds)
        if slowest <= QUICK:
            mean = sum(seconds) / len(seconds)
            slowest = mean + (pace - mean) * 0.95 ** len(seconds)
        self._pace[lane] = slowest

    def is_quick(self, lane: int) -> bool:
        """Whether attempts of this lane are over in no time."""
        return self._pace.get(lane, QUICK) < INSTANT

    # --- news from elsewhere

    def surveyed(self, survey: Survey, *, bottom: bool) -> None:
        """Take over what a survey saw; after a look below the floors, unused priorities are forgotten."""
        if bottom:
            used = {(lane.id, lane.priority) for lane in self._lanes.values()} | set(survey.ready)
            # A hot one may have been heard of after the survey looked.
            self._floors = {
                entry: floor for entry, floor in self._floors.items() if entry in used or self._is_hot(entry)
            }
            self._rising = {entry: rise for entry, rise in self._rising.items() if entry in self._floors}
        self._strides.stand(*survey.peers)
        for entry, id in survey.ready.items():
            if self._strides.are_left(entry, id):
                self.lower(entry, id)
            elif entry in self._floors:  # that is how far our peers are
                self._floors[entry] = max(id, self._floors[entry])
        for entry, id in survey.promoted.items():
            self.lower(entry, id)

    def lower(self, entry: tuple[int, int], id: int = 0) -> None:
        """There may be work at *id* (by default: anywhere) in this lane and priority."""
        if entry[0] in self._lanes:
            self.order.hint(entry[0])
            self._floors[entry] = min(id, self._floors.get(entry, id))
            self._rising.pop(entry, None)
            self._strides.stop(entry)
            self._misses[entry] = 0

    def hinted(self, entry: tuple[int, int], *, deep: bool) -> None:
        """Somebody says there is work here; *deep*: look for it below the floor too."""
        if entry[0] in self._lanes:
            self.order.hint(entry[0])
            if deep:
                self._rising.pop(entry, None)
                self._strides.stop(entry)
            self._floors[entry] = 0 if deep else self._floors.get(entry, 0)
            self._misses[entry] = 0

    def _is_hot(self, entry: tuple[int, int]) -> bool:
        return self._misses.get(entry, COLD_AFTER) < COLD_AFTER

    def _want(self, entry: tuple[int, int], room: int, hot: int) -> int:
        """What to ask of a slow lane: those that had something lately share the room."""
        if room <= 0:
            return 0
        return -(-room // hot) if self._is_hot(entry) else 1


def _rotated_within_priority(entries: list[tuple[int, int]], turn: int) -> list[tuple[int, int]]:
    """*entries*, sorted by priority, with each run of one priority beginning at another place every turn."""
    rotated: list[tuple[int, int]] = []
    run: list[tuple[int, int]] = []
    for entry in entries:
        if run and entry[1] != run[0][1]:
            rotated += _rotated(run, turn)
            run = []
        run.append(entry)
    return rotated + _rotated(run, turn)


def _rotated(run: list[tuple[int, int]], turn: int) -> list[tuple[int, int]]:
    at = turn % len(run) if run else 0
    return run[at:] + run[:at]
