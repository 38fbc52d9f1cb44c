"""Workers and keepers killed in the middle of their work (promises 2, 3, 5 and 6)."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
import urllib.request
from collections import Counter
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fleet import Fleet, Jobs, Member, children_of, explained
from support import eventually

pytestmark = pytest.mark.acceptance


def test_a_killed_workers_job_runs_elsewhere_within_a_second_the_first_time_too(fleet: Fleet, jobs: Jobs) -> None:
    first = fleet.start()
    job = jobs.enqueue("hold", gate=str(fleet.gate()))
    fleet.sees("start", job)
    second = fleet.start(KEPT_SPARE="on", KEPT_LOG_LEVEL="debug")
    spare = second.spare()
    killed_at = time.time()
    first.kill()
    again = fleet.sees("start", job, count=2)[1]
    fleet.gate().touch()
    assert again.facts["at"] - killed_at < 1
    assert again.pid == spare
    assert jobs.settled(job)["attempt"] == 2
    assert jobs.log(job) == ["requeued:stale"]


def test_a_killed_workers_job_runs_elsewhere_without_a_spare_too(fleet: Fleet, jobs: Jobs) -> None:
    first = fleet.start()
    job = jobs.enqueue("hold", gate=str(fleet.gate()))
    fleet.sees("start", job)
    fleet.start()
    first.kill()
    fleet.sees("start", job, count=2)
    fleet.gate().touch()
    ended = jobs.settled(job)
    given_back = jobs.value("select at from kept.job_log where job = %s", job)
    assert (ended["claimed_at"] - given_back).total_seconds() < 1


def test_a_keeper_tells_of_its_workers_death_at_once_and_is_gone_then(fleet: Fleet, jobs: Jobs) -> None:
    worker = fleet.start()
    keeper = worker.keeper
    job = jobs.enqueue("hold", gate=str(fleet.gate()))
    fleet.sees("start", job)
    killed_at = jobs.value("select clock_timestamp()")
    worker.kill()
    eventually(lambda: jobs.state(job) == "pending", 2.5, what="the job given back, sooner than its lease ends")
    given_back = jobs.value("select at from kept.job_log where job = %s", job)
    assert (given_back - killed_at).total_seconds() < 1
    eventually(lambda: keeper not in fleet.alive, what="the keeper's end")


def test_a_worker_killed_before_its_keeper_has_loaded_anything_is_given_back_as_well(fleet: Fleet, jobs: Jobs) -> None:
    """A worker whose hands are full has a backlog for all it knows, and its keeper waits for the end of that."""
    job = jobs.enqueue("hold", gate=str(fleet.gate()))
    worker = fleet.start(KEPT_LEASE="600s", KEPT_RENEW="200s", KEPT_CONCURRENCY="1", KEPT_BATCH="1")
    keeper = worker.keeper
    fleet.sees("start", job)
    loaded = "psycopg" in Path(f"/proc/{keeper}/maps").read_text()
    worker.kill()
    assert not loaded
    eventually(lambda: jobs.state(job) == "pending", what="the job given back, sooner than its lease ends")
    assert jobs.value("select extract(epoch from lease_until - started_at) from kept.worker") == 600, "renewed"
    eventually(lambda: keeper not in fleet.alive, what="the keeper's end")


def test_what_a_keeper_gave_back_is_counted_by_one_of_the_others(fleet: Fleet, jobs: Jobs) -> None:
    # The last attempt of a suspect, so that it fails when its worker dies; and two jobs that come back.
    ports = free_ports(2)
    others = [fleet.start("--metrics-port", str(port), "--queues", "elsewhere") for port in ports]
    victim = fleet.start()
    held = [jobs.enqueue("hold", gate=str(fleet.gate())) for _ in range(3)]
    for job in held:
        fleet.sees("start", job)
    jobs.conn.execute("update kept.job set suspect = true, ready = false, attempt = 3 where id = %s", [held[0]])
    victim.kill()
    counted = {("worker_died", "pending"): 2.0, ("worker_died", "failed"): 1.0}
    with explained(fleet.told):
        eventually(lambda: reclaimed(ports) == counted, 20, what="the count in somebody's metrics")
    said = [line for other in others for line in other.lines("jobs_reclaimed")]
    assert [(line["name"].rpartition(":")[2], line["jobs"], line["failed"]) for line in said] == [
        (str(victim.pid), 3, 1)
    ]
    assert jobs.state(held[0]) == "failed"
    assert not jobs.value("select count(*) from kept.reclaim")


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as open_sockets:
        sockets = [open_sockets.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


def reclaimed(ports: list[int]) -> dict[tuple[str, str], float]:
    """The counter of reclaims, by reason and state, over all workers that serve metrics here."""
    total: Counter[tuple[str, str]] = Counter()
    for port in ports:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            families = text_string_to_metric_families(answer.read().decode())
        for sample in (s for family in families for s in family.samples if s.name == "kept_jobs_reclaimed_total"):
            total[sample.labels["reason"], sample.labels["state"]] += sample.value
    return dict(+total)  # those that are zero left out


def test_only_jobs_that_had_started_are_charged_for_a_death(fleet: Fleet, jobs: Jobs) -> None:
    # A lane known to be quick is prefetched; then its jobs turn slow and pile up in the worker's hands.
    worker = fleet.start("--concurrency", "2")
    jobs.enqueue_many("hold", 400, gate=str(fleet.folder))
    jobs.all_settled()
    gate = str(fleet.gate())
    held = jobs.enqueue_many("hold", 6, gate=gate)
    fleet.sees("start", held[1])
    claimed = jobs.conn.execute("select id from kept.job where worker is not null").fetchall()
    started = {effect.job for effect in fleet.effects("start") if effect.job in held}
    worker.kill()
    eventually(lambda: not jobs.value("select count(*) from kept.job where worker is not null"))
    charges = dict(jobs.conn.execute("select id, attempt - uncharged from kept.job").fetchall())
    suspects = {row[0] for row in jobs.conn.execute("select id from kept.job where suspect")}
    assert len(started) == 2
    assert {row[0] for row in claimed} > started, "nothing was prefetched, so nothing is proved"
    assert charges == {job: int(job in started) for job in held}
    assert suspects == started


def test_a_dead_host_is_taken_over_from_within_lease_and_scan(fleet: Fleet, jobs: Jobs) -> None:
    first = fleet.start()
    keeper = first.keeper
    job = jobs.enqueue("hold", gate=str(fleet.gate()))
    fleet.sees("start", job)
    second = fleet.start()
    os.kill(keeper, signal.SIGKILL)
    first.kill()
    lease_until = jobs.value("select locked_until from kept.jobs where id = %s", job)
    fleet.sees("start", job, count=2)
    taken_over = jobs.one(job)
    fleet.gate().touch()
    ended = jobs.settled(job)
    scan, poll = 0.55, 1.0
    assert 0 <= (taken_over["claimed_at"] - lease_until).total_seconds() < scan + poll
    assert ended["attempt"] == ended["charged"] == 2
    assert second.says("jobs_reclaimed")["reason"] == "expired"


def test_a_worker_whose_keeper_is_killed_starts_another_and_keeps_its_lease(fleet: Fleet, jobs: Jobs) -> None:
    worker = fleet.start(KEPT_LEASE="8s")
    keeper = worker.keeper
    job = jobs.enqueue("hold", gate=str(fleet.gate()))
    fleet.sees("start", job)
    os.kill(keeper, signal.SIGKILL)
    worker.says("keeper_restarted")
    assert worker.keeper != keeper
    lease_until = jobs.one(job)["locked_until"]
    eventually(lambda: jobs.one(job)["locked_until"] > lease_until, what="a renewal by the new keeper")
    fleet.gate().touch()
    assert jobs.settled(job)["attempt"] == 1
    assert not worker.lines("worker_fenced")
    assert len(fleet.effects("start", job)) == 1


def test_a_worker_that_was_still_loading_when_its_supervisor_died_ends_too(fleet: Fleet) -> None:
    orphan = fleet.start(wait=False, KEPT_PROCESS_INDEX="0", KEPT_PROCESS_PARENT="1")  # one that is not its parent
    assert orphan.ended() == 0
    assert orphan.lines("worker_started") == []


def test_one_poison_job_among_five_hundred_good_ones_fails_alone(fleet: Fleet, jobs: Jobs) -> None:
    with jobs.conn.transaction():
        good = jobs.enqueue_many("note", 250)
        bad = jobs.enqueue("poison")
        good += jobs.enqueue_many("note", 250)
    fleet.start("--processes", "2")
    assert jobs.all_settled(told=fleet.told) == {"done": 500, "failed": 1}
    ended = jobs.one(bad)
    assert (ended["code"], ended["reason"], ended["charged"]) == ("worker_died", "worker_died", 3)
    assert {effect.job for effect in fleet.effects("end")} == set(good)
    assert not jobs.value("select count(*) from kept.job_log where event = 'failed' and job <> %s", bad)


def test_a_job_whose_process_died_runs_alone_in_a_process_from_then_on(fleet: Fleet, jobs: Jobs) -> None:
    first = fleet.start()
    jobs.enqueue("die_once", gate=str(fleet.gate()))
    first.ended()
    second = fleet.start()
    (again,) = fleet.sees("end")
    assert again.pid not in (first.pid, second.pid)
    eventually(lambda: jobs.states() == {"done": 1}, what="its settlement")
    assert second.process.poll() is None


def test_ten_thousand_jobs_and_every_process_killed_once_lose_nothing(fleet: Fleet, jobs: Jobs) -> None:
    count = 10_000
    jobs.enqueue_many("note", count)
    supervisor = fleet.start("--processes", "4", "--concurrency", "5", KEPT_BATCH="50")
    killed: list[int] = []
    gone: set[int] = set()
    for done in range(1, 5):
        eventually(
            lambda wanted=done: jobs.value("select count(*) from kept.history") >= wanted * count / 6, 60,
            what="a part of the jobs",
        )  # fmt: skip
        victim = next(pid for pid in at_work(supervisor) if pid not in killed)
        gone |= {victim, *children_of(victim, fleet.mark)}  # with it goes the child in which suspects run alone
        os.kill(victim, signal.SIGKILL)
        killed.append(victim)
    assert jobs.all_settled(90, fleet.told) == {"done": count}
    starts: dict[int, list[int]] = {}
    for effect in fleet.effects("start"):
        starts.setdefault(effect.job, []).append(effect.pid)
    assert len(starts) == count
    twice = {job: pids for job, pids in starts.items() if len(pids) > 1}
    assert all(set(pids[:-1]) <= gone for pids in twice.values()), (twice, gone)
    # Each kill explains what the worker had in hand: 5 slots, and of quick jobs three batches (LaneBook.prefetch) that
    # may all have ended while the step that settles the first of them was under way.
    assert len(twice) <= len(killed) * (5 + 3 * 50)
    assert len(set(killed)) == 4


def at_work(supervisor: Member) -> list[int]:
    """The workers of a supervisor, by pid, that have begun."""
    names = {line["name"].rpartition(":")[2] for line in supervisor.lines("worker_started")}
    return [pid for pid in supervisor.children if str(pid) in names]
