"""Customers of the pack finder, and an account of what was committed for them that Kept knows nothing of."""

from __future__ import annotations

import threading
from itertools import cycle

import psycopg

from judge import Fact
from packfinder import app, list_pack, reserve_pack, reserve_pack_as_before, return_pack

PACKS = 20
PAUSE = 0.04  # seconds between two customers
OLD_EVERY, DECLINED_EVERY = 10, 25  # reservations


class Declined(Exception):
    """The card was declined: reservation and event must not have existed."""


class Customers:
    """Reserve packs and return them until told to stop."""

    def __init__(self) -> None:
        self.emitted: list[Fact] = []  # in the order of their commits
        self.stays: dict[str, int] = {}  # nights, by the event of the reservation

    def come(self, enough: threading.Event) -> None:
        with psycopg.connect(app.database, autocommit=True) as conn:
            packs = [self._list(conn, f"pack {number}") for number in range(1, PACKS + 1)]
            for visit, pack in enumerate(cycle(packs), 1):
                if enough.wait(PAUSE):
                    return
                self._stay(conn, pack, visit)

    def _list(self, conn: psycopg.Connection, name: str) -> int:
        with conn.transaction():
            pack, event = list_pack(conn, name)
        self._committed(event, pack)
        return pack

    def _stay(self, conn: psycopg.Connection, pack: int, visit: int) -> None:
        nights = 1 + visit % 3
        try:
            with conn.transaction():
                if visit % OLD_EVERY == 0:
                    reserved = reserve_pack_as_before(conn, pack, f"guest {visit}", hours=24 * nights)
                else:
                    reserved = reserve_pack(conn, pack, f"guest {visit}", nights)
                if visit % DECLINED_EVERY == 0:
                    raise Declined
        except Declined:
            return
        self._committed(reserved, pack)
        self.stays[reserved] = nights
        with conn.transaction():
            returned = return_pack(conn, pack)
        self._committed(returned, pack)

    def _committed(self, event: str, pack: int) -> None:
        self.emitted.append(Fact(event, str(pack)))
