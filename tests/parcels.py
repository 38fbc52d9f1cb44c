"""The App of the storm: parcels move, every move is an event, told to a handler and to a NATS stream, each in order."""

from __future__ import annotations

import json
import os
from typing import Any

from kept import App, Event
from kept.outbox.sinks.nats import NatsSink

STREAM = "PARCELS"

app = App()
nats = NatsSink(
    os.environ.get("PARCELS_NATS", "nats://127.0.0.1:4222"),
    topic="parcels.{type}",
    stream=STREAM,
    create_stream=True,
    timeout="3s",
)
app.publish("parcel.*", to=nats, ordered=True)


@app.on("parcel.*", ordered=True)
async def book(event: Event[Any]) -> None:
    """Write the move down in a ledger outside the database; one write is one line, whoever else writes."""
    line = json.dumps({"event": event.event_id, "parcel": event.aggregate_id, "n": event.data["n"]}) + "\n"
    ledger = os.open(os.environ["PARCELS_LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(ledger, line.encode())
    finally:
        os.close(ledger)
