"""A producer that goes through every way to enqueue and to emit, over and over, until the file ``over`` is there."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import psycopg

from kept import Event
from kept.config import Settings
from kept.db import points
from kept.errors import Error
from kept.verify.app import TASKS
from kept.verify.crew import FOLDER
from kept.verify.ledger import PRODUCER, Journal, clock
from kept.verify.model import Intent, Part, Told
from kept.worker.alone import die_with_parent
from points_app import app

EMITTER = "emitter"  # journals of events, as producers' are of jobs
COMMIT = "caller.commit"
BULK = 60  # more than are inserted one by one
PAUSE, AGAIN = 0.05, 0.2
Act = Callable[[psycopg.Connection | None, int], object]


class Producer:
    """Writes down what it means to do, does it, and writes down what it was told."""

    def __init__(self, folder: Path, name: str, index: int, url: str) -> None:
        before = len(list(folder.glob(f"{name}-{index}-*")))
        self._journal = Journal(folder / f"{name}-{index}-{before}", synced=True)
        self._url = url
        self._token = (index << 40) + (before << 30)
        self._tx = 0
        self._conn: psycopg.Connection | None = None

    def once(self, task: str, act: Act, count: int = 1, *, order: str | None = None, own: bool = False) -> None:
        """One transaction: the caller's, or the App's own, of whose end an error tells nothing."""
        self._told(Part(task, count, order), self._next(count), act, own=own)

    def surely(self, task: str, act: Act) -> None:
        """One transaction, tried again until it is known to be committed."""
        first = self._next(1)
        while self._told(Part(task, 1), first, act, own=False) != "committed":
            time.sleep(AGAIN)

    def _next(self, count: int) -> int:
        first, self._token = self._token + 1, self._token + count
        return first

    def _told(self, part: Part, first: int, act: Act, *, own: bool) -> str:
        self._tx += 1
        self._journal.write(Intent(clock(), self._tx, first, (part,)))
        answer = self._alone(act, first) if own else self._answer(act, first)
        self._journal.write(Told(clock(), self._tx, answer))
        return answer

    def _alone(self, act: Act, first: int) -> str:
        try:
            act(None, first)
        except (psycopg.Error, Error, OSError):
            return "unknown"
        return "committed"

    def _answer(self, act: Act, first: int) -> str:
        try:
            if self._conn is None:
                self._conn = psycopg.connect(self._url)
            act(self._conn, first)
            points.before(COMMIT)
        except (psycopg.Error, Error, OSError):
            self._drop()
            return "refused"
        try:
            self._conn.commit()
            points.after(COMMIT, self._conn.pgconn)
        except (psycopg.Error, OSError):
            self._drop()
            return "unknown"
        return "committed"

    def _drop(self) -> None:
        if self._conn is not None:
            self._conn.close()
            self._conn = None


def one(task: str, *args: object, **options: object) -> Act:
    return lambda tx, token: TASKS[task].using(tx=tx, **options).enqueue(token, *args)


def bulk(tx: psycopg.Connection | None, first: int) -> object:
    return app.enqueue_many([TASKS["plain"].bind(token) for token in range(first, first + BULK)], tx=tx)


def queued(tx: psycopg.Connection | None, first: int) -> object:
    calls = [TASKS["in_order"].using(order_key="one").bind(token) for token in range(first, first + 3)]
    return app.enqueue_many(calls, tx=tx)


def emit(tx: psycopg.Connection | None, token: int) -> object:
    return app.emit("thing.one", {"token": token}, tx=tx)


def emit_many(tx: psycopg.Connection | None, first: int) -> object:
    events = [Event(type="thing.many", data={"token": token}) for token in range(first, first + 3)]
    return app.emit_many(events, tx=tx)


def round_of(jobs: Producer, events: Producer) -> None:
    """Everything once."""
    jobs.once("plain", one("plain"))
    jobs.once("plain", one("plain", delay="100ms"))
    jobs.once("plain", one("plain"), own=True)
    jobs.surely("keyed", lambda tx, token: TASKS["keyed"].using(tx=tx, key=f"key-{token}").enqueue(token))
    jobs.once("plain", bulk, BULK)
    jobs.once("in_order", queued, 3, order="one")
    jobs.once("flaky", one("flaky"))
    jobs.once("defers", one("defers"))
    jobs.once("slow", one("slow", 300))
    jobs.once("completes", one("completes", 20))
    jobs.once("undone", one("undone"))
    events.once("event", emit)
    events.once("event", emit_many, 3)


def main() -> None:
    die_with_parent()
    settings = Settings.from_env(os.environ)
    app.configure(settings)
    folder, url = Path(os.environ[FOLDER]), settings.require_database()
    jobs, events = Producer(folder, PRODUCER, 0, url), Producer(folder, EMITTER, 1, url)
    while not (folder / "over").exists():
        round_of(jobs, events)
        time.sleep(PAUSE)


if __name__ == "__main__":
    main()
