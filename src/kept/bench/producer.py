"""What an application does: a row of its own and a job in one transaction. Or, without Kept, a plain INSERT."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import psycopg

from kept.bench import child
from kept.bench.app import BUSY, app, nothing, wait
from kept.bench.place import Conn
from kept.bench.tally import Tally
from kept.config import Settings
from kept.db.connect import conninfo
from kept.db.queries import Queries, load

TEXT = "x" * 70
REST, KEPT, BARE = range(3)  # what a client is to do
PAUSE = 0.001  # seconds between looks whether there is something to do


@dataclass(slots=True)
class Producer:
    """One client with a connection and transactions of its own."""

    conn: Conn
    sql: Queries
    lane: int
    enqueue: Callable[[Conn, int], object]

    def kept(self, number: int) -> None:
        """Your row and a job."""
        self.conn.execute(self.sql["add_thing"], {"name": TEXT})
        self.enqueue(self.conn, number)
        self.conn.commit()

    def bare(self, number: int) -> None:
        """Your row and a row just like a job's."""
        self.conn.execute(self.sql["add_thing"], {"name": TEXT})
        payload = json.dumps({"number": number, "text": TEXT})
        self.conn.execute(self.sql["add_bare"], {"lane": self.lane, "payload": payload})
        self.conn.commit()


def open_client(url: str) -> Conn:
    """A connection as an application has it: a transaction begins with the first statement."""
    return psycopg.Connection.connect(conninfo(url, name="kept bench client"))


def enqueue_nothing(conn: Conn, number: int) -> object:
    return nothing.using(tx=conn).enqueue(number, TEXT)


def enqueue_wait(conn: Conn, number: int) -> object:
    return wait.using(tx=conn).enqueue(number, TEXT)


def _serve(tally: Tally, producer: Producer) -> None:
    number = 0
    while True:
        mode = tally.mode
        if mode == REST:
            time.sleep(PAUSE)
            continue
        number += 1
        if mode == KEPT:
            producer.kept(number)
        else:
            producer.bare(number)
        tally.done_in(mode)


def main() -> None:
    """One of many clients: does what the tally says, until it is ended."""
    tally = child.begin()
    assert tally is not None, "started by a measurement only"
    settings = Settings.from_env(os.environ)
    app.configure(settings)
    with open_client(settings.require_database()) as conn:
        sql = load("kept.bench", settings.schema)
        row = conn.execute(sql["lane"], {"task": wait.name, "queue": BUSY}).fetchone()
        conn.commit()
        assert row is not None
        child.start(tally)
        _serve(tally, Producer(conn, sql, row[0], enqueue_wait))


if __name__ == "__main__":
    main()
