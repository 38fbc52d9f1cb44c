"""An App with runners for acceptance tests. A runner writes what it does to a file outside the database."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path

import psycopg

from kept import App, LeaseLost, RunnerContext

app = App()
EVERY = os.environ.get("PATROL_EVERY", "200ms")


def write(ctx: RunnerContext, event: str) -> None:
    line = {"job": ctx.run, "attempt": 0, "pid": os.getpid(), "event": event, "at": time.time()}
    ledger = os.open(os.environ["ERRANDS_LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(ledger, json.dumps(line).encode() + b"\n")
    os.close(ledger)


def fenced(ctx: RunnerContext) -> None:
    """An effect in the user's own table, if the slot is still held."""
    try:
        with psycopg.connect(os.environ["KEPT_DATABASE_URL"]) as tx:
            tx.execute("insert into effect values (%s)", [ctx.run])
            ctx.fence(tx)
    except LeaseLost:
        write(ctx, "LeaseLost")
        raise


@app.runner("patrol", singleton=True, every=EVERY)
async def patrol(ctx: RunnerContext) -> int:
    """Takes until the gate opens."""
    write(ctx, "start")
    try:
        while not Path("gate").exists():
            await asyncio.sleep(0.01)
    except asyncio.CancelledError:
        write(ctx, "cancelled")
        raise
    await asyncio.to_thread(fenced, ctx)
    write(ctx, "end")
    return 1


@app.runner("guard", singleton=True, every=EVERY)
def guard(ctx: RunnerContext) -> int:
    """The same in a thread, which nobody can cancel."""
    write(ctx, "guard start")
    while not Path("guard-gate").exists():
        time.sleep(0.01)
    fenced(ctx)
    write(ctx, "guard end")
    return 1
