"""``kept schedules add``, ``edit``, ``pause``, ``resume``, ``run-now`` and ``remove``."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from kept.cli.main import Desk, Session, operator
from kept.cli.schedule_options import Given, given_options
from kept.cli.show import as_text, echo_json, json_option, moment
from kept.db.queries import Queries
from kept.db.queries import load as load_queries
from kept.errors import Refused
from kept.jobs.door import Request
from kept.jobs.payload import check_name, encode
from kept.schedules import catalogue, overview
from kept.schedules.book import changed, define
from kept.schedules.model import Definition
from kept.schedules.rows import ScheduleRow, describe
from kept.showable import escape
from kept.tasks import MOST_QUEUE, MOST_TASK, Call, check_priority


def statements(desk: Desk) -> Queries:
    """The statements about schedules, for an operator's connection."""
    return load_queries("kept.schedules", desk.schema)


@click.command()
@click.argument("name", callback=as_text)
@given_options
@json_option
@click.pass_obj
def add(session: Session, /, name: str, as_json: bool, **options: Any) -> None:
    """Add a schedule: --cron or --every, and --task."""
    given = Given(**options)
    rule = given.rule()
    if rule is None:
        raise Refused("say when: --cron EXPR or --every 5m", field="cron")
    if given.task is None:
        raise Refused("say what: --task NAME", field="task")
    with session.desk() as desk, desk.conn.transaction():
        home = desk.ask(overview.home_of(statements(desk), check_name(given.task, what="task", most=MOST_TASK)))
        call = _call(session, given, given.task, given.queue or home.queue, given.arguments or "{}", given.priority)
        texts = {"owner": given.owner, "description": given.description}
        definition = define(name, rule, call, **texts, **given.asked)
        made = desk.ask(catalogue.add(statements(desk), definition, who=operator()))
    _tell("added", made, as_json=as_json)
    _warn(given.task, declared=home.declared)


@click.command()
@click.argument("name", callback=as_text)
@given_options
@click.option("--clear", callback=as_text, metavar="WHAT,…", help="What shall hold no more: end,blackout")
@json_option
@click.pass_obj
def edit(session: Session, /, name: str, clear: str | None, as_json: bool, **options: Any) -> None:
    """Change what is given of a schedule that was added.

    One that an App declares is changed where it is declared. What can be cleared: start, end, blackout,
    jitter, most, within, owner, description.
    """
    given = Given(**options)
    cleared = [each.strip() for each in clear.split(",")] if clear else []
    if not given and not cleared:
        raise Refused("nothing to change: say what is to be different, or --clear what shall hold no more")
    with session.desk() as desk, desk.conn.transaction():
        sql = statements(desk)
        home = overview.Home("", True)
        if given.task is not None:
            home = desk.ask(overview.home_of(sql, check_name(given.task, what="task", most=MOST_TASK)))

        def change(old: Definition) -> Definition:
            call = _changed_call(session, given, old, home.queue)
            return changed(old, given.rule(old.rule), call, given.owner, given.description, cleared, given.asked)

        before = desk.ask(catalogue.find(sql, name))
        made = desk.ask(catalogue.edit(sql, name, change, who=operator()))
    _tell("edited" if made.revision != before.revision else "unchanged", made, as_json=as_json)
    _warn(given.task, declared=home.declared)


def _changed_call(session: Session, given: Given, old: Definition, home: str) -> Call[Any] | None:
    """The job that a slot becomes from now on; None if nothing is said of it."""
    if (given.task, given.arguments, given.queue, given.priority) == (None, None, None, None):
        return None
    target = old.target
    queue = given.queue or (target.queue if given.task is None else home)
    priority = target.priority if given.priority is None else given.priority
    return _call(session, given, given.task or target.task, queue, given.arguments or target.payload, priority)


def _call(session: Session, given: Given, task: str, queue: str, arguments: str, priority: int | None) -> Call[Any]:
    check_name(queue, what="queue", most=MOST_QUEUE)
    if priority is not None:
        check_priority(priority)
    return Call(Request(queue, task, _payload(session, given.app, task, arguments), priority))


