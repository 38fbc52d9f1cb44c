"""``kept bench``: measure on this machine and this server, say what it means, leave nothing behind."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn, TypeVar

import click
import msgspec
from rich.console import Console

from kept.bench import drain as drains
from kept.bench import latency as latencies
from kept.bench import place as places
from kept.bench import rules
from kept.bench.drain import TUNED, Say
from kept.bench.model import Latencies, Spread, Tuning
from kept.bench.place import Place
from kept.cli.main import Session
from kept.cli.show import count, echo_json, echo_table, json_option

F = TypeVar("F", bound=Callable[..., Any])
INTERRUPTED, TERMINATED = 130, 143


def add_to(group: click.Group) -> None:
    group.add_command(bench)


@click.group()
def bench() -> None:
    """Measure how fast Kept is here.

    Measures on a PostgreSQL of its own in a temporary folder, or on the one that --database names; there in a schema
    of its own, kept_bench_…, which is dropped at the end. KEPT_DATABASE_URL is not used: a measurement is a load that
    one asks for. See docs/benchmarking.md.
    """


def _database_option(command: F) -> F:
    return click.option(
        "--database", metavar="URL", help="Measure on this server.  [default: a PostgreSQL of its own]"
    )(command)


def _jobs_option(default: int) -> Callable[[F], F]:
    return click.option("--jobs", type=click.IntRange(1), default=default, show_default=True, metavar="N")


_rounds_option = click.option(
    "--rounds", type=click.IntRange(1), default=3, show_default=True, metavar="N", help="Interleaved; medians count."
)


def _tuning_options(command: F) -> F:
    concurrency = click.option(
        "--concurrency", type=click.IntRange(1, 10_000), default=TUNED.concurrency, show_default=True, metavar="N"
    )
    batch = click.option("--batch", type=click.IntRange(1, 1000), default=TUNED.batch, show_default=True, metavar="N")
    return concurrency(batch(command))


def _counts(_ctx: click.Context, _param: click.Parameter, value: str) -> tuple[int, ...]:
    try:
        counts = tuple(int(each) for each in value.split(","))
    except ValueError:
        raise click.BadParameter("write numbers like 1,2,4") from None
    if not all(1 <= each <= 64 for each in counts):
        raise click.BadParameter("must lie between 1 and 64")
    return counts


@bench.command()
@_jobs_option(50_000)
@_rounds_option
@_tuning_options
@click.option(
    "--processes", default="1", callback=_counts, metavar="1,2,4", help="Also measure so many worker processes."
)
@_database_option
@json_option
@click.pass_obj
def drain(
    session: Session,
    /,
    jobs: int,
    rounds: int,
    concurrency: int,
    batch: int,
    processes: Sequence[int],
    database: str | None,
    as_json: bool,
) -> None:
    """Work off a backlog of jobs that do nothing.

    A worker process as in production, tuned (--concurrency, --batch) and with default settings, against the limit: a
    bare loop that sends the same SQL from Python and runs nothing.
    """
    tuned = Tuning(concurrency, batch)
    with _measuring(session, database, as_json=as_json) as (place, say):
        found = drains.measure(place, jobs=jobs, rounds=rounds, tuned=tuned, processes=processes, say=say)
    if as_json:
        echo_json(_as_json(found, rules.drain_means(found)))
        return
    rows = [
        ("worker, jobs/s", found.jobs_per_s),
        ("limit, jobs/s", found.limit_jobs_per_s),
        ("worker to limit", found.ratio_to_limit),
        ("default settings, jobs/s", found.default_jobs_per_s),
        ("default to tuned", found.default_to_tuned),
        *((f"{number} workers, jobs/s", each) for number, each in found.processes.items()),
        ("WAL, bytes/job", found.wal_bytes_per_job),
    ]
    _echo_spreads(rows)
    _echo_meaning(rules.drain_means(found))


@bench.command()
@click.option("--samples", type=click.IntRange(1), default=300, show_default=True, metavar="N")
@_database_option
@json_option
@click.pass_obj
def latency(session: Session, /, samples: int, database: str | None, as_json: bool) -> None:
    """Time the way from a commit to the start of its job.

    One job at a time, on an idle worker process with default settings.
    """
    with _measuring(session, database, as_json=as_json) as (place, say):
        found = latencies.measure(place, samples=samples, say=say)
    if as_json:
        echo_json(_as_json(found, rules.latency_means(found)))
        return
    _echo_latencies([("after COMMIT returned", found.from_commit), ("with the COMMIT", found.with_commit)])
    _echo_meaning(rules.latency_means(found))


@bench.command()
@_database_option
@json_option
@click.pass_obj
def clean(session: Session, /, database: str | None, as_json: bool) -> None:
    """Drop what killed measurements left behind.

    Without --database: servers and folders of its own; with it: schemas in that database. Those of measurements that
    still run are left alone.
    """
    dropped = places.clean(database or session.database)
    if as_json:
        echo_json({"dropped": dropped})
    elif dropped:
        for name in dropped:
            click.echo(f"dropped {name}")
    else:
        click.echo("nothing to clean up")


# --- running


@contextmanager
def _measuring(session: Session, database: str | None, *, as_json: bool) -> Iterator[tuple[Place, Say]]:
    """A place to measure in and somebody to tell how far we are; both gone at the end, whatever ends it."""
    before = signal.signal(signal.SIGTERM, _terminated)
    try:
        with _progress(quiet=as_json) as say:
            say("preparing the database")
            with places.site(database or session.database) as site, places.place(site) as place:
                yield place, say
                say("cleaning up")
    except KeyboardInterrupt:
        click.echo("kept: interrupted; nothing is left behind", err=True)
        sys.exit(INTERRUPTED)
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminated(_number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(TERMINATED)


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Say]:
    """On a terminal, a line that says what is being done."""
    console = Console(stderr=True)
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    with console.status("") as status:
        yield status.update


# --- telling


def _as_json(found: msgspec.Struct, means: str) -> dict[str, Any]:
    return {**msgspec.to_builtins(found), "meaning": means}


def _echo_spreads(rows: Sequence[tuple[str, Spread]]) -> None:
    columns = ("", "min", "median", "max")
    echo_table(columns, [(name, *map(_number, (s.min, s.median, s.max))) for name, s in rows], right=columns[1:])


def _echo_latencies(rows: Sequence[tuple[str, Latencies]]) -> None:
    columns = ("ms", "p50", "p90", "p99", "max")
    cells = [(name, *(f"{value:.2f}" for value in (s.p50, s.p90, s.p99, s.max))) for name, s in rows]
    echo_table(columns, cells, right=columns[1:])
    click.echo(count(rows[0][1].samples, "sample"))


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def _echo_meaning(text: str) -> None:
    click.echo()
    click.echo(click.wrap_text(text, width=100))
