"""``kept jobs list`` and ``kept jobs show``: looking at jobs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click

from kept.admin import store
from kept.admin.model import Detail, JobRow, LogLine
from kept.cli.changes import COMMANDS
from kept.cli.filters import Given, filter_options
from kept.cli.main import Session
from kept.cli.show import (
    as_dict,
    as_job_id,
    brief,
    document,
    echo_json,
    echo_table,
    json_option,
    lines,
    moment,
)
from kept.showable import escape


def add_to(group: click.Group) -> None:
    for command in (list_, show, *COMMANDS):
        jobs.add_command(command)
    group.add_command(jobs)


@click.group()
def jobs() -> None:
    """Look at jobs, live and settled, and change what becomes of them."""


@click.command("list")
@filter_options
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, metavar="N")
@click.option("--before", callback=as_job_id, metavar="ID", help="Only jobs with lower ids: the next page.")
@json_option
@click.pass_obj
def list_(session: Session, /, limit: int, before: int | None, as_json: bool, **given: Any) -> None:
    """List jobs, newest first."""
    with session.desk() as desk:
        wanted = Given(**given).filter(desk)
        page = desk.ask(store.list_jobs(desk.sql, wanted, limit=limit, before=before or store.NEWEST))
    last = str(page.jobs[-1].id) if page.more else None
    if as_json:
        echo_json({"jobs": [as_dict(job) for job in page.jobs], "more": page.more, "before": last})
        return
    if not page.jobs:
        click.echo("no job matches")
        return
    echo_table(
        ("id", "state", "queue", "task", "attempts", "age", "code", "key"),
        [_row(job) for job in page.jobs],
        right=("id", "attempts", "age"),
    )
    if page.more:
        click.echo(f"there is more; go on with --before {last}", err=True)


def _row(job: JobRow) -> tuple[object, ...]:
    attempts = f"{job.charged}/{job.max_attempts}"
    return job.id, job.state, job.queue, job.task, attempts, brief(job.age), job.code, job.key


@click.command()
@click.argument("id", callback=as_job_id)
@json_option
@click.pass_obj
def show(session: Session, /, id: int, as_json: bool) -> None:
    """Show everything about one job: its payload, its result, its log."""
    with session.desk() as desk:
        detail = desk.ask(store.show_job(desk.sql, id))
    if as_json:
        echo_json(_as_json(detail))
    else:
        click.echo("\n".join(_told(detail)))


def _as_json(detail: Detail) -> dict[str, object]:
    return {
        **as_dict(detail.job),
        "headers": document(detail.headers),
        "payload": document(detail.payload),
        "result": document(detail.result),
        "retries": [str(id) for id in detail.retries],
        "log": [as_dict(line) for line in detail.log],
    }


def _told(detail: Detail) -> Iterator[str]:
    for name, value in _facts(detail):
        if value:
            yield f"{name:<10} {escape(value)}"
    for name, text in (("headers", detail.headers), ("payload", detail.payload), ("result", detail.result)):
        if text is not None:
            yield name
            yield from _indented(_pretty(text))
    if detail.log:
        yield "log"
        for line in detail.log:
            yield f"  {_line(line)}"
            yield from _indented(line.detail if line.detail and line.event != "retried" else "", by=4)


def _facts(detail: Detail) -> Iterator[tuple[str, str]]:
    job = detail.job
    yield "job", str(job.id)
    yield "task", f"{job.task} in queue {job.queue}, priority {job.priority}"
    yield "state", f"{job.state} ({job.reason})" if job.reason else job.state
    yield "error", ": ".join(part for part in (job.code, job.message) if part)
    yield "key", job.key or ""
    suspect = "; its process died, so it runs alone" if job.suspect else ""
    yield "attempts", f"{job.charged} of {job.max_attempts} charged, claimed {job.attempt} times{suspect}"
    yield "enqueued", moment(job.created_at)
    yield "due", moment(job.due_at)
    yield "claimed", moment(job.claimed_at)
    yield "settled", moment(job.settled_at)
    yield "locked by", f"{job.locked_by} until {moment(job.locked_until)}" if job.locked_by else ""
    yield "retry of", "" if job.retry_of is None else f"job {job.retry_of}"
    yield "retried as", ", ".join(f"job {id}" for id in detail.retries)


def _pretty(text: str) -> str:
    return json.dumps(document(text), indent=2, ensure_ascii=False)


def _line(line: LogLine) -> str:
    said = ": ".join(part for part in (line.code, line.message) if part)
    where = f"on {line.worker}" if line.worker else ""
    parts = (moment(line.at), f"attempt {line.attempt}", line.event, where, said)
    return escape("  ".join(part for part in parts if part))


def _indented(text: str, by: int = 2) -> Iterator[str]:
    for line in lines(text):
        yield f"{' ' * by}{line}"
