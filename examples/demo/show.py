"""One run from the first process to the last: a database, a fleet, a producer, and somebody who kills workers."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import psycopg

import oracle
from display import Display
from figures import Figures, TakeOver, Totals
from fleet import DemoFailed, Fleet, Member
from kept import Error
from kept.db import migrate
from kept.db.embedded import Embedded, location
from producer import TABLES, Producer
from terminal import Stop
from view import Scene

WORKERS = 3
KILL_EVERY = 3.0  # seconds
START_WITHIN = 30.0  # seconds for the workers to come up
FINISH_WITHIN = 15.0  # seconds for what was accepted to be done
SHOW_KILLED_FOR = 4.0  # seconds a dead worker stays in the picture
PICTURE_EVERY = 0.25  # seconds
PAUSE = 0.05  # seconds between two looks at everything


@dataclass(frozen=True, slots=True)
class Plan:
    """Where, how long, and for whom."""

    folder: Path
    seconds: float | None
    terminal: bool

    @property
    def database(self) -> str:
        return f"embedded:{self.folder}"

    @property
    def files(self) -> Path:
        """Logs and ledgers of this run."""
        return self.folder / "run"

    @property
    def accepted(self) -> Path:
        return self.files / "accepted"

    @property
    def rolled_back(self) -> Path:
        return self.files / "rolled_back"

    @property
    def effects(self) -> Path:
        return self.files / "effects"


@dataclass(frozen=True, slots=True)
class Result:
    """How it ended: what Kept's tables say, and what the files say."""

    totals: Totals
    verdict: oracle.Verdict

    @property
    def summary(self) -> str:
        totals, verdict = self.totals, self.verdict
        return (
            f"accepted={verdict.accepted} done={totals.done} failed={totals.failed} taken_over={totals.taken_over} "
            f"lost={len(verdict.lost)} duplicates={verdict.duplicates}"
        )


def run(plan: Plan, stop: Stop) -> Result:
    """Play it until told to stop; whatever happens, no process is left behind."""
    with _alone_in(plan.folder):
        _clear(plan)
        try:
            with Display(terminal=plan.terminal, gone=stop.ask) as display:
                totals = Show(plan, stop, display).play()
        except (DemoFailed, Error, psycopg.Error, OSError) as error:
            raise DemoFailed(f"{' '.join(str(error).split())} (the logs are in {plan.files})") from error
        verdict = oracle.judge(plan.accepted, plan.rolled_back, plan.effects, waiting=totals.waiting)
        return Result(totals, verdict)


