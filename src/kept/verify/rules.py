"""What the evidence says about the promises. Pure: records in, a report out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from kept.verify.books import Books, Deeds
from kept.verify.model import Breach, Hit, Once, Recovery, Report, Row, Slot

NS = 1_000_000_000
SHOWN = 20  # items of a breach
POISON, ONCE = "poison", "completes"
PROMISED = {POISON: ("failed", "worker_died")}  # how such a job has to end, if not as done
UNMOVED = ("holds_gil", "blocks")  # what they do to their process must not cost its lease
BEFORE = 3 * NS  # an effect may come so long before the fault that kept it from being settled
SETTLING = 10.0  # seconds for whoever takes over to get around to it on a busy machine
REPLICATION = 60 * NS  # how far back commits may be lost by a server that loses some


class Terms(Struct, frozen=True, kw_only=True):
    """What the run was set to, and how it ended."""

    seed: int
    lease: float
    scan: float
    seconds: float
    asked: tuple[str, ...] = ()  # names of the faults that were to be injected
    left_out: dict[str, str] = {}


class Evidence(Struct, frozen=True, kw_only=True):
    """All that is known when a run is over: from files, and from the database."""

    books: Books
    deeds: Deeds
    hits: Sequence[Hit]
    rows: Iterable[Row]
    once: Iterable[Once]
    slots: Sequence[Slot]


def judge(seen: Evidence, terms: Terms) -> Report:
    """The whole of it."""
    books, deeds = seen.books, seen.deeds
    found = _Findings()
    states = _jobs(seen, found)
    _ledger(seen, found)
    rows = _once(seen, found, states)
    duplicates = _duplicates(seen, terms, found)
    _order(seen, found)
    recovery = _recovery(seen, terms, found)
    due, fired, twice = _slots(seen, found)
    _hits(seen, terms, found)
    counts = books.counts()
    return Report(
        seed=terms.seed,
        seconds=terms.seconds,
        accepted=counts["committed"],
        refused=counts["refused"],
        unknown=counts["unknown"],
        done=states.by_state["done"],
        failed_by_design=states.designed,
        lost=found.lost,
        phantom=found.phantom,
        lost_with_commits=found.gone,
        effects=len(deeds.first) + sum(map(len, deeds.again.values())),
        duplicates=sum(duplicates.values()),
        duplicates_by_fault=dict(duplicates),
        zombies_refused=len(deeds.lost),
        zombies_written=found.zombies,
        once=rows,
        recovery=recovery,
        slots_due=due,
        slots_fired=fired,
        slots_twice=twice,
        faults=dict(Counter(hit.fault for hit in seen.hits if hit.victim)),
        left_out=dict(terms.left_out),
        breaches=found.breaches(),
    )


class _Findings:
    """What was found so far, by promise and sentence."""

    def __init__(self) -> None:
        self._items: dict[tuple[int, str], list[str]] = {}
        self.lost = self.phantom = self.gone = self.zombies = 0

    def add(self, promise: int, sentence: str, item: str) -> None:
        self._items.setdefault((promise, sentence), []).append(item)

    def breaches(self) -> tuple[Breach, ...]:
        return tuple(
            Breach(promise, f"{sentence} ({len(items)})" if len(items) > 1 else sentence, tuple(items[:SHOWN]))
            for (promise, sentence), items in sorted(self._items.items())
        )


class _States:
    """How the jobs ended, as the database has it."""

    def __init__(self) -> None:
        self.by_state: Counter[str] = Counter()
        self.designed = 0
        self.row: dict[int, tuple[int, int]] = {}  # of exactly-once jobs that are done: job and attempt


# --- jobs: the producers' logs against the database, and back


def _jobs(seen: Evidence, found: _Findings) -> _States:
    states = _States()
    known: dict[int, int] = {}
    for row in seen.rows:
        states.by_state[row.state] += 1
        if row.token is None:
            if row.state not in ("done", "pending", "running"):
                found.add(5, "a job of the schedule ended otherwise than done", _job(row))
            continue
        if row.token in known:
            found.add(1, "one enqueue became two jobs", f"token {row.token}: jobs {known[row.token]} and {row.id}")
        known[row.token] = row.id
        if not seen.books.may_exist(row.token):
            found.phantom += 1
            found.add(1, "a job exists whose transaction did not commit", _job(row))
        _ending(row, seen, states, found)
    _missing(known, seen, found)
    return states


def _ending(row: Row, seen: Evidence, states: _States, found: _Findings) -> None:
    assert row.token is not None
    if row.state in ("pending", "running"):
        promise = 5 if row.task == POISON else 3
        found.add(promise, "a job was not settled by the end", f"{_job(row)} is {row.state}")
    elif row.task in PROMISED:
        if (row.state, row.reason) == PROMISED[row.task]:
            states.designed += 1
        else:
            found.add(5, "a job that kills its process did not end as it should", f"{_job(row)} is {row.state}")
    elif row.state != "done":
        found.add(5, "a job failed that had done no wrong", f"{_job(row)} is {row.state}: {row.reason}")
    elif row.task == ONCE:
        states.row[row.token] = (row.id, row.attempt)
    elif row.token not in seen.deeds.first:
        found.lost += 1
        found.add(3, "a job is done, and its handler never did it", _job(row))


def _missing(known: Mapping[int, int], seen: Evidence, found: _Findings) -> None:
    for token, at in seen.books.committed():
        if token in known:
            continue
        if any(hit.loses and hit.began - REPLICATION <= at <= hit.healed for hit in seen.hits):
            found.gone += 1
        else:
            found.lost += 1
            found.add(2, "an acknowledged job is gone", f"token {token}, a {seen.books.task(token)} job")


def _ledger(seen: Evidence, found: _Findings) -> None:
    """The handlers' ledger against what producers were told."""
    for token in seen.deeds.tokens():
        if not seen.books.may_exist(token):
            found.phantom += 1
            found.add(1, "a handler ran for a transaction that did not commit", f"token {token}")


