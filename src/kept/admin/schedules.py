"""The doctor's judgement of schedules: facts in, findings out. Pure and total."""

from __future__ import annotations

from datetime import timedelta

from kept.admin.facts import Facts
from kept.admin.findings import are as _are
from kept.admin.findings import count as _count
from kept.admin.findings import ok as _ok
from kept.admin.findings import problem as _problem
from kept.admin.findings import sentence as _sentence
from kept.admin.findings import warning as _warning
from kept.admin.model import Finding
from kept.schedules.rows import ScheduleRow

LATE = timedelta(minutes=1)  # workers look at least once a second


def schedules(facts: Facts) -> list[Finding]:
    """Whether slots are fired when they come, by somebody who knows their task, and to good end."""
    active = [each for each in facts.schedules if each.state == "active"]
    found = [*_late(facts, active), *_unhandled(facts, active), *_ahead(facts, active), *_failing(facts)]
    return found or [_ok("schedules", f"Of {_count(len(active), 'active schedule')} none is late.")]


def _late(facts: Facts, active: list[ScheduleRow]) -> list[Finding]:
    late = [(each, facts.now - each.next_slot) for each in active if each.next_slot is not None]
    late = [(each, by) for each, by in late if by > LATE]
    if late and not any(worker.alive for worker in facts.workers):
        said = f"No worker is alive, and {_count(len(late), 'schedule')} {_are(len(late))} late."
        return [_problem("no_worker", said, "Start one: `kept worker module:app`.")]
    return [
        _problem(
            "schedule_late",
            f"The slot of schedule {each.name} came {by.total_seconds():.0f} s ago, and no worker has fired it.",
            "Look for `odd_schedule` and runner failures in the log of the workers: each has tried.",
        )
        for each, by in late
    ]


def _unhandled(facts: Facts, active: list[ScheduleRow]) -> list[Finding]:
    alive = [worker for worker in facts.workers if worker.alive]
    known = {task for worker in alive for task in worker.declared}
    return [
        _warning(
            "schedule_unhandled",
            f"No live worker declares task {each.definition.target.task}, which schedule {each.name} fires.",
            f"Deploy the code that declares it, or `kept schedules pause {each.name}`.",
        )
        for each in active
        if alive and each.definition.target.task not in known
    ]


def _ahead(facts: Facts, active: list[ScheduleRow]) -> list[Finding]:
    return [
        _warning(
            "schedule_ahead",
            f"Slots of schedule {each.name} are decided up to {each.last_slot:%Y-%m-%d %H:%M:%S}Z, "
            "which is yet to come: the database's clock went back.",
            "It stays silent until then, so that nothing fires twice. If that is too long, remove it and add it "
            "again; declare one under another name.",
        )
        for each in active
        if each.last_slot > facts.now + LATE
    ]


def _failing(facts: Facts) -> list[Finding]:
    return [
        _warning(
            "schedule_failing",
            f"The last 3 jobs of schedule {each.name} failed. {_sentence(f'{each.code}: {each.message}')}",
            f"See `kept schedules show {each.name}`; mend the cause, then `kept schedules run-now {each.name}`.",
        )
        for each in facts.failing
    ]
