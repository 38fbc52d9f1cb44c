"""``kept bench``: measure on this machine and this server, say what it means, leave nothing behind."""

from __future__ import annotations

from collections.abc import Sequence

import click

from kept.bench import delivery, rules, tables
from kept.bench import drain as drains
from kept.bench import enqueue as enqueues
from kept.bench import growth as growths
from kept.bench import idle as idles
from kept.bench import latency as latencies
from kept.bench import outbox as outboxes
from kept.bench import place as places
from kept.bench import schedules as schedule_measures
from kept.bench import sustained as sustains
from kept.bench.model import Tuning
from kept.cli.main import Session
from kept.cli.measuring import database_option, jobs_option, measuring, rounds_option, tell, tuning_options
from kept.cli.show import echo_json, json_option


def add_to(group: click.Group) -> None:
    group.add_command(bench)


@click.group()
def bench() -> None:
    """Measure how fast Kept is here.

    Measures on a PostgreSQL of its own in a temporary folder, or on the one that --database names; there in a schema
    of its own, kept_bench_…, which is dropped at the end. KEPT_DATABASE_URL is not used: a measurement is a load that
    one asks for. See docs/benchmarking.md.
    """


def _counts(_ctx: click.Context, _param: click.Parameter, value: str) -> tuple[int, ...]:
    try:
        counts = tuple(int(each) for each in value.split(","))
    except ValueError:
        raise click.BadParameter("write numbers like 1,2,4") from None
    if not all(1 <= each <= 64 for each in counts):
        raise click.BadParameter("must lie between 1 and 64")
    return counts


@bench.command()
@jobs_option(50_000)
@rounds_option
@tuning_options
@click.option("--processes", default="1", callback=_counts, metavar="1,2,4", help="Also with so many worker processes.")
@database_option
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
    with measuring(session, database, as_json=as_json) as (site, say), places.place(site) as place:
        found = drains.measure(place, jobs=jobs, rounds=rounds, tuned=tuned, processes=processes, say=say)
    tell(found, rules.drain_means(found), tables.of_drain(found), as_json=as_json)


@bench.command()
@jobs_option(2000)
@rounds_option
@click.option("--clients", type=click.IntRange(1, 200), default=16, show_default=True, metavar="N")
@click.option("--many", type=click.IntRange(1), default=10_000, show_default=True, metavar="N", help="In bulk.")
@database_option
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
    with measuring(session, database, as_json=as_json) as (site, say), places.place(site) as place:
        found = enqueues.measure(place, jobs=jobs, rounds=rounds, clients=clients, many=many, phases=phases, say=say)
    tell(found, rules.enqueue_means(found), tables.of_enqueue(found), as_json=as_json)


@bench.command()
@click.option("--events", type=click.IntRange(1), default=2000, show_default=True, metavar="N")
@rounds_option
@click.option("--many", type=click.IntRange(1), default=10_000, show_default=True, metavar="N", help="In bulk.")
@click.option("--drained", type=click.IntRange(600), default=100_000, show_default=True, metavar="N", help="To drain.")
@click.option("--nats", metavar="URL", help="A NATS server to publish to; by default one is started, if there is one.")
@database_option
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
        measuring(session, database, as_json=as_json) as (site, say),
        places.place(site) as place,
        delivery.broker(nats, place.folder) as url,
    ):
        found = outboxes.measure(place, events=events, rounds=rounds, many=many, drained=drained, nats=url, say=say)
    tell(found, rules.outbox_means(found), tables.of_outbox(found), as_json=as_json)


