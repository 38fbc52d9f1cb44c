"""The App that planted bugs are looked for in: tasks as in kept.verify.app, whose handlers wait to be let go."""

from __future__ import annotations

import asyncio
import os
import time
from functools import cache
from pathlib import Path

import psycopg

from kept import App, Context, Failure, LeaseLost, Retry, every
from kept.verify.ledger import Ledger

PATIENT = Retry(max_attempts=20, delay="100ms", max_delay="200ms", jitter="0s")
LOOK = 0.01
app = App()
SCENE = os.environ.get("PLANTED_SCENE", "")
folder = Path(os.environ["VERIFY_FOLDER"])


@cache
def ledger() -> Ledger:
    return Ledger(folder)


def note(what: str, token: int, ctx: Context) -> None:
    ledger().note(what, token, ctx.job.id, ctx.attempt)


def held(token: int, ctx: Context) -> bool:
    """Whether this attempt is to wait; only the first three ever do."""
    return ctx.attempt <= 3 and not (folder / f"go-{token}-{ctx.attempt}").exists()


@app.task(retry=PATIENT)
async def plain(ctx: Context, token: int) -> None:
    note("effect", token, ctx)


@app.task(retry=PATIENT)
async def slow(ctx: Context, token: int) -> None:
    note("began", token, ctx)
    while held(token, ctx):
        await asyncio.sleep(LOOK)
    note("effect", token, ctx)


@app.task(retry=PATIENT, timeout=os.environ.get("PLANTED_TIMEOUT", "60s"))
def completes(ctx: Context, token: int) -> None:
    """In a thread, which nobody can cancel."""
    note("began", token, ctx)
    while held(token, ctx):
        time.sleep(LOOK)
    with psycopg.connect(os.environ["KEPT_DATABASE_URL"]) as tx:
        row = [token, ctx.job.id, ctx.attempt]
        tx.execute("insert into kept.verify_effect (token, job, attempt) values (%s, %s, %s)", row)
        try:
            ctx.complete(tx)
        except LeaseLost:
            note("lost", token, ctx)
            raise
    note("effect", token, ctx)


@app.task(retry=Retry(max_attempts=3, delay="100ms", max_delay="200ms", jitter="0s"))
async def poison(ctx: Context, token: int) -> None:
    note("began", token, ctx)
    os._exit(3)


if "order" in SCENE:  # elsewhere its lane would have every second turn

    @app.task(retry=PATIENT, ordered=True)
    async def in_order(ctx: Context, token: int) -> None:
        note("began", token, ctx)
        if token % 5 == 1 and ctx.attempt == 1:
            note("failed", token, ctx)
            raise Failure("the first attempt fails", code="flaky")
        note("effect", token, ctx)


if "beat" in SCENE:

    @app.schedule(every("1s"), name="beat", retry=PATIENT, misfire="all", most=1000, overlap="allow")
    async def beat(ctx: Context) -> None:
        note("slot", int(ctx.slot.timestamp()), ctx)
