"""A storm: workers, the broker and PostgreSQL are killed at random while events flow; judged from outside.

``python tests/storm.py --events 50000 --parcels 500`` is the whole of it; the test suite has a small one. What was
committed is known from the emitter's own log, what was published from the broker, what was handled from a ledger file.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import nats as nats_client
import psycopg

from kept import App
from kept.db import migrate
from kept.db.embedded import Embedded
from servers import NatsServer
from support import eventually

HERE = Path(__file__).parent
KEPT = Path(sys.executable).with_name("kept")
VICTIMS = ("worker", "worker", "worker", "broker", "postgres")  # by how often they are picked
TOGETHER = 5  # events of one transaction
UNAVAILABLE = 75  # the exit code of a worker that finds no database when it starts


@dataclass(frozen=True)
class Told:
    """One delivery of an event, wherever it went."""

    event: str
    parcel: str
    n: int


@dataclass
class Verdict:
    """What the storm left behind, for one receiver."""

    receiver: str
    delivered: int
    lost: set[str]
    phantoms: set[str]
    disordered: list[str]  # parcels whose moves came first in another order than they were committed

    @property
    def clean(self) -> bool:
        return not (self.lost or self.phantoms or self.disordered)


@dataclass
class Outcome:
    """All of it."""

    committed: int
    kills: Counter[str]
    verdicts: list[Verdict]
    effects: Counter[str] = field(default_factory=Counter)  # by event, of a consumer with an inbox
    seconds: float = 0.0

    @property
    def clean(self) -> bool:
        once = len(self.effects) == self.committed and set(self.effects.values()) <= {1}
        return once and all(verdict.clean for verdict in self.verdicts)

    def __str__(self) -> str:
        kills = ", ".join(f"{count} x {victim}" for victim, count in sorted(self.kills.items()))
        told = [
            f"{v.receiver}: {v.delivered} delivered, lost={len(v.lost)} phantom={len(v.phantoms)} "
            f"out of order={len(v.disordered)} duplicates={v.delivered - self.committed}"
            for v in self.verdicts
        ]
        twice = sum(count > 1 for count in self.effects.values())
        effects = f"inbox: {len(self.effects)} effects, twice={twice}"
        head = f"committed={self.committed} in {self.seconds:.0f} s; killed: {kills or 'nobody'}"
        return "\n".join([head, *told, effects])


class Workers:
    """Worker processes that are replaced when they are killed."""

    def __init__(self, count: int, environ: dict[str, str], folder: Path) -> None:
        self._environ = environ
        self._folder = folder
        self.processes = [self._start(number) for number in range(count)]

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        with (self._folder / f"worker-{number}.log").open("ab") as log:
            return subprocess.Popen(
                [KEPT, "worker", "parcels:app"], cwd=HERE, env=self._environ, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log,
            )  # fmt: skip

    def kill(self, chance: random.Random) -> None:
        number = chance.randrange(len(self.processes))
        self.processes[number].kill()
        self.processes[number].wait(10)
        self.processes[number] = self._start(number)

    def look_after(self) -> None:
        """Start those again that found no database when they started, as a service manager does."""
        for number, process in enumerate(self.processes):
            code = process.poll()
            assert code in (None, UNAVAILABLE), f"a worker ended with {code}"
            if code is not None:
                self.processes[number] = self._start(number)

    def stop(self) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()


class Emitter(threading.Thread):
    """Moves parcels: a row and its events in one transaction, and a log of what was committed."""

    def __init__(self, url: str, events: int, parcels: int, chance: random.Random) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._left = events
        self._parcels = parcels
        self._chance = chance
        self._moves: Counter[str] = Counter()
        self._app = App(url)
        self.committed: dict[str, Told] = {}
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while self._left > 0:
                with suppress(psycopg.OperationalError):
                    self._emit_over_one_connection()
        except BaseException as error:  # told by whoever waits for us
            self.error = error

    def _emit_over_one_connection(self) -> None:
        with psycopg.connect(self._url, connect_timeout=2) as conn:
            while self._left > 0:
                parcel = f"p{self._chance.randrange(self._parcels)}"
                first = self._moves[parcel] + 1
                moves = [(parcel, first + step) for step in range(min(TOGETHER, self._left))]
                try:
                    self._commit(conn, moves)
                except psycopg.OperationalError:
                    self._find_out(moves)
                    raise

    def _commit(self, conn: psycopg.Connection, moves: Sequence[tuple[str, int]]) -> None:
        told = []
        for parcel, n in moves:
            about = {"aggregate_type": "parcel", "aggregate_id": parcel}
            event = self._app.emit("parcel.moved", {"n": n}, tx=conn, **about)
            conn.execute("insert into move (event, parcel, n) values (%s, %s, %s)", [event, parcel, n])
            told.append(Told(event, parcel, n))
        conn.commit()
        self._remember(told)

    def _find_out(self, moves: Sequence[tuple[str, int]]) -> None:
        """The commit's answer did not come: our own rows say whether it happened."""
        parcel, n = moves[0]
        found = eventually(lambda: self._asked(parcel, n), 60, what="an answer about a commit")
        self._remember([Told(str(event), parcel, int(n)) for event, n in found if event is not None])

    def _asked(self, parcel: str, n: int) -> list[tuple[str | None, int]]:
        with suppress(psycopg.OperationalError), psycopg.connect(self._url, connect_timeout=2) as conn:
            # Waits for the other session if it is not over yet: it holds the lock of its own rows.
            conn.execute("lock table move in exclusive mode")
            rows = conn.execute("select event, n from move where parcel = %s and n >= %s order by n", [parcel, n])
            return [*rows.fetchall()] or [(None, 0)]
        return []

    def _remember(self, told: Iterable[Told]) -> None:
        for each in told:
            self.committed[each.event] = each
            self._moves[each.parcel] = each.n
            self._left -= 1


