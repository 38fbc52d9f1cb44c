"""What a small shop does later. Workers load this module: ``kept worker app:app``."""

from __future__ import annotations

import asyncio
import time

import oracle
from kept import App, Context, Failure, Retry

app = App()

# Many short attempts: in this shop a worker dies every few seconds, and a job may be unlucky more than once.
STUBBORN = Retry(max_attempts=25, delay="200ms", max_delay="1s", jitter="200ms")


@app.task(queue="mail", retry=STUBBORN, timeout="10s")
async def send_receipt(ctx: Context, order: int, *, busy: bool = False) -> None:
    """Quick, and the mail server is sometimes *busy* at the first attempt."""
    if busy and ctx.attempt == 1:
        raise Failure("the mail server is busy", code="mail_server_busy")
    await asyncio.sleep(0.002)
    oracle.note_effect(ctx)


@app.task(queue="invoices", retry=STUBBORN, timeout="10s")
async def write_invoice(ctx: Context, order: int, pages: int) -> None:
    """Takes its time: 50 to 200 ms."""
    await asyncio.sleep(0.05 * pages)
    oracle.note_effect(ctx)


@app.task(queue="thumbnails", retry=STUBBORN, timeout="10s")
def draw_thumbnail(ctx: Context, order: int) -> None:
    """A plain function, so it runs in a thread."""
    time.sleep(0.02)
    oracle.note_effect(ctx)
