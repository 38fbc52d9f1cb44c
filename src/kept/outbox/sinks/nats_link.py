"""One connection to NATS, and the messages that fly over it until their stream replies."""

from __future__ import annotations

import asyncio
import math
import re
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress

from kept.outbox.sink import Answer, Message, Unreachable
from kept.outbox.sinks.parts import missing, said

try:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
except ImportError:
    raise missing("nats-py", extra="nats") from None

_FORBIDDEN = re.compile(r'permissions violation for publish to "(.+?)"', re.IGNORECASE)
_LOOK = 0.25  # seconds between two looks at a connection that says nothing


class Flight:
    """Messages on their way; each reply fills in one answer, and the last one ends the flight."""

    def __init__(
        self,
        messages: Sequence[Message],
        answers: list[Answer | None],
        places: list[int],
        meaning: Callable[[str, Msg], Answer],
    ) -> None:
        self.messages = messages
        self.places = places
        self.left = len(places)
        self.ended = asyncio.Event()
        self._answers = answers
        self._meaning = meaning

    def land(self, place: int, reply: Msg) -> None:
        """The reply to the message at *place* is here."""
        self._settle(place, self._meaning(self.messages[place].topic, reply))

    def forbid(self, subject: str, why: str) -> None:
        """The server said that *subject* is not ours to publish to; it will reply to none of those."""
        for place in self.places:
            if self.messages[place].topic.lower() == subject.lower():  # the client hands on what it said in lower case
                self._settle(place, Unreachable("forbidden", why))

    def _settle(self, place: int, answer: Answer) -> None:
        if self._answers[place] is None:
            self._answers[place] = answer
            self.left -= 1
            if not self.left:
                self.ended.set()


class NatsLink:
    """A connection without the client's own reconnecting: a lost one is replaced, and what flew over it is lost."""

    def __init__(self) -> None:
        self.client = Client()
        self.complaint: Exception | None = None  # what the server, or the way to it, complained of last
        self._inbox = ""
        self._flights: dict[str, Flight] = {}
        self._flown = 0

    async def open(self, servers: list[str], timeout: float, tls: ssl.SSLContext | None, creds: str | None) -> None:
        """Connect and listen for replies."""
        await self.client.connect(
            servers,
            name="kept",
            error_cb=self._complain,
            disconnected_cb=self._end_flights,
            allow_reconnect=False,
            max_reconnect_attempts=1,  # a server that does not let us in is tried twice
            reconnect_time_wait=0,
            connect_timeout=math.ceil(timeout),
            # Nothing is held back for a better time, and no publish waits for the socket: the client would swallow
            # a cancellation there.
            pending_size=0,
            tls=tls,
            user_credentials=creds,
        )
        inbox = self.client.new_inbox()
        self._inbox = f"{inbox}."
        await self.client.subscribe(f"{inbox}.>", cb=self._land)

    async def fly(self, flight: Flight, headers: Callable[[Message], dict[str, str]]) -> None:
        """Send all of *flight*; wait until every reply is here, or the connection is gone."""
        if not self.client.is_connected:
            return
        self._flown += 1
        number = str(self._flown)
        self._flights[number] = flight
        try:
            for place in flight.places:
                message = flight.messages[place]
                reply = f"{self._inbox}{number}.{place}"
                await self.client.publish(message.topic, message.body, reply=reply, headers=headers(message))
            # The client can break down without a word to its callbacks: look for oneself now and then.
            while not flight.ended.is_set() and self.client.is_connected:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK):
                        await flight.ended.wait()
        finally:
            del self._flights[number]

    async def close(self) -> None:
        """Close; what is in flight is lost."""
        await self._end_flights()
        await self.client.close()

    async def _land(self, reply: Msg) -> None:
        number, _, place = reply.subject[len(self._inbox) :].partition(".")
        flight = self._flights.get(number)
        if flight is not None:  # else its caller has gone away
            flight.land(int(place), reply)

    async def _end_flights(self) -> None:
        for flight in self._flights.values():
            flight.ended.set()

    async def _complain(self, error: Exception) -> None:
        self.complaint = error
        forbidden = _FORBIDDEN.search(str(error))
        if forbidden:
            for flight in self._flights.values():
                flight.forbid(forbidden[1], said(error))
