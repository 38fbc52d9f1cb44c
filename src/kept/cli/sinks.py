"""``kept sinks``: the brokers events are published to, and how they are doing."""

from __future__ import annotations

import click

from kept.admin import store
from kept.admin.model import LaneRow
from kept.cli.events import outbox
from kept.cli.main import Session
from kept.cli.show import as_dict, as_text, brief, count, echo_json, echo_table, json_option, moment
from kept.outbox import log
from kept.outbox.rows import SinkRow
from kept.showable import escape


def add_to(group: click.Group) -> None:
    sinks.add_command(enable)
    group.add_command(sinks)


@click.group(invoke_without_command=True)
@json_option
@click.pass_context
def sinks(ctx: click.Context, /, as_json: bool) -> None:
    """List the sinks: state, backlog, oldest age, rate, last error.

    A sink is closed while its broker answers, open while it does not (it rests and is tried again), and disabled when
    it said that it is gone for good.
    """
    if ctx.invoked_subcommand is not None:
        return
    with ctx.ensure_object(Session).desk() as desk:
        found = desk.ask(log.list_sinks(outbox(desk)))
        lanes = {lane.id: lane for lane in desk.ask(store.lanes(desk.sql))}
    told = [(each, [lanes[id] for id in each.lanes if id in lanes]) for each in found]
    if as_json:
        echo_json({"sinks": [_as_json(each, of) for each, of in told]})
        return
    if not found:
        click.echo("there are no sinks yet: no app with app.publish was synchronised")
        return
    numbers = ("backlog", "oldest", "rate/s", "failures")
    names = ("sink", "kind", "state", *numbers, "last error")
    echo_table(names, [_row(each, of) for each, of in told], right=numbers)


def _backlog(lanes: list[LaneRow]) -> int:
    return sum(lane.due + lane.parked + lane.running for lane in lanes)


def _oldest(lanes: list[LaneRow]) -> float | None:
    return max((lane.oldest_due for lane in lanes if lane.oldest_due is not None), default=None)


def _as_json(sink: SinkRow, lanes: list[LaneRow]) -> dict[str, object]:
    waiting = {"state": sink.state, "backlog": _backlog(lanes), "oldest": _oldest(lanes)}
    return as_dict(sink, without=("lanes",)) | waiting


def _row(sink: SinkRow, lanes: list[LaneRow]) -> tuple[object, ...]:
    since = sink.disabled_at or sink.opened_at
    state = sink.state if since is None else f"{sink.state} since {moment(since)}"
    error = None if sink.last_error is None else f"{sink.last_code}: {sink.last_error} ({moment(sink.last_error_at)})"
    return sink.name, sink.kind, state, _backlog(lanes), brief(_oldest(lanes)), f"{sink.rate:.1f}", sink.failures, error


@click.command()
@click.argument("name", callback=as_text)
@json_option
@click.pass_obj
def enable(session: Session, /, name: str, as_json: bool) -> None:
    """Send to a sink again that said it is gone, or that rests."""
    with session.desk() as desk:
        lanes = desk.ask(log.enable_sink(outbox(desk), name))
    if as_json:
        echo_json({"enabled": name, "lanes": lanes})
        return
    click.echo(f"{escape(name)} is enabled ({count(lanes, 'lane')})")
