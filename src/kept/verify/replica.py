"""A primary and its standby, which takes over when the primary dies; and then a new standby, as often as wanted."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import LiteralString, Self

from psycopg.sql import SQL, Identifier

from kept.verify.server import LOOK, PATIENCE, Down, Server

STREAMS: LiteralString = "select pid from pg_stat_replication where state = 'streaming'"
IN_STEP: LiteralString = "select pid from pg_stat_replication where state = 'streaming' and sync_state = 'sync'"


class Pair:
    """Two servers in *folder*; which of them is the primary changes with every failover."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: list[Server] = []
        self.primary = self._another()
        self.standby: Server | None = None

    def __enter__(self) -> Self:
        self.primary.start()
        try:
            self.renew()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for server in reversed(self._made):
            server.stop()

    def renew(self) -> None:
        """Give the primary a standby; returns when it streams."""
        standby = self._another()
        standby.follow(self.primary)
        self.standby = standby
        self._sender(STREAMS)

    def keep_in_step(self, *, on: bool) -> None:
        """Whether a commit is confirmed only when the standby has it as well; returns when that is so."""
        with self.primary.connect() as conn:
            names = "*" if on else ""
            conn.execute(SQL("alter system set synchronous_standby_names = {}").format(names))
            conn.execute("select pg_reload_conf()")
        if on:
            self._sender(IN_STEP)

    def fall_silent(self) -> None:
        """From now on the standby hears nothing of what the primary does."""
        with suppress(ProcessLookupError):
            os.kill(self._sender(STREAMS), signal.SIGSTOP)

    def fail_over(self) -> Server:
        """The primary dies and its standby takes over; the old primary, which is dead."""
        old, new = self.primary, self.standby
        assert new is not None
        old.crash()
        new.promote()
        self.primary, self.standby = new, None
        self.keep_in_step(on=False)  # there is nobody to keep in step with
        return old

    def _sender(self, query: LiteralString) -> int:
        """The process of the primary that serves the standby, as soon as there is one."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            with self.primary.connect() as conn:
                row = conn.execute(query).fetchone()
            if row is not None:
                return int(row[0])
            time.sleep(LOOK)
        raise Down("the standby does not stream from its primary")

    def _another(self) -> Server:
        self._made.append(Server(self._folder / f"pg-{len(self._made) + 1}"))
        return self._made[-1]


def only_on(one: Server, other: Server, schema: str) -> list[int]:
    """The tokens of jobs that *one* knows, and *other* does not."""
    return sorted(_tokens(one, schema) - _tokens(other, schema))


def _tokens(server: Server, schema: str) -> set[int]:
    query = SQL("select (payload ->> 'token')::bigint from {}").format(Identifier(schema, "jobs"))
    with server.connect() as conn:
        return {int(token) for (token,) in conn.execute(query) if token is not None}
