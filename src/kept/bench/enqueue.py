"""``kept bench enqueue``: what a job costs in the caller's transaction."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable

from kept.bench import crew
from kept.bench.app import BUSY, app, nothing
from kept.bench.crew import Crew
from kept.bench.drain import DEFAULT, Say, warm_up
from kept.bench.model import Enqueue
from kept.bench.place import Place
from kept.bench.producer import BARE, KEPT, REST, TEXT, Producer, enqueue_nothing, open_client
from kept.bench.rules import ratios, spread
from kept.config import Settings

BLOCK = 50  # transactions in a row; then it is the other's turn
BACKLOG = 100_000  # jobs that keep the worker busy meanwhile
PHASE = 0.5  # seconds
MICROSECONDS = 1e6
SETTLING = 0.05  # seconds from one phase to the next

Rates = defaultdict[int, list[float]]


def measure(place: Place, *, jobs: int, rounds: int, clients: int, many: int, phases: int, say: Say) -> Enqueue:
    """One by one, by many clients beside a busy worker, and in bulk."""
    lane = warm_up(place)
    app.configure(Settings(database=place.url, schema=place.schema))
    for statement in place.sql["own_tables"].split(";"):
        place.conn.execute(statement)
    single: Rates = defaultdict(list)
    client: Rates = defaultdict(list)
    bulk: Rates = defaultdict(list)
    for number in range(1, rounds + 1):
        say(f"round {number} of {rounds}: one by one")
        _one_by_one(place, lane, jobs, single, client)
        say(f"round {number} of {rounds}: {many} at once")
        _many(place, lane, many, bulk)
    busy = _beside_a_worker(place, rounds=rounds, clients=clients, phases=phases, say=say)
    return Enqueue(
        server=place.server,
        jobs=jobs,
        rounds=rounds,
        kept_per_s=spread(single[KEPT]),
        bare_per_s=spread(single[BARE]),
        ratio_to_bare=ratios(single[KEPT], single[BARE]),
        kept_client_us=spread(client[KEPT]),
        bare_client_us=spread(client[BARE]),
        clients=clients,
        busy_kept_per_s=spread(busy[KEPT]),
        busy_bare_per_s=spread(busy[BARE]),
        busy_ratio_to_bare=ratios(busy[KEPT], busy[BARE]),
        many=many,
        many_rows_per_s=spread(bulk[KEPT]),
        copy_rows_per_s=spread(bulk[BARE]),
        many_to_copy=ratios(bulk[KEPT], bulk[BARE]),
    )


def _fresh(place: Place) -> None:
    place.empty()
    place.conn.execute(place.sql["empty_own_tables"])
    place.settle_down()


def _one_by_one(place: Place, lane: int, jobs: int, rates: Rates, client: Rates) -> None:
    """Small blocks in turn: whatever slows the disk for a second slows both."""
    _fresh(place)
    seconds, processor = {KEPT: 0.0, BARE: 0.0}, {KEPT: 0.0, BARE: 0.0}
    done = 0
    with open_client(place.url) as conn:
        producer = Producer(conn, place.sql, lane, enqueue_nothing)
        _run(producer, KEPT, BLOCK)  # statements are prepared after a few calls
        _run(producer, BARE, BLOCK)
        while done < jobs:
            block = min(BLOCK, jobs - done)
            for mode in (KEPT, BARE) if done // BLOCK % 2 else (BARE, KEPT):
                took = _run(producer, mode, block)
                seconds[mode] += took[0]
                processor[mode] += took[1]
            done += block
    for mode in (KEPT, BARE):
        rates[mode].append(jobs / seconds[mode])
        client[mode].append(processor[mode] / jobs * MICROSECONDS)


def _run(producer: Producer, mode: int, transactions: int) -> tuple[float, float]:
    """Seconds it took, and seconds of our own processor time in that."""
    one = producer.kept if mode == KEPT else producer.bare
    began, used = time.perf_counter(), time.process_time()
    for number in range(transactions):
        one(number)
    return time.perf_counter() - began, time.process_time() - used


def _many(place: Place, lane: int, many: int, rates: Rates) -> None:
    """``enqueue_many`` as it is called, arguments checked and encoded, against COPY of ready-made rows."""
    _fresh(place)
    with open_client(place.url) as conn:

        def enqueue() -> None:
            app.enqueue_many([nothing.bind(number, TEXT) for number in range(many)], tx=conn)
            conn.commit()

        def copy() -> None:
            row = f'{lane}\t0\tt\tnow\tnow\t{{"number":1,"text":"{TEXT}"}}\n'
            with conn.cursor().copy(place.sql["copy_bare"]) as out:
                out.write(row * many)
            conn.commit()

        rates[KEPT].append(many / _timed(enqueue))
        rates[BARE].append(many / _timed(copy))


def _timed(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _beside_a_worker(place: Place, *, rounds: int, clients: int, phases: int, say: Say) -> Rates:
    """All clients do the one, then the other, in short phases; the worker has its own backlog all the time."""
    _fresh(place)
    place.fill(place.lane("wait", BUSY), BACKLOG)
    place.conn.execute(place.sql["fill_bare"])
    place.settle_down()
    rates: Rates = defaultdict(list)
    with (
        crew.workers(place, DEFAULT, jobs=BACKLOG, queue=BUSY) as worker,
        crew.clients(place, clients) as crowd,
    ):
        worker.start()
        crowd.start()
        for number in range(1, rounds + 1):
            say(f"round {number} of {rounds}: {clients} clients beside a busy worker")
            each: Rates = defaultdict(list)
            for phase in range(phases):
                for mode in (KEPT, BARE) if phase % 2 else (BARE, KEPT):
                    each[mode].append(_phase(crowd, mode))
            for mode, found in each.items():
                rates[mode].append(sum(found) / len(found))
        crowd.set_mode(REST)
    return rates


def _phase(crowd: Crew, mode: int) -> float:
    """Transactions per second of all clients together."""
    crowd.set_mode(mode)
    time.sleep(SETTLING)
    before, began = crowd.done(mode), time.perf_counter()
    time.sleep(PHASE)
    after, ended = crowd.done(mode), time.perf_counter()
    crowd.check()
    return (after - before) / (ended - began)
