"""The App that acceptance tests run in real worker processes.

Every handler writes what it does to a file outside the database (ERRANDS_LEDGER), one line in one write, so that
the line is there whatever happens to the process next. Handlers wait for a *gate*: a file the test makes.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg

from kept import App, Context, Defer, Retry

app = App()
QUICKLY = Retry.fixed("100ms", max_attempts=3, jitter="0s")
LOOK = 0.01


def write(ctx: Context, event: str, **facts: object) -> None:
    """One effect: appended whole or not at all."""
    about = {"job": ctx.job.id, "attempt": ctx.attempt, "pid": os.getpid(), "event": event}
    line = {**about, "at": time.time(), **facts}
    ledger = os.open(os.environ["ERRANDS_LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(ledger, json.dumps(line).encode() + b"\n")
    os.close(ledger)


async def opened(gate: str) -> None:
    while not Path(gate).exists():
        await asyncio.sleep(LOOK)


def opened_here(gate: str) -> None:
    while not Path(gate).exists():
        time.sleep(LOOK)


@app.task(retry=QUICKLY)
async def note(ctx: Context, n: int = 0) -> int:
    """Over in no time."""
    write(ctx, "start")
    await asyncio.sleep(0)
    write(ctx, "end")
    return n


@app.task(retry=QUICKLY)
async def nap(ctx: Context, seconds: float) -> None:
    """Takes its time, and leaves the loop to others."""
    write(ctx, "start")
    await asyncio.sleep(seconds)
    write(ctx, "end")


@app.task(retry=QUICKLY)
async def hold(ctx: Context, gate: str) -> str:
    """Runs until the gate is there."""
    write(ctx, "start")
    try:
        await opened(gate)
    except asyncio.CancelledError:
        write(ctx, "cancelled")
        raise
    write(ctx, "end")
    return "held"


@app.task(retry=QUICKLY)
def hold_thread(ctx: Context, gate: str) -> None:
    """The same in a thread."""
    write(ctx, "start")
    opened_here(gate)
    write(ctx, "end")


@app.task(retry=QUICKLY)
async def poison(ctx: Context) -> None:
    """Kills whatever process it runs in."""
    write(ctx, "start")
    os._exit(7)


@app.task(retry=QUICKLY)
async def die_once(ctx: Context, gate: str) -> None:
    """Kills its process unless the gate is there."""
    write(ctx, "start")
    if not Path(gate).exists():
        Path(gate).touch()
        os._exit(7)
    write(ctx, "end")


@app.task(retry=QUICKLY)
async def block_loop(ctx: Context, seconds: float) -> None:
    """Does not give the event loop back."""
    write(ctx, "start")
    time.sleep(seconds)  # what it is for
    write(ctx, "end")


@app.task(retry=QUICKLY)
def hold_gil(ctx: Context, seconds: float) -> None:
    """Sits in one call of C code that no other thread can interrupt."""
    write(ctx, "start")
    probe = 3_000_000
    began = time.monotonic()
    sum(range(probe))
    size = int(1.2 * probe * seconds / (time.monotonic() - began))
    began = time.monotonic()
    sum(range(size))
    held = time.monotonic() - began
    while held < seconds:  # the probe was slower than the rest: once more, all of it in one call
        size = int(size * 1.3 * seconds / held)
        began = time.monotonic()
        sum(range(size))
        held = time.monotonic() - began
    write(ctx, "end", held=held)


@app.task(retry=QUICKLY)
def complete_here(ctx: Context, gate: str) -> None:
    """Settles in a transaction of its own, with an effect in the same one, once the gate is there."""
    write(ctx, "start")
    opened_here(gate)
    with psycopg.connect(os.environ["KEPT_DATABASE_URL"]) as tx:
        tx.execute("insert into effect (job, attempt) values (%s, %s)", [ctx.job.id, ctx.attempt])
        try:
            ctx.complete(tx, result="here")
        except Exception as error:
            write(ctx, type(error).__name__)
            raise
    write(ctx, "end")


@app.task(retry=QUICKLY)
def hold_alone(ctx: Context, gate: str, complete: bool) -> None:
    """Kills its process the first time; then runs until the gate is there, settled before or not."""
    if ctx.attempt == 1:
        os._exit(7)
    if complete:
        with psycopg.connect(os.environ["KEPT_DATABASE_URL"]) as tx:
            ctx.complete(tx)
    write(ctx, "alone")
    opened_here(gate)


@app.task(retry=QUICKLY)
async def complete_async(ctx: Context, gate: str) -> None:
    """The same on the event loop, and so far gone that a cancellation does not reach it any more."""
    write(ctx, "start")

    async def finish() -> None:
        opened_here(gate)
        async with await psycopg.AsyncConnection.connect(os.environ["KEPT_DATABASE_URL"]) as tx:
            await tx.execute("insert into effect (job, attempt) values (%s, %s)", [ctx.job.id, ctx.attempt])
            try:
                await ctx.acomplete(tx, result="async")
            except Exception as error:
                write(ctx, type(error).__name__)
                raise

    await asyncio.shield(asyncio.create_task(finish()))
    write(ctx, "end")


@app.task(retry=Retry(max_attempts=1), timeout="300ms")
async def overrun(ctx: Context, gate: str) -> None:
    """Runs out of time, and can be cancelled."""
    write(ctx, "start")
    try:
        await opened(gate)
    except asyncio.CancelledError:
        write(ctx, "cancelled")
        raise


@app.task(retry=Retry(max_attempts=1), timeout="300ms")
def overrun_thread(ctx: Context, gate: str) -> None:
    """Runs out of time in a thread, which nobody can stop."""
    write(ctx, "start")
    opened_here(gate)
    write(ctx, "end")


@app.task(retry=Retry(max_attempts=1), timeout="300ms")
async def overrun_deaf(ctx: Context, gate: str) -> None:
    """Runs out of time and does not listen when it is cancelled."""
    write(ctx, "start")
    while not Path(gate).exists():
        try:
            await opened(gate)
        except asyncio.CancelledError:
            write(ctx, "cancelled")
    write(ctx, "end")


@app.task(retry=QUICKLY)
async def deaf(ctx: Context, gate: str) -> None:
    """Does not listen when it is cancelled."""
    write(ctx, "start")
    while not Path(gate).exists():
        try:
            await opened(gate)
        except asyncio.CancelledError:
            write(ctx, "cancelled")
    write(ctx, "end")


@app.task(retry=QUICKLY)
async def defer_to(ctx: Context, moment: str) -> None:
    """Asks once for a moment of the database's clock."""
    write(ctx, "start", clock=datetime.now(UTC).isoformat())
    if ctx.attempt == 1:
        raise Defer(datetime.fromisoformat(moment))
    write(ctx, "end")


@app.task(retry=QUICKLY)
async def defer_by(ctx: Context, seconds: float) -> None:
    """Asks once for later."""
    write(ctx, "start", clock=datetime.now(UTC).isoformat())
    if ctx.attempt == 1:
        raise Defer(timedelta(seconds=seconds))
    write(ctx, "end")
