"""``kept jobs retry``, ``cancel`` and ``delete``: by ids, or by filters after a question."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from kept.admin import bulk as bulks
from kept.admin.bulk import Changed, Matched, Refusal
from kept.admin.model import Action
from kept.cli.filters import Given, filter_options
from kept.cli.main import FAILED, OK, Desk, Session
from kept.cli.show import as_job_ids, count, echo_json, json_option
from kept.errors import Refused
from kept.showable import clean

F = TypeVar("F", bound=Callable[..., Any])
DONE: dict[Action, str] = {"retry": "retried", "cancel": "cancelled", "delete": "deleted"}


def changes(command: F) -> F:
    """What the three commands have in common."""
    for option in reversed(
        (
            click.argument("ids", callback=as_job_ids, nargs=-1, metavar="[ID]..."),
            filter_options,
            click.option("--limit", type=click.IntRange(1), metavar="N", help="At most so many jobs."),
            click.option("--yes", is_flag=True, help="Do not ask."),
            json_option,
            click.pass_obj,
        )
    ):
        command = option(command)
    return command


@click.command()
@click.option("--again", is_flag=True, help="Also jobs that were retried before.")
@changes
def retry(session: Session, /, again: bool, **options: Any) -> None:
    """Retry jobs that failed (or, by id or --state, were cancelled or skipped).

    Each gets a new job with the same arguments, linked to the old one; the old record stays. Name jobs by id, or by
    filters: then the number is shown and confirmed first.
    """
    _change(session, "retry", again=again, **options)


@click.command()
@changes
def cancel(session: Session, /, **options: Any) -> None:
    """Cancel pending jobs; running ones are left alone.

    Name jobs by id, or by filters: then the number is shown and confirmed first.
    """
    _change(session, "cancel", again=False, **options)


@click.command()
@changes
def delete(session: Session, /, **options: Any) -> None:
    """Delete the records of settled jobs, with their logs; live jobs are left alone.

    The deleted are counted as purged. Name jobs by id, or by filters: then the number is shown and confirmed first.
    """
    _change(session, "delete", again=False, **options)


COMMANDS = (retry, cancel, delete)


def _change(
    session: Session,
    action: Action,
    *,
    again: bool,
    ids: tuple[int, ...],
    limit: int | None,
    yes: bool,
    as_json: bool,
    **filters: Any,
) -> None:
    given = Given(**filters)
    if bool(ids) == bool(given):
        raise Refused(f"say which jobs to {action}: by ids, or by filters such as --queue and --older-than")
    with session.desk() as desk:
        wanted = given.filter(desk, ids or None)
        bulk = bulks.bulk(action, wanted, again=again, states=given.states)
        if ids:
            matched = len(set(ids))
            changed, refused = bulks.change_named(desk.conn, desk.schema, bulk)
        else:
            found = desk.ask(bulks.count(desk.sql, bulk))
            matched = min(found.jobs, limit or found.jobs)
            refused = []
            changed = _change_matched(desk, bulk, found, matched, yes=yes)
    _report(action, matched, changed, refused, as_json=as_json)
    sys.exit(FAILED if refused else OK)


def _change_matched(desk: Desk, bulk: bulks.Bulk, found: Matched, matched: int, *, yes: bool) -> list[Changed]:
    if not matched:
        return []
    if not yes:
        _confirm(bulk.action, matched)
    return bulks.change(desk.conn, desk.schema, bulk, upto=found.upto, most=matched)


def _confirm(action: Action, matched: int) -> None:
    if not sys.stdin.isatty():
        raise Refused(f"{count(matched, 'job')} would be {DONE[action]}; there is nobody to ask, so say --yes")
    click.confirm(f"{count(matched, 'job')} will be {DONE[action]}. Go on?", abort=True, err=True)


def _report(
    action: Action, matched: int, changed: Sequence[Changed], refused: Sequence[Refusal], *, as_json: bool
) -> None:
    skipped = max(0, matched - len(changed))
    if as_json:
        echo_json(
            {
                "action": action,
                "matched": matched,
                "done": len(changed),
                "skipped": skipped,
                "jobs": [_job(each) for each in changed],
                "refused": [{"id": str(r.id), "code": r.code, "message": r.message} for r in refused],
            }
        )
        return
    for each in changed[:20] if action == "retry" else ():
        click.echo(f"job {each.id} is retried as job {each.became}")
    for refusal in refused:
        click.echo(f"kept: {clean(refusal.message)}", err=True)
    left = f", {skipped} skipped" if skipped else ""
    click.echo(f"{count(len(changed), 'job')} {DONE[action]}{left}" if matched else "no job matches")


def _job(each: Changed) -> dict[str, str]:
    return {"id": str(each.id)} | ({} if each.became is None else {"retried_as": str(each.became)})
