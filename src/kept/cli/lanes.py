"""``kept lanes``: what waits where; pause and resume."""

from __future__ import annotations

from datetime import timedelta

import click

from kept.admin import store
from kept.admin.model import LaneRow
from kept.cli.main import Session
from kept.cli.show import as_dict, as_duration, brief, count, echo_json, echo_table, json_option, moment
from kept.durations import render
from kept.showable import escape


def add_to(group: click.Group) -> None:
    lanes.add_command(pause)
    lanes.add_command(resume)
    group.add_command(lanes)


@click.group(invoke_without_command=True)
@json_option
@click.pass_context
def lanes(ctx: click.Context, /, as_json: bool) -> None:
    """List the lanes: one task in one queue each, and what waits in it."""
    if ctx.invoked_subcommand is not None:
        return
    with ctx.ensure_object(Session).desk() as desk:
        found = desk.ask(store.lanes(desk.sql))
    if as_json:
        echo_json({"lanes": [as_dict(lane, without=("id",)) for lane in found]})
        return
    if not found:
        click.echo("there are no lanes yet: nothing was declared or enqueued")
        return
    numbers = ("due", "parked", "running", "oldest")
    echo_table(("queue", "task", *numbers, "paused", "declared"), [_row(lane) for lane in found], right=numbers)


def _row(lane: LaneRow) -> tuple[object, ...]:
    return (
        lane.queue,
        lane.task,
        lane.due,
        lane.parked,
        lane.running,
        brief(lane.oldest_due),
        paused(lane),
        "yes" if lane.declared else "no",
    )


def paused(lane: LaneRow) -> str:
    """Until when, if it is."""
    if not lane.paused:
        return ""
    return f"until {moment(lane.paused_until)}" if lane.paused_until else "until resumed"


@click.command()
@click.argument("lane", metavar="QUEUE[/TASK]")
@click.option("--for", "period", callback=as_duration, metavar="1h", help="Resume by itself after this time.")
@json_option
@click.pass_obj
def pause(session: Session, /, lane: str, period: timedelta | None, as_json: bool) -> None:
    """Stop claiming jobs of a queue, or of one task in it, in the whole cluster.

    Running jobs go on; new ones are accepted and wait.
    """
    with session.desk() as desk:
        found = desk.ask(store.find_lanes(desk.sql, lane))
        ids = [each.id for each in found]
        done = desk.ask(store.pause(desk.sql, ids, None if period is None else period.total_seconds()))
    if as_json:
        _echo_changed("paused", done, found)
        return
    until = "until resumed" if period is None else f"for {render(period)}"
    click.echo(f"{escape(lane)} is paused {until} ({count(done, 'lane')})")


@click.command()
@click.argument("lane", metavar="QUEUE[/TASK]")
@json_option
@click.pass_obj
def resume(session: Session, /, lane: str, as_json: bool) -> None:
    """Claim jobs of a queue, or of one task in it, again."""
    with session.desk() as desk:
        found = desk.ask(store.find_lanes(desk.sql, lane))
        done = desk.ask(store.resume(desk.sql, [each.id for each in found]))
    if as_json:
        _echo_changed("resumed", done, found)
        return
    click.echo(f"{escape(lane)} is resumed ({count(done, 'lane')})" if done else f"{escape(lane)} was not paused")


def _echo_changed(what: str, done: int, found: list[store.LaneName]) -> None:
    echo_json({what: done, "lanes": [{"queue": each.queue, "task": each.task} for each in found]})
