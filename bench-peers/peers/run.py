"""The rounds: every peer once, then every peer again, so that a busy minute of the machine hits them all."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import psycopg

from peers import install, measure, servers
from peers.figures import tens
from peers.model import Peer, PeerFailed, Results, Sizes, What

Say = Callable[[str], None]
SURVIVABLE = (PeerFailed, psycopg.Error, OSError, KeyError, ValueError)


class Run:
    """One run over *peers*; what fails is noted under the peer's name and the rest goes on."""

    def __init__(self, peers: Iterable[Peer], what: Iterable[What], sizes: Sizes, say: Say) -> None:
        self.peers = list(peers)
        self.what = set(what)
        self.sizes = sizes
        self.say = say
        self.results = Results()

    def all(self, scratch: Path, url: str | None) -> Results:
        began = time.monotonic()
        self.say("installing")
        programs = install.tools(scratch)
        self.each(self.peers, "install", partial(self._install, scratch))
        with ExitStack() as stack:
            database = stack.enter_context(servers.postgresql(scratch, url))
            needs_redis = any(peer.store == "redis" for peer in self._left())
            redis = stack.enter_context(servers.redis(scratch, programs)) if needs_redis else ""
            self.results.facts = _facts(database)
            place = measure.Place(scratch, database, redis)
            stack.callback(self._tidy, database)
            self.each(self.peers, "prepare", place.prepare)
            self._measure(place)
        self.results.minutes = (time.monotonic() - began) / 60
        return self.results

    def each(self, peers: Iterable[Peer], told: str, act: Callable[[Peer], None]) -> None:
        """Let *act* do something with each peer that has not failed; one that fails now is noted, and left out."""
        for peer in peers:
            if peer.name in self.results.failed:
                continue
            self.say(f"{told}: {peer.title}")
            try:
                act(peer)
            except SURVIVABLE as error:
                self.results.failed[peer.name] = f"{told}: {error}".strip()
                self.say(f"{peer.title} FAILED, {self.results.failed[peer.name]}")

    def _install(self, scratch: Path, peer: Peer) -> None:
        install.peer(scratch, peer)
        self.results.versions[peer.name] = install.version_of(scratch, peer)

    def _measure(self, place: measure.Place) -> None:
        sizes = self.sizes
        self.each(self._for("growth"), f"adding {sizes.pending:,} pending jobs", partial(self._wait, place))
        for number in range(1, sizes.rounds + 1):
            told = f"round {number} of {sizes.rounds}"
            self.each(self._for("drain"), f"drain, {told}", partial(self._drain, place))
            # Next to the drain it is compared with.
            self.each(self._for("growth"), f"behind pending jobs, {told}", partial(self._pending, place))
            self.each(self._for("enqueue"), f"enqueue, {told}", partial(self._enqueue, place))
            # A part of the latencies in each round, so that they are interleaved too.
            self.each(self._for("latency"), f"latency, {told}", partial(self._latency, place, number))
            self.each(self._for("growth"), f"snapshot held, {told}", partial(self._snapshot, place))

    def _drain(self, place: measure.Place, peer: Peer) -> None:
        value, _ = measure.drain(place, peer, self._jobs(peer))
        self.results.drain.setdefault(peer.name, []).append(value)

    def _enqueue(self, place: measure.Place, peer: Peer) -> None:
        one, bulk = measure.enqueue(place, peer, self.sizes)
        self.results.one.setdefault(peer.name, []).append(one)
        self.results.bulk.setdefault(peer.name, []).append(bulk)

    def _latency(self, place: measure.Place, number: int, peer: Peer) -> None:
        jobs = max(1, self.sizes.latency_jobs // self.sizes.rounds)
        self.results.latency.setdefault(peer.name, []).extend(measure.latency(place, peer, jobs, seed=number))

    def _snapshot(self, place: measure.Place, peer: Peer) -> None:
        tenths = measure.behind_snapshot(place, peer, self.sizes.snapshot_jobs)
        self.results.snapshot.setdefault(peer.name, []).append(tenths)

    def _wait(self, place: measure.Place, peer: Peer) -> None:
        place.prepare_pending(peer, self.sizes.pending)

    def _pending(self, place: measure.Place, peer: Peer) -> None:
        value = measure.behind_pending(place, peer, self._jobs(peer))
        self.results.behind.setdefault(peer.name, []).append(value)

    def _jobs(self, peer: Peer) -> int:
        return tens(peer.jobs * self.sizes.share)

    def _for(self, what: What) -> list[Peer]:
        return [peer for peer in self._left() if what in peer.measured and what in self.what]

    def _left(self) -> list[Peer]:
        return [peer for peer in self.peers if peer.name not in self.results.failed]

    def _tidy(self, database: servers.Database) -> None:
        for peer in self.peers:
            if peer.store == "postgresql":
                database.drop(measure.template_of(peer))
                database.drop(measure.pending_of(peer))
        database.drop(measure.BENCH)


def _facts(database: servers.Database) -> dict[str, str]:
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "cores": str(os.cpu_count()),
        "machine": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **database.facts(),
    }