class Scene:
    """Everything that can be killed: a server, a broker and workers, in a folder of their own."""

    def __init__(self, folder: Path, workers: int, stack: ExitStack) -> None:
        (folder / "nats").mkdir()
        self.ledger = folder / "ledger"
        self.ledger.touch()
        self.kills: Counter[str] = Counter()
        self._server = stack.enter_context(Embedded(folder / "pg", options={"fsync": "off"}))
        self.url = self._server.url()
        with psycopg.connect(self.url, autocommit=True) as conn:
            migrate.apply(conn)
            conn.execute("create table move (event uuid primary key, parcel text not null, n int not null)")
            conn.execute("create table effect (event uuid not null)")
        self.broker = NatsServer(folder / "nats")
        self.broker.start()
        stack.callback(self.broker.stop)
        asyncio.run(_make_stream(self.broker.url))
        environ = self._environ()
        subprocess.run([KEPT, "sync", "parcels:app"], cwd=HERE, env=environ, check=True, stdout=subprocess.DEVNULL)
        self.workers = Workers(workers, environ, folder)
        stack.callback(self.workers.stop)

    def _environ(self) -> dict[str, str]:
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith("KEPT_")},
            "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]),
            "KEPT_DATABASE_URL": self.url,
            "KEPT_LEASE": "3s",
            "KEPT_RENEW": "500ms",
            "KEPT_RECLAIM_SCAN": "500ms",
            "KEPT_ERROR_BACKOFF": "1s",
            "KEPT_LOG_FORMAT": "json",
            "PARCELS_NATS": self.broker.url,
            "PARCELS_LEDGER": str(self.ledger),
        }

    def kill(self, chance: random.Random) -> None:
        """Kill somebody, and start it again."""
        victim = chance.choice(VICTIMS)
        self.kills[victim] += 1
        match victim:
            case "worker":
                self.workers.kill(chance)
            case "broker":
                self.broker.kill()
                self.broker.start()
            case "postgres":
                pid = int((self._server.root / "data" / "postmaster.pid").read_text().split()[0])
                os.kill(pid, signal.SIGKILL)
                self._server.acquire()

    def wait_for_calm(self, patience: float) -> None:
        """Return when no job is left."""
        with psycopg.connect(self.url, autocommit=True) as conn:
            eventually(lambda: self._calm(conn), patience, what="the end of all jobs")
        self.workers.stop()

    def _calm(self, conn: psycopg.Connection) -> bool:
        self.workers.look_after()
        return bool(conn.execute("select not exists (select from kept.job)").fetchone()[0])

    def handled(self) -> list[Told]:
        """What the handler wrote down, in its order."""
        lines = map(json.loads, self.ledger.read_text().splitlines())
        return [Told(line["event"], line["parcel"], line["n"]) for line in lines]


