"""The App that tests of publishing run in real worker processes: events of a depot go to NATS, in order and not."""

from __future__ import annotations

import os
from pathlib import Path

from kept import App, Retry
from kept.outbox.sink import PUBLISHED, Sink
from kept.outbox.sinks.nats import NatsSink

app = App()
nats = NatsSink(
    os.environ.get("DEPOT_NATS", "nats://127.0.0.1:4222"),
    stream="EVENTS",
    create_stream=True,
    timeout=os.environ.get("DEPOT_TIMEOUT", "30s"),
)
app.publish("parcel.*", to=nats)
app.publish("truck.*", to=nats, name="trucks", ordered=True)


class Trap(Sink):
    """Writes down the number of each event; one of them kills whatever process it is in."""

    kind = "trap"

    async def send(self, message):
        number = int(message.body.rpartition(b'"n":')[2].strip(b" }"))
        if number == 7:
            os._exit(7)
        with Path(os.environ["DEPOT_TRAP"]).open("a") as ledger:
            ledger.write(f"{number}\n")
        return PUBLISHED

    async def ping(self):
        return None

    async def close(self):
        """There is nothing to close."""


app.publish("bait.*", to=Trap(name=None, topic="bait"), retry=Retry(max_attempts=5, delay="100ms", jitter="0s"))
