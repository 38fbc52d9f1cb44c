"""``kept events``: what was emitted, and telling a subscription of it (again)."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from uuid import UUID

import click
import msgspec

from kept.cli.main import Desk, Session
from kept.cli.show import (
    as_dict,
    as_duration,
    as_moment,
    as_text,
    count,
    document,
    echo_json,
    echo_table,
    json_option,
    lines,
    moment,
)
from kept.db.queries import Queries
from kept.db.queries import load as load_queries
from kept.errors import Refused
from kept.outbox import log
from kept.outbox.log import EventDetail, Replay
from kept.outbox.model import cloudevent
from kept.outbox.rows import EventRow, SubscriptionRow
from kept.outbox.rules import check_pattern
from kept.showable import escape


def add_to(group: click.Group) -> None:
    for command in (list_, show, replay):
        events.add_command(command)
    group.add_command(events)


@click.group()
def events() -> None:
    """Look at events, and replay them to a subscription."""


def outbox(desk: Desk) -> Queries:
    """The outbox's statements, for an operator's connection."""
    return load_queries("kept.outbox", desk.schema)


def as_event_id(_ctx: click.Context, _param: click.Parameter, value: str) -> UUID:
    """For an argument that is the id of an event."""
    try:
        return UUID(value)
    except ValueError:
        raise click.BadParameter(f"'{escape(value[:40])}' is not the id of an event") from None


def _as_event_ids(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[UUID, ...]:
    return tuple(as_event_id(ctx, param, each) for each in value)


def _as_pattern(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    try:
        return value and check_pattern(value)
    except Refused as error:
        raise click.BadParameter(escape(str(error))) from None


def _as_rate(_ctx: click.Context, _param: click.Parameter, value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise click.BadParameter("must be a number")
    return value


@click.command("list")
@click.option("--type", "pattern", callback=_as_pattern, metavar="TYPE", help="invoice.created, or invoice.*")
@click.option("--aggregate", callback=as_text, metavar="TYPE/ID", help="What they happened to.")
@click.option("--newer-than", callback=as_duration, metavar="1h", help="Emitted within this time.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, metavar="N")
@click.option("--before", type=click.IntRange(1), metavar="SEQ", help="Only earlier ones: the next page.")
@json_option
@click.pass_obj
def list_(
    session: Session,
    /,
    pattern: str | None,
    aggregate: str | None,
    newer_than: timedelta | None,
    limit: int,
    before: int | None,
    as_json: bool,
) -> None:
    """List events, newest first."""
    kind, _, id = (aggregate or "").partition("/")
    with session.desk() as desk:
        found = desk.ask(
            log.list_events(
                outbox(desk),
                limit=limit + 1,
                before=before or log.NEWEST,
                pattern=pattern,
                aggregate_type=kind or None,
                aggregate_id=id or None,
                newer_than=None if newer_than is None else newer_than.total_seconds(),
            )
        )
    shown, more = found[:limit], len(found) > limit
    last = shown[-1].seq if more else None
    if as_json:
        echo_json({"events": [as_dict(each) for each in shown], "more": more, "before": last})
        return
    if not shown:
        click.echo("no event matches")
        return
    names = ("event", "type", "version", "aggregate", "actor", "emitted", "told")
    echo_table(names, [_row(each) for each in shown], right=("version", "told"))
    if more:
        click.echo(f"there is more; go on with --before {last}", err=True)


def _row(event: EventRow) -> tuple[object, ...]:
    told = event.subscriptions
    return event.event_id, event.type, event.version, _aggregate(event), event.actor, moment(event.recorded_at), told


def _aggregate(event: EventRow) -> str | None:
    return None if event.aggregate_id is None else f"{event.aggregate_type}/{event.aggregate_id}"


@click.command()
@click.argument("id", callback=as_event_id, metavar="EVENT_ID")
@click.option("--cloudevents", is_flag=True, help="Print it as CloudEvents 1.0 JSON.")
@click.option("--source", default="kept", show_default=True, metavar="URI", help="With --cloudevents: its source.")
@json_option
@click.pass_obj
def show(session: Session, /, id: UUID, cloudevents: bool, source: str, as_json: bool) -> None:
    """Show everything about one event: its data, and the subscriptions it was fanned out to."""
    with session.desk() as desk:
        detail = desk.ask(log.show_event(outbox(desk), id))
    if cloudevents:
        bare = msgspec.to_builtins(cloudevent(detail.event(None), source))
        echo_json(bare | {"data": document(detail.data)})
    elif as_json:
        parts = {"headers": document(detail.headers), "data": document(detail.data), "told": detail.told}
        echo_json(as_dict(detail.row, without=("subscriptions",)) | parts)
    else:
        click.echo("\n".join(_told(detail)))


def _told(detail: EventDetail) -> Iterator[str]:
    row = detail.row
    facts = {
        "event": row.event_id,
        "type": f"{row.type}, version {row.version}",
        "aggregate": _aggregate(row),
        "actor": row.actor,
        "occurred": moment(row.occurred_at),
        "emitted": moment(row.recorded_at),
        "told": ", ".join(detail.told) or "nobody",
    }
    for name, value in facts.items():
        if value:
            yield f"{name:<10} {escape(value)}"
    for name, text in (("headers", detail.headers), ("data", detail.data)):
        if text is not None:
            yield name
            yield from (f"  {line}" for line in lines(json.dumps(document(text), indent=2, ensure_ascii=False)))


@click.command()
@click.argument("subscription", callback=as_text)
@click.option("--event", "ids", callback=_as_event_ids, multiple=True, metavar="ID", help="This event; several times.")
@click.option("--type", "pattern", callback=_as_pattern, metavar="TYPE", help="Events of this type, or invoice.*")
@click.option("--since", callback=as_moment, metavar="TIME", help="Emitted at or after this: 2026-11-17T08:00 (UTC).")
@click.option("--until", callback=as_moment, metavar="TIME", help="Emitted before this.")
@click.option("--again", is_flag=True, help="Also events it was told of before.")
@click.option(
    "--rate",
    type=click.FloatRange(0.001),
    callback=_as_rate,
    metavar="N",
    help="At most so many jobs come due in a second.",
)
@click.option("--dry-run", is_flag=True, help="Only say how many events that would be.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@click.pass_obj
def replay(
    session: Session,
    /,
    subscription: str,
    ids: tuple[UUID, ...],
    pattern: str | None,
    since: datetime | None,
    until: datetime | None,
    again: bool,
    rate: float | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Tell a subscription of recorded events it was not told of; with --again, of all that match.

    The number is shown and confirmed first. Replayed events come after those that wait already, also where a
    subscription keeps order.
    """
    wanted = Replay(ids=ids or None, pattern=pattern, since=since, until=until, again=again, rate=rate)
    with session.desk() as desk:
        sql = outbox(desk)
        to = desk.ask(log.find_subscription(sql, subscription))
        if to.retired_at is not None:
            raise Refused(f"subscription {subscription!r} is retired: nobody would handle its jobs")
        matched, newest = desk.ask(log.count_replay(sql, to, wanted))
        told = 0
        if matched and not dry_run:
            if not yes:
                _confirm(matched, subscription)
            told = _replay(desk, sql, to, wanted, newest)
    if as_json:
        echo_json({"subscription": subscription, "matched": matched, "replayed": told, "dry_run": dry_run})
    elif dry_run or not matched:
        click.echo(f"{count(matched, 'event')} would be replayed to {escape(subscription)}")
    else:
        click.echo(f"{count(told, 'event')} replayed to {escape(subscription)}")


def _replay(desk: Desk, sql: Queries, to: SubscriptionRow, wanted: Replay, newest: int) -> int:
    told, last = 0, 0
    while True:
        with desk.conn.transaction():
            batch, end = desk.ask(log.replay_batch(sql, to, wanted, after=last, upto=newest, done=told))
        if end is None:
            return told
        told, last = told + batch, end


def _confirm(matched: int, subscription: str) -> None:
    if not sys.stdin.isatty():
        raise Refused(f"{count(matched, 'event')} would be replayed; there is nobody to ask, so say --yes")
    click.confirm(f"{count(matched, 'event')} will be replayed to {escape(subscription)}. Go on?", abort=True, err=True)
