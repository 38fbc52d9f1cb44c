"""PostgreSQL with TLS before a test's server: the embedded one cannot do it, its clients can."""

from __future__ import annotations

import asyncio
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from psycopg.conninfo import conninfo_to_dict

from endpoint import certificate

WANTS_TLS, WANTS_GSS = struct.pack("!ii", 8, 80877103), struct.pack("!ii", 8, 80877104)


@contextmanager
def tls_before(database: str, folder: Path, name: str = "localhost") -> Iterator[str]:
    """The URL of *database* as it is on a server called *name* that insists on TLS, with all that is checked."""
    context, _ = certificate(folder, name)
    given = conninfo_to_dict(database)
    loop = asyncio.new_event_loop()
    front = loop.run_until_complete(_listen(f"{given['host']}/.s.PGSQL.{given['port']}", context))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        port, ca = front.sockets[0].getsockname()[1], quote(str(folder / "cert.pem"), safe="")
        user, dbname = given["user"], given["dbname"]
        yield f"postgresql://{user}@{name}:{port}/{dbname}?sslmode=verify-full&sslrootcert={ca}"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(_end(front))
        loop.close()


async def _listen(socket: str, context: ssl.SSLContext) -> asyncio.Server:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while (asked := await reader.readexactly(8)) == WANTS_GSS:
                writer.write(b"N")
            if asked == WANTS_TLS:
                writer.write(b"S")
                await writer.start_tls(context)
                await _carry(socket, reader, writer)
        writer.transport.abort()

    return await asyncio.start_server(serve, "127.0.0.1", 0)


async def _carry(socket: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    answers, server = await asyncio.open_unix_connection(socket)
    try:
        await asyncio.gather(_pump(reader, server), _pump(answers, writer))
    finally:
        server.transport.abort()


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(1 << 16):
        target.write(data)
        await target.drain()
    raise ConnectionResetError  # so that the other way ends as well


async def _end(front: asyncio.Server) -> None:
    front.close()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
