"""``kept verify``: see for yourself that the promises hold, under faults, on this machine or on your own server."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Sequence
from math import isfinite
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import click
import msgspec
import psycopg
from click.core import ParameterSource

from kept.cli.main import FAILED, Session, fail
from kept.cli.measuring import progress, stoppable
from kept.cli.show import echo_json, echo_table, json_option
from kept.errors import Error, Refused, Unavailable
from kept.verify import faults as known_faults
from kept.verify import tables
from kept.verify.injector import Say
from kept.verify.ledger import Torn
from kept.verify.model import Report
from kept.verify.record import judged_again
from kept.verify.run import Plan, run

INCOMPLETE = 3  # no promise was broken, and not all was done that would have shown it


class _Seconds(click.FloatRange):
    """A number of seconds that comes to an end."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = float(super().convert(value, param, ctx))
        if not isfinite(seconds):
            self.fail(f"{value} is no number of seconds", param, ctx)
        return seconds


def add_to(group: click.Group) -> None:
    group.add_command(verify)


def _names(_ctx: click.Context, _param: click.Parameter, value: str | None) -> Sequence[str] | None:
    return None if value is None else [name for each in value.split(",") if (name := each.strip())]


@click.command()
@click.option("--database", metavar="URL", help="Verify on this server.  [default: a PostgreSQL of its own]")
@click.option("--seconds", type=_Seconds(1), default=60.0, show_default=True, metavar="S")
@click.option("--jobs", type=click.IntRange(1), metavar="N", help="Enqueued in that time.  [default: 250 a second]")
@click.option("--workers", type=click.IntRange(1, 32), default=4, show_default=True, metavar="N")
@click.option("--faults", callback=_names, metavar="A,B", help="Faults or groups of them.  [default: all]")
@click.option("--seed", type=click.IntRange(0), metavar="N", help="Repeat the faults of an earlier run.")
@click.option("--keep", type=click.Path(file_okay=False, path_type=Path), metavar="FOLDER", help="Keep the logs here.")
@click.option(
    "--judge",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Judge the logs of an earlier run again, and start nothing.",
)
@click.option("--list", "listing", is_flag=True, help="Name the faults there are, and do nothing.")
@json_option
@click.pass_obj
def verify(
    session: Session,
    /,
    database: str | None,
    seconds: float,
    jobs: int | None,
    workers: int,
    faults: Sequence[str] | None,
    seed: int | None,
    keep: Path | None,
    judge: Path | None,
    listing: bool,
    as_json: bool,
) -> None:
    """Break things on purpose and see whether the promises hold.

    Starts producers, workers and a fault injector, on a PostgreSQL of its own in a temporary folder, or on the one that
    --database names: there in a schema of its own, kept_verify_…, and without faults of the server. KEPT_DATABASE_URL
    is not used. What producers were told and what handlers did is written down outside the database, and compared.
    Exit code 1: a promise was broken; 3: the run was not complete. See docs/verify.md.
    """
    if listing:
        _refuse_more_than(click.get_current_context(), "listing")
        _list(as_json=as_json)
        return
    if judge is not None:
        _refuse_more_than(click.get_current_context(), "judge")
        _tell(_read(lambda: judged_again(judge)), as_json=as_json)
        return
    plan = Plan(
        database=database or session.database,
        seconds=seconds,
        jobs=jobs or int(250 * seconds),
        workers=workers,
        faults=faults,
        seed=secrets.randbelow(1_000_000) if seed is None else seed,
        keep=keep,
    )
    known_faults.chosen(faults)  # a name that is none is told before anything is started
    if keep is not None:
        _make_room(keep)
    with stoppable(), progress(quiet=as_json) as say:
        report = _run(plan, say)
    _tell(report, as_json=as_json)


def _refuse_more_than(ctx: click.Context, name: str) -> None:
    """What else was asked for would be ignored without a word."""
    given = {each.name: each.opts[0] for each in ctx.command.params if each.name and _is_given(ctx, each.name)}
    more = sorted(option for each, option in given.items() if each not in (name, "as_json"))
    if more:
        field = given[name].lstrip("-")
        raise Refused(f"{field}: it goes without {', '.join(more)}", field=field)


def _is_given(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _run(plan: Plan, say: Say) -> Report:
    try:
        return _read(lambda: _noted(lambda: run(plan, say)))
    except psycopg.OperationalError:
        raise
    except psycopg.Error as error:  # rights that are missing: that is not a promise
        fail(Unavailable(f"the database refused: {' '.join(str(error).split())}"), INCOMPLETE)


def _read(report: Callable[[], Report]) -> Report:
    """Logs that cannot be read break no promise."""
    try:
        return report()
    except Torn as error:
        fail(error, INCOMPLETE)


def _noted(report: Callable[[], Report]) -> Report:
    """What is noted beside an error is told before it."""
    try:
        return report()
    except (Error, psycopg.Error) as error:
        for note in getattr(error, "__notes__", ()):
            click.echo(f"kept: {note}", err=True)
        raise


def _make_room(keep: Path) -> None:
    """A folder for the logs, there and empty before anything is started: logs of two runs are those of neither."""
    try:
        keep.mkdir(parents=True, exist_ok=True)
        if any(keep.iterdir()):
            raise Refused(f"keep: {keep} is not empty", field="keep")
        with TemporaryFile(dir=keep):
            pass
    except OSError as error:
        raise Refused(f"keep: {keep} cannot be written to: {error.strerror}", field="keep") from None


def _list(*, as_json: bool) -> None:
    rows = [(each.name, each.group, _about(each), each.missing()) for each in known_faults.ALL]
    if as_json:
        echo_json([dict(zip(("name", "group", "about", "missing"), row, strict=True)) for row in rows])
    else:
        echo_table(("name", "group", "what happens", "not here, because"), rows)


def _about(fault: known_faults.Fault) -> str:
    return (fault.__doc__ or "").strip().splitlines()[0]


def _tell(report: Report, *, as_json: bool) -> None:
    """Show it, and end with the code that says the same."""
    if as_json:
        per_million = round(report.duplicates_per_million, 1)
        told = {"duplicates_per_million": per_million, "meaning": tables.means(report)}
        echo_json({**msgspec.to_builtins(report), **told})
    else:
        _show(report)
    if report.breaches:
        sys.exit(FAILED if any(breach.promise for breach in report.breaches) else INCOMPLETE)


def _show(report: Report) -> None:
    echo_table(tables.COLUMNS, tables.of(report), right=tables.COLUMNS[1:])
    click.echo()
    for breach in report.breaches:
        click.echo(f"promise {breach.promise}: {breach.sentence}" if breach.promise else breach.sentence)
        for item in breach.items:
            click.echo(f"  {item}")
    if report.logs is not None:
        click.echo(f"The logs are in {report.logs}; kept verify --judge judges them again.")
    click.echo(tables.means(report))
