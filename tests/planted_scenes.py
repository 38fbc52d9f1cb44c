"""Scenes in which each planted bug shows, in seconds: real workers, and the judgement of `kept verify`.

A scene goes the same way whether a bug was planted or not. It waits for facts, or for longer than a sound system ever
needs; what that means is left to the oracle.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from fleet import Fleet, Jobs, Member, fleet_of
from kept.db.queries import load
from kept.db.tx import run
from kept.jobs import door
from kept.verify.evidence import Terms
from kept.verify.ledger import FAULTS, PRODUCER, Journal, clock, effects
from kept.verify.model import Effect, Hit, Intent, Part, Report, Told
from kept.verify.place import Place
from kept.verify.record import judged
from support import eventually

HERE = Path(__file__).parent
LEASE, SCAN = 2.0, 0.3
ENOUGH = 6.0  # seconds in which an idle, sound system does anything
SETTINGS = {
    "KEPT_LEASE": f"{LEASE}s",
    "KEPT_RENEW": "400ms",
    "KEPT_RECLAIM_SCAN": f"{SCAN}s",
    "PYTHONPATH": f"{HERE / 'planting'}{os.pathsep}{HERE}",
}


@dataclass
class Stage:
    """One scene's workers, its producer, and what is known of it from outside the database."""

    database: str
    folder: Path
    fleet: Fleet
    conn: psycopg.Connection
    jobs: Jobs
    journal: Journal
    faults: Journal
    _tokens: int = 0

    # --- the producer

    def enqueue(self, task: str, count: int = 1, *, order: str | None = None, queue: str = "default") -> int:
        """Enqueue and commit; the first token."""
        token, commit = self.prepare(task, count, order=order, queue=queue)
        commit()
        return token

    def prepare(
        self, task: str, count: int = 1, *, order: str | None = None, queue: str = "default"
    ) -> tuple[int, Callable[[], None]]:
        """Enqueue in a transaction that stays open; the first token, and what commits it."""
        first, self._tokens = self._tokens + 1, self._tokens + count
        tx = clock()
        self.journal.write(Intent(clock(), tx, first, (Part(task, count, order),)))
        own = psycopg.connect(self.database)
        requests = [
            door.Request(queue=queue, task=task, payload=f'{{"token":{token}}}', order_key=order)
            for token in range(first, first + count)
        ]
        run(own, door.enqueue_many(load("kept.jobs"), requests))

        def commit() -> None:
            own.commit()
            own.close()
            self.journal.write(Told(clock(), tx, "committed"))

        return first, commit

    # --- the workers

    def worker(self, *options: str, **settings: str) -> Member:
        return self.fleet.start(*options, app="planted_app:app", **settings)

    def go(self, token: int, *attempts: int) -> None:
        """Let these attempts go on."""
        for attempt in attempts:
            (self.folder / f"go-{token}-{attempt}").touch()

    def seen(self, token: int, *what: str, attempt: int | None = None) -> list[Effect]:
        return [e for e in effects(self.folder) if e.token == token and e.what in what and attempt in (None, e.attempt)]

    def sees(self, token: int, *what: str, attempt: int | None = None, timeout: float = 30) -> list[Effect]:
        return eventually(lambda: self.seen(token, *what, attempt=attempt), timeout, what=f"{what} of {token}")

    def sound_asleep(self, worker: Member) -> None:
        """Wait until a worker has said nothing for so long that only a wake-up or a timer will get it up."""
        idle = "select now() - max(state_change) > '300 ms' from pg_stat_activity where application_name like %s"
        eventually(lambda: self.jobs.value(idle, f"kept worker %:{worker.pid}"), what="a worker that sleeps")

    def within(self, fact: Callable[[], object], seconds: float = ENOUGH) -> None:
        """Wait for a fact, or for longer than it may take."""
        until = time.monotonic() + seconds
        eventually(lambda: fact() or time.monotonic() > until, seconds + 1)

    def no_job_is_live(self) -> bool:
        return not self.jobs.value("select count(*) from kept.job")

    @contextmanager
    def fault(
        self,
        name: str,
        *,
        killed: tuple[int, ...] = (),
        frozen: tuple[int, ...] = (),
        promised: float | None = None,
    ) -> Iterator[None]:
        """Written down from the beginning to the end of the block."""
        began = clock()
        yield
        about = {"fault": name, "group": "worker", "victim": name, "repeats": "victims", "promised": promised}
        self.faults.write(Hit(**about, began=began, healed=clock(), killed=killed, frozen=frozen))

    # --- the judgement

    def judge(self) -> Report:
        where = Place(self.database, self.database, "kept", self.folder)
        return judged(where, Terms(seed=0, lease=LEASE, scan=SCAN, seconds=0.0))


