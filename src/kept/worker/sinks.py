"""The sinks of a worker: asked now and then whether their brokers are there, and let go of at the end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Iterable
from itertools import cycle

from kept.outbox.subscriptions import Subscription

ASK_EVERY = 10.0  # seconds between questions to one broker
PATIENCE = 5.0  # seconds to let go of all


class SinkWatch:
    """Knows which brokers do not answer."""

    def __init__(self, subscriptions: Iterable[Subscription], queues: Collection[str] | None) -> None:
        served = [each for each in subscriptions if queues is None or each.queue in queues]
        self._publishers = [each.publisher for each in served if each.publisher is not None]
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._publishers:
            self._task = asyncio.create_task(self._ask())

    @property
    def trouble(self) -> str | None:
        """The first sink whose broker did not answer when it was last asked, and what it said."""
        for each in self._publishers:
            if each.trouble is not None:
                return f"sink {each.sink.name}: {each.trouble.code}: {each.trouble.message}"
        return None

    async def stop(self) -> None:
        """Ask no more, and close the connections."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        sinks = {each.sink for each in self._publishers}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                await asyncio.gather(*(sink.close() for sink in sinks), return_exceptions=True)

    async def _ask(self) -> None:
        await asyncio.gather(*(each.check() for each in self._publishers), return_exceptions=True)
        for each in cycle(self._publishers):
            await asyncio.sleep(ASK_EVERY / len(self._publishers))
            with contextlib.suppress(Exception):  # a fault of the sink's must not end the watch
                await each.check()
