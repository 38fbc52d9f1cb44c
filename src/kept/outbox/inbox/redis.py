"""Redis, or Valkey, as an accelerator: it may know that a marker is committed. Needs ``kept[redis]``.

It is only ever told what PostgreSQL has said, so it cannot mark anything before it is done; and whatever goes wrong
with it (no key, no answer in time, no Redis), the answer is that it does not know.
"""

from __future__ import annotations

import asyncio
import re
import weakref
from collections.abc import Callable
from time import monotonic
from typing import Any, NamedTuple

from kept.errors import Misconfigured, Refused
from kept.outbox.inbox.rules import Breaker, Key
from kept.redact import redact

try:
    import redis.asyncio
    from redis.asyncio.retry import Retry as AsyncRetry
    from redis.backoff import NoBackoff
    from redis.retry import Retry
except ImportError:
    raise Misconfigured('redis is not installed; this inbox needs it: pip install "kept[redis]"') from None

LIMIT = 0.05  # seconds that Redis has for an answer
_URL = re.compile(r"(redis|rediss|unix)://")

Clients = weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, "redis.asyncio.Redis"]


class Reply(NamedTuple):
    """What Redis answered."""

    value: object


class Accelerator:
    """What Redis knows of committed markers. *warn* is told when it is left alone for a while.

    The limit of 50 ms is an option of its URL: ``redis://host?socket_timeout=0.2`` gives it more.
    """

    def __init__(self, url: str, warn: Callable[[str], None]) -> None:
        if not isinstance(url, str):
            raise TypeError(f"redis: expected a URL, got {type(url).__name__}")
        if not _URL.match(url):
            raise Refused("redis: is not the URL of a Redis; write redis://, rediss:// or unix://", field="redis")
        self._url = url
        self._warn = warn
        self._breaker = Breaker()
        self._clients: Clients = weakref.WeakKeyDictionary()
        try:
            self._client = redis.Redis.from_url(url, **_options(), retry=Retry(NoBackoff(), 0))
        except (ValueError, TypeError, redis.RedisError) as error:
            raise Refused(f"redis: the URL is not readable: {redact(str(error))}", field="redis") from None
        self._limit = float(self._client.connection_pool.connection_kwargs["socket_timeout"])

    def knows(self, key: Key) -> bool | None:
        """Whether Redis has this key; None if it did not say."""
        reply = self._ask("GET", key.name)
        return None if reply is None else reply.value == key.value

    async def aknows(self, key: Key) -> bool | None:
        """:meth:`knows` for async code."""
        reply = await self._aask("GET", key.name)
        return None if reply is None else reply.value == key.value

    def note(self, key: Key, ttl: int) -> None:
        """Tell Redis of a committed marker that has *ttl* milliseconds left."""
        if ttl > 0:
            self._ask("SET", key.name, key.value, "PX", ttl)

    async def anote(self, key: Key, ttl: int) -> None:
        """:meth:`note` for async code."""
        if ttl > 0:
            await self._aask("SET", key.name, key.value, "PX", ttl)

    def drop(self, key: Key) -> bool:
        """Make Redis forget the key; whether it said so."""
        return self._ask("DEL", key.name) is not None

    async def adrop(self, key: Key) -> bool:
        """:meth:`drop` for async code."""
        return await self._aask("DEL", key.name) is not None

    def close(self) -> None:
        """Let go of connections of sync code; others are opened when needed."""
        self._client.close()

    async def aclose(self) -> None:
        """Let go of the connections of the running loop."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose()

    # --- one question

    def _ask(self, *command: str | bytes | int) -> Reply | None:
        began = monotonic()
        if not self._may_ask(began):
            return None
        try:
            value = self._client.execute_command(*command)  # type: ignore[no-untyped-call]
        except Exception as error:  # noqa: BLE001  # whatever it is, PostgreSQL has the answer
            self._failed(error)
            return None
        return self._answered(began, value)

    async def _aask(self, *command: str | bytes | int) -> Reply | None:
        began = monotonic()
        if not self._may_ask(began):
            return None
        try:
            async with asyncio.timeout(self._limit):
                value = await self._here().execute_command(*command)  # type: ignore[no-untyped-call]
        except Exception as error:  # noqa: BLE001  # whatever it is, PostgreSQL has the answer
            self._failed(error)
            return None
        return self._answered(began, value)

    def _here(self) -> redis.asyncio.Redis:
        """The client of the running loop: connections belong to the loop they were opened on."""
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            options = _options() | {"retry": AsyncRetry(NoBackoff(), 0)}
            self._clients[loop] = redis.asyncio.Redis.from_url(self._url, **options)
        return self._clients[loop]

    def _may_ask(self, now: float) -> bool:
        if not self._breaker.closed(now):
            return False
        self._breaker = self._breaker.asking(now)
        return True

    def _answered(self, began: float, value: object) -> Reply:
        # An answer that came too late is an answer, but who is always late is left alone all the same.
        if monotonic() - began > self._limit:
            self._failed(TimeoutError(f"an answer took longer than {self._limit} s"))
        else:
            self._breaker = Breaker()
        return Reply(value)

    def _failed(self, error: Exception) -> None:
        before, now = self._breaker, monotonic()
        self._breaker = before.failed(now)
        if self._breaker.opens(before):
            said = redact(str(error)) or type(error).__name__
            self._warn(f"Redis is left alone for a while, PostgreSQL answers alone: {said}")


def _options() -> dict[str, Any]:
    # One try, no greeting: what a plain old Redis needs to answer, and nothing that costs another round trip.
    return {"socket_timeout": LIMIT, "socket_connect_timeout": LIMIT, "protocol": 2}
