"""The process that stands by, with the App loaded, for jobs whose process died (promises 5 and 6)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fleet import KEPT, Fleet, Jobs, Member
from support import eventually

pytestmark = pytest.mark.acceptance

WITH_SPARE = {"KEPT_SPARE": "on", "KEPT_LOG_LEVEL": "debug"}
# A worker inside a script, which says how often it was run, and where.
SCRIPT = """
import asyncio, os
from kept import App
from kept.worker import alone

alone.SETTLE_IN = 0.0
with open("runs", "a") as runs:
    print(__name__, file=runs)
app = App()

@app.task()
async def note() -> None: ...

async def main() -> None:
    async with app.worker():
        assert app.plan().location, "a child could find it"
        job = await note.aenqueue()
        await job.aresult("30s")
        kept = [task for task in asyncio.all_tasks() if "_stand_by" in repr(task)]
        print("spares:", len(kept))

if __name__ == "__main__":
    asyncio.run(main())
"""


def without_spare(worker: Member) -> bool:
    return all("worker.alone" not in Path(f"/proc/{pid}/cmdline").read_text() for pid in worker.children)


def test_a_spare_stands_by_before_anything_dies_and_holds_no_database_connection(fleet: Fleet, jobs: Jobs) -> None:
    worker = fleet.start(**WITH_SPARE)
    assert worker.spare() in worker.children
    names = jobs.conn.execute(
        "select application_name from pg_stat_activity where application_name ~ %s", [f":{worker.pid}$"]
    )
    assert sorted(name.split()[1] for (name,) in names) == ["keeper", "worker"]
    worker.kill(signal.SIGTERM)
    assert worker.ended() == 0
    eventually(lambda: not fleet.alive, what="the end of all its processes")


def test_a_spare_that_is_killed_is_replaced_and_the_worker_goes_on(fleet: Fleet, jobs: Jobs) -> None:
    worker = fleet.start(**WITH_SPARE)
    first = worker.spare()
    os.kill(first, signal.SIGKILL)
    second = worker.spare(other_than=first)
    assert worker.children.count(second) == 1
    assert jobs.settled(jobs.enqueue("note"))["attempt"] == 1


def test_a_spare_that_a_job_kills_is_replaced_and_serves_the_next(fleet: Fleet, jobs: Jobs) -> None:
    dying = fleet.start()
    poison = jobs.enqueue("poison")
    dying.ended()
    worker = fleet.start(**WITH_SPARE)
    assert jobs.settled(poison, "failed", 60)["code"] == "worker_died"
    died_in = [effect.pid for effect in fleet.effects("start", poison)][1:]
    assert worker.spare(other_than=died_in[-1]) not in died_in
    assert worker.process.poll() is None


def test_a_spare_that_dies_before_it_begins_says_nothing_against_the_job(fleet: Fleet, jobs: Jobs) -> None:
    worker = fleet.start(**WITH_SPARE)
    spare = worker.spare()
    os.kill(spare, signal.SIGSTOP)  # it will be given the job and not read it
    with jobs.conn.transaction():
        job = jobs.enqueue("note")
        jobs.conn.execute("update kept.job set suspect = true, ready = false where id = %s", [job])
    eventually(lambda: jobs.state(job) == "running", what="the claim")
    os.kill(spare, signal.SIGKILL)
    assert jobs.settled(job)["attempt"] == 1
    assert [effect.pid == spare for effect in fleet.effects("start", job)] == [False]
    assert jobs.log(job) == []


def test_a_spare_dies_with_its_worker_whatever_it_does(fleet: Fleet, jobs: Jobs) -> None:
    first = fleet.start()
    job = jobs.enqueue("hold_gil", seconds=60)
    fleet.sees("start", job)
    worker = fleet.start(**WITH_SPARE)
    spare = worker.spare()
    first.kill()
    assert fleet.sees("start", job, count=2)[1].pid == spare  # now it can hear nothing
    worker.kill()
    eventually(lambda: spare not in fleet.alive, what="the end of the spare")


def test_whoever_reads_a_killed_workers_output_reads_its_end(fleet: Fleet) -> None:
    worker = subprocess.Popen(
        [KEPT, "worker", "errands:app"],
        cwd=fleet.folder,
        env=fleet.environment(**WITH_SPARE),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert worker.stderr is not None
    with worker, worker.stderr as told:
        assert any("spare_ready" in line for line in told)
        worker.kill()
        told.read()  # ends only when nobody can write to it any more


def test_no_spare_where_it_is_turned_off(fleet: Fleet, jobs: Jobs) -> None:
    worker = fleet.start(KEPT_SPARE="off")
    job = jobs.enqueue("nap", seconds=2.5)  # longer than any worker waits with its spare
    assert jobs.settled(job)
    assert without_spare(worker)


def test_a_script_is_not_run_again_for_a_spare(fleet: Fleet, jobs: Jobs) -> None:
    (fleet.folder / "script.py").write_text(SCRIPT)
    ran = subprocess.run(
        [sys.executable, "script.py"],
        cwd=fleet.folder,
        env=fleet.environment(**WITH_SPARE),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (0, "spares: 0\n"), ran.stderr
    assert (fleet.folder / "runs").read_text() == "__main__\n"
    assert jobs.states() == {"done": 1}
