"""What a run found as a table and a sentence. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from kept.verify.model import Recovery, Report

Line = tuple[str, str]
COLUMNS = ("what", "found")


def of(report: Report) -> list[Line]:
    """The table: what was counted, and how much."""
    return [*_jobs(report), *_effects(report), *_recovery(report), *_slots(report), *_faults(report)]


def _jobs(report: Report) -> Iterator[Line]:
    yield "accepted: commits that were confirmed", _number(report.accepted)
    yield "… refused or rolled back", _number(report.refused)
    yield "… unknown: nobody answered the commit", _number(report.unknown)
    yield "done, with those of the schedule", _number(report.done)
    yield "failed by design", _number(report.failed_by_design)
    yield "lost", _number(report.lost)
    if report.lost_with_commits:
        yield "… lost with commits of the server's own", _number(report.lost_with_commits)
    yield "not settled by the end", _number(report.unsettled)
    yield "phantom", _number(report.phantom)


def _effects(report: Report) -> Iterator[Line]:
    yield "effects in the ledger", _number(report.effects)
    yield "effects without a done job / done jobs without one", f"{report.without_job:,} / {report.without_effect:,}"
    yield "duplicates", _number(report.duplicates)
    yield "… per million effects", f"{report.duplicates_per_million:,.0f}"
    for fault, count in sorted(report.duplicates_by_fault.items(), key=lambda each: -each[1]):
        yield f"… by {fault}", _number(count)
    yield "effects committed with completion", _number(report.once)
    yield "zombie writes attempted", _number(report.zombies_refused + report.zombies_written)
    yield "… refused", _number(report.zombies_refused)
    yield "… that got through", _number(report.zombies_written)


def _recovery(report: Report) -> Iterator[Line]:
    yield "jobs taken over from the dead", _number(sum(each.jobs for each in report.recovery.values()))
    yield "… lease + scan, seconds", f"{report.lease_and_scan:.2f}"
    for fault, each in sorted(report.recovery.items()):
        yield f"… after {fault}, p50 / p99 / max", _spread(each)
        if fault in report.undisturbed:
            yield f"… after {fault} with no other fault near", _spread(report.undisturbed[fault])


def _slots(report: Report) -> Iterator[Line]:
    yield "slots due / fired / fired twice", f"{report.slots_due} / {report.slots_fired} / {report.slots_twice}"


def _faults(report: Report) -> Iterator[Line]:
    yield "faults", _number(sum(report.faults.values()))
    for fault, count in sorted(report.faults.items()):
        yield f"… {fault}", _number(count)
    for fault, why in sorted(report.left_out.items()):
        yield f"… {fault}", f"left out: {why}"


def _spread(took: Recovery) -> str:
    return f"{took.p50:.2f} / {took.p99:.2f} / {took.most:.2f}"


def _number(count: int) -> str:
    return f"{count:,}"


def means(report: Report) -> str:
    """The verdict in a sentence."""
    faults = sum(report.faults.values())
    after = f"after {report.accepted:,} jobs and {faults} faults in {report.seconds:.0f} s (seed {report.seed})"
    if not report.breaches:
        return f"No promise was broken {after}."
    broken = sorted({breach.promise for breach in report.breaches if breach.promise})
    if not broken:
        return f"The verification is not complete {after}."
    which = ", ".join(map(str, broken))
    return f"Promise {which} was broken {after}." if len(broken) == 1 else f"Promises {which} were broken {after}."
