"""Redis Streams (and Valkey's): one pipeline for many messages, one answer for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from urllib.parse import urlsplit

from kept.durations import Duration
from kept.errors import Refused
from kept.outbox.sink import PUBLISHED, Answer, Message, Rejected, Unreachable
from kept.outbox.sinks.connected import ConnectedSink
from kept.outbox.sinks.parts import address, missing, portions, said, too_large

try:
    from redis.asyncio import Redis
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff
    from redis.exceptions import (
        AuthenticationError,
        BusyLoadingError,
        NoPermissionError,
        OutOfMemoryError,
        ReadOnlyError,
        RedisError,
        ResponseError,
    )
except ImportError:
    raise missing("redis", extra="redis") from None

_SCHEMES = ("redis", "rediss")
_LARGEST = 512 * 1024 * 1024  # bytes of one value, unless the server was told otherwise
_LARGEST_SETTING = "proto-max-bulk-len"
_BODY = "body"


class RedisLink:
    """A client, and how large a value its server takes."""

    def __init__(self, client: Redis) -> None:
        self.client = client
        self.most = _LARGEST


class RedisStreamSink(ConnectedSink[RedisLink]):
    """Adds each event to a stream; it is published when the server has answered with the entry's id.

    An entry's fields are ``body`` and the headers. *maxlen* lets the server trim a stream to about that many entries
    (``MAXLEN ~``).
    """

    kind = "redis"
    broker = "Redis"
    dedups = "never: an event published twice is two entries; consumers use the inbox"
    orders = "by aggregate where asked: each event is added when the one before it is acknowledged"

    def __init__(
        self,
        url: str = "redis://127.0.0.1:6379",
        *,
        name: str | None = None,
        topic: str = "events",
        topics: Mapping[str, str] | None = None,
        maxlen: int | None = None,
        timeout: Duration = "10s",
    ) -> None:
        super().__init__(name=name, topic=topic, topics=topics, where=_address(url), timeout=timeout)
        if maxlen is not None and maxlen < 1:
            raise Refused("maxlen: must be at least 1; leave it out to keep everything", field="maxlen")
        self._url = url
        self._trim = () if maxlen is None else ("MAXLEN", "~", maxlen)

    async def connect(self) -> RedisLink:
        """Connect, and ask how large a value may be."""
        client = Redis.from_url(
            self._url,
            socket_timeout=None,  # ours bounds the whole; the client's own can lose a cancellation
            socket_connect_timeout=None,
            protocol=2,  # the one that every server with streams speaks
            # A pipeline sent again by the client would add its entries twice, unseen.
            retry=Retry(NoBackoff(), 0),
        )
        link = RedisLink(client)
        try:
            with suppress(ResponseError):  # CONFIG is often not allowed
                found = await client.config_get(_LARGEST_SETTING)
                link.most = int(found.get(_LARGEST_SETTING) or _LARGEST)
        except BaseException:
            await client.aclose()
            raise
        return link

    async def disconnect(self, link: RedisLink) -> None:
        """Close every connection of the client."""
        await link.client.aclose()

    async def probe(self, link: RedisLink) -> None:
        """A PING and its PONG."""
        pipeline = link.client.pipeline(transaction=False)
        pipeline.execute_command("PING")
        await pipeline.execute()

    async def send_all(self, link: RedisLink, messages: Sequence[Message], answers: list[Answer | None]) -> None:
        """One pipeline, or several if the bodies are large."""
        answers[:] = [_unfit(message, link.most) for message in messages]
        fit = [place for place, answer in enumerate(answers) if answer is None]
        for portion in portions(messages, fit):
            pipeline = link.client.pipeline(transaction=False)
            for place in portion:
                message = messages[place]
                fields = (part for header in message.headers.items() for part in header)
                pipeline.execute_command("XADD", message.topic, *self._trim, "*", _BODY, message.body, *fields)
            replies = await pipeline.execute(raise_on_error=False)
            for place, reply in zip(portion, replies, strict=True):
                answers[place] = self._meaning(messages[place].topic, reply)

    def _meaning(self, topic: str, reply: object) -> Answer:
        if not isinstance(reply, Exception):
            return PUBLISHED
        text = said(reply)
        if text.startswith("WRONGTYPE"):
            return Rejected("wrong_type", f"the key {topic!r} of Redis at {self.where} is not a stream: {text}")
        return self.refusal(reply)

    def refusal(self, error: Exception) -> Unreachable:
        """What the server does not do for anybody, or not for us."""
        text = said(error)
        code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), None)
        if code is None and isinstance(error, RedisError):
            code = next((code for start, code in _STARTS.items() if text.startswith(start)), None)
        if code == "unauthorized":
            return Unreachable(code, f"Redis at {self.where} refuses our credentials ({text})")
        if code is None:
            return super().refusal(error)
        return Unreachable(code, f"Redis at {self.where} takes nothing from us now: {text}")


_CODES: dict[type[Exception], str] = {
    AuthenticationError: "unauthorized",
    NoPermissionError: "forbidden",
    OutOfMemoryError: "broker_full",
    ReadOnlyError: "read_only",
    BusyLoadingError: "loading",
}
_STARTS = {"MISCONF": "cannot_save", "NOREPLICAS": "no_replicas"}


def _unfit(message: Message, most: int) -> Rejected | None:
    """The server would break the connection over a value that is too large, and with it all the others."""
    size = len(message.body)
    return too_large(size, most) if size > most else None


def _address(url: str) -> str:
    found = urlsplit(url).path if url.startswith("unix://") else address(url, _SCHEMES)
    if not found:
        raise Refused("url: write it like redis://user:password@host:6379/0, or with rediss:// or unix://", field="url")
    return found