@contextmanager
def stage_on(database: str, folder: Path, plants: tuple[str, ...], **settings: str) -> Iterator[Stage]:
    """A stage whose workers have these *plants* in them; none of its processes outlives the block."""
    env = {**SETTINGS, "VERIFY_FOLDER": str(folder), "KEPT_TEST_PLANTS": ",".join(plants), **settings}
    journal, faults = Journal(folder / f"{PRODUCER}-0"), Journal(folder / FAULTS)
    with fleet_of(database, folder, **env) as fleet, psycopg.connect(database, autocommit=True) as conn:
        conn.execute(load("kept.verify")["make_effects"])
        assert fleet.run("sync", "planted_app:app").returncode == 0, "the lanes are there from the beginning"
        yield Stage(database, folder, fleet, conn, Jobs(conn), journal, faults)


Scene = Callable[[Stage], None]
SCENES: dict[str, tuple[Scene, dict[str, str]]] = {}  # by plant: the scene it shows in, and the settings of that


def scene_of(*plants: str, **settings: str) -> Callable[[Scene], Scene]:
    def add(scene: Scene) -> Scene:
        SCENES.update(dict.fromkeys(plants, (scene, settings)))
        return scene

    return add


@scene_of("settle_without_the_fence")
def a_handler_frozen_past_its_lease_goes_on(stage: Stage) -> None:
    first = stage.worker()
    token = stage.enqueue("completes")
    stage.sees(token, "began", attempt=1)
    stage.worker()
    with stage.fault("stop", frozen=(first.pid,)):
        first.kill(signal.SIGSTOP)
        stage.sees(token, "began", attempt=2)
        first.kill(signal.SIGCONT)
        stage.go(token, 1)
        stage.sees(token, "lost", "effect", attempt=1)
    stage.go(token, 2)
    stage.within(lambda: stage.seen(token, "lost", "effect", attempt=2))
    stage.within(stage.no_job_is_live)


@scene_of("fence_without_the_attempt", PLANTED_TIMEOUT="1s")
def a_handler_out_of_time_goes_on_beside_the_next_attempt(stage: Stage) -> None:
    worker = stage.worker()
    token = stage.enqueue("completes")
    with stage.fault("timeout", frozen=(worker.pid,)):  # nobody was: but the first attempt goes on where it may not
        stage.sees(token, "began", attempt=2)
        stage.go(token, 1)
        stage.sees(token, "lost", "effect", attempt=1)
    stage.go(token, 2, 3)
    stage.within(stage.no_job_is_live)


@scene_of("claim_without_the_lease_check")
def a_worker_that_was_given_up_finds_work_when_it_thaws(stage: Stage) -> None:
    frozen = stage.worker()
    stage.worker("--queues", "elsewhere")
    before = stage.enqueue("slow")
    stage.go(before, 1)
    stage.sees(before, "effect")
    stage.sound_asleep(frozen)
    with stage.fault("stop", frozen=(frozen.pid,)):
        frozen.kill(signal.SIGSTOP)
        gone = "select count(*) from kept.worker where state in ('lost', 'swept')"
        eventually(lambda: stage.jobs.value(gone), what="a worker that was given up")
        token = stage.enqueue("slow")
        frozen.kill(signal.SIGCONT)
    frozen.says("worker_fenced")
    stage.go(token, 1)
    stage.within(stage.no_job_is_live)


