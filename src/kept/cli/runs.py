"""``kept runs`` and ``kept runners``: what ran, and what will."""

from __future__ import annotations

from datetime import datetime, timedelta

import click

from kept.cli.main import Desk, Session
from kept.cli.show import (
    as_dict,
    as_duration,
    as_moment,
    as_text,
    brief,
    document,
    echo_json,
    echo_table,
    json_option,
    lines,
    moment,
)
from kept.db.queries import Queries
from kept.db.queries import load as load_queries
from kept.durations import render
from kept.runners import store
from kept.runners.store import RunnerRow, RunRow
from kept.showable import escape

STATES = ("running", "done", "failed", "abandoned", "cancelled", "pending", "queued", "skipped", "missed", "unknown")


def add_to(group: click.Group) -> None:
    runs.add_command(list_)
    runs.add_command(show)
    runners.add_command(list_runners)
    group.add_command(runs)
    group.add_command(runners)


@click.group()
def runs() -> None:
    """Look at what ran: passes of runners that did something or failed, and slots of schedules."""


@click.group()
def runners() -> None:
    """Look at the runners of your own."""


def statements(desk: Desk) -> Queries:
    """The runners' statements, for an operator's connection."""
    return load_queries("kept.runners", desk.schema)


def as_run_id(_ctx: click.Context, _param: click.Parameter, value: str) -> int:
    """For an argument that is the id of a run."""
    if not (value.isascii() and value.isdigit() and len(value) < 20 and 1 <= int(value) < 2**63):
        raise click.BadParameter(f"'{escape(value[:40])}' is not the id of a run")
    return int(value)


@click.command("list")
@click.option("--name", callback=as_text, metavar="NAME", help="Of this runner or schedule only.")
@click.option("--state", type=click.Choice(STATES), metavar="STATE", help="Only those that ended so, or still run.")
@click.option("--since", callback=as_moment, metavar="TIME", help="Began at 2026-11-17T08:00 or later.")
@click.option("--newer-than", callback=as_duration, metavar="1h", help="Began within this time.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, metavar="N")
@click.option("--before", type=click.IntRange(1, 2**63 - 1), metavar="ID", help="Only earlier ones: the next page.")
@json_option
@click.pass_obj
def list_(
    session: Session,
    /,
    name: str | None,
    state: str | None,
    since: datetime | None,
    newer_than: timedelta | None,
    limit: int,
    before: int | None,
    as_json: bool,
) -> None:
    """List runs, newest first. Passes that found nothing to do are not recorded."""
    with session.desk() as desk:
        found = desk.ask(
            store.list_runs(
                statements(desk),
                limit=limit + 1,
                before=before or store.NEWEST,
                name=name,
                state=state,
                since=since,
                newer_than=None if newer_than is None else newer_than.total_seconds(),
            )
        )
    shown, more = found[:limit], len(found) > limit
    last = shown[-1].id if more else None
    if as_json:
        echo_json({"runs": [_as_json(each) for each in shown], "more": more, "before": last and str(last)})
        return
    if not shown:
        click.echo("no run matches")
        return
    names = ("id", "name", "state", "slot", "started", "took", "worker", "counters", "code")
    echo_table(names, [_row(each) for each in shown], right=("id", "took"))
    if more:
        click.echo(f"there is more; go on with --before {last}", err=True)


def _as_json(run: RunRow) -> dict[str, object]:
    return as_dict(run, without=("counters",)) | {"counters": document(run.counters)}


def _row(run: RunRow) -> tuple[object, ...]:
    times = moment(run.slot), moment(run.started_at), _took(run)
    return run.id, run.name, run.state, *times, run.worker, _counted(run), run.code


def _took(run: RunRow) -> str:
    return "" if run.duration is None else f"{run.duration:.3f}s" if run.duration < 10 else brief(run.duration)


def _counted(run: RunRow) -> str:
    counters = document(run.counters)
    return ", ".join(f"{name} {value}" for name, value in counters.items()) if isinstance(counters, dict) else ""


@click.command()
@click.argument("id", callback=as_run_id, metavar="ID")
@json_option
@click.pass_obj
def show(session: Session, /, id: int, as_json: bool) -> None:
    """Show everything about one run."""
    with session.desk() as desk:
        run = desk.ask(store.show_run(statements(desk), id))
    if as_json:
        echo_json(_as_json(run))
        return
    facts = (
        ("run", run.id),
        ("name", run.name),
        ("kind", run.kind),
        ("state", run.state),
        ("worker", run.worker),
        ("nominal", moment(run.slot)),
        ("started", moment(run.started_at)),
        ("finished", moment(run.finished_at)),
        ("took", _took(run)),
        ("counters", _counted(run)),
        ("job", run.job),
        ("code", run.code),
    )
    for what, value in facts:
        if value not in (None, ""):
            click.echo(f"{what:9} {escape(str(value))}")
    for line in lines(run.error or ""):
        click.echo(f"  {line}")


@click.command("list")
@json_option
@click.pass_obj
def list_runners(session: Session, /, as_json: bool) -> None:
    """List the runners of your own: when each is next, who is at it, when it last ran and did well."""
    with session.desk() as desk:
        found = desk.ask(store.list_runners(statements(desk)))
    if as_json:
        echo_json({"runners": [as_dict(each) for each in found]})
        return
    if not found:
        click.echo("there are no runners of your own: none was declared by a worker yet")
        return
    names = ("name", "every", "singleton", "holder", "next", "last run", "last success", "last state")
    echo_table(names, [_runner_row(each) for each in found])


def _runner_row(runner: RunnerRow) -> tuple[object, ...]:
    return (
        runner.name,
        render(timedelta(seconds=runner.every)),
        "yes" if runner.singleton else "no",
        runner.holder,
        moment(runner.next_at),
        moment(runner.ran_at),
        moment(runner.done_at),
        runner.last_state,
    )
