"""``kept inbox``: which consumers have handled how many events; forget one, purge what has expired."""

from __future__ import annotations

import click

from kept.archive.runner import purge_markers
from kept.archive.steps import run
from kept.cli.main import Session
from kept.cli.show import as_dict, as_text, count, echo_json, echo_table, json_option, moment
from kept.db.queries import load
from kept.errors import NotFound
from kept.outbox.inbox import store
from kept.outbox.inbox.model import ConsumerRow
from kept.showable import escape


def add_to(group: click.Group) -> None:
    inbox.add_command(forget)
    inbox.add_command(purge)
    group.add_command(inbox)


@click.group(invoke_without_command=True)
@json_option
@click.pass_context
def inbox(ctx: click.Context, /, as_json: bool) -> None:
    """List the consumers that have an inbox, and the events they have handled.

    Above 100,000 events of a consumer the number is an estimate, of the last ANALYZE.
    """
    if ctx.invoked_subcommand is not None:
        return
    with ctx.ensure_object(Session).desk() as desk:
        found = desk.ask(store.consumers(load("kept.outbox.inbox", desk.schema)))
    if as_json:
        echo_json({"consumers": [as_dict(row, without=("overdue",)) for row in found]})
    elif not found:
        click.echo("no consumer has an inbox yet: no event was handled in one")
    else:
        numbers = ("events", "expired")
        echo_table(("consumer", *numbers, "oldest", "newest"), [_row(row) for row in found], right=numbers)


def _row(row: ConsumerRow) -> tuple[object, ...]:
    about = "" if row.exact else "~"
    return row.consumer, f"{about}{row.markers}", row.expired, moment(row.oldest), moment(row.newest)


@click.command()
@click.argument("consumer", callback=as_text)
@click.argument("event_id", callback=as_text)
@click.option("--redis", metavar="URL", help="The Redis that accelerates this inbox; else it may go on knowing.")
@json_option
@click.pass_obj
def forget(session: Session, /, consumer: str, event_id: str, redis: str | None, as_json: bool) -> None:
    """Forget that CONSUMER has handled EVENT_ID, so that it is handled when it comes again."""
    app = session.plain()
    try:
        found = app.inbox(consumer, redis=redis).forget(event_id)
    finally:
        app.close()
    if not found:
        raise NotFound(f"{consumer} has not handled event {event_id}, or it was purged")
    if as_json:
        echo_json({"forgotten": event_id})
    else:
        click.echo(f"{escape(consumer)} has forgotten event {escape(event_id)}")


@click.command()
@click.option("--consumer", callback=as_text, metavar="NAME", help="Only the events of this consumer.")
@json_option
@click.pass_obj
def purge(session: Session, /, consumer: str | None, as_json: bool) -> None:
    """Purge the events whose time is over, in batches; workers do the same every hour."""
    with session.desk() as desk:
        purged = run(desk.conn, purge_markers(load("kept.archive", desk.schema), consumer))
    if as_json:
        echo_json({"purged": purged})
    else:
        click.echo(f"purged {count(purged, 'event')}")
