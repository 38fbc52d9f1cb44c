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

from kept.bench import delivery, rules, tables
from kept.bench import drain as drains
from kept.bench import enqueue as enqueues
from kept.bench import growth as growths
from kept.bench import idle as idles
from kept.bench import latency as latencies
from kept.bench import outbox as outboxes
from kept.bench import place as places
from kept.bench import sustained as sustains
from kept.bench.drain import TUNED, Say
from kept.bench.model import Tuning
from kept.bench.place import Site
from kept.bench.tables import Table
from kept.cli.main import Session
from kept.cli.show import echo_json, echo_table, json_option

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
    "--rounds",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    metavar="N",
    help="Rounds in turn; the median counts.",
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
@click.option("--processes", default="1", callback=_counts, metavar="1,2,4", help="Also with so many worker processes.")
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
    with _measuring(session, database, as_json=as_json) as (site, say), places.place(site) as place:
        found = drains.measure(place, jobs=jobs, rounds=rounds, tuned=tuned, processes=processes, say=say)
    _tell(found, rules.drain_means(found), tables.of_drain(found), as_json=as_json)


@bench.command()
@_jobs_option(2000)
@_rounds_option
@click.option("--clients", type=click.IntRange(1, 200), default=16, show_default=True, metavar="N")
@click.option("--many", type=click.IntRange(1), default=10_000, show_default=True, metavar="N", help="In bulk.")
@_database_option
@json_option
@click.pass_obj
def enqueue(
    session: Session, /, jobs: int, rounds: int, clients: int, many: int, database: str | None, as_json: bool
) -> None:
    """Enqueue in a transaction, against a plain INSERT.

    BEGIN, a row of yours, a job, COMMIT: one by one; by many clients at once while a worker is busy; and with
    enqueue_many. The other side writes the same row into a table of the same columns and indexes.
    """
    phases = 2 if jobs < 1000 else 4
    with _measuring(session, database, as_json=as_json) as (site, say), places.place(site) as place:
        found = enqueues.measure(place, jobs=jobs, rounds=rounds, clients=clients, many=many, phases=phases, say=say)
    _tell(found, rules.enqueue_means(found), tables.of_enqueue(found), as_json=as_json)


@bench.command()
@click.option("--events", type=click.IntRange(1), default=2000, show_default=True, metavar="N")
@_rounds_option
@click.option("--many", type=click.IntRange(1), default=10_000, show_default=True, metavar="N", help="In bulk.")
@click.option("--drained", type=click.IntRange(600), default=100_000, show_default=True, metavar="N", help="To drain.")
@click.option("--nats", metavar="URL", help="A NATS server to publish to; by default one is started, if there is one.")
@_database_option
@json_option
@click.pass_obj
def outbox(
    session: Session,
    /,
    events: int,
    rounds: int,
    many: int,
    drained: int,
    nats: str | None,
    database: str | None,
    as_json: bool,
) -> None:
    """Emit in a transaction, against a plain INSERT; then drain in order, and to NATS.

    BEGIN, a row of yours, an event, COMMIT, with no, one and three subscriptions; and with emit_many. The other side
    writes the same row into a table of the same columns and indexes.
    """
    with (
        _measuring(session, database, as_json=as_json) as (site, say),
        places.place(site) as place,
        delivery.broker(nats, place.folder) as url,
    ):
        found = outboxes.measure(place, events=events, rounds=rounds, many=many, drained=drained, nats=url, say=say)
    _tell(found, rules.outbox_means(found), tables.of_outbox(found), as_json=as_json)


@bench.command()
@click.option("--samples", type=click.IntRange(1), default=300, show_default=True, metavar="N")
@_database_option
@json_option
@click.pass_obj
def latency(session: Session, /, samples: int, database: str | None, as_json: bool) -> None:
    """Time the way from a commit to the start of its job.

    One job at a time, on an idle worker process with default settings.
    """
    with _measuring(session, database, as_json=as_json) as (site, say), places.place(site) as place:
        found = latencies.measure(place, samples=samples, say=say)
    _tell(found, rules.latency_means(found), tables.of_latency(found), as_json=as_json)


