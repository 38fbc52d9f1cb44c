"""The doctor's judgement: facts in, findings out. Pure and total."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta

from kept.admin.facts import Facts
from kept.admin.findings import are as _are
from kept.admin.findings import count as _count
from kept.admin.findings import join as _and
from kept.admin.findings import ok as _ok
from kept.admin.findings import problem as _problem
from kept.admin.findings import sentence as _sentence
from kept.admin.findings import warning as _warning
from kept.admin.model import Finding, LaneRow, WorkerRow
from kept.admin.schedules import schedules
from kept.outbox.rows import SinkRow

MOST_OFFSET = 2.0  # seconds between two clocks
MANY_DEAD = 100_000  # rows
LONG_SNAPSHOT = 300.0  # seconds
SOON = timedelta(days=7)
UNPURGED = 86_400.0  # seconds: two dozen upkeeps
OVERDUE = 30.0  # seconds: six scans for expired leases


def judge(facts: Facts) -> list[Finding]:
    """Everything worth saying, in the order in which to read it; at least one finding for each matter."""
    return [
        *server(facts),
        *pooling(facts),
        *clock(facts),
        *bloat(facts),
        *transactions(facts),
        *partitions(facts),
        *markers(facts),
        *leases(facts),
        *service(facts),
        *declarations(facts),
        *events(facts),
        *schedules(facts),
    ]


def is_sick(findings: Iterable[Finding]) -> bool:
    """Whether there is a problem among them."""
    return any(finding.level == "problem" for finding in findings)


def unreachable(message: str) -> Finding:
    """The database does not answer."""
    advice = "See that the server runs, and that KEPT_DATABASE_URL names it and a user it lets in."
    return _problem("connection", _sentence(message), advice)


def unfit(message: str, *, read_only: bool) -> Finding:
    """The server or the schema is not one this code may work with."""
    if read_only:
        return _problem("read_only", _sentence(message), "Let KEPT_DATABASE_URL name the primary.")
    advice = "Bring code and schema together: `kept migrate` if the schema is older, an upgrade if the code is."
    return _problem("schema", _sentence(message), advice)


def server(facts: Facts) -> list[Finding]:
    """What runs, and whether it keeps its commits."""
    version = facts.server.version.split(" ")[0]
    found = [
        _ok("server", f"PostgreSQL {version} answers and can be written to."),
        _ok("schema", f"The schema is up to date ({facts.migrations} migrations)."),
    ]
    off = [
        name
        for name, on in (
            ("fsync", facts.server.fsync),
            ("full_page_writes", facts.server.full_page_writes),
            ("synchronous_commit", facts.server.synchronous_commit != "off"),
        )
        if not on
    ]
    if off:
        found.append(
            _warning(
                "not_durable",
                f"The server may lose commits when it crashes: {_and(off)} {_are(len(off))} off.",
                "Turn it on unless this database may be lost; Kept cannot keep what the server does not.",
            )
        )
    return found


def pooling(facts: Facts) -> list[Finding]:
    """Whether a pooler stands between."""
    if not facts.pooled:
        return [_ok("pooling", "The connection is direct.")]
    return [
        _warning(
            "pooling",
            "A connection pooler stands before the server: workers poll once a second, nobody can be woken.",
            "Give workers a direct connection if jobs are to start within milliseconds.",
        )
    ]


def clock(facts: Facts) -> list[Finding]:
    """Whether this machine and the database agree on the time."""
    offset = facts.clock.offset
    # Half the round trip may be all on one side.
    if abs(offset) - facts.clock.round_trip / 2 <= MOST_OFFSET:
        return [_ok("clock", "This machine's clock and the database's agree.")]
    side = "behind" if offset > 0 else "ahead of"
    return [
        _warning(
            "clock",
            f"This machine's clock is {abs(offset):.1f} s {side} the database's.",
            "Synchronise the clocks: the database's decides, so a due_at computed here is off by as much.",
        )
    ]


def bloat(facts: Facts) -> list[Finding]:
    """Whether dead rows pile up among the live jobs."""
    if facts.dead_rows < MANY_DEAD or facts.dead_rows < facts.live_rows:
        return [_ok("bloat", f"The job table has {facts.dead_rows} dead rows.")]
    return [
        _warning(
            "bloat",
            f"The job table has {facts.dead_rows} dead rows beside {facts.live_rows} live ones.",
            "See that autovacuum runs and no transaction is held open; VACUUM the table if that is not enough.",
        )
    ]


def transactions(facts: Facts) -> list[Finding]:
    """Who keeps dead rows from being removed."""
    found = []
    for session in facts.sessions:
        who = f"Session {session.pid} ({session.name or 'without a name'})"
        if session.state.startswith("idle in transaction"):
            found.append(
                _warning(
                    "idle_in_transaction",
                    f"{who} has been idle in a transaction for {session.seconds:.0f} s.",
                    "Let it commit, or set idle_in_transaction_session_timeout: it keeps locks and dead rows.",
                )
            )
        elif session.seconds > LONG_SNAPSHOT:
            found.append(
                _warning(
                    "held_snapshot",
                    f"{who} has held a snapshot for {session.seconds:.0f} s.",
                    "Let it end if it can: no dead row is removed while it lasts.",
                )
            )
    if found:
        return found
    hidden = f" (of those this role may see; {facts.hidden_sessions} are hidden)" if facts.hidden_sessions else ""
    return [_ok("transactions", f"No session holds a transaction open for long{hidden}.")]


def partitions(facts: Facts) -> list[Finding]:
    """Whether history and log have room in the days to come."""
    advice = "Let a worker run, its upkeep sees to partitions; `kept worker` says why if it cannot."
    found = [
        _warning("default_partition", f"The default partition {name} holds rows.", advice) for name in facts.strays
    ]
    # One that is only 30 days away is made within the hour; within a week it should long be there.
    late: dict[str, datetime] = {}
    for make in facts.missing:
        if make.starts_at <= facts.now + SOON:
            late[make.parent] = min(make.starts_at, late.get(make.parent, make.starts_at))
    found += [
        _warning(
            "partition_missing",
            f"Table {parent} has no partition for {starts_at:%Y-%m-%d}; its rows will go to the default partition.",
            advice,
        )
        for parent, starts_at in late.items()
    ]
    return found or [_ok("partitions", "The partitions of the coming week are there.")]


def markers(facts: Facts) -> list[Finding]:
    """Whether the inbox is rid of what has expired."""
    late = [row for row in facts.consumers if row.overdue > UNPURGED]
    if not late:
        return [_ok("inbox", f"The inbox of {_count(len(facts.consumers), 'consumer')} holds nothing long expired.")]
    return [
        _warning(
            "inbox_unpurged",
            f"The inbox of {row.consumer} has {_count(row.expired, 'expired marker')}, "
            f"the oldest for {row.overdue / 86_400:.0f} d.",
            "Let a worker run, its upkeep purges them every hour; or call `kept inbox purge`.",
        )
        for row in late
    ]


def leases(facts: Facts) -> list[Finding]:
    """Whether dead workers' jobs come back."""
    found = []
    for worker in facts.workers:
        if worker.alive or (worker.state != "live" and not worker.running):
            continue
        late = -worker.lease_left
        held = _count(worker.running, "job")
        stuck = late > OVERDUE and worker.running > 0
        said = f"The lease of worker {worker.name} ended {late:.0f} s ago with {held} in its name."
        if stuck:
            found.append(_problem("lease_expired", said, "Start a worker: it takes the jobs back within seconds."))
        else:
            advice = "Nothing, if another worker lives: it takes the jobs back within seconds."
            found.append(_warning("lease_expired", said, advice))
    alive = sum(worker.alive for worker in facts.workers)
    return found or [_ok("leases", f"{_count(alive, 'worker')} {_are(alive)} alive, and no lease has run out.")]


