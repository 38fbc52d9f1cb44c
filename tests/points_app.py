"""The App that crash points are hit in: that of `kept verify`, with events, a sink, a runner, and a rolled back end."""

from __future__ import annotations

import asyncio
import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
from msgspec import Struct

from kept import Context, Event
from kept.db.connect import conninfo
from kept.outbox.sink import PUBLISHED, Sink, Unreachable
from kept.verify.app import LIMIT, PATIENT, TASKS, app
from kept.verify.crew import FOLDER
from kept.verify.ledger import Journal, Ledger, clock

HEARD, SHELVED = "heard", "shelved"  # journals of those who are told of events
TIDIED = "tidied"  # and of the runner
AWAY = "away"  # a file: while it is there, the shelf is not
__all__ = ["app"]


@cache
def journal(name: str) -> Journal:
    return Journal(Path(os.environ[FOLDER]) / f"{name}-{os.getpid()}-{clock()}")


@cache
def ledger() -> Ledger:
    return Ledger(Path(os.environ[FOLDER]))


def note(name: str, data: Any) -> None:
    journal(name).write(("effect", data["token"], 0, 0, os.getpid(), clock()))


@app.task(retry=PATIENT, timeout=LIMIT)
def undone(ctx: Context, token: int) -> None:
    """Says once that it completed, and rolls back."""
    if ctx.attempt == 1:
        with psycopg.connect(conninfo(app.database)) as conn:
            ctx.complete(conn)
            conn.rollback()
        return
    ledger().note("effect", token, ctx.job.id, ctx.attempt)


TASKS["undone"] = undone


@app.on("thing.*", retry=PATIENT, timeout=LIMIT)
async def hear(event: Event[Any]) -> None:
    note(HEARD, event.data)


class Pass(Struct, frozen=True, array_like=True):
    """A pass of the runner that came to its end."""

    began: int
    ended: int


@app.runner("tidy", singleton=True, every="300ms")
async def tidy() -> int:
    """One at a time in the cluster."""
    began = clock()
    await asyncio.sleep(0.02)
    journal(TIDIED).write(Pass(began, clock()))
    return 1


class Shelf(Sink):
    """A broker that is a file."""

    kind = "shelf"

    async def send(self, message):
        if (Path(os.environ[FOLDER]) / AWAY).exists():
            return Unreachable("away", "the shelf is away")
        note(SHELVED, json.loads(message.body)["data"])
        return PUBLISHED

    async def ping(self):
        return None

    async def close(self):
        """There is nothing to close."""


app.publish("thing.*", to=Shelf(name=None, topic="things"), retry=PATIENT)
