"""The pack finder: its tables, its events and where they go. The publisher is ``kept worker packfinder:app``."""

from __future__ import annotations

import os
from typing import Any

import psycopg
from msgspec import Struct

from kept import App, Context, Event
from kept.outbox.sinks.pubsub import PubSubSink

PROJECT = "packfinderz"
TOPIC = os.environ.get("PACKFINDERZ_PUBSUB_DOMAIN_TOPIC", "pf-domain-events")

TABLES = """
create schema pf;
create table pf.pack (id int generated always as identity primary key, name text not null, guest text);
create table pf.stay (event_id uuid not null, pack_id int not null, nights int not null);
"""

app = App()  # the database is named by KEPT_DATABASE_URL, the seed's knobs are aliases of Kept's own
app.publish("pack.*", to=PubSubSink(PROJECT, topic=TOPIC), ordered=True)


# --- events


@app.event("pack.listed", aggregate_id="pack_id")
class PackListed(Struct):
    """Somebody may reserve this pack from now on."""

    pack_id: int
    name: str


@app.event("pack.reserved", version=2, aggregate_id="pack_id")
class PackReserved(Struct):
    """Version 1 counted hours."""

    pack_id: int
    guest: str
    nights: int


@app.event("pack.returned", aggregate_id="pack_id")
class PackReturned(Struct):
    """It is free again."""

    pack_id: int


@app.upcast("pack.reserved", from_version=1)
def hours_to_nights(data: dict[str, Any]) -> dict[str, Any]:
    """Handlers see version 2 only, whatever was emitted."""
    return {"pack_id": data["pack_id"], "guest": data["guest"], "nights": -(-data["hours"] // 24)}


# --- what the service does: its own rows and the event, in one transaction


def list_pack(conn: psycopg.Connection, name: str) -> tuple[int, str]:
    """A new pack: its id, and that of the event."""
    row = conn.execute("insert into pf.pack (name) values (%s) returning id", [name]).fetchone()
    assert row is not None
    return row[0], app.emit(PackListed(row[0], name), tx=conn)


def reserve_pack(conn: psycopg.Connection, pack_id: int, guest: str, nights: int) -> str:
    conn.execute("update pf.pack set guest = %s where id = %s", [guest, pack_id])
    return app.emit(PackReserved(pack_id, guest, nights), tx=conn)


def reserve_pack_as_before(conn: psycopg.Connection, pack_id: int, guest: str, hours: int) -> str:
    """What an instance does that was not deployed yet: it emits version 1."""
    conn.execute("update pf.pack set guest = %s where id = %s", [guest, pack_id])
    data = {"pack_id": pack_id, "guest": guest, "hours": hours}
    return app.emit("pack.reserved", data, version=1, aggregate_type="pack", aggregate_id=str(pack_id), tx=conn)


def return_pack(conn: psycopg.Connection, pack_id: int) -> str:
    conn.execute("update pf.pack set guest = null where id = %s", [pack_id])
    return app.emit(PackReturned(pack_id), tx=conn)


# --- a subscriber of our own, beside the broker


@app.on("pack.reserved")
def note_stay(ctx: Context, event: Event[PackReserved]) -> None:
    """The stay and the end of the job commit together: exactly once, also if this process is killed."""
    with psycopg.connect(app.database) as conn:
        conn.execute(
            "insert into pf.stay (event_id, pack_id, nights) values (%s, %s, %s)",
            [event.event_id, event.data.pack_id, event.data.nights],
        )
        ctx.complete(conn)
