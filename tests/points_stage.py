"""Workers and a producer at work, a folder in which crash points are armed, and what makes somebody come by one."""

from __future__ import annotations

import json
import os
import random
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from threading import Event, Thread

from kept.config import Settings
from kept.db.points import VARIABLE
from kept.verify.app import SCHEDULE, app
from kept.verify.books import Books, Deeds
from kept.verify.crew import FOLDER, Command, Processes, own_environment
from kept.verify.evidence import Terms
from kept.verify.ledger import FAULTS, Journal, clock, read
from kept.verify.model import Breach, Effect, Hit, Line, Report
from kept.verify.place import Place, uninterrupted
from kept.verify.producer import open_producer
from kept.verify.record import judged
from points_app import AWAY, HEARD, SHELVED, TIDIED, Pass
from points_producer import EMITTER

HERE = Path(__file__).parent
SYNC = ("-c", "from kept.cli import main; main()", "sync", "points_app:app")
WORKER = ("-c", "from kept.cli import main; main()", "worker", "points_app:app")
LEASE, SCAN = 2.0, 0.3
WAYS = {
    "killed before": ("before", "kill"),
    "killed after": ("after", "kill"),
    "error before": ("before", "error"),
    "done, and an error is seen": ("after", "error"),
}
LOOK = 0.02
PATIENCE = 4.0  # seconds for a point to be hit after it was provoked
TRIES = 5
CALM = 60.0


@dataclass(frozen=True)
class Point:
    """A place around which things happen, and what makes somebody come by."""

    name: str
    place: str = ""
    provoked: str = ""
    where: dict[str, str] = field(default_factory=dict)

    @property
    def at(self) -> str:
        return self.place or self.name


def arm(folder: Path, place: str, way: str, where: Mapping[str, str] | None = None) -> Path:
    """Arm *place* in one go: whoever sees the file can read all of it."""
    coming, armed = folder.parent / "coming", folder / place
    coming.write_text(json.dumps({"way": way, "where": where or {}}))
    coming.rename(armed)
    return armed


