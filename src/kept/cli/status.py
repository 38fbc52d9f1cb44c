"""``kept status``: how the whole is doing, for a glance or for an alarm."""

from __future__ import annotations

import sys
from datetime import timedelta

import click

from kept.admin import store
from kept.admin.model import LaneRow, Recent, Status
from kept.cli.lanes import paused
from kept.cli.main import FAILED, OK, Session
from kept.cli.show import as_dict, as_duration, brief, count, echo_json, echo_table, json_option
from kept.db.queries import load as load_queries
from kept.durations import render
from kept.schedules import overview
from kept.schedules.rows import Summary
from kept.showable import escape


def add_to(group: click.Group) -> None:
    group.add_command(status)


@click.command()
@click.option("--max-age", callback=as_duration, metavar="5m", help="Exit with 1 if a due job has waited for longer.")
@json_option
@click.pass_obj
def status(session: Session, /, max_age: timedelta | None, as_json: bool) -> None:
    """Show what waits and what was settled within the last hour.

    Jobs of paused lanes wait on purpose: they do not count for --max-age.
    """
    with session.desk() as desk:
        found = desk.ask(store.status(desk.sql))
        schedules = desk.ask(overview.summary(load_queries("kept.schedules", desk.schema)))
    late = _late(found, max_age)
    if as_json:
        echo_json(_as_json(found, late) | {"schedules": as_dict(schedules)})
    else:
        _tell(found, schedules)
    if late is not None:
        click.echo(f"kept: {late}", err=True)
    sys.exit(OK if late is None else FAILED)


def _late(found: Status, max_age: timedelta | None) -> str | None:
    """The sentence to alarm somebody with, if a job has waited for too long."""
    oldest = found.oldest
    if max_age is None or oldest is None or (oldest.oldest_due or 0.0) <= max_age.total_seconds():
        return None
    waited = brief(oldest.oldest_due)
    return f"the oldest due job of {escape(oldest.name)} has waited for {waited}, longer than {render(max_age)}"


def _tell(found: Status, schedules: Summary) -> None:
    recent, oldest = found.recent, found.oldest
    waiting = f", the oldest for {brief(oldest.oldest_due)}" if oldest else ""
    due = f"{count(found.due, 'job')} due{waiting}"
    click.echo(f"{due}; {found.parked} parked, {found.running} running")
    click.echo(f"last hour: {recent.done} done, {recent.failed} failed{_rates(recent)}")
    if schedules.total:
        click.echo(_schedules(schedules))
    if not found.lanes:
        return
    numbers = ("due", "oldest", "parked", "running", "done/h", "failed/h", "failing", "attempts/done")
    click.echo()
    echo_table(("queue", "task", *numbers, "paused"), [_row(*each) for each in found.lanes], right=numbers)


def _schedules(found: Summary) -> str:
    states = {"active": found.active, "paused": found.paused, "ended": found.ended, "retired": found.retired}
    told = ", ".join(f"{number} {state}" for state, number in states.items() if number)
    if found.next_name is None or found.next_in is None:
        return f"schedules: {told}"
    when = f"in {brief(found.next_in)}" if found.next_in >= 0 else f"{brief(-found.next_in)} late"
    return f"schedules: {told}; next is {escape(found.next_name)}, {when}"


def _rates(recent: Recent) -> str:
    failing = f" ({_percent(recent)})" if recent.failed else ""
    churn = f", {recent.churn:.2f} attempts per done job" if recent.churn is not None else ""
    return failing + churn


def _row(lane: LaneRow, recent: Recent) -> tuple[object, ...]:
    return (
        lane.queue,
        lane.task,
        lane.due,
        brief(lane.oldest_due),
        lane.parked,
        lane.running,
        recent.done,
        recent.failed,
        _percent(recent),
        "" if recent.churn is None else f"{recent.churn:.2f}",
        paused(lane),
    )


def _percent(recent: Recent) -> str:
    return "" if recent.failure_rate is None else f"{recent.failure_rate:.1%}"


def _as_json(found: Status, late: str | None) -> dict[str, object]:
    oldest = found.oldest
    return {
        "due": found.due,
        "oldest_due": None if oldest is None else round(oldest.oldest_due or 0.0, 3),
        "parked": found.parked,
        "running": found.running,
        **_recent(found.recent),
        "late": late,
        "lanes": [as_dict(lane, without=("id",)) | _recent(recent) for lane, recent in found.lanes],
    }


def _recent(recent: Recent) -> dict[str, object]:
    return {
        "done_last_hour": recent.done,
        "failed_last_hour": recent.failed,
        "failure_rate": None if recent.failure_rate is None else round(recent.failure_rate, 4),
        "attempts_per_done": None if recent.churn is None else round(recent.churn, 3),
    }