def storm(*, events: int, parcels: int, workers: int, seed: int, folder: Path, every: float = 1.0) -> Outcome:
    """Let it blow until all *events* are emitted, then wait for calm and judge."""
    began, chance = time.monotonic(), random.Random(seed)
    with ExitStack() as stack:
        scene = Scene(folder, workers, stack)
        emitter = Emitter(scene.url, events, parcels, chance)
        emitter.start()
        while emitter.is_alive():
            emitter.join(every * (0.5 + chance.random()))
            scene.kill(chance)
        if emitter.error is not None:
            raise emitter.error
        scene.wait_for_calm(120 + events / 500)
        committed, published = emitter.committed, asyncio.run(_published(scene.broker.url))
        verdicts = [judge("nats", committed, published), judge("handler", committed, scene.handled())]
        effects = _consume(scene.url, [each.event for each in published], chance)
        return Outcome(len(committed), scene.kills, verdicts, effects, time.monotonic() - began)


def judge(receiver: str, committed: dict[str, Told], told: Sequence[Told]) -> Verdict:
    """Compare what was delivered with what was committed. Repeats are allowed; the first of each counts for order."""
    firsts: dict[str, Told] = {}
    for each in told:
        firsts.setdefault(each.event, each)
    order: defaultdict[str, list[int]] = defaultdict(list)
    for each in firsts.values():
        order[each.parcel].append(each.n)
    return Verdict(
        receiver,
        len(told),
        lost=committed.keys() - firsts.keys(),
        phantoms=firsts.keys() - committed.keys(),
        disordered=[parcel for parcel, moves in order.items() if moves != sorted(moves)],
    )


async def _make_stream(url: str) -> None:
    """A stream that hardly drops what comes twice: that is to be the inbox's business."""
    client = await nats_client.connect(url)
    await client.jetstream().add_stream(name="PARCELS", subjects=["parcels.>"], duplicate_window=0.1)
    await client.close()


async def _published(url: str) -> list[Told]:
    """Everything in the stream, in its order."""
    client = await nats_client.connect(url)
    streams = client.jetstream()
    count = (await streams.stream_info("PARCELS")).state.messages
    reader = await streams.subscribe("parcels.>", ordered_consumer=True)
    found = []
    for _ in range(count):
        envelope = json.loads((await reader.next_msg(timeout=20)).data)
        found.append(Told(envelope["event_id"], envelope["aggregate_id"], envelope["data"]["n"]))
    await client.close()
    return found


def _consume(url: str, events: Sequence[str], chance: random.Random) -> Counter[str]:
    """A consumer with an inbox, to whom a tenth of the events come again; what it did, by event."""
    inbox = App(url).inbox("storm")
    again = chance.sample(events, len(events) // 10)
    with psycopg.connect(url) as conn:
        for event in [*events, *again]:
            with inbox.once(event, conn) as first:
                if first:
                    conn.execute("insert into effect (event) values (%s)", [event])
            conn.commit()
        rows = conn.execute("select event::text, count(*) from effect group by event").fetchall()
    return Counter(dict(rows))


def main() -> int:
    """0 if every promise held."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=50_000)
    parser.add_argument("--parcels", type=int, default=500)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    with TemporaryDirectory(prefix="kept-storm-") as folder:
        outcome = storm(**vars(given), folder=Path(folder))
    print(outcome)
    return 0 if outcome.clean else 1


if __name__ == "__main__":
    sys.exit(main())