def service(facts: Facts) -> list[Finding]:
    """Whether somebody serves every lane that has due jobs; and which tasks nobody ever declared."""
    alive = [worker for worker in facts.workers if worker.alive]
    waiting = [lane for lane in facts.lanes if lane.due and not lane.paused]
    if waiting and not alive:
        due = sum(lane.due for lane in waiting)
        return [
            _problem("no_worker", f"No worker is alive, and {_due(due)}.", "Start one: `kept worker module:app`."),
            *_undeclared(facts.lanes),
        ]
    # Where something runs, somebody serves; perhaps under a former name of the task.
    found = [finding for lane in waiting if not lane.running for finding in _unserved(lane, alive)]
    return [
        *(found or [_ok("service", "Every lane with due jobs is served.")]),
        *_undeclared(facts.lanes),
    ]


def _unserved(lane: LaneRow, alive: list[WorkerRow]) -> list[Finding]:
    here = [worker for worker in alive if worker.queues is None or lane.queue in worker.queues]
    if not here:
        return [
            _problem(
                "queue_unserved",
                f"No worker serves queue {lane.queue}, and {_due(lane.due)} for {lane.task}.",
                f"Start a worker with --queues {lane.queue}, or without --queues for all.",
            )
        ]
    if not any(lane.task in worker.declared for worker in here):
        return [
            _problem(
                "task_unhandled",
                f"No worker of queue {lane.queue} declares task {lane.task}, and {_due(lane.due)}.",
                "Deploy the code that declares it, or cancel the jobs.",
            )
        ]
    return []