@bench.command()
@_jobs_option(30_000)
@click.option("--seconds", type=click.FloatRange(0.1), default=60.0, show_default=True, metavar="S")
@click.option("--share", type=click.FloatRange(0.01, 1.0), default=0.6, show_default=True, metavar="S")
@_database_option
@json_option
@click.pass_obj
def sustained(
    session: Session, /, jobs: int, seconds: float, share: float, database: str | None, as_json: bool
) -> None:
    """Enqueue and work at once, and see if the backlog grows.

    First --jobs jobs are worked off to see how fast the worker is; then jobs come in at a --share of that.
    """
    with _measuring(session, database, as_json=as_json) as (site, say), places.place(site) as place:
        found = sustains.measure(place, jobs=jobs, seconds=seconds, share=share, say=say)
    _tell(found, rules.sustained_means(found), tables.of_sustained(found), as_json=as_json)


@bench.command()
@_jobs_option(50_000)
@_rounds_option
@click.option(
    "--scale", type=click.FloatRange(0.0001, 10), default=1.0, show_default=True, help="Of the sizes: 0.1 is a tenth."
)
@_database_option
@json_option
@click.pass_obj
def growth(session: Session, /, jobs: int, rounds: int, scale: float, database: str | None, as_json: bool) -> None:
    """Work beside millions of rows and an open transaction.

    Compares with an empty table: 1,000,000 jobs pending in another lane, 1,000,000 parked, 5,000,000 in history,
    100,000 in a paused lane. Then 200,000 jobs while a transaction stays open. Takes minutes and about 5 GB; try
    --scale 0.1 first.
    """
    with (
        _measuring(session, database, as_json=as_json) as (site, say),
        places.place(site) as empty,
        places.place(site) as grown,
    ):
        found = growths.measure(empty, grown, jobs=jobs, rounds=rounds, scale=scale, say=say)
    _tell(found, rules.growth_means(found), tables.of_growth(found), as_json=as_json)


@bench.command()
@click.option("--seconds", type=click.FloatRange(0.1), default=30.0, show_default=True, metavar="S")
@click.option(
    "--settling",
    type=click.FloatRange(0),
    default=12.0,
    show_default=True,
    metavar="S",
    help="Seconds before it counts.",
)
@click.option(
    "--jobs",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    metavar="N",
    help="Then run so many; look at memory.",
)
@_database_option
@json_option
@click.pass_obj
def idle(session: Session, /, seconds: float, settling: float, jobs: int, database: str | None, as_json: bool) -> None:
    """Watch a worker that has nothing to do.

    Statements, processor time and memory of the worker and its keeper. Needs Linux and, for the statements, a database
    that nobody else uses meanwhile.
    """
    with _measuring(session, database, as_json=as_json) as (site, say), places.place(site) as place:
        found = idles.measure(place, jobs=jobs, seconds=seconds, settling=settling, say=say)
    _tell(found, rules.idle_means(found), tables.of_idle(found), as_json=as_json)


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
def _measuring(session: Session, database: str | None, *, as_json: bool) -> Iterator[tuple[Site, Say]]:
    """A server to measure on and somebody to tell how far we are; what is ours is gone at the end."""
    before = signal.signal(signal.SIGTERM, _terminated)
    try:
        with _progress(quiet=as_json) as say:
            say("preparing the database")
            with places.site(database or session.database) as site:
                yield site, say
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


def _tell(found: msgspec.Struct, means: str, table: Table, *, as_json: bool) -> None:
    if as_json:
        echo_json({**msgspec.to_builtins(found), "meaning": means})
        return
    echo_table(table.columns, table.rows, right=table.columns[1:])
    click.echo()
    click.echo(click.wrap_text(means, width=100))
