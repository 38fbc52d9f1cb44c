"""The shop's own code: orders come in, and their jobs are enqueued in the very transaction that stores the order."""

from __future__ import annotations

import random
import threading
import time

import psycopg

from app import draw_thumbnail, send_receipt, write_invoice
from oracle import Ledger

ORDERS_A_SECOND = 80
SYNC_EVERY = 0.25  # seconds between two fsyncs of what was accepted

TABLES = """
create schema shop;
create table shop.orders (id bigint generated always as identity primary key, cents int not null);
"""


class Declined(Exception):
    """The card was declined: the order, and whatever was enqueued with it, must not have existed."""


class Producer(threading.Thread):
    """Takes orders until told to stop; *error* says what went wrong, if anything did."""

    def __init__(self, database: str, accepted: Ledger, rolled_back: Ledger) -> None:
        super().__init__(name="producer", daemon=True)
        self.accepted = 0
        self.rolled_back = 0
        self.error: Exception | None = None
        self._database = database
        self._ledgers = (accepted, rolled_back)
        self._told_to_stop = threading.Event()
        self._chance = random.Random()  # noqa: S311  # orders, not secrets

    def run(self) -> None:
        """Take orders at an even pace; after a pause there is no rush to catch up."""
        try:
            with psycopg.connect(self._database, application_name="demo producer", autocommit=True) as conn:
                self._take_orders(conn)
        except Exception as error:  # noqa: BLE001  # whatever it is, whoever watches this thread tells it
            self.error = error

    def stop(self) -> None:
        """Take no more orders; returns when the last one is written down."""
        self._told_to_stop.set()
        if self.ident is not None:
            self.join()

    def _take_orders(self, conn: psycopg.Connection) -> None:
        due = synced = time.monotonic()
        while not self._told_to_stop.wait(max(0.0, due - time.monotonic())):
            self._take_order(conn)
            now = time.monotonic()
            due = max(due + 1 / ORDERS_A_SECOND, now)
            if now - synced > SYNC_EVERY:
                self._ledgers[0].sync()
                synced = now
        self._ledgers[0].sync()

    def _take_order(self, conn: psycopg.Connection) -> None:
        jobs: list[int] = []
        try:
            with conn.transaction():
                self._store(conn, jobs)
        except Declined:
            self._ledgers[1].add(*map(str, jobs))
            self.rolled_back += len(jobs)
        else:  # the commit was acknowledged: from here on these jobs are promised
            self._ledgers[0].add(*map(str, jobs))
            self.accepted += len(jobs)

    def _store(self, conn: psycopg.Connection, jobs: list[int]) -> None:
        draw = self._chance.random
        stored = conn.execute(
            "insert into shop.orders (cents) values (%s) returning id", [self._chance.randint(500, 20_000)]
        ).fetchone()
        assert stored is not None
        order: int = stored[0]
        receipt = send_receipt.using(tx=conn, delay="1500ms") if draw() < 0.05 else send_receipt.using(tx=conn)
        jobs.append(receipt.enqueue(order, busy=draw() < 0.05).id)
        jobs.append(write_invoice.using(tx=conn).enqueue(order, self._chance.randint(1, 4)).id)
        jobs.extend(draw_thumbnail.using(tx=conn).enqueue(order).id for _ in range(self._chance.randint(0, 2)))
        if draw() < 0.05:
            raise Declined
