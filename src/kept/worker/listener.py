"""Hears wake-ups. They are hints: with every one of them lost, work starts a second later (promise 12).

On the connection that the worker works with: whoever is woken on it can claim at once, and its server process has
just got up as well. While a statement is under way wake-ups wait for its end; so would the claim.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
from psycopg import sql

from kept.db.connect import Link
from kept.db.queries import wake_channel

Heard = Callable[[str], None]


class Listener:
    """LISTENs on *link*; *heard* gets each payload, and ``""`` after a gap in hearing."""

    def __init__(self, link: Link, heard: Heard) -> None:
        self._conn = link.conn
        self._heard = heard

    async def start(self, schema: str) -> None:
        """Hear from now on: at the end of every statement, and while :meth:`attentive`."""
        self._conn.add_notify_handler(lambda told: self._heard(told.payload))
        await self._conn.execute(sql.SQL("listen {}").format(sql.Identifier(wake_channel(schema))))
        self._heard("")

    @contextmanager
    def attentive(self, answer: Heard) -> Iterator[None]:
        """Hear while no statement is under way; *answer* gets what was heard before everybody else.

        By a reader on the socket, not by the driver's generator: a wake-up should take microseconds.
        """
        loop, wire = asyncio.get_running_loop(), self._conn.pgconn

        def read() -> None:
            try:
                wire.consume_input()
                while (told := wire.notifies()) is not None:
                    payload = told.extra.decode(errors="replace")
                    answer(payload)
                    self._heard(payload)
            except psycopg.Error:  # the connection is gone: the next statement finds out what to do about it
                loop.remove_reader(socket)
                self._heard("")

        try:
            socket = wire.socket
        except psycopg.Error:
            self._heard("")
            yield
            return
        loop.add_reader(socket, read)
        try:
            yield
        finally:
            loop.remove_reader(socket)
