"""Collects what the doctor looks at; :mod:`kept.admin.rules` judges it. Changes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime

from kept.admin import store
from kept.admin.facts import Clock, Facts, Server, Session
from kept.archive.rules import Make, Partition, Retention, parents, to_make
from kept.db.queries import Queries, load
from kept.db.tx import Steps, SyncConnection, run
from kept.outbox import log
from kept.outbox.inbox import store as inbox
from kept.schedules import catalogue, overview

LONG_TRANSACTION = 60.0  # seconds: shorter ones are not worth naming
FAILURES = 3  # in a row are no accident


def collect(conn: SyncConnection, schema: str, migrations: int, local: Callable[[], float] = time.time) -> Facts:
    """Look at everything once; changes nothing. *local* is this machine's clock."""
    sql, outbox = load("kept.admin", schema), load("kept.outbox", schema)
    schedules = load("kept.schedules", schema)
    server = run(conn, _server(sql))
    dead, alive = run(conn, _dead_rows(sql))
    return Facts(
        server=server,
        pooled=server.backend_pid != conn.info.backend_pid,
        now=run(conn, _now(sql)),
        clock=_clock(conn, sql, local),
        migrations=migrations,
        dead_rows=dead,
        live_rows=alive,
        sessions=run(conn, sessions(sql)),
        hidden_sessions=run(conn, _hidden(sql)),
        strays=run(conn, _strays(sql)),
        missing=run(conn, _missing(sql, load("kept.archive", schema))),
        lanes=tuple(run(conn, store.lanes(sql))),
        workers=tuple(run(conn, store.workers(sql))),
        subscriptions=tuple(run(conn, log.list_subscriptions(outbox))),
        sinks=tuple(run(conn, log.list_sinks(outbox))),
        consumers=tuple(run(conn, inbox.consumers(load("kept.outbox.inbox", schema)))),
        schedules=tuple(run(conn, catalogue.list_schedules(schedules, retired=False))),
        failing=tuple(run(conn, overview.failing(schedules, FAILURES))),
    )


def sessions(sql: Queries, seconds: float = LONG_TRANSACTION) -> Steps[tuple[Session, ...]]:
    """Transactions of others in this database that have been open for longer than *seconds*, oldest first."""
    rows = yield sql["sessions"], {"seconds": seconds}
    return tuple(Session(*row) for row in rows)


def _server(sql: Queries) -> Steps[Server]:
    rows = yield sql["server"], {}
    return Server(*rows[0])


def _clock(conn: SyncConnection, sql: Queries, local: Callable[[], float]) -> Clock:
    # Asked three times: the quickest answer says most about the clock and least about the network.
    return min((_ask_clock(conn, sql, local) for _ in range(3)), key=lambda clock: clock.round_trip)


def _ask_clock(conn: SyncConnection, sql: Queries, local: Callable[[], float]) -> Clock:
    before = local()
    there = run(conn, _now(sql)).timestamp()
    after = local()
    return Clock(offset=there - (before + after) / 2, round_trip=after - before)


def _now(sql: Queries) -> Steps[datetime]:
    rows = yield sql["clock"], {}
    moment: datetime = rows[0][0]
    return moment


def _dead_rows(sql: Queries) -> Steps[tuple[int, int]]:
    rows = yield sql["dead_rows"], {}
    return (rows[0][0], rows[0][1]) if rows else (0, 0)


def _hidden(sql: Queries) -> Steps[int]:
    rows = yield sql["hidden_sessions"], {}
    return int(rows[0][0])


def _strays(sql: Queries) -> Steps[tuple[str, ...]]:
    rows = yield sql["strays"], {}
    return tuple(row[0] for row in rows)


def _missing(sql: Queries, archive: Queries) -> Steps[tuple[Make, ...]]:
    """The partitions that are not there yet, of those that should be within the next 30 days."""
    now = yield from _now(sql)
    rows = yield archive["registry"], {}
    return tuple(to_make(now, [Partition(*row) for row in rows], (), parents(Retention())))
