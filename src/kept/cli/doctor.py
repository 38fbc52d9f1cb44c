"""``kept doctor``: is everything as it should be, and what to do if not."""

from __future__ import annotations

import sys

import click

from kept.admin import rules
from kept.admin.examine import collect
from kept.admin.model import Finding
from kept.cli.main import FAILED, OK, Desk, Session
from kept.cli.show import as_dict, echo_json, json_option
from kept.db import migrate
from kept.errors import Unavailable
from kept.showable import clean

COLOURS = {"ok": "green", "warning": "yellow", "problem": "red"}


def add_to(group: click.Group) -> None:
    group.add_command(doctor)


@click.command()
@json_option
@click.pass_obj
def doctor(session: Session, /, as_json: bool) -> None:
    """Examine the database, the schema, the workers and the lanes.

    Every finding is ok, a warning or a problem, and says what to do about it. Exits with 1 if there is a problem.
    """
    try:
        with session.desk(checked=False) as desk:
            findings = _examine(desk)
    except Unavailable as error:
        findings = [rules.unreachable(str(error))]
    if as_json:
        echo_json({"findings": [as_dict(finding) for finding in findings]})
    else:
        for finding in findings:
            _tell(finding)
    sys.exit(FAILED if rules.is_sick(findings) else OK)


def _examine(desk: Desk) -> list[Finding]:
    status = migrate.status(desk.conn, desk.schema)
    if status.problem is not None:
        return [rules.unfit(str(status.problem), read_only=status.server.read_only)]
    return rules.judge(collect(desk.conn, desk.schema, len(status.applied)))


def _tell(finding: Finding) -> None:
    level = click.style(f"{finding.level:<8}", fg=COLOURS[finding.level])
    click.echo(f"{level} {finding.code}: {clean(finding.message)}")
    if finding.advice:
        click.echo(f"{' ' * 9}{clean(finding.advice)}")
