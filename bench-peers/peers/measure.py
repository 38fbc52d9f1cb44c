"""The measurements. Each begins with a fresh copy of the peer's empty database, or an empty Redis."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg

from peers import install, servers
from peers.model import Peer, PeerFailed, Sizes
from peers.processes import Process, Reports, ask

TEXT = "x" * 80
BENCH = "kept_bench_peers"
_PATIENCE = 180.0  # seconds without a word from a worker
_DOMAIN = "create table bench_order (id bigint generated always as identity primary key, note text not null)"


@dataclass(frozen=True)
class Place:
    """Where things are."""

    scratch: Path
    database: servers.Database
    redis: str

    def prepare(self, peer: Peer) -> None:
        """Install the peer's schema into a template database."""
        if peer.store == "redis":
            return
        url = self.database.create(template_of(peer))
        with psycopg.connect(url, autocommit=True) as conn:
            conn.execute(_DOMAIN)
        self._ask(peer, url, "prepare")

    def prepare_pending(self, peer: Peer, jobs: int) -> None:
        """A second template, in which *jobs* wait in a queue that nobody serves."""
        url = self.database.create(pending_of(peer), template_of(peer))
        self.fill(peer, url, "other", jobs)
        self.database.settle_down(pending_of(peer))

    def fresh(self, peer: Peer) -> str:
        if peer.store == "redis":
            servers.flush(self.redis)
            return ""
        return self.database.create(BENCH, template_of(peer))

    def fill(self, peer: Peer, url: str, queue: str, jobs: int) -> None:
        self._ask(peer, url, "fill", queue, str(jobs))

    def seconds(self, peer: Peer, url: str, verb: str, jobs: int) -> float:
        return float(self._ask(peer, url, verb, str(jobs))["seconds"])

    @contextmanager
    def worker(self, peer: Peer, url: str, jobs: int, *, starts: bool = False) -> Iterator[tuple[Process, Reports]]:
        with Reports() as reports:
            env = self._env(peer, url) | {"BENCH_JOBS": str(jobs), "BENCH_REPORT": str(reports.path)}
            env |= {"BENCH_STARTS": "1"} if starts else {}
            command = [self._filled(peer, word) for word in peer.worker]
            log = self.scratch / "logs" / f"{peer.name}.log"
            with Process(command, env, log, install.ADAPTERS) as process:
                yield process, reports

    def _ask(self, peer: Peer, url: str, *words: str) -> dict[str, Any]:
        program = "{node}" if peer.node else "{bin}/python"
        command = [self._filled(peer, word) for word in (program, "{adapter}")]
        return ask([*command, *words], self._env(peer, url), install.ADAPTERS)

    def _filled(self, peer: Peer, word: str) -> str:
        return word.format(
            bin=install.bin_of(self.scratch, peer.home),
            node=install.bin_of(self.scratch, "tools") / "node",
            adapter=install.adapter_of(self.scratch, peer),
        )

    def _env(self, peer: Peer, url: str) -> dict[str, str]:
        places = {"BENCH_URL": url, "KEPT_DATABASE_URL": url, "BENCH_REDIS": self.redis}
        # With bytecode, as what is installed has it, but none beside the sources.
        python = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(self.scratch / "bytecode")}
        return {**places, **python, "PYTHONPATH": str(install.ADAPTERS), **peer.env}


def drain(place: Place, peer: Peer, jobs: int) -> tuple[float, list[float]]:
    """Jobs per second from the first job's start until all are settled, and those of each tenth but the first."""
    url = place.fresh(peer)
    place.fill(peer, url, "bench", jobs)
    if url:
        place.database.settle_down(BENCH)
    return _drain(place, peer, url, jobs)


def latency(place: Place, peer: Peer, jobs: int, seed: int = 1) -> list[float]:
    """Milliseconds from the end of COMMIT to the start of the handler, with an idle worker, for each job."""
    url = place.fresh(peer)
    warm = 5
    chance = random.Random(seed)
    committed: dict[int, int] = {}
    with (
        place.worker(peer, url, jobs + warm, starts=True) as (process, reports),
        psycopg.connect(url) as conn,
    ):
        for n in range(jobs + warm):
            conn.execute(peer.add, {"n": n, "text": TEXT})
            conn.commit()
            committed[n] = time.monotonic_ns()
            if n == 0:
                reports.next(process, 60)
                time.sleep(1.0)
            time.sleep(chance.uniform(0.02, 0.3))
        starts = {int(n): int(at) for n, at in reports.next(process, 60)["starts"].items()}
    return [(starts[n] - committed[n]) / 1e6 for n in range(warm, jobs + warm)]


def enqueue(place: Place, peer: Peer, sizes: Sizes) -> tuple[float, float]:
    """Transactions per second one by one, and jobs per second in bulk."""
    one = sizes.one_by_one / place.seconds(peer, place.fresh(peer), "one", sizes.one_by_one)
    bulk = sizes.bulk / place.seconds(peer, place.fresh(peer), "bulk", sizes.bulk)
    return one, bulk


def behind_snapshot(place: Place, peer: Peer, jobs: int) -> list[float]:
    """Jobs per second in each tenth of a drain but the first, while somebody holds a snapshot open."""
    url = place.fresh(peer)
    place.fill(peer, url, "bench", jobs)
    place.database.settle_down(BENCH)
    with psycopg.connect(url) as holder:
        holder.execute("set transaction isolation level repeatable read")
        holder.execute("select 1 from pg_class limit 1")
        return _drain(place, peer, url, jobs)[1]


def behind_pending(place: Place, peer: Peer, jobs: int) -> float:
    """Jobs per second while many others wait in a queue that nobody serves."""
    url = place.database.create(BENCH, pending_of(peer))
    place.fill(peer, url, "bench", jobs)
    place.database.settle_down(BENCH)
    return _drain(place, peer, url, jobs)[0]


def _drain(place: Place, peer: Peer, url: str, jobs: int) -> tuple[float, list[float]]:
    with ExitStack() as stack:
        # Connected before the clock runs.
        conn = stack.enter_context(psycopg.connect(url, autocommit=True)) if url else None
        process, reports = stack.enter_context(place.worker(peer, url, jobs))
        first = int(reports.next(process, 60)["first"])
        done = reports.next(process, _PATIENCE)
        last = _settled(conn, peer) if conn else int(done["last"])
    # From mark to mark: the first tenth is left out, as nobody sees how long its first batch took to claim.
    tenths = [jobs / 10 / (after - before) * 1e9 for before, after in pairwise(done["marks"])]
    return jobs / (last - first) * 1e9, tenths


def _settled(conn: psycopg.Connection, peer: Peer) -> int:
    """When the database says that nothing is left: a handler that returned is not yet a job that is done.

    By index, for all: a table that holds a million other jobs is not to be read while a worker is being measured.
    """
    conn.execute("set enable_seqscan = off")
    deadline = time.monotonic() + 60
    while conn.execute(peer.left).fetchone() != (False,):
        if time.monotonic() > deadline:
            raise PeerFailed("all handlers returned, but jobs are left")
        time.sleep(0.002)
    return time.monotonic_ns()


def template_of(peer: Peer) -> str:
    return f"{BENCH}_{peer.name}".replace("-", "_")


def pending_of(peer: Peer) -> str:
    return f"{template_of(peer)}_pending"