def _payload(session: Session, location: str | None, task: str, text: str) -> str:
    """Arguments as they are stored, checked as far as it can be done here."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Refused(f"args: cannot be read as JSON: {error}", field="args") from None
    if not isinstance(value, dict):
        raise Refused("args: must be a JSON object of named arguments", field="args")
    settings = session.settings()
    limit = settings.payload_limit
    if location is None and settings.app is None:
        return encode(value, what="args", limit=limit, field="args")
    app = session.app(location)
    app.load_imports()
    declaration = app.registry.find(task)
    if declaration is None:
        return encode(value, what="args", limit=limit, field="args")
    return declaration.signature.encode((), value, limit=limit)


def _warn(task: str | None, *, declared: bool) -> None:
    if task is not None and not declared:
        told = f"no code has declared task {escape(task)} yet: its jobs wait until a worker does"
        click.echo(f"kept: {told}", err=True)


def _tell(what: str, made: ScheduleRow, *, as_json: bool) -> None:
    first = made.next_slot
    if as_json:
        slot = None if first is None else first.isoformat()
        echo_json({"schedule": made.name, "what": what, "when": describe(made.definition.rule), "next_slot": slot})
        return
    coming = "" if first is None else f"; its next slot is {moment(first)}"
    click.echo(f"{escape(made.name)} is {what}: {describe(made.definition.rule)}{coming}")


# --- whoever defined it


@click.command()
@click.argument("name", callback=as_text)
@json_option
@click.pass_obj
def pause(session: Session, /, name: str, as_json: bool) -> None:
    """Fire no slot of a schedule until it is resumed.

    Slots that come meanwhile are left out for good. Declared ones can be paused too; a deploy does not resume them.
    """
    with session.desk() as desk, desk.conn.transaction():
        done = desk.ask(catalogue.pause(statements(desk), name, who=operator()))
    if as_json:
        echo_json({"schedule": name, "state": "paused", "changed": done})
        return
    click.echo(f"{escape(name)} is paused until resumed" if done else f"{escape(name)} was paused already")


@click.command()
@click.argument("name", callback=as_text)
@json_option
@click.pass_obj
def resume(session: Session, /, name: str, as_json: bool) -> None:
    """Fire a paused schedule again, from its next slot on."""
    with session.desk() as desk, desk.conn.transaction():
        sql = statements(desk)
        done = desk.ask(catalogue.resume(sql, name, who=operator()))
        found = desk.ask(catalogue.find(sql, name))
    if as_json:
        echo_json({"schedule": name, "state": found.state, "changed": done})
        return
    coming = f"; its next slot is {moment(found.next_slot)}" if found.next_slot else "; no slot comes any more"
    click.echo(f"{escape(name)} is resumed{coming}" if done else f"{escape(name)} was not paused")


@click.command("run-now")
@click.argument("name", callback=as_text)
@json_option
@click.pass_obj
def run_now(session: Session, /, name: str, as_json: bool) -> None:
    """Enqueue a job of a schedule at once, beside its slots.

    Neither its overlap policy nor a pause holds it up.
    """
    with session.desk() as desk, desk.conn.transaction():
        job = desk.ask(catalogue.run_now(statements(desk), name, who=operator()))
    if as_json:
        echo_json({"schedule": name, "job": str(job)})
        return
    click.echo(f"job {job} is enqueued for {escape(name)}")


@click.command()
@click.argument("name", callback=as_text)
@json_option
@click.pass_obj
def remove(session: Session, /, name: str, as_json: bool) -> None:
    """Delete a schedule that was added, or one that is retired, with the record of its slots.

    Jobs that it became stay.
    """
    with session.desk() as desk, desk.conn.transaction():
        found = desk.ask(catalogue.remove(statements(desk), name, who=operator()))
    if as_json:
        echo_json({"removed": found.name, "origin": found.origin})
        return
    click.echo(f"{escape(name)} is removed; jobs that it became stay")


COMMANDS = (add, edit, pause, resume, run_now, remove)