def _undeclared(lanes: Iterable[LaneRow]) -> list[Finding]:
    known: defaultdict[str, bool] = defaultdict(bool)
    for lane in lanes:
        known[lane.task] |= lane.declared
    return [
        _warning(
            "undeclared",
            f"Task {task} was enqueued but never declared.",
            "Check its spelling where it is enqueued, or deploy the code that declares it.",
        )
        for task, declared in known.items()
        if not declared
    ]


def declarations(facts: Facts) -> list[Finding]:
    """Whether live workers would treat the same job alike."""
    digests: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for worker in facts.workers:
        if worker.alive:
            for task, digest in worker.declared.items():
                digests[task].setdefault(digest, worker.name)
    found = [
        _warning(
            "declarations_differ",
            f"Task {task} is declared differently by workers {_and(sorted(by.values()))}.",
            "Run the same code everywhere; while a new release is rolled out this passes by itself.",
        )
        for task, by in sorted(digests.items())
        if len(by) > 1
    ]
    return found or [_ok("declarations", "All live workers declare their tasks alike.")]


def events(facts: Facts) -> list[Finding]:
    """Whether somebody handles what is fanned out, and every broker takes what is published."""
    found = [
        _warning(
            "subscription_undeclared",
            f"No live worker declares subscription {each.name}, and events are fanned out to it.",
            f"Deploy the code that declares it, or `kept subscriptions retire {each.name}`.",
        )
        for each in facts.subscriptions
        if each.abandoned
    ]
    found += [finding for sink in facts.sinks for finding in _sink(sink)]
    return found or [_ok("events", "Every subscription is declared, and every sink takes events.")]


def _sink(sink: SinkRow) -> list[Finding]:
    said = _sentence(f"{sink.last_code}: {sink.last_error}")
    match sink.state:
        case "open":
            advice = "See that the broker runs and lets us in; then it goes on by itself, and nothing is lost."
            return [_warning("sink_open", f"Sink {sink.name} rests, its broker does not take events. {said}", advice)]
        case "disabled":
            advice = f"Mend it, then `kept sinks enable {sink.name}`; or cancel what waits for it."
            return [_problem("sink_disabled", f"Sink {sink.name} is disabled. {said}", advice)]
        case _:
            return []


def _due(number: int) -> str:
    return f"{_count(number, 'job')} {_are(number)} due"
