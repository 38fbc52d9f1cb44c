"""What the moments say: what ran twice, out of order, too late, and which slots fired. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from kept.verify.books import Deeds
from kept.verify.evidence import Evidence, Findings, Terms
from kept.verify.model import Hit, Recovery

NS = 1_000_000_000
UNMOVED = ("holds_gil", "blocks")  # what they do to their process must not cost its lease
BEFORE = 3 * NS  # an effect may come so long before the fault that kept it from being settled
LATE, LATE_MOSTLY = 5.0, 1.0  # seconds for whoever takes over to get around to it, on a machine that is this busy
ENOUGH = 5  # jobs taken over, to say what is true of most
TOO_LATE = "a dead worker's job was not taken over in time"


# --- twice


def duplicates(seen: Evidence, terms: Terms, found: Findings) -> Counter[str]:
    """Effects beyond the first of their job, by the fault that explains them."""
    by_fault: Counter[str] = Counter()
    for token, at in seen.deeds.repeated():
        fault = _cause(at, seen.hits, terms)
        by_fault[fault or "unexplained"] += 1
        if fault is None:
            task = seen.books.task(token)
            promise = 7 if task in UNMOVED else 3
            found.add(promise, "a job ran twice, and no fault explains it", f"token {token}, a {task} job")
    return by_fault


def _cause(at: int, hits: Sequence[Hit], terms: Terms) -> str | None:
    """The fault that kept an effect at *at* from being settled: the nearest, if one is near enough."""
    after = int((terms.lease + terms.scan) * NS)
    near = [hit for hit in hits if hit.victim and hit.began - BEFORE <= at <= hit.healed + after]
    return min(near, key=lambda hit: max(hit.began - at, at - hit.healed, 0)).fault if near else None


# --- order


def order(seen: Evidence, found: Findings) -> None:
    """Of one key, whose commits came one after the other: none begins before the one in front has had its effect."""
    for key, tokens in seen.books.orders().items():
        done, last = 0, 0
        for token in tokens:
            began = seen.deeds.began.get(token)
            if began is not None and began < done:
                found.add(3, "jobs of one order key ran out of order", f"key {key}: token {token} before {last}")
            effect = seen.deeds.first.get(token, 0)
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
        if each.jobs >= ENOUGH and each.p50 > promised[fault] + LATE_MOSTLY:
            found.add(6, TOO_LATE, f"most, after {fault}: {each.p50:.1f} s")
    return took


def _by_fault(hits: Iterable[Hit], deeds: Deeds) -> dict[str, Recovery]:
    took: dict[str, list[float]] = {}
    for hit in hits:
        for _, seconds in _taken_over(hit, deeds):
            took.setdefault(hit.fault, []).append(seconds)
    return {fault: _spread(sorted(each)) for fault, each in took.items()}


def _spread(took: Sequence[float]) -> Recovery:
    p50, p99 = (took[min(len(took) - 1, int(len(took) * share))] for share in (0.5, 0.99))
    return Recovery(jobs=len(took), p50=p50, p99=p99, most=took[-1])


def _taken_over(hit: Hit, deeds: Deeds) -> Iterator[tuple[int, float]]:
    """What the dead had begun and not ended, and after how many seconds somebody else began it."""
    for pid in hit.killed:
        for token in deeds.unfinished(pid, hit.began):
            again = [at for at, who in deeds.starts(token) if at > hit.began and who not in hit.killed]
            if again:
                yield token, (min(again) - hit.began) / NS


# --- slots


def slots(seen: Evidence, found: Findings) -> tuple[int, int, int]:
    """How many slots were due, how many fired, how many twice."""
    fired: dict[int, set[int]] = {}
    for slot in seen.slots:
        if slot.job is not None:
            fired.setdefault(slot.slot, set()).add(slot.job)
    recorded = set().union(*fired.values()) if fired else set()
    for moment, jobs in seen.deeds.slots.items():
        fired.setdefault(moment, set()).update(jobs)
    if not fired:
        return 0, 0, 0
    due = max(fired) - min(fired) + 1
    twice = [moment for moment, jobs in fired.items() if len(jobs) > 1]
    if not any(hit.loses for hit in seen.hits):  # a server that forgets a slot has it fired again
        for moment in twice:
            found.add(9, "a slot fired twice", f"{moment}: jobs {', '.join(map(str, sorted(fired[moment])))}")
        for moment in sorted(set(range(min(fired), max(fired))) - fired.keys()):
            found.add(9, "a slot did not fire", str(moment))
        for jobs in seen.deeds.slots.values():
            for job in jobs - recorded:
                found.add(9, "a job of the schedule ran that no slot became", f"job {job}")
    return due, len(fired), len(twice)
