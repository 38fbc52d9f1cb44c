"""A producer: transactions with jobs in them, and a log of what it meant to do and what it was told.

``python -m kept.verify.producer`` is started by a run and ends when it has enqueued its share.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Literal

import msgspec
import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.rows import TupleRow

from kept.config import Settings
from kept.db.connect import conninfo
from kept.errors import Error
from kept.tasks import Call
from kept.verify.app import TASKS, app
from kept.verify.crew import FOLDER
from kept.verify.draft import Draft, Wanted, bulk, single
from kept.verify.ledger import PRODUCER, Journal, clock, read
from kept.verify.model import Intent, Line, Told

ORDERS = "VERIFY_ORDERS"
PAUSE = 0.02  # seconds between transactions
AGAIN = 0.3  # seconds before a connection is tried again
PATIENCE = {"connect_timeout": 5, "tcp_user_timeout": 8000}
Answer = Literal["committed", "refused", "unknown"]


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """What a producer is to do: so many jobs, spread over so many seconds from *began* on."""

    index: int
    jobs: int
    seconds: float
    seed: int
    began: int


@dataclass(slots=True)
class Producer:
    """Enqueues and writes down what it was told."""

    url: str
    journal: Journal
    first: int  # its first token; those after it are its own as well
    conn: psycopg.Connection[TupleRow] | None = None
    _tx: int = 0
    _ids: list[int] = field(default_factory=list)

    def send(self, draft: Draft) -> Answer:
        """One transaction; a keyed job is tried again until somebody knows what became of it."""
        first, self.first = self.first, self.first + len(draft.wanted)
        answer = self._attempt(draft, first)
        while answer != "committed" and draft.again:
            time.sleep(AGAIN)
            answer = self._attempt(draft, first)
        return answer

    def one(self, task: str, **args: object) -> int:
        """One job, committed; its id."""
        draft = Draft((Wanted(task, args=args),), again=False)
        while self.send(draft) != "committed":
            time.sleep(AGAIN)
        return self._ids[0]

    def _attempt(self, draft: Draft, first: int) -> Answer:
        self._tx += 1
        self.journal.write(Intent(clock(), self._tx, first, draft.parts))
        answer = self._transact(draft, first)
        self.journal.write(Told(clock(), self._tx, answer))
        return answer

    def _transact(self, draft: Draft, first: int) -> Answer:
        try:
            conn = self._open()
            jobs = app.enqueue_many([call(w, first + n) for n, w in enumerate(draft.wanted)], tx=conn)
            self._ids = [job.id for job in jobs]
            if draft.roll_back:
                conn.rollback()
                return "refused"
        except (psycopg.Error, Error, OSError):
            self._drop()
            return "refused"
        try:
            conn.commit()
        except (psycopg.Error, OSError):
            self._drop()
            return "unknown"
        return "committed"

    def _open(self) -> psycopg.Connection[TupleRow]:
        if self.conn is None:
            given = make_conninfo(self.url, **PATIENCE)
            conn = psycopg.Connection.connect(conninfo(given, name="kept verify producer"))
            if _is_pooled(conn):
                conn.prepare_threshold = None  # nothing prepared may be relied on there
            self.conn = conn
        return self.conn

    def _drop(self) -> None:
        conn, self.conn = self.conn, None
        if conn is not None:
            with suppress(psycopg.Error, OSError):
                conn.close()

    def close(self) -> None:
        self._drop()
        self.journal.close()


def _is_pooled(conn: psycopg.Connection[TupleRow]) -> bool:
    """Whether a pooler stands before the server: it makes up the process id it greets us with."""
    row = conn.execute("select pg_backend_pid()").fetchone()
    conn.rollback()
    return row is not None and row[0] != conn.info.backend_pid


def call(wanted: Wanted, token: int) -> Call[Any]:
    """The job that is wanted, with its token."""
    task = TASKS[wanted.task]
    if wanted.task == "keyed":
        task = task.using(key=f"verify-{token}")
    if wanted.order is not None:
        task = task.using(order_key=wanted.order)
    if wanted.delay is not None:
        task = task.using(delay=wanted.delay)
    bound: Call[Any] = task.bind(token, **wanted.args)
    return bound


def open_producer(folder: Path, url: str, index: int) -> tuple[Producer, int]:
    """A producer with tokens that nobody had before, and how many jobs earlier ones of this index were told of."""
    before = sorted(folder.glob(f"{PRODUCER}-{index}-*"))
    journal = Journal(folder / f"{PRODUCER}-{index}-{len(before)}", synced=True)
    first = (index << 40) + (len(before) << 30) + 1
    return Producer(url, journal, first), sum(_sent(path) for path in before)


def _sent(path: Path) -> int:
    counts: dict[int, int] = {}
    sent = 0
    for line in read(path, Line):
        match line:
            case Intent(_, tx, _, parts):
                counts[tx] = sum(part.count for part in parts)
            case Told(_, tx, answer):
                sent += counts.pop(tx) if answer != "refused" else 0
    return sent


def produce(orders: Orders, producer: Producer, sent: int, chance: Random) -> None:
    """Enqueue what is due by now, until everything was."""
    while sent < orders.jobs:
        elapsed = (clock() - orders.began) / 1e9
        due = min(orders.jobs, int(orders.jobs * elapsed / orders.seconds)) - sent
        if due > 0:
            draft = single(chance, orders.index) if chance.random() < 0.5 else bulk(chance, orders.index, due)
            if producer.send(draft) != "refused":
                sent += len(draft.wanted)
        time.sleep(PAUSE)


def main() -> None:
    """Entry point of a producer process."""
    orders = msgspec.json.decode(os.environ[ORDERS], type=Orders)
    settings = Settings.from_env(os.environ)
    app.configure(settings)
    folder = Path(os.environ[FOLDER])
    producer, sent = open_producer(folder, settings.require_database(), orders.index)
    produce(orders, producer, sent, Random(f"{orders.seed}:{orders.index}:{producer.first}"))  # noqa: S311
    producer.close()


if __name__ == "__main__":
    main()
