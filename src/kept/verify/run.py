"""A run: producers, workers and faults at once; then calm, until everything is settled; then the judgement."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import psycopg
from msgspec import structs
from psycopg.rows import TupleRow

from kept.config import Settings
from kept.errors import Misconfigured, Unavailable
from kept.jobs.text import message_of
from kept.verify import faults
from kept.verify.app import app
from kept.verify.calm import LOOK, Problem, at_work, calm, looked_after
from kept.verify.crew import FOLDER, Command, Processes, own_environment
from kept.verify.database import look
from kept.verify.evidence import Terms
from kept.verify.faults.fault import Fault
from kept.verify.injector import Injector, Say
from kept.verify.ledger import clock
from kept.verify.model import Breach, Report
from kept.verify.place import Place, place_in, saved, temporary_folder, uninterrupted
from kept.verify.producer import ORDERS, Orders, Producer, open_producer
from kept.verify.record import judged
from kept.verify.scene import Scene

WORKER = ("-c", "from kept.cli import main; main()", "worker", "kept.verify.app:app")
PRODUCER = ("-m", "kept.verify.producer")
CLIENT = 63  # the index of the conductor's own producer
OVERTIME = 300.0  # seconds beyond those asked for, until every fault had its turn and every job was enqueued


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be verified, where, against what."""

    database: str | None = None
    seconds: float = 60.0
    jobs: int = 20_000
    workers: int = 4
    producers: int = 2
    faults: Sequence[str] | None = None
    seed: int = field(default_factory=lambda: secrets.randbelow(1_000_000))
    keep: Path | None = None
    lease: float = 3.0
    scan: float = 0.5
    worker: Sequence[str] = WORKER  # what python runs; options of `kept worker` are put behind it
    environ: dict[str, str] = field(default_factory=dict)  # of workers


def run(plan: Plan, say: Say = lambda _: None) -> Report:
    """Verify, and say what was found. Leaves no process and no schema behind; the logs only if anything was amiss."""
    if not sys.platform.startswith("linux"):
        raise Misconfigured("kept verify needs Linux: it finds processes in /proc")
    database = look(plan.database)
    asked, left_out = faults.possible(plan.faults, database, plan.workers)
    needs = frozenset(need for fault in asked for need in fault.needs)
    say("preparing the database")
    with temporary_folder() as folder:
        report = None
        try:
            with place_in(folder, database.url, needs) as where:
                report = _verified(plan, where, asked, left_out, say)
        except Exception as error:
            if report is None:
                _note_logs(error, folder, plan)
                raise
            report = _amiss(report, "what was set up could not be taken down", error)
        except BaseException:  # told to stop
            if plan.keep is not None:
                with suppress(OSError):
                    saved(folder, plan.keep)
            raise
        return _reported(report, folder, plan)


def _verified(plan: Plan, where: Place, asked: Sequence[Fault], left_out: dict[str, str], say: Say) -> Report:
    began = time.monotonic()
    with _conducted(plan, where) as scene, looked_after(scene) as problem:
        since = _storm(plan, scene, where, asked, problem, say)
        say("waiting until everything is settled")
        until = calm(scene, where, problem)
    say("judging")
    terms = Terms(
        seed=plan.seed,
        lease=plan.lease,
        scan=plan.scan,
        seconds=round(time.monotonic() - began, 1),
        asked=tuple(fault.name for fault in asked),
        jobs=plan.jobs,
        left_out=left_out,
        slots=(since, until),
    )
    return judged(where, terms)


def _reported(report: Report, folder: Path, plan: Plan) -> Report:
    """What shows that something was amiss is kept, asked for or not: the next run may not show it again."""
    if plan.keep is None and not report.breaches:
        return report
    logs = None
    try:
        logs = saved(folder, plan.keep)
    except OSError as error:
        report = _amiss(report, "the logs could not be kept where they should", error)
        with suppress(OSError):
            logs = saved(folder, None)  # what is left of them
    return structs.replace(report, logs=None if logs is None else str(logs))


def _amiss(report: Report, sentence: str, error: Exception) -> Report:
    return structs.replace(report, breaches=(*report.breaches, Breach(0, sentence, (message_of(error),))))


def _note_logs(error: Exception, folder: Path, plan: Plan) -> None:
    """Note where the logs are that may show why it came to this *error*."""
    try:
        logs = saved(folder, plan.keep)
    except OSError as another:
        error.add_note(f"The logs could not be kept: {another}")
    else:
        if logs is not None:
            error.add_note(f"The logs are in {logs}.")


