"""What the evidence says about the promises. Pure: records in, a report out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from kept.verify import timing
from kept.verify.evidence import Evidence, Findings, Terms
from kept.verify.model import Once, Report, Row

__all__ = ["Evidence", "Terms", "judge"]

POISON, ONCE = "poison", "completes"
PROMISED = {POISON: ("failed", "worker_died")}  # how such a job has to end, if not as done


def judge(seen: Evidence, terms: Terms) -> Report:
    """The whole of it."""
    books, deeds = seen.books, seen.deeds
    found = Findings()
    states = _jobs(seen, found)
    _ledger(seen, found)
    rows = _once(seen, found, states)
    duplicates = timing.duplicates(seen, terms, found)
    timing.order(seen, found)
    undisturbed = timing.undisturbed(seen, found)
    due, fired, twice = timing.slots(seen, found)
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
        recovery=timing.recovery(seen),
        undisturbed=undisturbed,
        lease_and_scan=terms.lease + terms.scan,
        slots_due=due,
        slots_fired=fired,
        slots_twice=twice,
        faults=dict(Counter(hit.fault for hit in seen.hits if hit.victim)),
        left_out=dict(terms.left_out),
        breaches=found.breaches(),
    )


class _States:
    """How the jobs ended, as the database has it."""

    def __init__(self) -> None:
        self.by_state: Counter[str] = Counter()
        self.designed = 0
        self.row: dict[int, tuple[int, int]] = {}  # of exactly-once jobs that are done: job and attempt


# --- jobs: the producers' logs against the database, and back


def _jobs(seen: Evidence, found: Findings) -> _States:
    states = _States()
    known: dict[int, int] = {}
    for row in seen.rows:
        states.by_state[row.state] += 1
        if row.token is None:
            if row.state not in ("done", "pending", "running"):
                found.add(5, "a job of the schedule ended otherwise than done", _job(row))
            continue
        if known.get(row.token) == row.id:
            found.add(2, "a job is there twice", _job(row))
        elif row.token in known:
            found.add(1, "one enqueue became two jobs", f"token {row.token}: jobs {known[row.token]} and {row.id}")
        known[row.token] = row.id
        if not seen.books.may_exist(row.token):
            found.phantom += 1
            found.add(1, "a job exists whose transaction did not commit", _job(row))
        _ending(row, seen, states, found)
    _missing(known, seen, found)
    return states


def _ending(row: Row, seen: Evidence, states: _States, found: Findings) -> None:
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


def _missing(known: Mapping[int, int], seen: Evidence, found: Findings) -> None:
    gone = {token for hit in seen.hits if hit.loses for token in hit.gone}
    for token, _ in seen.books.committed():
        if token in known:
            continue
        if token in gone:
            found.gone += 1
        else:
            found.lost += 1
            found.add(2, "an acknowledged job is gone", f"token {token}, a {seen.books.task(token)} job")


def _ledger(seen: Evidence, found: Findings) -> None:
    """The handlers' ledger against what producers were told."""
    for token in seen.deeds.tokens():
        if not seen.books.may_exist(token):
            found.phantom += 1
            found.add(1, "a handler ran for a transaction that did not commit", f"token {token}")


# --- exactly once, and the fence


def _once(seen: Evidence, found: Findings, states: _States) -> int:
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


# --- the verification itself


def _hits(seen: Evidence, terms: Terms, found: Findings) -> None:
    hit = {each.fault for each in seen.hits if each.victim}
    for name in terms.asked:
        if name not in hit:
            found.add(0, "a fault was asked for and never hit", name)
    sent = seen.books.counts()
    if sent["committed"] + sent["unknown"] < terms.jobs:
        found.add(0, "a producer did not get to enqueue what it should", f"{sent['committed']} of {terms.jobs} jobs")


def _job(row: Row) -> str:
    return f"job {row.id} ({row.task}, token {row.token})"
