"""The App whose promises are verified: run by ``kept worker`` like anybody's, with a ledger beside it.

Every job carries a token that its producer chose, and its handler writes down what it did to a file outside the
database.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import psycopg

from kept.app import App
from kept.db.connect import conninfo
from kept.db.queries import load
from kept.errors import Defer, Failure, LeaseLost
from kept.jobs.context import Context
from kept.jobs.retry import Retry
from kept.schedules.cron import every
from kept.verify.crew import FOLDER, end_with_conductor
from kept.verify.ledger import Ledger
from kept.verify.model import POISON_ATTEMPTS, What

SCHEDULE = "beat"
# Faults cost attempts, and are nobody's fault: only what is poison may run out of them.
PATIENT = Retry(max_attempts=200, delay="100ms", max_delay="1s", jitter="50ms")
BRIEF = Retry(max_attempts=POISON_ATTEMPTS, delay="100ms", max_delay="200ms", jitter="0s")
LIMIT = "60s"
BEYOND = 0.7  # seconds past the lease
TIME, OVER = 2.0, 0.7  # seconds that a handler has, and that it goes on for when they are over
LONGER = 0.2  # … and that its next attempt takes longer than that
ROOM = 64 << 20  # bytes that a process may still take when memory runs out

app = App()


@cache
def _ledger() -> Ledger:
    return Ledger(Path(os.environ[FOLDER]))


def _note(what: What, token: int, ctx: Context) -> None:
    _ledger().note(what, token, ctx.job.id, ctx.attempt)


@contextmanager
def _told(token: int, ctx: Context) -> Iterator[None]:
    """Beginning and failure are written down: what begins again has failed, or somebody was at fault."""
    _note("began", token, ctx)
    try:
        yield
    except LeaseLost:
        _note("lost", token, ctx)
        raise
    except Exception:
        _note("failed", token, ctx)
        raise


# --- jobs that do something


@app.task(retry=PATIENT, timeout=LIMIT)
async def plain(ctx: Context, token: int) -> None:
    """Nothing but its effect."""
    _note("effect", token, ctx)


@app.task(retry=PATIENT, timeout=LIMIT)
async def keyed(ctx: Context, token: int) -> None:
    """Enqueued with a key, and again with it whenever the producer was not told how its commit went."""
    _note("effect", token, ctx)


@app.task(retry=PATIENT, timeout=LIMIT, ordered=True)
async def in_order(ctx: Context, token: int) -> None:
    """One of its order key at a time; every seventh fails once, and those behind it wait."""
    with _told(token, ctx):
        await asyncio.sleep(0.002)
        if token % 7 == 0 and ctx.attempt == 1:
            raise Failure("the first attempt fails", code="flaky")
        _note("effect", token, ctx)


@app.task(retry=PATIENT, timeout=LIMIT)
async def flaky(ctx: Context, token: int) -> None:
    """Fails once."""
    if ctx.attempt == 1:
        raise Failure("the first attempt fails", code="flaky")
    _note("effect", token, ctx)


@app.task(retry=PATIENT, timeout=LIMIT)
async def defers(ctx: Context, token: int) -> None:
    """Not now, and then all the same."""
    if ctx.attempt == 1:
        raise Defer("300ms")
    _note("effect", token, ctx)


@app.task(retry=PATIENT, timeout=LIMIT)
async def slow(ctx: Context, token: int, ms: int) -> None:
    """Takes a while, on the event loop."""
    with _told(token, ctx):
        await asyncio.sleep(ms / 1000)
        _note("effect", token, ctx)


@app.task(retry=PATIENT, timeout=LIMIT)
async def lingers(ctx: Context, token: int, ms: int) -> None:
    """Has its effect first and is not done yet: whoever dies now makes it happen twice."""
    with _told(token, ctx):
        _note("effect", token, ctx)
        await asyncio.sleep(ms / 1000)


@app.task(retry=PATIENT, timeout=LIMIT)
def threaded(ctx: Context, token: int, ms: int) -> None:
    """Takes a while, in a thread."""
    with _told(token, ctx):
        time.sleep(ms / 1000)
        _note("effect", token, ctx)


@app.task(retry=PATIENT, timeout=LIMIT)
def completes(ctx: Context, token: int, ms: int) -> None:
    """A row of its own, committed together with its completion: exactly once.

    In a thread, which nobody can cancel: frozen past its lease, it goes on where it stood and tries to write.
    """
    _write_and_complete(ctx, token, ms)


@app.task(retry=PATIENT, timeout=f"{TIME}s")
def overstays(ctx: Context, token: int) -> None:
    """The same, but goes on when its time is over: it tries to write while its next attempt runs, maybe beside it."""
    seconds = TIME + OVER if ctx.attempt == 1 else OVER + LONGER
    _write_and_complete(ctx, token, round(1000 * seconds) + token % 2)


def _write_and_complete(ctx: Context, token: int, ms: int) -> None:
    sql = load("kept.verify", app.settings.schema)
    row = {"token": token, "job": ctx.job.id, "attempt": ctx.attempt}
    name = "kept verify handler"
    with _told(token, ctx), psycopg.Connection.connect(conninfo(app.database, name=name)) as conn:
        if ms % 2:  # half of them wait inside their transaction
            conn.execute(sql["add_effect"], row)
        time.sleep(ms / 1000)
        if ms % 2 == 0:
            conn.execute(sql["add_effect"], row)
        ctx.complete(conn)
    _note("effect", token, ctx)


# --- jobs that harm


@app.task(retry=PATIENT, timeout=LIMIT)
async def exits(ctx: Context, token: int, ms: int = 0) -> None:
    """Ends its process once; from then on it runs alone in one, and takes a while."""
    _note("began", token, ctx)
    if ctx.attempt == 1:
        os._exit(3)
    await asyncio.sleep(ms / 1000)
    _note("effect", token, ctx)


@app.task(retry=BRIEF, timeout=LIMIT)
async def poison(ctx: Context, token: int) -> None:
    """Ends its process every time."""
    _note("began", token, ctx)
    os._exit(3)


@app.task(retry=PATIENT, timeout=LIMIT)
async def hogs(ctx: Context, token: int) -> None:
    """Takes memory until there is none, once."""
    if ctx.attempt == 1:
        _take_all_memory()
    _note("effect", token, ctx)


@app.task(retry=PATIENT, timeout=LIMIT)
async def recurses(ctx: Context, token: int) -> None:
    """Calls itself for ever, once."""
    if ctx.attempt == 1:
        _recurse(0)
    _note("effect", token, ctx)


@app.task(retry=PATIENT, timeout=LIMIT)
async def holds_gil(ctx: Context, token: int) -> None:
    """Lets no other Python run in its process for longer than the lease."""
    _note("began", token, ctx)
    ctypes.PyDLL(None).usleep(int(_beyond() * 1e6))
    _note("effect", token, ctx)


@app.task(retry=PATIENT, timeout=LIMIT)
async def blocks(ctx: Context, token: int) -> None:
    """Blocks the event loop for longer than the lease."""
    _note("began", token, ctx)
    time.sleep(_beyond())  # noqa: ASYNC251  # what is not to be done is done here
    _note("effect", token, ctx)


@app.schedule(every("1s"), name=SCHEDULE, retry=PATIENT, timeout=LIMIT, misfire="all", most=1000, overlap="allow")
async def beat(ctx: Context) -> None:
    """Every second, whoever lives."""
    assert ctx.slot is not None
    _note("slot", int(ctx.slot.timestamp()), ctx)


TASKS: dict[str, Any] = {
    task.name: task
    for task in (plain, keyed, in_order, flaky, defers, slow, lingers, threaded, completes, overstays, exits, poison,
                 hogs, recurses, holds_gil, blocks)
}  # fmt: skip


def _beyond() -> float:
    return app.settings.lease.total_seconds() + BEYOND


def _recurse(depth: int) -> int:
    return _recurse(depth + 1) + 1


def _take_all_memory() -> None:
    """Ask for memory until it is refused, under a limit that is gone afterwards."""
    used = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, before[1]))
    try:
        taken = []
        while True:
            taken.append(bytearray(1 << 20))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


end_with_conductor()
