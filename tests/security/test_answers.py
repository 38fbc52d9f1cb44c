"""What a webhook's receiver or an API answers: little of it is read, and nothing of it is unpacked without a limit."""

from __future__ import annotations

import asyncio
import gzip
import tracemalloc
from collections.abc import Iterator

import psycopg
import pytest

from brokers import message
from desk import make
from endpoint import Endpoint, Request
from kept.outbox.sink import PUBLISHED
from kept.outbox.sinks.webhook import WebhookSink
from kept.signals import RunFinished
from support import aeventually

BOMB = gzip.compress(bytes(128 * 1024 * 1024), 9)  # an eighth of a megabyte
SECRET = "whsec_a2VwdCBrZWVwcyB3aGF0IGlzIHRvIGJlIGtlcHQ="


async def bomb(request: Request, writer: asyncio.StreamWriter) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-type: application/json\r\n"
    writer.write(head + b"content-length: %d\r\n\r\n" % len(BOMB) + BOMB)
    await writer.drain()


@pytest.fixture
def memory() -> Iterator[None]:
    tracemalloc.start()
    yield
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 32 * 1024 * 1024


async def test_a_bomb_in_the_answer_of_a_webhook_is_not_unpacked(memory: None) -> None:
    async with Endpoint() as endpoint:
        endpoint.handler = bomb
        sink = WebhookSink(endpoint.url(), secret=SECRET, allow_http=True, allow_private=True)
        assert await sink.send(message(endpoint.url())) == PUBLISHED
        await sink.close()


async def test_a_bomb_in_the_answer_of_an_api_is_not_unpacked(
    database: str, conn: psycopg.Connection, memory: None
) -> None:
    async with Endpoint() as endpoint:
        endpoint.handler = bomb
        app, told = make(database, api_url=endpoint.url("/v1/"), api_token="token")
        app.call("reminders", "post", "/internal/reminders", every="1m")
        async with app.worker():
            await aeventually(lambda: told.of(RunFinished))
    assert conn.execute("select code from kept.run").fetchone() == ("answer_too_large",)
