"""``kept subscriptions``: who wants which events; retire one that nobody declares any more."""

from __future__ import annotations

import click

from kept.admin import store
from kept.admin.model import LaneRow
from kept.cli.events import outbox
from kept.cli.main import Session
from kept.cli.show import as_dict, as_text, brief, echo_json, echo_table, json_option
from kept.outbox import log
from kept.outbox.rows import SubscriptionRow
from kept.showable import escape


def add_to(group: click.Group) -> None:
    subscriptions.add_command(retire)
    group.add_command(subscriptions)


@click.group(invoke_without_command=True)
@json_option
@click.pass_context
def subscriptions(ctx: click.Context, /, as_json: bool) -> None:
    """List the subscriptions: who wants which events, and what waits for each."""
    if ctx.invoked_subcommand is not None:
        return
    with ctx.ensure_object(Session).desk() as desk:
        found = desk.ask(log.list_subscriptions(outbox(desk)))
        lanes = {(lane.queue, lane.task): lane for lane in desk.ask(store.lanes(desk.sql))}
    waiting = [(each, lanes.get((each.queue, each.name))) for each in found]
    if as_json:
        echo_json({"subscriptions": [_as_json(each, lane) for each, lane in waiting]})
        return
    if not found:
        click.echo("there are no subscriptions yet: no app with @app.on or app.publish was synchronised")
        return
    numbers = ("types", "due", "parked", "running", "oldest")
    names = ("subscription", "events", "to", *numbers, "state")
    echo_table(names, [_row(each, lane) for each, lane in waiting], right=numbers)


def _as_json(each: SubscriptionRow, lane: LaneRow | None) -> dict[str, object]:
    counts = {"due": 0, "parked": 0, "running": 0} if lane is None else as_dict(lane)
    return as_dict(each, without=("id", "anybody")) | {name: counts[name] for name in ("due", "parked", "running")}


def _row(each: SubscriptionRow, lane: LaneRow | None) -> tuple[object, ...]:
    to = each.name if each.sink is None else f"sink {each.sink}"
    due, parked, running, oldest = (0, 0, 0, None) if lane is None else _counts(lane)
    return each.name, " ".join(each.patterns), to, each.types, due, parked, running, brief(oldest), _state(each)


def _counts(lane: LaneRow) -> tuple[int, int, int, float | None]:
    return lane.due, lane.parked, lane.running, lane.oldest_due


def _state(each: SubscriptionRow) -> str:
    if each.retired_at is not None:
        return "retired"
    return "declared by no live worker" if each.abandoned else "active"


@click.command()
@click.argument("name", callback=as_text)
@json_option
@click.pass_obj
def retire(session: Session, /, name: str, as_json: bool) -> None:
    """Tell a subscription of no event from now on.

    Jobs that wait for it stay; cancel them with `kept jobs cancel --task NAME`. A worker that declares it
    brings it back.
    """
    with session.desk() as desk, desk.conn.transaction():
        found = desk.ask(log.retire(outbox(desk), name))
    if as_json:
        echo_json({"retired": found.name, "patterns": found.patterns})
        return
    click.echo(f"{escape(name)} is retired: events pass it by from now on")