# --- exactly once, and the fence


def _once(seen: Evidence, found: _Findings, states: _States) -> int:
    rows: dict[int, list[Once]] = {}
    for row in seen.once:
        rows.setdefault(row.token, []).append(row)
    for token, written in rows.items():
        if len(written) > 1:
            found.add(8, "an effect that commits with its completion is there twice", _written(written))
        if token not in states.row:
            found.add(8, "an effect is there without its completion", _written(written))
        for each in written:
            if (token, each.attempt) in seen.deeds.lost:
                found.zombies += 1
                found.add(4, "a handler that had lost its lease wrote all the same", _written(written))
            elif token in states.row and states.row[token] != (each.job, each.attempt):
                found.zombies += 1
                found.add(4, "an effect is not that of the attempt that completed its job", _written(written))
    for token in states.row.keys() - rows.keys():
        found.lost += 1
        found.add(8, "a job is completed without the effect that commits with it", f"token {token}")
    return len(rows)


def _written(rows: Sequence[Once]) -> str:
    attempts = ", ".join(str(row.attempt) for row in rows)
    return f"job {rows[0].job}, token {rows[0].token}, by attempt {attempts}"


# --- twice


def _duplicates(seen: Evidence, terms: Terms, found: _Findings) -> Counter[str]:
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
    """The fault that kept an effect at *at* from being settled: the last that began before."""
    after = int((terms.lease + terms.scan) * NS)
    near = [hit for hit in hits if hit.victim and hit.began - BEFORE <= at <= hit.healed + after]
    return max(near, key=lambda hit: hit.began).fault if near else None


# --- order


def _order(seen: Evidence, found: _Findings) -> None:
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


def _recovery(seen: Evidence, terms: Terms, found: _Findings) -> Recovery | None:
    within = terms.lease + terms.scan
    took: list[float] = []
    for hit in seen.hits:
        for token, again in _taken_over(hit, seen.deeds):
            seconds = (again - hit.began) / NS
            took.append(seconds)
            if seconds > within + SETTLING and not _disturbed(hit, again, seen.hits):
                found.add(6, "a dead worker's job was not taken over in time", f"token {token}: {seconds:.1f} s")
    if not took:
        return None
    took.sort()
    at = [took[min(len(took) - 1, int(len(took) * share))] for share in (0.5, 0.99)]
    return Recovery(jobs=len(took), p50=at[0], p99=at[1], most=took[-1], within=within)


def _taken_over(hit: Hit, deeds: Deeds) -> Iterable[tuple[int, int]]:
    """What the dead had begun and not ended, and when somebody else began it."""
    for pid in hit.killed:
        for token in deeds.unfinished(pid):
            again = [at for at, who in deeds.starts(token) if at > hit.began and who not in hit.killed]
            if again:
                yield token, min(again)


def _disturbed(hit: Hit, until: int, hits: Sequence[Hit]) -> bool:
    """Whether another fault stood in the way meanwhile."""
    return any(other is not hit and hit.began <= other.began <= until for other in hits)


# --- slots


def _slots(seen: Evidence, found: _Findings) -> tuple[int, int, int]:
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


# --- the verification itself


def _hits(seen: Evidence, terms: Terms, found: _Findings) -> None:
    hit = {each.fault for each in seen.hits if each.victim}
    for name in terms.asked:
        if name not in hit:
            found.add(0, "a fault was asked for and never hit", name)


def _job(row: Row) -> str:
    return f"job {row.id} ({row.task}, token {row.token})"