@scene_of("reclaim_by_id")
def a_keeper_comes_too_late(stage: Stage) -> None:
    first = stage.worker()
    token = stage.enqueue("slow")
    stage.sees(token, "began", attempt=1)
    stage.worker()
    stage.worker()
    keeper = first.keeper
    with stage.fault("stop", frozen=(first.pid, keeper), killed=(first.pid,)):
        for pid in (keeper, first.pid):
            os.kill(pid, signal.SIGSTOP)
        stage.sees(token, "began", attempt=2)
        first.kill()
        first.ended()
        os.kill(keeper, signal.SIGCONT)
        eventually(lambda: keeper not in stage.fleet.alive, what="the end of the keeper")
    explained = clock() + (LEASE + SCAN + 0.5) * 1e9  # until then a repetition may be due to the fault
    eventually(lambda: clock() > explained, what="the fault to be over")
    stage.go(token, 1, 2, 3)
    stage.within(lambda: len(stage.seen(token, "effect")) == len(stage.seen(token, "began")) - 1)
    stage.within(stage.no_job_is_live)


@scene_of("mark_before_effect")
def a_worker_is_killed_in_the_middle_of_a_job(stage: Stage) -> None:
    first = stage.worker()
    token = stage.enqueue("slow")
    stage.sees(token, "began", attempt=1)
    stage.worker()
    with stage.fault("kill", killed=(first.pid,)):
        first.kill()
        first.ended()
    stage.go(token, 2)
    eventually(stage.no_job_is_live, 30)


@scene_of("attempts_counted_on_failure_only")
def a_job_kills_whatever_runs_it(stage: Stage) -> None:
    first = stage.worker()
    stage.worker()
    token = stage.enqueue("poison")
    with stage.fault("poison", killed=(first.pid,)):
        eventually(lambda: len(stage.seen(token, "began")) > 5 or stage.no_job_is_live(), 60)


@scene_of("id_cursor_instead_of_row_state")
def a_transaction_commits_after_one_that_began_later(stage: Stage) -> None:
    stage.worker()
    late, commit = stage.prepare("plain")
    stage.sees(stage.enqueue("plain"), "effect")
    commit()
    stage.within(lambda: stage.seen(late, "effect"))
    stage.within(stage.no_job_is_live, 2)


@scene_of("lock_only_cron", PLANTED_SCENE="beat")
def two_workers_decide_on_the_same_slots(stage: Stage) -> None:
    for _ in range(2):
        stage.worker()
    fired = "select count(*) from kept.occurrence where job is not null"
    eventually(lambda: stage.jobs.value(fired) >= 4, 30, what="four slots")
    stage.fleet.run("schedules", "pause", "beat")
    stage.within(stage.no_job_is_live)


@scene_of("notify_trusted")
def a_job_is_committed_whose_enqueue_found_nobody_asleep(stage: Stage) -> None:
    _, commit = stage.prepare("plain")
    worker = stage.worker()
    stage.fleet.asleep(stage.jobs)
    stage.sound_asleep(worker)
    commit()
    stage.within(stage.no_job_is_live)


@scene_of("order_by_rows_skipped", PLANTED_SCENE="order")
def jobs_of_one_key_wait_for_one_that_fails_once(stage: Stage) -> None:
    for _ in range(2):
        stage.worker()
    stage.enqueue("in_order", 10, order="one")
    eventually(stage.no_job_is_live, 30)


@scene_of("keeper_that_tells_nobody", KEPT_LEASE="8s", KEPT_RENEW="2s")
def a_worker_is_killed_and_others_are_there(stage: Stage) -> None:
    first = stage.worker()
    tokens = [stage.enqueue("slow") for _ in range(3)]
    for token in tokens:
        stage.sees(token, "began", attempt=1)
        stage.go(token, 2)
    stage.worker()
    with stage.fault("kill", killed=(first.pid,), promised=1.0):
        first.kill()
        first.ended()
    eventually(stage.no_job_is_live, 30)
