"""A sink with one connection: opened when it is needed, dropped after a failure, every call within a time limit."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Generic, TypeVar

from kept.durations import Duration
from kept.outbox.sink import Answer, Message, Sink, Unreachable
from kept.outbox.sinks.parts import limit, said

GRACE = 1.0  # seconds for closing a connection whose other end may be frozen

Link = TypeVar("Link")


class ConnectedSink(Sink, Generic[Link]):
    """What brokers have in common that take many messages over one connection and acknowledge each.

    *broker* names it in sentences, *where* says at which address. After any failure the connection is closed and the
    next call opens another: what comes over a connection in an unknown state would be answers to nobody.
    """

    broker: str
    dedups: str  # one line for people: what becomes of an event that is published twice
    orders: str  # one line for people: what is kept of the order

    def __init__(
        self, *, name: str | None, topic: str, topics: Mapping[str, str] | None, where: str, timeout: Duration
    ) -> None:
        super().__init__(name=name, topic=topic, topics=topics)
        self.where = where
        self.timeout = limit(timeout)
        self._link: Link | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening = asyncio.Lock()

    # --- what a broker defines

    @abstractmethod
    async def connect(self) -> Link:
        """A new connection, or an exception and nothing left open."""

    @abstractmethod
    async def disconnect(self, link: Link) -> None:
        """Close *link*; it may be broken."""

    def abandon(self, _link: Link) -> None:
        """Let go of a connection whose event loop is gone: usually it went with it."""
        return

    @abstractmethod
    async def probe(self, link: Link) -> None:
        """Return when the broker has answered over *link*."""

    @abstractmethod
    async def send_all(self, link: Link, messages: Sequence[Message], answers: list[Answer | None]) -> None:
        """Send *messages*, all at once, and fill in *answers*; those left out when it returns were lost."""

    def usable(self, _link: Link) -> bool:
        """Whether the connection is, as far as we know, still open."""
        return True

    def complaint(self, _link: Link) -> object:
        """What the broker complained of last, if anything, for the sentence about its silence."""
        return None

    def refusal(self, error: Exception) -> Unreachable:
        """What *error* says about the broker."""
        return Unreachable("unreachable", f"{self.broker} at {self.where} cannot be used: {said(error)}")

    def silence(self, link: Link | None) -> Unreachable:
        """The answer when there was none in time."""
        complaint = None if link is None else self.complaint(link)
        told = f"; before that: {said(complaint)}" if complaint else ""
        return Unreachable("timeout", f"{self.broker} at {self.where} did not answer within {self.timeout:g} s{told}")

    # --- what follows

    async def send(self, message: Message) -> Answer:
        """Publish one message and wait for the broker's word."""
        return (await self.publish([message], ordered=False))[0]

    async def publish(self, messages: Sequence[Message], *, ordered: bool) -> list[Answer]:
        """An answer for each message; unordered, all of them are on their way at once."""
        if ordered:
            return await self.in_waves(messages, within=self.timeout)
        answers: list[Answer | None] = [None] * len(messages)
        failure = await self._bounded(lambda link: self.send_all(link, messages, answers))
        lost = failure or Unreachable(
            "connection_lost", f"the connection to {self.broker} at {self.where} broke before the answer came"
        )
        return [lost if answer is None else answer for answer in answers]

    async def ping(self) -> Unreachable | None:
        """Whether the broker answers: None, or why it does not."""
        return await self._bounded(self.probe)

    async def close(self) -> None:
        """Close the connection; what is on its way is answered as lost."""
        self._forget_other_loop()
        link, self._link = self._link, None
        if link is not None:
            with suppress(Exception):
                async with asyncio.timeout(GRACE):
                    await self.disconnect(link)

    async def _bounded(self, work: Callable[[Link], Awaitable[None]]) -> Unreachable | None:
        """Do *work* over an open connection, within the timeout: None, or why it did not end well."""
        link: Link | None = None
        try:
            async with asyncio.timeout(self.timeout):
                link = await self._open()
                await work(link)
        except TimeoutError:
            failure = self.silence(link)
        except Exception as error:  # noqa: BLE001  whatever it is, the broker cannot be used now
            failure = self.refusal(error)
        except asyncio.CancelledError:
            await self._drop(link)
            raise
        else:
            return None
        await self._drop(link)
        return failure

    async def _open(self) -> Link:
        """The connection; a new one if there is none, or it is lost, or of another event loop."""
        self._forget_other_loop()
        async with self._opening:
            if self._link is None or not self.usable(self._link):
                await self.close()
                self._link = await self.connect()
            return self._link

    def _forget_other_loop(self) -> None:
        """A connection belongs to the event loop that opened it: in another one it is of no use."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            if self._link is not None:
                self.abandon(self._link)
            self._loop, self._link, self._opening = loop, None, asyncio.Lock()

    async def _drop(self, link: Link | None) -> None:
        """Close *link*, but not one that another call has opened since."""
        if link is not None and link is self._link:
            await self.close()