class Show:
    """The run itself, on one thread but for the producer."""

    def __init__(self, plan: Plan, stop: Stop, display: Display) -> None:
        self._plan = plan
        self._stop = stop
        self._display = display
        self._scene = Scene()
        self._began = time.monotonic()
        self._next_picture = 0.0
        self._take_overs: list[TakeOver] = []
        environ = {**os.environ, "KEPT_DATABASE_URL": plan.database, oracle.EFFECTS: str(plan.effects)}
        self._fleet = Fleet(WORKERS, environ, plan.files)

    def play(self) -> Totals:
        """Start PostgreSQL and play on it; the last one out stops it."""
        if self._stop.asked():
            return Totals()
        self._say("starting PostgreSQL")
        with self._stop.held():
            server = Embedded(location(self._plan.database))
            url = server.acquire()
        try:
            with psycopg.connect(url, application_name="demo", autocommit=True) as conn:
                return self._play(url, conn)
        finally:
            with self._stop.held():
                server.release()

    def _play(self, url: str, conn: psycopg.Connection) -> Totals:
        if self._stop.asked():
            return Totals()
        _prepare(conn)
        self._figures = Figures(conn, oracle.Tally(self._plan.effects))
        self._producer = Producer(url, oracle.Ledger(self._plan.accepted), oracle.Ledger(self._plan.rolled_back))
        try:
            self._fleet.start()
            self._wait_for_workers()
            self._perform()
        finally:
            self._producer.stop()
            self._fleet.stop(is_hurried=self._stop.hurried)
        return self._figures.totals()

    def _wait_for_workers(self) -> None:
        self._say("starting workers")
        deadline = time.monotonic() + START_WITHIN
        while not self._stop.asked() and len(self._scene.live) < WORKERS:
            if time.monotonic() > deadline:
                raise DemoFailed(f"the workers were not ready within {START_WITHIN:.0f} s")
            self._look()

    def _perform(self) -> None:
        if self._stop.asked():
            return
        self._producer.start()
        self._say("running", "jobs are flowing")
        began = time.monotonic()
        next_kill = began + KILL_EVERY
        while not self._stop.asked() and not self._is_over(began):
            if time.monotonic() >= next_kill:
                next_kill += KILL_EVERY
                self._kill_one()
            self._look()
        self._producer.stop()
        self._finish()

    def _is_over(self, began: float) -> bool:
        return self._plan.seconds is not None and time.monotonic() - began >= self._plan.seconds

    def _finish(self) -> None:
        """Let the workers do what was accepted."""
        self._say("finishing", "no more orders: finishing what was accepted")
        deadline = time.monotonic() + FINISH_WITHIN
        while self._figures.unfinished() or not all(each.over for each in self._take_overs):
            if time.monotonic() > deadline or self._stop.hurried():
                return
            self._look()
        self._say("stopping")

    def _kill_one(self) -> None:
        """SIGKILL for a worker that is at work; another takes its place a moment later."""
        working = [member for member in self._fleet.members if member.pid in self._scene.live]
        if len(working) < 2:
            return
        victim = random.choice(working)  # noqa: S311
        self._take_overs.append(TakeOver(victim, datetime.now(UTC)))
        self._fleet.kill(victim)
        self._scene.kills += 1
        self._display.happened(self._scene, f"{victim.name} (pid {victim.pid}) was killed with SIGKILL", "red")
        self._look()

    def _look(self) -> None:
        """Look at everything once, show it when it is time to, and take a breath."""
        self._fleet.look_after()
        if self._producer.error is not None:
            raise DemoFailed(f"the producer failed: {self._producer.error}")
        for each in self._take_overs:
            if not each.over:
                self._follow(each)
        self._scene.elapsed = time.monotonic() - self._began
        if time.monotonic() >= self._next_picture:
            self._next_picture = time.monotonic() + PICTURE_EVERY
            self._picture()
        time.sleep(PAUSE)

    def _follow(self, take_over: TakeOver) -> None:
        self._figures.follow(take_over)
        self._scene.taken_over = sum(each.jobs for each in self._take_overs)
        if not take_over.over:
            return
        name, jobs = take_over.member.name, take_over.jobs
        if take_over.running_again is None:
            text = f"{name} had no job running"
        else:
            text = (
                f"{name}: {jobs} {'job' if jobs == 1 else 'jobs'} given back after {take_over.given_back:.2f} s, "
                f"taken over within {take_over.running_again:.2f} s"
            )
        self._display.happened(self._scene, text, "green")

    def _picture(self) -> None:
        scene, members = self._scene, self._fleet.members
        scene.accepted = self._producer.accepted
        scene.lanes = self._figures.lanes()
        scene.members = members
        scene.live = self._figures.workers(members)
        scene.killed = self._lately_killed()
        self._display.show(scene)

    def _lately_killed(self) -> list[Member]:
        since = time.monotonic() - SHOW_KILLED_FOR
        return [each.member for each in self._take_overs if (each.member.killed or 0.0) > since]

    def _say(self, status: str, event: str | None = None) -> None:
        self._scene.status = status
        self._scene.elapsed = time.monotonic() - self._began
        self._display.happened(self._scene, event or status)
        self._display.show(self._scene)


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """One demo at a time in a folder; the kernel ends the claim with the process."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
    except BlockingIOError:
        raise DemoFailed(f"another demo is running in {folder}; name another folder with KEPT_DEMO_DIR") from None
    except OSError as error:
        raise DemoFailed(f"{folder} cannot be used: {error}; name another folder with KEPT_DEMO_DIR") from None


def _clear(plan: Plan) -> None:
    """Begin with empty files, so that the figures add up."""
    shutil.rmtree(plan.files, ignore_errors=True)
    plan.files.mkdir()


def _prepare(conn: psycopg.Connection) -> None:
    """Begin with an empty schema; whoever is left of a run that was killed loses its connection."""
    conn.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where pid <> pg_backend_pid() and backend_type = 'client backend'"
    )
    conn.execute("drop schema if exists kept, shop cascade")
    migrate.apply(conn)
    conn.execute(TABLES)