class Stage:
    """Workers and a producer at work, and the folder in which points are armed."""

    def __init__(self, where: Place, seed: int, environ: Mapping[str, str]) -> None:
        self.where = where
        self.armed = where.folder / "armed"
        self.armed.mkdir()
        self.chance = random.Random(seed)
        self._waited_for = self.armed
        self._poisoned = False
        self._calm = 0  # since when nothing is armed any more
        self.faults = Journal(where.folder / FAULTS)
        environ = own_environment() | {
            "KEPT_DATABASE_URL": where.direct,
            "KEPT_SCHEMA": where.schema,
            "KEPT_LEASE": f"{LEASE}s",
            "KEPT_RENEW": "300ms",
            "KEPT_RECLAIM_SCAN": f"{SCAN}s",
            "KEPT_ERROR_BACKOFF": "200ms",
            "KEPT_ERROR_JITTER": "50ms",
            "KEPT_SHUTDOWN_GRACE": "2s",
            "KEPT_SINK_PAUSE": "100ms",
            "KEPT_SINK_PAUSE_MAX": "500ms",
            "KEPT_SPARE": "off",
            "KEPT_LOG_LEVEL": "error",
            "PYTHONPATH": str(HERE),
            FOLDER: str(where.folder),
            VARIABLE: str(self.armed),
            **environ,
        }
        self.workers = Processes(secrets.token_hex(8), where.folder, environ)
        self.producers = Processes(secrets.token_hex(8), where.folder, environ)
        app.configure(Settings(database=where.direct, schema=where.schema))
        self.client = open_producer(where.folder, where.direct, 63)[0]

    def start(self) -> None:
        """Everybody; subscriptions first, for an event is told to those that there are."""
        sync = subprocess.run([sys.executable, *SYNC], env=self.workers.environ, capture_output=True, check=False)
        assert sync.returncode == 0, sync.stderr.decode()
        self.workers.start(*[Command(WORKER)] * 3)
        self.producers.start(Command(("-m", "points_producer"), ends=True))

    # --- one point

    def hit(self, point: Point, way: str) -> bool:
        """Arm it, have somebody come by, and wait until it was hit."""
        when, what = WAYS[way]
        began, place = clock(), arm(self.armed, f"{when}.{point.at}", what, point.where)
        self._waited_for = place
        for _ in range(TRIES):
            PROVOKED[point.provoked](self)
            if within(lambda: not place.exists(), PATIENCE):
                break
        hit = not place.exists()
        place.unlink(missing_ok=True)
        victim = f"{point.name}: {way}" if hit else ""
        self.faults.write(
            Hit(fault="point", group="worker", victim=victim, began=began, healed=clock(), repeats="everyone")
        )
        return hit

    # --- what makes somebody come by

    def nothing(self) -> None:
        """It happens anyway."""

    def kill(self) -> None:
        """A worker dies in the middle of its work."""
        if pids := self.workers.pids("worker"):
            _send(self.chance.choice(pids), signal.SIGKILL)

    def expire(self) -> None:
        """A worker dies together with its keeper: nobody is left to tell."""
        for pid in self.workers.pids("worker")[:1]:
            keeper = self.workers.keeper_of(pid)
            for each in (keeper, pid):
                if each is not None:
                    _send(each, signal.SIGSTOP)
            for each in (keeper, pid):
                if each is not None:
                    _send(each, signal.SIGKILL)

    def freeze(self) -> None:
        """A worker sleeps past its lease, and nobody but itself gives back what it held."""
        pids = self.workers.pids("worker")
        pid, others = pids[0], pids[1:]
        for each in pids:
            _send(each, signal.SIGSTOP)
        within(lambda: False, LEASE + 0.3)
        _send(pid, signal.SIGCONT)
        within(lambda: not self._waited_for.exists(), 0.5)
        for each in others:
            _send(each, signal.SIGCONT)

    def cut(self) -> None:
        """The server ends the workers' connections."""
        with self.where.connect() as conn:
            conn.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where application_name like 'kept worker%'"
            )

    def lose_reply(self) -> None:
        """A settlement is written, and nobody hears of it."""
        arm(self.armed, "after.jobs.step", "error", {"attempts": "1"})

    def stop(self) -> None:
        """A worker is told to stop, in good order."""
        if pids := self.workers.pids("worker"):
            _send(self.chance.choice(pids), signal.SIGTERM)

    def poison(self) -> None:
        """A job kills whatever runs it."""
        self.client.one("poison")
        self._poisoned = True

    def quiet(self) -> None:
        """Nobody enqueues for a moment: workers sleep and are woken."""
        pids = self.producers.all()
        for pid in pids:
            _send(pid, signal.SIGSTOP)
        for _ in range(5):
            if within(lambda: not self._waited_for.exists(), 0.5):
                break
            self.client.one("plain")
        for pid in pids:
            _send(pid, signal.SIGCONT)

    def upkeep(self) -> None:
        """It is time for what is done once an hour, or twice a minute; a new worker looks at once."""
        with self.where.connect() as conn:
            conn.execute(f'update "{self.where.schema}".runner set next_at = now()')
        self.kill()

    def outage(self) -> None:
        """The broker is away."""
        away = self.where.folder / AWAY
        away.touch()
        within(lambda: not self._waited_for.exists(), PATIENCE)
        away.unlink()

    # --- the end

    def calm(self) -> None:
        """No more faults, jobs or slots; but poison that is left still kills who runs it."""
        began = self._calm = clock()
        (self.where.folder / "over").touch()
        within(lambda: self.producers.done, CALM)
        with self.where.connect() as conn:
            with conn.transaction():
                app.schedules.pause(SCHEDULE, tx=conn)
            within(lambda: conn.execute(self.where.sql["live"]).fetchone() == (0,), CALM)
        within(lambda: any(each.began > began for each in self._passes()), CALM)
        self.workers.stop()
        if self._poisoned:
            self.faults.write(
                Hit(
                    fault="poison",
                    group="handler",
                    victim="a worker",
                    began=began,
                    healed=clock(),
                    repeats="everyone",
                )
            )

    def judge(self, seed: int) -> Report:
        return judged(self.where, Terms(seed=seed, lease=LEASE, scan=SCAN, seconds=0.0))

    def judge_events(self) -> Iterator[Breach]:
        """Events: told to everybody if and only if their transaction committed."""
        books = Books(line for path in sorted(self.where.folder.glob(f"{EMITTER}-*")) for line in read(path, Line))
        for name in (HEARD, SHELVED):
            paths = sorted(self.where.folder.glob(f"{name}-*"))
            deeds = Deeds(effect for path in paths for effect in read(path, Effect))
            lost = [str(token) for token, _ in books.committed() if token not in deeds.first]
            phantom = [str(token) for token in deeds.tokens() if not books.may_exist(token)]
            if lost:
                yield Breach(2, f"an acknowledged event was never {name}", tuple(lost))
            if phantom:
                yield Breach(1, f"an event was {name} whose transaction did not commit", tuple(phantom))

    def judge_runner(self) -> Iterator[Breach]:
        """The singleton's passes: one after the other, and to the end. Who was frozen in one may be late with it."""
        passes = sorted(
            (each for each in self._passes() if each.ended - each.began < LEASE * 1e9), key=lambda p: p.began
        )
        twice = [f"{one.began} and {other.began}" for one, other in pairwise(passes) if other.began < one.ended]
        if twice:
            yield Breach(0, "two passes of a singleton ran at once", tuple(twice))
        if not any(each.began > self._calm for each in passes):
            yield Breach(0, "a runner does not run any more")

    def _passes(self) -> list[Pass]:
        return [each for path in self.where.folder.glob(f"{TIDIED}-*") for each in read(path, Pass)]

    @contextmanager
    def looked_after(self) -> Iterator[None]:
        """Everybody at work; whoever dies is replaced, and nobody is left at the end."""
        over = Event()

        def look() -> None:
            while not over.wait(0.1):
                self.workers.look_after()
                self.producers.look_after()

        thread = Thread(target=look, daemon=True)
        try:
            self.start()  # before anybody looks: who is being started is not to be replaced
            thread.start()
            yield
        finally:
            over.set()
            if thread.is_alive():
                thread.join()
            with uninterrupted():
                self.client.close()
                self.workers.clear()
                self.producers.clear()


PROVOKED: dict[str, Callable[[Stage], None]] = {
    "": Stage.nothing,
    "kill": Stage.kill,
    "expire": Stage.expire,
    "freeze": Stage.freeze,
    "cut": Stage.cut,
    "stop": Stage.stop,
    "lose_reply": Stage.lose_reply,
    "poison": Stage.poison,
    "quiet": Stage.quiet,
    "upkeep": Stage.upkeep,
    "outage": Stage.outage,
}


def within(fact: Callable[[], bool], seconds: float) -> bool:
    until = time.monotonic() + seconds
    while not (true := fact()) and time.monotonic() < until:
        time.sleep(LOOK)
    return true


def _send(pid: int, which: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, which)