@bench.command()
@click.option("--schedules", "count", type=click.IntRange(1), default=10_000, show_default=True, metavar="N")
@rounds_option
@click.option(
    "--seconds",
    type=click.FloatRange(0.1),
    default=30.0,
    show_default=True,
    metavar="S",
    help="To watch an idle worker.",
)
@click.option("--slots", type=click.IntRange(1), default=60, show_default=True, metavar="N", help="A second apart.")
@database_option
@json_option
@click.pass_obj
def schedules(
    session: Session, /, count: int, rounds: int, seconds: float, slots: int, database: str | None, as_json: bool
) -> None:
    """Fire many schedules at once, and none.

    What an idle worker costs beside schedules that are not due, against one with none; how long it takes until all are
    enqueued that are due at one moment, with one worker and with two; how late jobs start. Needs Linux.
    """
    with measuring(session, database, as_json=as_json) as (site, say), places.place(site) as place:
        found = schedule_measures.measure(place, schedules=count, rounds=rounds, seconds=seconds, slots=slots, say=say)
    tell(found, rules.schedules_means(found), tables.of_schedules(found), as_json=as_json)


@bench.command()
@click.option("--samples", type=click.IntRange(1), default=300, show_default=True, metavar="N")
@database_option
@json_option
@click.pass_obj
def latency(session: Session, /, samples: int, database: str | None, as_json: bool) -> None:
    """Time the way from a commit to the start of its job.

    One job at a time, on an idle worker process with default settings.
    """
    with measuring(session, database, as_json=as_json) as (site, say), places.place(site) as place:
        found = latencies.measure(place, samples=samples, say=say)
    tell(found, rules.latency_means(found), tables.of_latency(found), as_json=as_json)


@bench.command()
@jobs_option(30_000)
@click.option("--seconds", type=click.FloatRange(0.1), default=60.0, show_default=True, metavar="S")
@click.option("--share", type=click.FloatRange(0.01, 1.0), default=0.6, show_default=True, metavar="S")
@database_option
@json_option
@click.pass_obj
def sustained(
    session: Session, /, jobs: int, seconds: float, share: float, database: str | None, as_json: bool
) -> None:
    """Enqueue and work at once, and see if the backlog grows.

    First --jobs jobs are worked off to see how fast the worker is; then jobs come in at a --share of that.
    """
    with measuring(session, database, as_json=as_json) as (site, say), places.place(site) as place:
        found = sustains.measure(place, jobs=jobs, seconds=seconds, share=share, say=say)
    tell(found, rules.sustained_means(found), tables.of_sustained(found), as_json=as_json)


@bench.command()
@jobs_option(50_000)
@rounds_option
@click.option(
    "--scale", type=click.FloatRange(0.0001, 10), default=1.0, show_default=True, help="Of the sizes: 0.1 is a tenth."
)
@database_option
@json_option
@click.pass_obj
def growth(session: Session, /, jobs: int, rounds: int, scale: float, database: str | None, as_json: bool) -> None:
    """Work beside millions of rows and an open transaction.

    Compares with an empty table: 1,000,000 jobs pending in another lane, 1,000,000 parked, 5,000,000 in history,
    100,000 in a paused lane. Then 200,000 jobs while a transaction stays open. Takes minutes and about 5 GB; try
    --scale 0.1 first.
    """
    with (
        measuring(session, database, as_json=as_json) as (site, say),
        places.place(site) as empty,
        places.place(site) as grown,
    ):
        found = growths.measure(empty, grown, jobs=jobs, rounds=rounds, scale=scale, say=say)
    tell(found, rules.growth_means(found), tables.of_growth(found), as_json=as_json)


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
@database_option
@json_option
@click.pass_obj
def idle(session: Session, /, seconds: float, settling: float, jobs: int, database: str | None, as_json: bool) -> None:
    """Watch a worker that has nothing to do.

    Statements, processor time and memory of the worker and its keeper. Needs Linux and, for the statements, a database
    that nobody else uses meanwhile.
    """
    with measuring(session, database, as_json=as_json) as (site, say), places.place(site) as place:
        found = idles.measure(place, jobs=jobs, seconds=seconds, settling=settling, say=say)
    tell(found, rules.idle_means(found), tables.of_idle(found), as_json=as_json)


@bench.command()
@database_option
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
