"""Statements that took effect although their reply was lost (promises 2 and 3): nothing is done twice or forgotten."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fleet import Fleet, Jobs
from proxy import Proxy, proxy_before
from support import eventually

pytestmark = pytest.mark.acceptance

FIRST = 7_000_001  # ids that cannot be mistaken for anything else in a request


@pytest.fixture
def proxy(database: str) -> Iterator[Proxy]:
    with proxy_before(database) as proxy:
        yield proxy


@pytest.fixture(autouse=True)
def _large_ids(jobs: Jobs) -> None:
    jobs.conn.execute(f"alter table kept.job alter id restart with {FIRST}")


def names(job: int) -> bytes:
    """How a step names the only job that it settles."""
    return b"{%d}" % job


def test_a_settlement_sent_twice_after_a_lost_reply_counts_once(fleet: Fleet, jobs: Jobs, proxy: Proxy) -> None:
    worker = fleet.start(database=proxy.url, KEPT_LOG_LEVEL="debug")
    job = jobs.enqueue("hold", gate=str(fleet.gate()))
    fleet.sees("start", job)
    proxy.lose_answer_to(lambda asked: names(job) in asked)
    fleet.gate().touch()
    assert proxy.lost.wait(20)
    assert jobs.state(job) == "done", "the reply was lost, not the request"
    settled_at = jobs.one(job)["settled_at"]
    proxy.admit()
    assert worker.says("job_done")["job_id"] == job
    assert not worker.lines("lease_lost")
    assert len(worker.lines("job_done")) == len(worker.lines("connection_restored")) == 1
    assert jobs.one(job)["settled_at"] == settled_at
    assert len(fleet.effects("start", job)) == 1
    jobs.settled(jobs.enqueue("note"))


def test_a_deferral_sent_twice_after_a_lost_reply_counts_once(fleet: Fleet, jobs: Jobs, proxy: Proxy) -> None:
    worker = fleet.start(database=proxy.url, KEPT_LOG_LEVEL="debug")
    proxy.lose_answer_to(lambda asked: names(FIRST) in asked)
    job = jobs.enqueue("defer_by", seconds=0.1)
    assert proxy.lost.wait(20)
    assert (jobs.state(job), jobs.log(job)) == ("pending", ["deferred"])
    proxy.admit()
    ended = jobs.settled(job)
    assert (ended["attempt"], ended["charged"]) == (2, 1)
    assert jobs.log(job) == ["deferred"]
    assert not worker.lines("lease_lost")


def test_a_claim_whose_reply_was_lost_is_adopted(fleet: Fleet, jobs: Jobs, proxy: Proxy) -> None:
    worker = fleet.start(database=proxy.url)
    proxy.lose_answer(lambda answered: b"the marked one" in answered)
    job = jobs.enqueue("hold", gate=f"{fleet.folder}/the marked one")
    assert proxy.lost.wait(20)
    claimed = jobs.one(job)
    assert (claimed["state"], claimed["attempt"]) == ("running", 1), "claimed, and nobody heard of it"
    assert not fleet.effects("start", job)
    admitted_at = jobs.value("select clock_timestamp()")
    proxy.admit()
    fleet.sees("start", job, timeout=2.5)  # sooner than its lease ends
    fleet.gate("the marked one").touch()
    ended = jobs.settled(job)
    assert (ended["attempt"], ended["claimed_at"]) == (1, claimed["claimed_at"])
    assert ended["claimed_at"] < admitted_at
    assert len(fleet.effects("start", job)) == 1
    assert not worker.lines("lease_lost")


def test_a_suspect_whose_claim_was_not_heard_still_runs_alone(fleet: Fleet, jobs: Jobs, proxy: Proxy) -> None:
    first = fleet.start()
    job = jobs.enqueue("die_once", gate=f"{fleet.folder}/the marked one")
    first.ended()
    eventually(lambda: jobs.value("select suspect and worker is null from kept.job"), what="a suspect")
    proxy.lose_answer(lambda answered: b"the marked one" in answered)
    second = fleet.start(database=proxy.url, wait=False)
    assert proxy.lost.wait(20)
    proxy.admit()
    (again,) = fleet.sees("end", job)
    assert again.pid not in (first.pid, second.pid)
    assert jobs.settled(job)["charged"] == 2


def test_a_worker_survives_the_loss_of_every_connection_in_the_middle_of_its_work(
    fleet: Fleet, jobs: Jobs, proxy: Proxy
) -> None:
    worker = fleet.start(database=proxy.url)
    running = jobs.enqueue("hold", gate=str(fleet.gate()))
    fleet.sees("start", running)
    ids = jobs.enqueue_many("nap", 200, seconds=0.01)
    for lost in range(1, 4):
        proxy.cut()
        eventually(lambda wanted=lost: len(worker.lines("connection_restored")) >= wanted, what="a new connection")
    fleet.gate().touch()
    assert jobs.all_settled(told=fleet.told) == {"done": 201}
    assert jobs.one(running)["attempt"] == 1
    assert sorted(effect.job for effect in fleet.effects("end")) == sorted([running, *ids])
    assert not worker.lines("worker_fenced")
    assert not worker.lines("lease_lost")


def test_a_suspect_that_completed_in_its_own_process_is_no_claim_that_was_forgotten(
    fleet: Fleet, jobs: Jobs, proxy: Proxy
) -> None:
    job = jobs.enqueue("hold_alone", gate=str(fleet.gate()), complete=True)
    fleet.start().ended()
    worker = fleet.start(database=proxy.url)
    (alone,) = fleet.sees("alone", job)
    assert alone.pid != worker.pid
    proxy.cut()
    worker.says("connection_restored")
    fleet.gate().touch()
    assert jobs.settled(job)["charged"] == 2
    jobs.settled(jobs.enqueue("note"))
    assert not worker.lines("worker_fenced")


def test_a_suspect_whose_claim_was_forgotten_as_in_a_failover_is_noticed(
    fleet: Fleet, jobs: Jobs, proxy: Proxy
) -> None:
    job = jobs.enqueue("hold_alone", gate=str(fleet.gate()), complete=False)
    fleet.start().ended()
    worker = fleet.start(database=proxy.url)
    fleet.sees("alone", job)
    jobs.conn.execute(
        "update kept.job set worker = null, claimed_at = null, attempt = attempt - 1 where id = %s", [job]
    )
    proxy.cut()
    assert worker.says("worker_fenced")["cancelled"] == 1
    fleet.gate().touch()
    jobs.settled(job)


def test_a_connection_that_swallows_everything_is_given_up_and_the_lease_outlives_it(
    fleet: Fleet, jobs: Jobs, proxy: Proxy
) -> None:
    worker = fleet.start(database=proxy.url, KEPT_LEASE="20s", KEPT_TICK_RUNNER="1s")
    running = jobs.enqueue("hold", gate=str(fleet.gate()))
    fleet.sees("start", running)
    proxy.swallow()
    job = jobs.enqueue("note")
    jobs.settled(job, timeout=30)
    fleet.gate().touch()
    assert jobs.settled(running)["attempt"] == 1
    assert worker.lines("connection_restored")
    assert not worker.lines("worker_fenced")
