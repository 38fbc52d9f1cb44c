"""A TCP proxy before PostgreSQL, with a network of our own: what it does to bytes is a Condition."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from kept.verify.conditions import Calm, Condition, is_whole
from kept.verify.database import HERE, address_of, is_socket, url_at
from kept.verify.neighbours import user_at

CHUNK = 1 << 18  # bytes read at once
AT_ONCE = struct.pack("ii", 1, 0)  # for SO_LINGER: close means reset
PATIENCE = 10.0  # seconds for the proxy's thread to do something


class Connection:
    """One client's connection, and ours to the server on its behalf."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self._client, self._server = client, server
        self.idle = self.doomed = self.lost = False

    async def pass_on(self, data: bytes, *, upwards: bool) -> None:
        """Send *data* to the server (*upwards*) or to the client, no faster than it is taken."""
        if not upwards and is_whole(data):
            self.idle = data[-1:] == b"I"
        side = self._server if upwards else self._client
        side.write(data)
        await side.drain()

    def reset(self) -> None:
        """Break both sides."""
        for side in (self._client, self._server):
            _reset(side)

    def leave_server(self) -> None:
        """Break the server's side, and let the client believe that it is still there."""
        _reset(self._server)

    def end(self, *, upwards: bool) -> None:
        """One side is gone: so is the other, unless it is not to know."""
        if upwards or not self.lost:
            self.reset()


class Proxy:
    """Listens on 127.0.0.1 and carries what is said to the server of *database* and back, as its condition wants.

    One thread does it for all connections. The network is calm until told otherwise. Only our own processes get
    through, and those of *others*, which are uids: the server may trust whoever comes from here.
    """

    def __init__(self, database: str, others: Iterable[int] = ()) -> None:
        self.condition: Condition = Calm()
        self._database = database
        self._users = frozenset({os.geteuid(), *others})
        self._talks: set[Connection] = set()
        self._listener = socket.create_server((HERE, 0), backlog=512)
        self.url = url_at(database, self._listener.getsockname()[1])
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="kept verify proxy", daemon=True)
        self._thread.start()
        self._call(lambda: None)  # it runs, so that it can be closed

    @contextmanager
    def under(self, condition: Condition) -> Iterator[None]:
        """The network is in *condition* while the block lasts; connections that lost bytes are broken after it."""
        self.condition = condition
        try:
            yield
        finally:
            self.condition = Calm()
            self._call(lambda: self._break(talk for talk in self._talks if talk.lost or talk.doomed))

    def cut(self) -> None:
        """Break every connection."""
        self._call(lambda: self._break(self._talks))

    def turn_to(self, database: str) -> None:
        """From now on clients get the server of *database*; present connections break."""
        self._database = database
        self.cut()

    @property
    def connections(self) -> int:
        """How many clients are connected at the moment."""
        return len(self._talks)

    def close(self) -> None:
        """Break every connection and take no more."""
        self._call(self._loop.stop)
        self._thread.join(PATIENCE)

    def _call(self, what: Callable[[], None]) -> None:
        """Have *what* done by the proxy's thread, and wait for it."""
        done = threading.Event()

        def act() -> None:
            try:
                what()
            finally:
                done.set()

        with contextlib.suppress(RuntimeError):  # closed: there is nothing left to act upon
            self._loop.call_soon_threadsafe(act)
            done.wait(PATIENCE)

    def _break(self, talks: Iterable[Connection]) -> None:
        for talk in tuple(talks):
            talk.reset()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        serving = self._loop.create_task(asyncio.start_server(self._serve, sock=self._listener, limit=CHUNK))
        self._loop.run_forever()
        self._break(self._talks)
        serving.result().close()
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self._loop.close()

    async def _knows(self, client: asyncio.StreamWriter) -> bool:
        """Whether *client* is a process of somebody who may get through. Others are served while we look."""
        other, ours = client.get_extra_info("peername"), client.get_extra_info("sockname")
        return other is not None and await asyncio.to_thread(user_at, other, ours) in self._users

    async def _serve(self, heard: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        if not await self._knows(client):
            _reset(client)
            return
        to = self._database
        try:
            replied, server = await _connect(to)
        except OSError:
            _reset(client)
            return
        talk = Connection(client, server)
        if to != self._database:  # turned meanwhile: whoever was not connected yet could not be cut
            talk.reset()
            return
        self._talks.add(talk)
        try:
            # Cancelled at the end of the proxy, and nobody asks why.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(self._pump(talk, heard, upwards=True), self._pump(talk, replied, upwards=False))
        finally:
            self._talks.discard(talk)
            talk.reset()

    async def _pump(self, talk: Connection, source: asyncio.StreamReader, *, upwards: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(CHUNK):
                await self.condition.carry(talk, data, upwards=upwards)
        talk.end(upwards=upwards)


async def _connect(database: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = address_of(database)
    if is_socket(host):
        return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}", limit=CHUNK)
    return await asyncio.open_connection(host, port, limit=CHUNK)


def _reset(side: asyncio.StreamWriter) -> None:
    """Close *side* at once; over TCP, the other end hears of it as a reset."""
    transport = side.transport
    found = transport.get_extra_info("socket")
    if found is not None and found.family != socket.AF_UNIX and not transport.is_closing():
        with contextlib.suppress(OSError):
            found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
    transport.abort()


@contextmanager
def proxy_before(database: str, others: Iterable[int] = ()) -> Iterator[Proxy]:
    """A proxy that is gone when the block ends."""
    proxy = Proxy(database, others)
    try:
        yield proxy
    finally:
        proxy.close()
