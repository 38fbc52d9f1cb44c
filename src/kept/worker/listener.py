"""Hears wake-ups. They are hints: with every one of them lost, work starts a second later (promise 12)."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable

import psycopg
from psycopg import sql

from kept.db.connect import Connection, connect
from kept.db.queries import wake_channel
from kept.errors import Unavailable
from kept.worker.pacing import reconnect_delay

Heard = Callable[[str], None]


class Listener:
    """A connection of its own that LISTENs; *heard* gets each payload, and ``""`` after a gap in hearing."""

    def __init__(self, database: str, schema: str, name: str, heard: Heard) -> None:
        self._database = database
        self._channel = wake_channel(schema)
        self._name = name
        self._heard = heard
        self._task: asyncio.Task[None] | None = None
        self.listening = asyncio.Event()

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                async with await connect(self._database, name=f"kept listener {self._name}"[:63]) as conn:
                    await conn.execute(sql.SQL("listen {}").format(sql.Identifier(self._channel)))
                    self.listening.set()
                    self._heard("")
                    failures = 0
                    await self._hear(conn)
            except (psycopg.Error, Unavailable, OSError):
                self.listening.clear()
                failures += 1
                await asyncio.sleep(reconnect_delay(failures, random.random()))  # noqa: S311

    async def _hear(self, conn: Connection) -> None:
        """Pass on what comes until the connection ends.

        By a reader on the socket, not by the driver's generator: a wake-up should take microseconds.
        """
        loop, wire = asyncio.get_running_loop(), conn.pgconn
        socket = wire.socket  # asked for now: a connection that was lost does not tell
        ended: asyncio.Future[None] = loop.create_future()

        def read() -> None:
            try:
                wire.consume_input()
                while (told := wire.notifies()) is not None:
                    self._heard(told.extra.decode(errors="replace"))
            except psycopg.Error as error:
                loop.remove_reader(socket)
                if not ended.done():
                    ended.set_exception(error)

        loop.add_reader(socket, read)
        try:
            await ended
        finally:
            loop.remove_reader(socket)