# --- the processes


@contextmanager
def _conducted(plan: Plan, where: Place) -> Iterator[Scene]:
    """Everybody at work; and nobody left, however it ends."""
    environ = _environment(plan, where)
    workers = Processes(secrets.token_hex(8), where.folder, environ | plan.environ)
    producers = Processes(secrets.token_hex(8), where.folder, environ)
    app.configure(Settings(database=where.direct, schema=where.schema))
    client = Client(where)
    try:
        workers.start(*_workers(plan))
        producers.start(*_producers(plan))
        yield Scene(
            database=where.database,
            direct=where.direct,
            schema=where.schema,
            folder=where.folder,
            lease=plan.lease,
            scan=plan.scan,
            workers=workers,
            producers=producers,
            client=client,
            server=where.server,
            proxy=where.proxy,
            extras=where.extras,
        )
    finally:
        with uninterrupted():
            client.close()
            workers.clear()
            producers.clear()


def _environment(plan: Plan, where: Place) -> dict[str, str]:
    return own_environment() | {
        "KEPT_DATABASE_URL": where.database,
        "KEPT_SCHEMA": where.schema,
        "KEPT_LEASE": f"{plan.lease:g}s",
        "KEPT_RENEW": "500ms",
        "KEPT_RECLAIM_SCAN": f"{plan.scan:g}s",
        "KEPT_ERROR_BACKOFF": "500ms",
        "KEPT_ERROR_JITTER": "100ms",
        "KEPT_SHUTDOWN_GRACE": "5s",
        "KEPT_LOG_LEVEL": "warning",
        "KEPT_LOG_FORMAT": "json",
        FOLDER: str(where.folder),
    }


def _workers(plan: Plan) -> Iterator[Command]:
    """Two under a supervisor, the others on their own."""
    argv = tuple(plan.worker)
    if plan.workers > 1:
        yield Command((*argv, "--processes", "2"), supervises=True)
    for _ in range(plan.workers - 2 if plan.workers > 1 else 1):
        yield Command(argv, {"KEPT_SPARE": "off"})


def _producers(plan: Plan) -> Iterator[Command]:
    began, share = clock(), -(-plan.jobs // plan.producers)
    for index in range(plan.producers):
        orders = Orders(index=index, jobs=share, seconds=plan.seconds, seed=plan.seed, began=began)
        yield Command(PRODUCER, {ORDERS: msgspec.json.encode(orders).decode()}, ends=True)


class Client:
    """The conductor's own producer: one job at a time, and a look at what became of it."""

    def __init__(self, where: Place) -> None:
        self._where = where
        self._producer: Producer = open_producer(where.folder, where.direct, CLIENT)[0]

    def enqueue(self, task: str, **args: object) -> int:
        return self._producer.one(task, **args)

    def settled(self, job: int, within: float) -> bool:
        until = time.monotonic() + within
        while time.monotonic() < until:
            if self._look(self._where.sql["is_live"], job) == (False,):
                return True
            time.sleep(LOOK)
        return False

    def holder(self, job: int) -> int | None:
        found = self._look(self._where.sql["holder"], job)
        return None if found is None else int(found[0])

    def _look(self, query: str, job: int) -> TupleRow | None:
        with suppress(psycopg.Error, Unavailable), self._where.connect() as conn:
            return conn.execute(query, {"job": job}).fetchone()
        return None

    def close(self) -> None:
        self._producer.close()


# --- the storm


def _storm(plan: Plan, scene: Scene, where: Place, asked: Sequence[Fault], problem: Problem, say: Say) -> int:
    """Faults, until the time is over, every fault had its turn and every job is enqueued.

    Returns from when on slots are due: nothing breaks before.
    """
    injector = Injector(scene, asked, seed=plan.seed, seconds=plan.seconds)
    began = time.monotonic()
    since = at_work(where, problem)
    while True:
        problem()
        elapsed = time.monotonic() - began
        if elapsed > plan.seconds and scene.producers.done and injector.over:
            return since
        if elapsed > plan.seconds + OVERTIME:
            return since  # the judgement will say what is missing
        injector.next(lambda name: say(f"{time.monotonic() - began:.0f} s, fault {injector.count + 1}: {name}"))
