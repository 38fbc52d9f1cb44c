"""What a network does to the bytes of a connection: passes them on, late, in crumbs, not at all, or breaks it."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Protocol

SYNC = b"S\x00\x00\x00\x04"  # the end of a request in the extended protocol
READY = b"Z\x00\x00\x00\x05"  # with one more byte, the end of every reply to a request
BEGINS = (b"BEGIN", b"begin", b"Begin")


class Talk(Protocol):
    """One client's connection through the proxy, and what a condition may do to it."""

    idle: bool  # the server waits for a request and no transaction is open
    doomed: bool  # the next whole reply is lost, and the connection with it
    lost: bool  # bytes were lost: whatever happens, this connection can no longer be used

    async def pass_on(self, data: bytes, *, upwards: bool) -> None:
        """Send *data* to the server (*upwards*) or to the client."""

    def reset(self) -> None:
        """Break both sides."""

    def leave_server(self) -> None:
        """Break the server's side, and let the client believe that it is still there."""


class Condition(Protocol):
    """How bytes travel at the moment."""

    async def carry(self, talk: Talk, data: bytes, *, upwards: bool) -> None:
        """Do with *data* what this network does."""


class Calm:
    """Everything arrives, at once."""

    async def carry(self, talk: Talk, data: bytes, *, upwards: bool) -> None:
        await talk.pass_on(data, upwards=upwards)


class Slow:
    """Everything arrives *seconds* late, each way."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    async def carry(self, talk: Talk, data: bytes, *, upwards: bool) -> None:
        await asyncio.sleep(self._seconds)
        await talk.pass_on(data, upwards=upwards)


class Trickle:
    """Everything arrives byte by byte, until :meth:`stop`; then the rest at once."""

    def __init__(self, pause: float = 0.0005) -> None:
        self._pause = pause
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True

    async def carry(self, talk: Talk, data: bytes, *, upwards: bool) -> None:
        at = 0
        while at < len(data) and not self._stopped:
            await talk.pass_on(data[at : at + 1], upwards=upwards)
            at += 1
            await asyncio.sleep(self._pause)
        await talk.pass_on(data[at:], upwards=upwards)


class Blackhole:
    """Nothing arrives, and nobody is told: connections stay, new ones too."""

    async def carry(self, talk: Talk, data: bytes, *, upwards: bool) -> None:  # noqa: ARG002  # whatever it is
        talk.lost = True


class HalfOpen:
    """The server's side of a connection is gone as soon as it is used; the client waits for its reply."""

    async def carry(self, talk: Talk, data: bytes, *, upwards: bool) -> None:  # noqa: ARG002  # whatever it is
        talk.lost = True
        talk.leave_server()


class ResetBeforeCommit:
    """One of *every* requests that would commit is not passed on, and its connection breaks."""

    def __init__(self, chance: Random, every: int) -> None:
        self._chance, self._every = chance, every
        self.hits = 0

    async def carry(self, talk: Talk, data: bytes, *, upwards: bool) -> None:
        if upwards and commits(talk, data) and self._chance.randrange(self._every) == 0:
            self.hits += 1
            talk.reset()
        else:
            await talk.pass_on(data, upwards=upwards)


class ResetAfterCommit:
    """One of *every* requests that commit is done, but its connection breaks before the reply gets through."""

    def __init__(self, chance: Random, every: int) -> None:
        self._chance, self._every = chance, every
        self.hits = 0

    async def carry(self, talk: Talk, data: bytes, *, upwards: bool) -> None:
        if upwards and commits(talk, data) and self._chance.randrange(self._every) == 0:
            talk.doomed = True
        if not upwards and talk.doomed:
            if is_whole(data):
                self.hits += 1
                talk.reset()
            return
        await talk.pass_on(data, upwards=upwards)


def commits(talk: Talk, data: bytes) -> bool:
    """Whether the server commits something when it has this request: COMMIT, or a statement by itself."""
    if not talk.idle:
        return b"COMMIT\x00" in data
    return data.endswith(SYNC) or (data[:1] == b"Q" and not data[5:].startswith(BEGINS))


def is_whole(reply: bytes) -> bool:
    """Whether the server has said all it has to say, for a client that waits for it."""
    return reply[-6:-1] == READY
