"""``kept worker``, ``kept tick`` and ``kept sync``: the commands that do the work."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import sys
import threading
from typing import Any, NoReturn

import click

from kept.app import App
from kept.cli.main import FAILED, OK, TRY_LATER, Session, operator
from kept.config import Settings
from kept.db import migrate
from kept.db.connect import Link, connect_sync
from kept.integrations.health import HealthServer
from kept.integrations.logs import LogSubscriber
from kept.integrations.prometheus import Metrics
from kept.loggers import configure
from kept.schedules.declared import Synchronised
from kept.showable import clean
from kept.signals import Warned
from kept.worker.post import Declared, declare
from kept.worker.supervisor import INDEX, Supervisor, end_with_supervisor
from kept.worker.tick import Report
from kept.worker.worker import Worker

LET_GO = 0.2  # seconds for a thread without work to end
LIVE_WITHIN = 10.0  # seconds: a loop that has not moved for longer is not live


def add_to(group: click.Group) -> None:
    for command in (worker, tick, sync):
        group.add_command(command)


@click.command()
@click.argument("app", metavar="[MODULE:APP]", required=False)
@click.option("--queues", metavar="A,B", help="Work on these queues only; all by default.")
@click.option("--concurrency", type=int, metavar="N", help="Handlers at once, in each process.  [default: 10]")
@click.option("--processes", type=int, metavar="N", help="Worker processes, kept alive by a supervisor.  [default: 1]")
@click.option("--grace", metavar="30s", help="How long a shutdown waits for running handlers.")
@click.option("--metrics-port", type=int, metavar="PORT", help="Serve /metrics, /livez and /readyz here.")
@click.option("--metrics-host", default="127.0.0.1", show_default=True, metavar="HOST")
@click.option("--log-format", type=click.Choice(["auto", "json", "console"]))
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]))
@click.option("--migrate", "migrating", is_flag=True, help="Migrate first: for development and embedded use.")
@click.pass_obj
def worker(session: Session, /, app: str | None, migrating: bool, metrics_host: str, **options: Any) -> None:
    """Run jobs until told to stop.

    SIGTERM or Ctrl-C: claim nothing more, let running handlers finish within the grace, give back the rest. A second
    signal gives back at once.
    """
    loaded = session.app(app, **options)
    settings = loaded.settings
    configure(settings.log_format, settings.log_level)
    loaded.signals.subscribe(LogSubscriber())
    if INDEX not in os.environ:  # the supervisor has said it for its children
        _warn(settings, loaded)
    if migrating:
        with connect_sync(loaded.database) as conn:
            migrate.apply(conn, settings.schema)
    if settings.processes > 1 and INDEX not in os.environ:
        sys.exit(Supervisor(settings.processes, settings.grace.total_seconds()).run())
    if INDEX in os.environ:
        end_with_supervisor()
    gc.freeze()  # what is loaded stays: no collection has to look at it again
    code = asyncio.run(_work(loaded, metrics_host))
    loaded.close()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a thread that would not stop must not keep the process


async def _work(app: App, metrics_host: str) -> int:
    metrics = Metrics()
    app.signals.subscribe(metrics)
    worker = app.worker()
    stop = _stop_on_signal(worker)
    async with worker:
        metrics.running = lambda: worker.running
        health = _serve_health(app.settings, metrics, worker, metrics_host)
        try:
            await stop.wait()
        finally:
            await worker.stop()
            if health is not None:
                health.close()
    return OK


def _stop_on_signal(worker: Worker) -> asyncio.Event:
    stop = asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():
            worker.hurry()
        stop.set()

    loop = asyncio.get_running_loop()
    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, on_signal)
    return stop


def _serve_health(settings: Settings, metrics: Metrics, worker: Worker, host: str) -> HealthServer | None:
    if settings.metrics_port is None:
        return None
    return HealthServer(
        # The processes of one supervisor share a setting, so each takes the next port.
        port=settings.metrics_port + int(os.environ.get(INDEX, "0")),
        host=host,
        registry=metrics.registry,
        beat_age=worker.beat_age,
        limit=LIVE_WITHIN,
        ready=worker.not_ready,
    )


def _warn(settings: Settings, app: App) -> None:
    for name in settings.unknown:
        app.signals.report(Warned(code="unknown_variable", message=f"{name} is not a setting of Kept"))


@click.command()
@click.argument("app", metavar="[MODULE:APP]", required=False)
@click.option("--queues", metavar="A,B", help="Work on these queues only; all by default.")
@click.option("--concurrency", type=int, metavar="N", help="Handlers at once.  [default: 10]")
@click.option("--items", "tick_items", type=int, metavar="N", help="At most so many jobs.  [default: 200]")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per runner.")
@click.pass_obj
def tick(session: Session, /, app: str | None, as_json: bool, **options: Any) -> None:
    """One pass over the runners within budgets; waits for what it started.

    SIGTERM or Ctrl-C ends it as it ends a worker. Exit code: 0 worked or idle, 1 a runner failed, 2 misconfigured, 75
    try later.
    """
    loaded = session.app(app, **options)
    configure(loaded.settings.log_format, loaded.settings.log_level)
    loaded.signals.subscribe(LogSubscriber())
    _warn(loaded.settings, loaded)
    _exit(asyncio.run(_pass(loaded, as_json=as_json)))


async def _pass(app: App, *, as_json: bool) -> int:
    worker = Worker(app.plan(once=True), app.signals)
    stop = _stop_on_signal(worker)
    await worker.open()
    try:
        whole = await worker.once(stop)
    finally:  # whatever broke it off: what ran before has run
        for report in worker.reports:
            click.echo(_told(report, as_json=as_json))
    if not whole:
        return TRY_LATER
    return FAILED if any(report.error for report in worker.reports) else OK


def _exit(code: int) -> NoReturn:
    """End; a thread that would not stop must not keep the process, its keeper gives back what is in its name."""
    threads = [each for each in threading.enumerate() if each.name.startswith(("kept-runner", "kept-handler"))]
    for each in threads:
        each.join(LET_GO)
    if any(each.is_alive() for each in threads):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _told(report: Report, *, as_json: bool) -> str:
    if as_json:
        return json.dumps(
            {
                "runner": report.runner,
                "items": report.items,
                "seconds": round(report.seconds, 6),
                "error": report.error,
                "counters": dict(report.counters),
                "note": report.note,
            }
        )
    if report.note:
        return f"{report.runner}: {clean(report.note)}"
    ending = f" error: {clean(report.error)}" if report.error else ""
    counted = ", ".join(f"{clean(name)} {number:g}" for name, number in report.counters.items())
    return f"{report.runner}: {counted or report.items} in {report.seconds:.3f} s{ending}"


@click.command()
@click.argument("app", metavar="[MODULE:APP]", required=False)
@click.option("--json", "as_json", is_flag=True)
@click.pass_obj
def sync(session: Session, /, app: str | None, as_json: bool) -> None:
    """Register the app's tasks in the database, as a starting worker does."""
    loaded = session.app(app)
    loaded.load_imports()
    done = asyncio.run(_sync(loaded))
    new, odd = done.registered.added, done.registered.unmatched
    if as_json:
        told = {"tasks": len(loaded.registry), "changed": done.changed, "added": done.added}
        subscribed = {"subscriptions": len(loaded.subscriptions), "new": [each._asdict() for each in new]}
        scheduled = {"schedules": {"declared": len(loaded.definitions), **_schedules(done.schedules)}}
        click.echo(json.dumps(told | subscribed | {"unmatched": [each._asdict() for each in odd]} | scheduled))
        return
    click.echo(f"{len(loaded.registry)} tasks: {done.added} added, {done.changed} changed")
    for what, names in _schedules(done.schedules).items():
        for name in names:
            click.echo(_SCHEDULES[what].format(name))
    for each in (*new, *odd):
        click.echo(str(each))


def _schedules(done: Synchronised) -> dict[str, list[str]]:
    return {what: getattr(done, what) for what in _SCHEDULES}


_SCHEDULES = {
    "added": "schedule {} is new",
    "changed": "schedule {} is changed",
    "revived": "schedule {} is declared again",
    "taken": "schedule {} is not declared: one of this name was added at run time",
}


async def _sync(app: App) -> Declared:
    link = await Link.open(app.database, name="kept sync")
    try:
        await migrate.acheck(link.conn, app.settings.schema)
        return await declare(link, app.plan(), who=operator(), exact=True)
    finally:
        await link.close()
