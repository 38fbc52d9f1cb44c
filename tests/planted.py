"""Jobs, workers and histories put straight into the tables, for tests of what an operator sees."""

from __future__ import annotations

import json
from uuid import UUID, uuid4

import psycopg


def enqueue(
    conn: psycopg.Connection,
    task: str = "send",
    queue: str = "mail",
    *,
    key: str | None = None,
    due_at: str | None = None,
    payload: str = "{}",
    headers: str | None = None,
) -> int:
    """A job, as any SQL producer makes one; its id."""
    row = conn.execute(
        "select kept.enqueue(%s, %s::json, %s, %s::timestamptz, null, %s, %s::json)",
        [task, payload, queue, due_at, key, headers],
    ).fetchone()
    assert row is not None
    return int(row[0])


def settle(
    conn: psycopg.Connection,
    id: int,
    state: str = "failed",
    *,
    code: str | None = None,
    message: str | None = None,
    attempt: int = 1,
    result: object = None,
) -> int:
    """Move a live job to history; its id."""
    conn.execute(
        """
        with gone as (delete from kept.job where id = %(id)s returning *)
        insert into kept.history (id, settled_at, created_at, retry_of, lane, priority, attempt, uncharged, state,
                                  code, reason, message, key, headers, payload, result)
        select id, kept.now(), created_at, retry_of, lane, priority, %(attempt)s, 0, %(state)s,
               %(code)s, %(reason)s, %(message)s, key, headers, payload, %(result)s::json
          from gone
        """,
        {
            "id": id,
            "state": state,
            "code": code,
            "reason": "exhausted" if state == "failed" else None,
            "message": message,
            "attempt": attempt,
            "result": None if result is None else json.dumps(result),
        },
    )
    return id


def failed(conn: psycopg.Connection, task: str = "send", queue: str = "mail", *, key: str | None = None) -> int:
    """A job that failed; its id."""
    return settle(conn, enqueue(conn, task, queue, key=key), code="timeout", attempt=3)


def worker(
    conn: psycopg.Connection,
    name: str = "host:1",
    *,
    queues: list[str] | None = None,
    state: str = "live",
    lease: float = 60.0,
    declared: dict[str, str] | None = None,
) -> UUID:
    """A worker with a lease of so many seconds; its id."""
    id = uuid4()
    conn.execute(
        """
        insert into kept.worker (id, name, host, pid, version, queues, concurrency, declared, state, lease_until)
        values (%s, %s, 'host', 1, '0.1.0', %s, 10, %s::jsonb, %s, kept.now() + %s * interval '1 second')
        """,
        [id, name, queues, json.dumps(declared or {}), state, lease],
    )
    return id


def claim(conn: psycopg.Connection, id: int, worker: UUID) -> int:
    """Put a pending job into a worker's name; its id."""
    conn.execute(
        "update kept.job set worker = %s, claimed_at = kept.now(), attempt = attempt + 1 where id = %s",
        [worker, id],
    )
    return id


def declare(conn: psycopg.Connection, task: str = "send") -> None:
    """What a starting worker says of a task."""
    conn.execute("update kept.lane set declared_at = kept.now(), home = true where task = %s", [task])


def states(conn: psycopg.Connection) -> dict[int, str]:
    """Every job's state, by id."""
    return dict(conn.execute("select id, state from kept.jobs order by id").fetchall())
