"""The far side of the broker: a search index that is told of every event at least once and applies it exactly once."""

from __future__ import annotations

import threading
from collections import Counter

import msgspec
import psycopg
from google.api_core.exceptions import GoogleAPICallError
from google.cloud.pubsub_v1 import SubscriberClient
from google.pubsub_v1.types import PubsubMessage

from packfinder import app

TABLES = """
create schema search;
create table search.pack (id text primary key, free boolean not null);
create table search.applied (event_id uuid not null);  -- no unique index: it would hide what is to be shown
"""


class SearchIndex:
    """Pulls from a subscription until told to stop."""

    def __init__(self, subscription: str) -> None:
        self._subscription = subscription
        self._inbox = app.inbox("search-index")  # the ttl is PACKFINDERZ_EVENTING_IDEMPOTENCY_TTL
        self.deliveries = 0

    def follow(self, enough: threading.Event) -> None:
        with psycopg.connect(app.database) as conn:
            while not enough.is_set():
                try:
                    with SubscriberClient() as client:
                        self._pull(client, conn, enough)
                except GoogleAPICallError:  # Pub/Sub is away; what was not acknowledged comes again
                    enough.wait(0.2)

    def _pull(self, client: SubscriberClient, conn: psycopg.Connection, enough: threading.Event) -> None:
        while not enough.is_set():
            found = client.pull(subscription=self._subscription, max_messages=50, retry=None, timeout=5)
            for each in found.received_messages:
                self._apply(conn, each.message)
            if found.received_messages:  # and only now: what is acknowledged is committed
                ack_ids = [each.ack_id for each in found.received_messages]
                client.acknowledge(subscription=self._subscription, ack_ids=ack_ids, retry=None, timeout=5)

    def _apply(self, conn: psycopg.Connection, message: PubsubMessage) -> None:
        """The marker of the inbox commits with the effect, or neither does."""
        self.deliveries += 1
        event_id, envelope = message.attributes["event_id"], msgspec.json.decode(message.data)
        with conn.transaction(), self._inbox.once(event_id, conn) as first:
            if first:
                conn.execute("insert into search.applied (event_id) values (%s)", [event_id])
                conn.execute(
                    "insert into search.pack (id, free) values (%s, %s)"
                    " on conflict (id) do update set free = excluded.free",
                    [envelope["aggregate_id"], envelope["type"] != "pack.reserved"],
                )


def applied(conn: psycopg.Connection) -> Counter[str]:
    """How often each event took effect."""
    return Counter(dict(conn.execute("select event_id::text, count(*) from search.applied group by 1").fetchall()))
