"""What a type checker must accept and refuse; `make types` reads this file, nothing runs it.

A line that must be refused carries a ``type: ignore`` with the error's code: mypy complains if there is no error.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, assert_type
from uuid import UUID

import psycopg

from kept import App, Call, Context, Defer, Event, Failure, Inbox, Job, Retry, cron, every
from kept.schedules.rows import OccurrenceRow, ScheduleRow
from kept.tasks import AsyncTask

app = App("postgresql://localhost/app")


@app.task(queue="mail", retry=Retry(max_attempts=5), timeout="30s")
async def send_welcome(ctx: Context, user_id: int, *, locale: str = "en") -> str:
    if user_id < 0:
        raise Failure("no such user", code="no_user", retryable=False)
    raise Defer("30s")


@app.task()
def resize(path: str, width: int) -> int:
    return width


@app.task()
async def tidy() -> None: ...


def sync_calls(conn: psycopg.Connection[Any]) -> None:
    assert_type(send_welcome.enqueue(7, locale="de"), Job[str])
    assert_type(send_welcome.using(tx=conn, key="welcome:7").enqueue(7), Job[str])
    assert_type(resize.enqueue("a.png", 200), Job[int])
    assert_type(resize("a.png", 200), int)
    assert_type(resize.enqueue("a.png", 200).result(), int)
    assert_type(resize.bind("a.png", 200), Call[int])
    assert_type(app.enqueue_many([resize.bind("a.png", 1), resize.bind("b.png", 2)]), list[Job[int]])

    send_welcome.enqueue("seven")  # type: ignore[arg-type]
    send_welcome.enqueue()  # type: ignore[call-arg]
    send_welcome.enqueue(7, lang="de")  # type: ignore[call-arg]
    resize.enqueue("a.png", width="wide")  # type: ignore[arg-type]
    send_welcome.using(delay=30)  # type: ignore[arg-type]
    send_welcome.using(later=True)  # type: ignore[call-arg]
    app.task(timeout=30)  # type: ignore[arg-type]


def sync_inbox(conn: psycopg.Connection[Any]) -> None:
    inbox = app.inbox("mailer", ttl="720h", redis="redis://localhost")
    assert_type(inbox, Inbox)
    with inbox.once("e1", conn) as first:
        assert_type(first, bool)
    with inbox.once(UUID(int=7), conn) as first:
        assert_type(first, bool)
    assert_type(inbox.forget("e1"), bool)

    inbox.once(7, conn)  # type: ignore[arg-type]
    app.inbox("mailer", ttl=720)  # type: ignore[arg-type]
    app.inbox("mailer", "720h")  # type: ignore[call-arg]


async def async_inbox(conn: psycopg.AsyncConnection[Any]) -> None:
    inbox = app.inbox("mailer")
    async with inbox.once("e1", conn) as first:
        assert_type(first, bool)
    assert_type(await inbox.aforget("e1"), bool)


async def async_calls(conn: psycopg.AsyncConnection[Any]) -> None:
    assert_type(await send_welcome.using(tx=conn).aenqueue(7), Job[str])
    assert_type(await send_welcome(7), str)
    assert_type(await (await send_welcome.aenqueue(7)).aresult("5s"), str)
    assert_type(await tidy.aenqueue(), Job[None])
    async with app.worker(queues=["mail"], concurrency=4) as worker:
        await worker.stop("5s")
    assert_type(await app.drain(), list[Job[Any]])

    await send_welcome.aenqueue(locale=3)  # type: ignore[call-arg, arg-type]


# --- events


@app.event("invoice.created", version=2, aggregate_id="id")
@dataclass
class InvoiceCreated:
    id: int


@app.on("invoice.created", "invoice.*", retry=Retry(max_attempts=5))
async def mail_invoice(event: Event[InvoiceCreated]) -> None:
    assert_type(event.data, InvoiceCreated)
    assert_type(event.data.id, int)


@app.on("invoice.created")
def count_invoice(ctx: Context, event: Event[InvoiceCreated]) -> int:
    return ctx.attempt


@app.upcast("invoice.created", from_version=1)
def lift(data: dict[str, Any]) -> dict[str, Any]:
    return data


def emitting(conn: psycopg.Connection[Any], ctx: Context, event: Event[InvoiceCreated]) -> None:
    assert_type(InvoiceCreated(7), InvoiceCreated)
    assert_type(count_invoice(ctx, event), int)
    assert_type(app.emit(InvoiceCreated(7), tx=conn, key="k", actor="user:7", headers={"a": "b"}), str)
    assert_type(app.emit("invoice.created", {"id": 7}, version=1), str)
    assert_type(app.emit_many([InvoiceCreated(7), Event(type="a.b", data={})]), list[str])

    InvoiceCreated("seven")  # type: ignore[arg-type]
    count_invoice(event)  # type: ignore[call-arg, arg-type]
    app.emit("invoice.created", version="1")  # type: ignore[arg-type]
    app.emit("invoice.created", who="me")  # type: ignore[call-arg]
    app.on("a.b", timeout=30)  # type: ignore[arg-type]
    app.event("a.b", version="1")  # type: ignore[arg-type]


async def emitting_in_async_code(conn: psycopg.AsyncConnection[Any]) -> None:
    assert_type(await app.aemit(InvoiceCreated(7), tx=conn), str)
    assert_type(await app.aemit_many([InvoiceCreated(7)], tx=conn), list[str])


# --- schedules


@app.schedule(cron("17 3 * * *", tz="America/Santiago"), queue="slow", retry=Retry(max_attempts=5), jitter="5m")
async def cleanup(ctx: Context) -> str:
    assert_type(ctx.slot, datetime | None)
    assert_type(ctx.schedule, str | None)
    return "clean"


@app.schedule(every("1h"), name="hourly", blackout=[date(2026, 12, 24), "12-25"], overlap="queue")
@app.task()
def report(shop: int = 0) -> int:
    return shop


def scheduling() -> None:
    assert_type(cleanup, AsyncTask[[], str])
    assert_type(cleanup.enqueue(), Job[str])
    assert_type(report.enqueue(shop=7), Job[int])
    app.schedule(every("1h"), call=report.bind(7), name="report-7", start=datetime(2026, 1, 1, tzinfo=UTC))
    app.schedule(cron("@daily"), call=report.using(priority=5).bind(8), misfire="all", most=3, overlap="allow")

    app.schedule("@daily")  # type: ignore[call-overload]
    app.schedule(every("1h"), call=report)  # type: ignore[call-overload]
    app.schedule(every("1h"), call=report.bind(7), queue="slow")  # type: ignore[call-overload]
    app.schedule(every("1h"), jitter=5)  # type: ignore[call-overload]
    app.schedule(every("1h"), often=True)  # type: ignore[call-overload]
    every(5)  # type: ignore[arg-type]
    report.bind("seven")  # type: ignore[arg-type]


def schedules_at_run_time(conn: psycopg.Connection[Any]) -> None:
    schedules = app.schedules
    assert_type(schedules.add("a", every("1h"), report.bind(7), owner="ops", within="6h", tx=conn), ScheduleRow)
    assert_type(schedules.edit("a", rule=cron("@daily"), clear=["end"], by="ops"), ScheduleRow)
    assert_type(schedules.pause("a", tx=conn), bool)
    assert_type(schedules.resume("a"), bool)
    assert_type(schedules.run_now("a"), int)
    assert_type(schedules.get("a").next_slot, datetime | None)
    assert_type(schedules.all(), list[ScheduleRow])
    assert_type(schedules.occurrences("a", limit=5), list[OccurrenceRow])

    schedules.add("a", "@daily", report.bind(7))  # type: ignore[arg-type]
    schedules.add("a", every("1h"), report)  # type: ignore[arg-type]
    schedules.add("a", every("1h"), report.bind(7), end="tomorrow")  # type: ignore[arg-type]


async def schedules_in_async_code(conn: psycopg.AsyncConnection[Any]) -> None:
    assert_type(await app.schedules.aadd("a", every("1h"), report.bind(7), tx=conn), ScheduleRow)
    assert_type(await app.schedules.apause("a"), bool)
    assert_type(await app.schedules.arun_now("a"), int)
    await app.schedules.aremove("a")
