"""Where events go: in order to a handler, and to a NATS server, against its client library in a bare loop."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from kept.app import App
from kept.bench import crew
from kept.bench.app import NATS, ORDERED, PUBLISHED, VIOLATION
from kept.bench.drain import DEFAULT, Say
from kept.bench.model import Ordered, Published
from kept.bench.place import Place
from kept.bench.producer import TEXT, open_client
from kept.bench.rules import ratios, spread
from kept.config import Settings
from kept.db.connect import Link
from kept.errors import Misconfigured
from kept.outbox.model import Event
from kept.worker.post import declare

CHUNK = 10_000  # events emitted at once
OTHERS = 500  # aggregates beside the one that most events are of
SHARE = 6  # … to which every so many-th event belongs
WINDOW = 500  # messages under way in the bare loop: as many as a sink is handed
PATIENCE = 10.0  # seconds for a broker to listen


async def sync(app: App) -> None:
    """Have the database know what *app* declares."""
    link = await Link.open(app.database, name="kept bench")
    try:
        await declare(link, app.plan(kept=False))
    finally:
        await link.close()


def ordered(place: Place, *, events: int, rounds: int, say: Say) -> Ordered:
    """Drain events of one aggregate among many others, in order."""
    rates, violations = [], 0
    for number in range(1, rounds + 1):
        say(f"round {number} of {rounds}: {events} events in order")
        _fill(place, ORDERED, events, others=OTHERS)
        with crew.workers(place, DEFAULT, jobs=events, queue=ORDERED) as one:
            one.start()
            one.wait_for(events)
            rates.append(events / one.seconds)
            violations += one.done(VIOLATION)
        place.check_done(place.lane(ORDERED, ORDERED), events)
    return Ordered(events=events, aggregates=OTHERS + 1, per_s=spread(rates), violations=violations)


def published(place: Place, nats: str, *, events: int, rounds: int, say: Say) -> Published:
    """Drain events to a broker; and publish as many messages with its client library."""
    rates, bare = [], []
    for number in range(1, rounds + 1):
        say(f"round {number} of {rounds}: {events} events to NATS")
        _fill(place, PUBLISHED, events)
        with crew.workers(place, DEFAULT, jobs=events, queue=PUBLISHED, environ={NATS: nats}) as one:
            one.start()
            one.wait_for(events)
            rates.append(events / one.seconds)
        place.check_done(place.lane(f"publish:{PUBLISHED}", PUBLISHED), events)
        say(f"round {number} of {rounds}: {events} messages by the client library alone")
        bare.append(events / asyncio.run(_publish_bare(nats, events)))
    return Published(events=events, per_s=spread(rates), bare_per_s=spread(bare), ratio_to_bare=ratios(rates, bare))


def _fill(place: Place, type: str, events: int, *, others: int = 0) -> None:
    """Emit *events*; with *others*, every so many-th for one of those aggregates and the rest for one."""
    place.empty()
    place.conn.execute(place.sql["empty_own_event_tables"])
    app = App(settings=Settings(database=place.url, schema=place.schema))
    asyncio.run(sync(_declaring(app, type)))
    with open_client(place.url) as conn:
        for start in range(0, events, CHUNK):
            numbers = range(start + 1, min(start + CHUNK, events) + 1)
            app.emit_many([_event(type, number, others) for number in numbers], tx=conn)
            conn.commit()
    place.settle_down()


def _event(type: str, number: int, others: int) -> Event[dict[str, object]]:
    aggregate = f"a{number // SHARE % others}" if others and number % SHARE == 0 else "most"
    data: dict[str, object] = {"number": number, "text": TEXT}
    return Event(type=type, data=data, aggregate_type="thing", aggregate_id=aggregate)


def _declaring(app: App, type: str) -> App:
    """The subscription that the measured worker serves, so that it gets the events emitted before it starts."""
    if type == ORDERED:

        async def handle(event: Event[dict[str, object]]) -> None:
            """Run by the measured worker, not here."""

        app.on(ORDERED, name=ORDERED, queue=ORDERED, ordered=True)(handle)
    else:
        from kept.outbox.sinks.nats import NatsSink

        app.publish(PUBLISHED, to=NatsSink(), name=PUBLISHED, queue=PUBLISHED)
    return app


async def _publish_bare(url: str, messages: int) -> float:
    """Seconds for *messages* messages like those of a sink, all acknowledged."""
    import nats

    client = await nats.connect(url)
    try:
        stream = client.jetstream(publish_async_max_pending=WINDOW)
        body, began = TEXT.encode() * 4, time.perf_counter()
        for number in range(messages):
            about = {"Nats-Msg-Id": f"{began}-{number}", "event_type": PUBLISHED, "event_id": str(number)}
            await stream.publish_async(f"bench.{PUBLISHED}", body, headers=about)
        await stream.publish_async_completed()
        return time.perf_counter() - began
    finally:
        await client.close()


@contextmanager
def broker(url: str | None, folder: Path) -> Iterator[str | None]:
    """The server named, or one of our own if there is a program to start; None: neither."""
    program = shutil.which("nats-server", path=str(Path(sys.executable).parent)) or shutil.which("nats-server")
    if url is not None or program is None or not _has_client():
        yield url
        return
    with TemporaryDirectory(dir=folder) as store, socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        taken.close()
        command = [program, "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", store]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            _wait_for(port)
            yield f"nats://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait()


def _has_client() -> bool:
    with suppress(ImportError):
        import nats  # noqa: F401

        return True
    return False


def _wait_for(port: int) -> None:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.02)
    raise Misconfigured(f"nats-server does not listen after {PATIENCE:.0f} s")
