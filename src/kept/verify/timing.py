"""What the moments say: what ran twice, out of order, or too late. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from kept.verify.books import Deeds
from kept.verify.causes import NS, Cause, nearest
from kept.verify.evidence import Evidence, Findings
from kept.verify.model import Hit, Moment, Recovery

UNMOVED = ("holds_gil", "blocks")  # what they do to their process must not cost its lease
# Jobs that end their process, or outstay their time: after how many seconds, at least, that may have them begun again.
# What outstays it may be late to say that it began, but is tried again no sooner than its policy says.
RESTARTING = {"poison": 0.0, "exits": 0.0, "overstays": 0.05}
NOTHING = (0, 0)
LATE, LATE_MOSTLY = 5.0, 2.0  # seconds for whoever takes over to get around to it, on a machine that is this busy
# … but for most no longer than was promised: a keeper that tells nobody would pass for one that is slow.
ENOUGH = 3  # jobs taken over, to say what is true of most
TOO_LATE = "a dead worker's job was not taken over in time"


# --- twice


def duplicates(seen: Evidence, causes: Sequence[Cause], found: Findings) -> Counter[str]:
    """Effects beyond the first of their job, by the fault that explains them."""
    by_fault: Counter[str] = Counter()
    for token, one, other in seen.deeds.repeated():
        fault = nearest((cause for cause in causes if cause.explains(one, other)), one[0])
        by_fault[fault or "unexplained"] += 1
        if fault is None:
            task = seen.books.task(token)
            promise = 7 if task in UNMOVED else 3
            found.add(promise, "a job ran twice, and no fault explains it", f"token {token}, a {task} job")
    return by_fault


def restarts(seen: Evidence, causes: Sequence[Cause], found: Findings) -> None:
    """What was begun and did not fail is begun again only because of a fault; that it holds up its process is none."""
    for token, one, other in seen.deeds.restarted():
        task = seen.books.task(token)
        if not _restarts(task, one, other) and not any(cause.spans(one, other) for cause in causes):
            item = f"token {token}, a {task} job"
            if task in UNMOVED:
                found.add(7, "a job that holds up its process was begun again", item)
            else:
                found.add(3, "a job was begun twice, and no fault explains it", item)


def _restarts(task: str, one: Moment, other: Moment) -> bool:
    """Whether it is in the nature of such a job to be begun again, by then."""
    after = RESTARTING.get(task)
    return after is not None and other[0] - one[0] >= after * NS


# --- order


def order(seen: Evidence, found: Findings) -> None:
    """Of one key, whose commits came one after the other: none begins before the one in front has had its effect."""
    for key, tokens in seen.books.orders().items():
        done, last = 0, 0
        for token in tokens:
            began = seen.deeds.began.get(token)
            if began is not None and began < done:
                found.add(3, "jobs of one order key ran out of order", f"key {key}: token {token} before {last}")
            effect, _ = seen.deeds.first.get(token, NOTHING)
            if effect > done:
                done, last = effect, token


# --- recovery


def recovery(seen: Evidence) -> dict[str, Recovery]:
    """How long it took until what the dead had begun was begun elsewhere, by fault."""
    return _by_fault(seen.hits, seen.deeds)


def undisturbed(seen: Evidence, found: Findings) -> dict[str, Recovery]:
    """:func:`recovery` where nothing else went wrong: there it is held against the promise."""
    promised = {hit.fault: hit.promised for hit in seen.hits if hit.promised is not None}
    alone = [hit for hit in seen.hits if hit.promised is not None]
    for hit in alone:
        for token, seconds in _taken_over(hit, seen.deeds):
            if seconds > promised[hit.fault] + LATE:
                found.add(6, TOO_LATE, f"token {token}, after {hit.fault}: {seconds:.1f} s")
    took = _by_fault(alone, seen.deeds)
    for fault, each in took.items():
        if each.jobs >= ENOUGH and each.p50 > promised[fault] + min(LATE_MOSTLY, promised[fault]):
            found.add(6, TOO_LATE, f"most, after {fault}: {each.p50:.1f} s")
    return took


def _by_fault(hits: Iterable[Hit], deeds: Deeds) -> dict[str, Recovery]:
    took: dict[str, list[float]] = {}
    for hit in hits:
        for _, seconds in _taken_over(hit, deeds):
            took.setdefault(hit.fault, []).append(seconds)
    return {fault: _spread(sorted(each)) for fault, each in took.items()}


def _spread(took: Sequence[float]) -> Recovery:
    last = len(took) - 1
    return Recovery(jobs=len(took), p50=took[last // 2], p99=took[min(last, int(len(took) * 0.99))], most=took[-1])


def _taken_over(hit: Hit, deeds: Deeds) -> Iterator[tuple[int, float]]:
    """What the dead had begun and not ended, and after how many seconds somebody else began it."""
    for pid in hit.killed:
        for token in deeds.unfinished(pid, hit.began):
            again = [at for at, who in deeds.starts(token) if at > hit.began and who not in hit.killed]
            if again:
                yield token, (min(again) - hit.began) / NS
