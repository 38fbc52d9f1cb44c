"""Who reads figures, how often, and what a failure to read them costs: nothing but the figures."""

from __future__ import annotations

from types import SimpleNamespace

import psycopg
import pytest

from kept import App
from kept.config import Settings
from kept.integrations.prometheus import Metrics
from kept.signals import Figures, JobsSettled, RunnerFailed, Signal, Signals, Warned
from kept.worker import figures
from kept.worker.figures import FigureReader
from kept.worker.tick import Budget
from support import aeventually

BUDGET = Budget(None, 0.0)
NEWS = Warned(code="news", message="read")


def reader(told: list[Signal], *sources: figures.Source) -> FigureReader:
    return FigureReader(SimpleNamespace(signals=Signals(told.append)), sources)


async def answers(_post: object) -> Signal:
    return NEWS


async def at_work(database: str, **settings: object) -> list[Signal]:
    """What a worker tells while it runs a job."""
    app = App(database, settings=Settings(**settings))
    told: list[Signal] = []
    app.signals.subscribe(told.append)

    @app.task()
    async def send() -> None: ...

    async with app, app.worker():
        await send.aenqueue()
        await aeventually(lambda: any(isinstance(each, JobsSettled) for each in told), what="the job to be done")
        if "metrics_port" in settings:
            await aeventually(lambda: any(isinstance(each, Figures) for each in told), what="figures")
    return told


@pytest.mark.parametrize("runners", [None, ("promote", "jobs")])
async def test_a_worker_that_serves_metrics_reads_figures_whatever_its_runners(database, runners):
    told = await at_work(database, metrics_port=0, tick_runners=runners)
    found = [each for each in told if isinstance(each, Figures)]
    assert len(found) == 1, "the next are due in 15 s"
    assert found[0].live == 1
    assert [(lane.queue, lane.task) for lane in found[0].lanes] == [("default", "send")]


async def test_a_worker_without_metrics_reads_none(database):
    assert [each for each in await at_work(database) if isinstance(each, Figures)] == []


async def test_jobs_that_no_worker_serves_are_in_the_metrics(database):
    app = App(database, settings=Settings(metrics_port=0, queues=("mail",)))
    metrics = Metrics()
    app.signals.subscribe(metrics)

    @app.task(queue="parcels")
    async def pack() -> None: ...

    async with app:
        await pack.aenqueue()
        labels = {"queue": "parcels", "task": "pack"}
        async with app.worker():
            await aeventually(lambda: metrics.registry.get_sample_value("kept_jobs_due", labels) == 1, what="the gauge")
    assert metrics.registry.get_sample_value("kept_oldest_due_seconds", labels) >= 0
    assert metrics.registry.get_sample_value("kept_workers", {"state": "live"}) == 1


async def test_a_source_that_fails_is_told_of_and_the_others_are_asked():
    async def fails(_post: object) -> Signal:
        raise psycopg.errors.InsufficientPrivilege("permission denied for table worker")

    async def takes_too_long(_post: object) -> Signal:
        raise psycopg.errors.QueryCanceled("canceling statement due to statement timeout")

    told: list[Signal] = []
    assert await reader(told, fails, takes_too_long, answers).read(BUDGET) == 0
    assert [type(each) for each in told] == [RunnerFailed, RunnerFailed, Warned]
    assert told[0].runner == "figures"
    assert "permission denied" in told[0].error


async def test_a_lost_connection_is_the_workers_business():
    async def is_cut_off(_post: object) -> Signal:
        raise psycopg.OperationalError("server closed the connection")

    with pytest.raises(psycopg.OperationalError):
        await reader([], is_cut_off).read(BUDGET)


async def test_they_are_read_every_15_seconds_and_less_often_if_that_takes_long(monkeypatch):
    now, told = [1000.0], []
    monkeypatch.setattr(figures, "monotonic", lambda: now[0])

    async def takes_a_second(_post: object) -> Signal:
        now[0] += 1.0
        return NEWS

    quick, slow = reader(told, answers), reader([], takes_a_second)
    for one in (quick, slow):
        assert one.due()
        await one.read(BUDGET)
    started = now[0]
    now[0] = started + 14.9
    assert (quick.due(), slow.due()) == (True, False), "the quick one was read a second earlier"
    now[0] = started + 99.9
    assert not slow.due()
    now[0] = started + 100
    assert slow.due()
    await quick.read(BUDGET)
    await quick.read(BUDGET)
    assert len(told) == 2, "once when it was time, and not again"
