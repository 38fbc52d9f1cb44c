"""The sinks of a worker: asked now and then whether their brokers are there, and let go of at the end."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Collection, Iterable

from kept.outbox.publisher import Publisher
from kept.outbox.subscriptions import Subscription

ASK_EVERY = 10.0  # seconds between questions to one broker
PATIENCE = 5.0  # seconds to let go of all


class SinkWatch:
    """Knows which brokers do not answer."""

    def __init__(self, subscriptions: Iterable[Subscription], queues: Collection[str] | None) -> None:
        served = [each for each in subscriptions if queues is None or each.queue in queues]
        self._publishers = [each.publisher for each in served if each.publisher is not None]
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(_ask(each)) for each in self._publishers]

    @property
    def trouble(self) -> str | None:
        """The first sink whose broker did not answer when it was last asked, and what it said."""
        for each in self._publishers:
            if each.trouble is not None:
                return f"sink {each.sink.name}: {each.trouble.code}: {each.trouble.message}"
        return None

    async def stop(self) -> None:
        """Ask no more, and close the connections."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=PATIENCE)
        sinks = {each.sink for each in self._publishers}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                await asyncio.gather(*(sink.close() for sink in sinks), return_exceptions=True)


async def _ask(publisher: Publisher) -> None:
    """Ask one broker again and again; others need not wait for its answer."""
    while True:
        with contextlib.suppress(Exception):  # a fault of the sink's must not end the watch
            await publisher.check()
        await asyncio.sleep(ASK_EVERY * (0.9 + 0.2 * random.random()))  # noqa: S311  # not all workers at once
