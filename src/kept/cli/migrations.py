"""``kept migrate``: bring the schema up to this code, or say what that would take."""

from __future__ import annotations

import sys

import click
import psycopg

from kept.cli.main import FAILED, OK, Session, fail
from kept.cli.show import echo_json, json_option
from kept.db import migrate
from kept.errors import Refused
from kept.showable import clean


def add_to(group: click.Group) -> None:
    group.add_command(migrate_)


@click.command("migrate")
@click.option("--print", "printing", is_flag=True, help="Print the script for psql and change nothing.")
@click.option(
    "--since", type=click.IntRange(0), default=0, metavar="N", help="With --print: only what comes after number N."
)
@click.option("--check", "checking", is_flag=True, help="Change nothing; exit with 1 if something is pending.")
@json_option
@click.pass_obj
def migrate_(session: Session, /, printing: bool, since: int, checking: bool, as_json: bool) -> None:
    """Bring the schema up to this release.

    Each migration is one transaction; several machines may run this at the same time. Workers of the release before
    go on working on the new schema.
    """
    if printing and (checking or as_json):
        raise Refused("--print goes with neither --check nor --json")
    if printing:
        click.echo(migrate.script(session.settings().schema, since=since))
        return
    with session.desk(checked=False) as desk:
        if checking:
            _check(migrate.status(desk.conn, desk.schema), as_json=as_json)
        desk.conn.add_notice_handler(_say)
        applied = [migrate.label(one) for one in migrate.apply(desk.conn, desk.schema)]
    if as_json:
        echo_json({"schema": desk.schema, "applied": applied, "pending": [], "problem": None})
        return
    for label in applied:
        click.echo(f"applied {label}")
    if not applied:
        click.echo(f'schema "{desk.schema}" is up to date: nothing to apply')


def _check(status: migrate.Status, *, as_json: bool) -> None:
    """Say what is pending, or that nothing is; does not return."""
    problem = status.problem
    if as_json:
        said = None if problem is None else clean(str(problem))
        pending = [migrate.label(one) for one in status.pending]
        echo_json({"schema": status.schema, "applied": [], "pending": pending, "problem": said})
        sys.exit(OK if problem is None else FAILED)
    if problem is not None:
        fail(problem)
    click.echo(f'schema "{status.schema}" is up to date')
    sys.exit(OK)


def _say(notice: psycopg.errors.Diagnostic) -> None:
    click.echo(f"kept: {clean(notice.message_primary or '')}", err=True)
