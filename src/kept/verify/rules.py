"""What the evidence says about the promises. Pure: records in, a report out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from kept.verify import timing
from kept.verify.causes import Cause, causes
from kept.verify.evidence import Evidence, Findings, Terms
from kept.verify.model import POISON_ATTEMPTS, UNSETTLED, Once, Report, Row
from kept.verify.slots import slots

__all__ = ["Evidence", "Terms", "judge"]

POISON = "poison"
ONCE = ("completes", "overstays")  # that commit their effect together with their completion
PROMISED = {POISON: ("failed", "worker_died")}  # how such a job has to end, if not as done


def judge(seen: Evidence, terms: Terms) -> Report:
    """The whole of it."""
    books, deeds = seen.books, seen.deeds
    found = Findings()
    blamed = causes(seen.hits, deeds, terms)
    states = _jobs(seen, blamed, found)
    _ledger(seen, states, found)
    rows = _once(seen, found, states)
    duplicates = timing.duplicates(seen, blamed, found)
    timing.restarts(seen, blamed, found)
    timing.order(seen, found)
    undisturbed = timing.undisturbed(seen, found)
    due, fired, twice = slots(seen, terms, blamed, states.unsent, found)
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
        unsettled=found.unsettled,
        without_job=found.without_job,
        without_effect=found.without_effect,
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
        self.known: dict[int, int] = {}  # by token, the job
        self.undone: set[int] = set()  # tokens of jobs that are not done
        self.unsent: dict[int, str] = {}  # by job that no producer sent


# --- jobs: the producers' logs against the database, and back


def _jobs(seen: Evidence, blamed: Sequence[Cause], found: Findings) -> _States:
    states = _States()
    known = states.known
    for row in seen.rows:
        states.by_state[row.state] += 1
        if row.token is None:
            states.unsent[row.id] = row.state
            if row.state not in ("done", *UNSETTLED):
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
        elif row.task != seen.books.task(row.token):
            found.add(1, "a job is not of the task that was enqueued", f"{_job(row)}, for {seen.books.task(row.token)}")
        if row.state != "done":
            states.undone.add(row.token)
        _ending(row, row.token, seen, states, found)
        if (row.state, row.reason) == PROMISED[POISON] and seen.books.task(row.token) == POISON:
            _attempts(row, row.token, seen, blamed, found)
    _missing(seen, states, found)
    return states


def _ending(row: Row, token: int, seen: Evidence, states: _States, found: Findings) -> None:
    task = seen.books.task(token)  # as its producer wrote it down, whatever the table says
    if row.state in UNSETTLED:
        found.unsettled += 1
        promise = 5 if task == POISON else 3
        found.add(promise, "a job was not settled by the end", f"{_job(row)} is {row.state}")
    elif task in PROMISED:
        if (row.state, row.reason) == PROMISED[task]:
            states.designed += 1
        else:
            found.add(5, "a job that kills its process did not end as it should", f"{_job(row)} is {row.state}")
    elif row.state != "done":
        found.add(5, "a job failed that had done no wrong", f"{_job(row)} is {row.state}: {row.reason}")
    elif task in ONCE:
        states.row[token] = (row.id, row.attempt)
    elif token not in seen.deeds.first:
        found.lost += 1
        found.without_effect += 1
        found.add(3, "a job is done, and its handler never did it", _job(row))
    elif not seen.deeds.did(token, row.attempt):
        found.add(4, "a job is done by an attempt that never did it", f"{_job(row)}, attempt {row.attempt}")


def _attempts(row: Row, token: int, seen: Evidence, blamed: Sequence[Cause], found: Findings) -> None:
    """A job that kills its process may do so as often as was said, by its charge and by the ledger.

    One that began where another fault was near may not have been charged for that: its holder had lost it by then.
    """
    if row.charged != POISON_ATTEMPTS:
        found.add(5, "a job that kills its process was not charged as it should", f"{_job(row)}: {row.charged} times")
    others = [cause for cause in blamed if cause.job != row.id]
    began = seen.deeds.starts(token)
    near = {start: [cause for cause in others if cause.concerns(start)] for start in began}
    # Each fault may cost one charge: the holder of the lease that it ended had begun the job once.
    excused = min(sum(map(bool, near.values())), len({id(cause) for some in near.values() for cause in some}))
    if len(began) > POISON_ATTEMPTS + excused:
        found.add(5, "a job that kills its process began too often", f"{_job(row)}: {len(began)} times")


def _missing(seen: Evidence, states: _States, found: Findings) -> None:
    gone = _gone(seen)
    for token, _ in seen.books.committed():
        if token in states.known:
            continue
        if token in gone:
            found.gone += 1
        else:
            found.lost += 1
            found.add(2, "an acknowledged job is gone", f"token {token}, a {seen.books.task(token)} job")


def _gone(seen: Evidence) -> set[int]:
    """What a server lost with commits of its own."""
    return {token for hit in seen.hits if hit.loses for token in hit.gone}


def _ledger(seen: Evidence, states: _States, found: Findings) -> None:
    """The handlers' ledger against what producers were told, and against what the database says of it."""
    for token in seen.deeds.tokens():
        if not seen.books.may_exist(token):
            found.phantom += 1
            found.add(1, "a handler ran for a transaction that did not commit", f"token {token}")
    gone = _gone(seen)
    for token in seen.deeds.first:
        if token in states.known:
            found.without_job += token in states.undone
        elif token not in gone:
            found.without_job += 1
            if seen.books.answer(token) == "unknown":  # else it is told as what it is
                found.lost += 1
                found.add(2, "a job had its effect and is gone", f"token {token}, a {seen.books.task(token)} job")


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
        found.without_effect += 1
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
