"""Publishing by real workers: the broker goes and comes back, a worker is killed with hundreds of events in hand."""

from __future__ import annotations

import asyncio
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from desk import emit
from fleet import Fleet, Jobs
from kept.loading import load
from servers import NatsServer, free_port, running
from support import eventually

pytestmark = pytest.mark.acceptance
DEPOT = "depot:app"
FAILURES = "select failures from kept.sink where name = 'nats'"
CHARGES = "select coalesce(array_agg(distinct attempt - uncharged), '{}') from kept.history"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[NatsServer]:
    folder = tmp_path / "nats"
    folder.mkdir()
    with running(NatsServer(folder)) as server:
        yield server


def tell(fleet: Fleet, type: str, count: int, parcels: int = 50) -> list[str]:
    """Emit, as a program of its own would."""
    app = load(DEPOT)
    app._database = fleet.database
    return asyncio.run(_tell(app, type, count, parcels))


async def _tell(app, type, count, parcels):
    async with app:
        return await emit(app, count, parcels=parcels, type=type)


def stored(broker: NatsServer) -> list[str]:
    return [each.event_id for each in asyncio.run(broker.stored())]


@pytest.mark.parametrize("type", ["parcel.moved", "truck.left"])
def test_a_worker_killed_with_hundreds_of_events_in_hand_delays_them_by_seconds(type, fleet, jobs, broker):
    settings = {"DEPOT_NATS": broker.url}
    first = fleet.start(app=DEPOT, **settings)
    warm = tell(fleet, type, 1)
    jobs.all_settled(20, fleet.told)
    broker.freeze()
    ids = tell(fleet, type, 500)
    held = "select count(*) from kept.job where worker is not null"
    eventually(lambda: jobs.value(held) == 500, what="all to be in hand")
    fleet.start(app=DEPOT, **settings)
    first.kill()
    broker.thaw()
    began = time.monotonic()
    assert jobs.all_settled(60, fleet.told) == {"done": 501}
    took = time.monotonic() - began
    print(f"500 {type} in hand of a killed worker: {took:.2f} s")
    assert took < 10
    assert set(stored(broker)) == {*warm, *ids}
    assert jobs.value("select max(attempt - uncharged) from kept.history") <= 2


def test_the_broker_goes_and_comes_back_under_two_workers_and_nobody_is_charged(fleet: Fleet, jobs: Jobs, broker):
    port = free_port()
    settings = {"DEPOT_NATS": broker.url, "DEPOT_TIMEOUT": "2s", "KEPT_LOG_LEVEL": "debug"}
    crew = [fleet.start("--metrics-port", str(port), app=DEPOT, **settings), fleet.start(app=DEPOT, **settings)]
    eventually(lambda: probe(port, "readyz") == (200, "ready\n"), what="it to be ready")
    broker.kill()
    ids = tell(fleet, "parcel.moved", 3000) + tell(fleet, "truck.left", 1000)
    eventually(lambda: jobs.value(FAILURES) >= 3, 30, what="rests")
    status, why = eventually(lambda: (p := probe(port, "readyz"))[0] == 503 and p, what="it to be not ready")
    assert (status, why.split(": ")[0]) == (503, "sink nats")
    assert jobs.value("select count(*) from kept.job_log") == 0
    assert jobs.value("select max(attempt - uncharged) from kept.job where worker is null") == 0
    broker.start()
    assert jobs.all_settled(60, fleet.told) == {"done": 4000}
    eventually(lambda: jobs.value(FAILURES) == 0, 30, what="the sink to be closed")
    eventually(lambda: probe(port, "readyz")[0] == 200, 60, what="it to be ready")
    assert jobs.value(CHARGES) == [1]
    assert set(stored(broker)) == set(ids)
    told = Counter(line["event"] for member in crew for line in member.lines())
    opened = sorted(line["failures"] for member in crew for line in member.lines("sink_opened"))
    assert opened == list(range(1, len(opened) + 1)), "each failure is told once in the whole cluster"
    assert told["sink_closed"] == 1
    line = next(line for member in crew for line in member.lines("event_published"))
    wanted = {"sink", "batch_size", "event_id", "event_type", "aggregate_type", "aggregate_id"}
    assert wanted <= line.keys()
    assert told["event_published"] >= 4000
    _, shown = probe(port, "metrics")
    assert 'kept_sink_open{sink="nats"}' in shown
    assert 'kept_events_sent_total{outcome="unreachable",sink="nats"}' in shown


def test_a_tick_drains_and_leaves_no_connection(fleet: Fleet, jobs: Jobs, broker):
    tell(fleet, "parcel.moved", 150)
    done = fleet.run("tick", DEPOT, DEPOT_NATS=broker.url)
    assert done.returncode == 0, done.stderr
    assert jobs.states() == {"done": 150}
    assert "Warning" not in done.stderr


def test_a_shutdown_gives_a_batch_in_flight_back_uncharged(fleet: Fleet, jobs: Jobs, broker):
    member = fleet.start("--grace", "500ms", app=DEPOT, DEPOT_NATS=broker.url)
    tell(fleet, "parcel.moved", 1)
    jobs.all_settled(20, fleet.told)
    broker.freeze()
    tell(fleet, "parcel.moved", 300)
    eventually(lambda: jobs.value("select count(*) from kept.job where worker is not null") == 300, what="all in hand")
    began = time.monotonic()
    member.process.terminate()
    assert member.ended() == 0
    assert time.monotonic() - began < 8
    broker.thaw()
    assert jobs.states() == {"done": 1, "pending": 300}
    assert jobs.value("select max(attempt - uncharged) from kept.job") == 0


def test_an_event_that_kills_its_process_is_found_out_and_the_others_go_their_way(fleet: Fleet, jobs: Jobs, broker):
    ledger = fleet.folder / "trap"
    fleet.start("--processes", "2", app=DEPOT, wait=False, DEPOT_NATS=broker.url, DEPOT_TRAP=str(ledger))
    tell(fleet, "bait.laid", 40)
    assert jobs.all_settled(90, fleet.told) == {"done": 39, "failed": 1}
    assert jobs.value("select code from kept.history where state = 'failed'") == "worker_died"
    assert {*map(int, ledger.read_text().split())} == {*range(40)} - {7}


def probe(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)
