"""RabbitMQ: persistent messages with publisher confirms, and back again if no queue takes them."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import urlsplit
from uuid import uuid4
from weakref import WeakValueDictionary

from kept.durations import Duration
from kept.errors import Refused
from kept.jobs.text import message_of
from kept.outbox.sink import PUBLISHED, Answer, Message, Rejected, Sink, Unreachable
from kept.outbox.sinks.parts import limit, missing

try:
    import aiormq  # beneath aio-pika, whose own layer answers nothing we ask
    from aiormq import exceptions as amqp
    from aiormq.abc import AbstractChannel as Channel
    from aiormq.abc import AbstractConnection as Connection
except ImportError as error:
    raise missing("aio-pika", extra="rabbitmq") from error

MOST_NAME = 255  # bytes of a routing key or an exchange's name
MOST_HEAD = 100_000  # bytes of headers; more than a frame would break the connection, for all
PERSISTENT = 2
MOST_TRIES = 3  # for one message whose channel was closed because of another one
CLOSING = 3.0  # seconds, for a connection whose other end may be frozen
_TOO_LARGE = re.compile(r"message size \d+ .*max size (\d+)")


class RabbitSink(Sink):
    """Publishes to *exchange* (by default to the queue called as the routing key), with *topic* as the routing key.

    Nothing is declared: exchanges, queues and bindings are yours. The virtual host and TLS stand in the URL.
    """

    kind = "rabbitmq"

    def __init__(
        self,
        url: str,
        *,
        name: str | None = None,
        exchange: str = "",
        topic: str = "{type}",
        topics: Mapping[str, str] | None = None,
        timeout: Duration = "10s",
    ) -> None:
        self._url, self._where = url, _where(url)
        self._exchange = _short(exchange, field="exchange")
        self._timeout = limit(timeout)
        self._largest: int | None = None  # what the broker takes, once it said so
        self._forget()
        self._closing: set[asyncio.Task[None]] = set()
        super().__init__(name=name, topic=topic, topics=topics)

    def _forget(self) -> None:
        """Start over, perhaps in another event loop."""
        self._connection: Connection | None = None
        self._channel: Channel | None = None
        self._closed_for: tuple[Connection, amqp.ChannelClosed] | None = None
        self._failed: tuple[float, Exception] | None = None
        self._lock = asyncio.Lock()
        self._alone: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def check_topic(self, topic: str) -> None:
        super().check_topic(topic)
        _short(topic, field="topic")

    async def send(self, message: Message) -> Answer:
        if (misfit := self.misfit(message)) is not None:
            return misfit
        connection: Connection | None = None
        try:
            async with asyncio.timeout(self._timeout):
                # Returned messages are told apart by their ids: two of one event must not be under way at once.
                async with self._alone.setdefault(message.event_id, asyncio.Lock()):
                    for _ in range(MOST_TRIES):
                        connection = await self._connected()
                        if (answer := await self._publish(connection, message)) is not None:
                            return answer
                raise ConnectionError("channels are closed again and again")
        except (Exception, asyncio.CancelledError) as error:
            if _is_cancelled(error):
                raise
            return await self._explain(error, connection)

    async def ping(self) -> Unreachable | None:
        """Whether the broker lets us in, has the exchange, and takes messages: None, or why not."""
        connection: Connection | None = None
        try:
            async with asyncio.timeout(self._timeout):
                connection = await self._connected()
                await self._probe(connection)
                return None
        except (Exception, asyncio.CancelledError) as error:
            if _is_cancelled(error):
                raise
            return await self._explain(error, connection)

    async def close(self) -> None:
        self._drop(self._connection)
        self._forget()
        if self._closing:
            await asyncio.wait(self._closing, timeout=CLOSING)

    # --- one message

    async def _publish(self, connection: Connection, message: Message) -> Answer | None:
        """The broker's word on this message; None if another one was too large, and all under way fell with it."""
        if (too_large := self._too_large(message)) is not None:
            return too_large
        if await _is_blocked(connection):
            return self._blocked
        try:
            return await self._publish_once(await self._opened(connection), message)
        except (amqp.ChannelClosed, ConnectionError, RuntimeError) as error:
            failed = self._first_reason(connection) or error
        self._drop(connection)
        if self._learn(failed):
            return None
        raise failed

    async def _publish_once(self, channel: Channel, message: Message) -> Answer:
        try:
            await channel.basic_publish(
                message.body,
                exchange=self._exchange,
                routing_key=message.topic,
                mandatory=True,
                properties=aiormq.spec.Basic.Properties(
                    headers=dict(message.headers),
                    content_type="application/json",
                    delivery_mode=PERSISTENT,
                    message_id=message.event_id,
                    message_type=message.type,
                ),
            )
        except amqp.PublishError:
            said = f"no queue of exchange {self._exchange!r} takes the routing key {message.topic!r}"
            return Rejected("unroutable", f"{self._where}: {said}")
        except amqp.DeliveryError:
            return Rejected("refused_by_broker", f"{self._where} would not keep it (nack): is a queue full?")
        except (ValueError, TypeError) as error:
            return Rejected("unencodable", f"this event is no AMQP message: {message_of(error)}", retryable=False)
        return PUBLISHED

    def _first_reason(self, connection: Connection) -> amqp.ChannelClosed | None:
        """Why the broker closed our channel, if it did; all that failed on this connection failed because of it."""
        if connection is self._connection and self._channel is not None:
            ended = self._channel.closing
            reason = ended.exception() if ended.done() and not ended.cancelled() else None
            if isinstance(reason, amqp.ChannelClosed):
                self._closed_for = connection, reason
        if self._closed_for is not None and self._closed_for[0] is connection:
            return self._closed_for[1]
        return None

    def _too_large(self, message: Message) -> Rejected | None:
        head = sum(len(name) + 4 * len(value) for name, value in message.headers.items())
        if head <= MOST_HEAD and (self._largest is None or len(message.body) <= self._largest):
            return None
        what = f"{len(message.body)} bytes" if head <= MOST_HEAD else "its headers"
        return Rejected("message_too_large", f"{what}: more than {self._where} takes", retryable=False)

    def _learn(self, error: Exception) -> bool:
        """Whether a message was too large: the broker says what it takes, and closes the channel under all others."""
        found = _TOO_LARGE.search(str(error))
        if found is not None:
            self._largest = int(found[1])
        return found is not None

    async def _probe(self, connection: Connection) -> None:
        """Have a message returned: a broker that is short of memory or disk says so only to those who publish."""
        channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
        if self._exchange:
            await channel.exchange_declare(self._exchange, passive=True)
        with suppress(amqp.PublishError, amqp.ChannelAccessRefused):
            await channel.basic_publish(b"", routing_key=f"kept.nobody.{uuid4().hex}", mandatory=True)
        await channel.close()

    # --- the connection

    async def _connected(self) -> Connection:
        asked = time.monotonic()
        async with self._lock:
            if self._connection is not None and not self._connection.is_closed:
                return self._connection
            if self._failed is not None and self._failed[0] >= asked:
                raise self._failed[1].with_traceback(None)  # a whole batch waits here: one refused login is enough
            self._channel = None
            try:
                self._connection = await aiormq.connect(
                    self._url, client_properties={"connection_name": f"kept sink {self.name}"}
                )
            except Exception as error:
                self._failed = time.monotonic(), error
                raise
            return self._connection

    async def _opened(self, connection: Connection) -> Channel:
        """The channel, which confirms. One that was closed is not replaced: frames that are under way to it will cost
        the connection."""
        async with self._lock:
            if connection is not self._connection or (self._channel is not None and self._channel.is_closed):
                raise ConnectionError("the channel was closed")
            if self._channel is None:
                self._channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
            return self._channel

    def _drop(self, connection: Connection | None) -> None:
        """Use this connection no more: what is still under way on it will be sent again."""
        if connection is None or connection is not self._connection:
            return
        self._connection = self._channel = None
        task = asyncio.create_task(_shut(connection))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    # --- what went wrong

    @property
    def _blocked(self) -> Unreachable:
        return Unreachable("blocked", f"{self._where} takes no messages now: it is short of memory or disk")

    async def _explain(self, error: BaseException, connection: Connection | None) -> Unreachable:
        blocked = isinstance(error, TimeoutError) and connection is not None and await _is_blocked(connection)
        self._drop(connection)
        if blocked:
            return self._blocked
        code, said = self._reading(error, lost=connection is not None)
        return Unreachable(code, f"{self._where} {said}")

    def _reading(self, error: BaseException, *, lost: bool) -> tuple[str, str]:
        """A code, and what to say after the broker's name."""
        said = message_of(error) or type(error).__name__
        found = "unreachable", f"cannot be used: {said}"
        match error:
            case TimeoutError():
                found = "timeout", f"did not answer within {self._timeout:g} s"
            case amqp.ProbableAuthenticationError() | amqp.AuthenticationError():
                found = "unauthorized", f"refuses our user or password: {said}"
            case amqp.ChannelNotFoundEntity():
                found = "no_exchange", f"has no exchange {self._exchange!r}: {said}"
            case amqp.ChannelAccessRefused() | amqp.ConnectionNotAllowed():
                found = "forbidden", f"does not let us: {said}"
            case amqp.InvalidFrameError() if "OpenOk" in said:  # the client does not read on
                found = "forbidden", "has no such virtual host, or does not let us into it"
            case asyncio.CancelledError():
                found = "connection_lost", "broke off"
            case ConnectionError() | RuntimeError() if lost:
                found = "connection_lost", f"broke off: {said}"
        return found


async def _shut(connection: Connection) -> None:
    with suppress(Exception):
        async with asyncio.timeout(CLOSING):
            await connection.close()


async def _is_blocked(connection: Connection) -> bool:
    """Whether the broker told us to hold back. The client only lets us wait for the end of it."""
    try:
        async with asyncio.timeout(0):
            await connection.ready()
    except TimeoutError:
        return True
    return False


def _is_cancelled(error: BaseException) -> bool:
    """Whether it is we who are cancelled, and not only a future of the client's."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def _where(url: str) -> str:
    """The broker's address, for sentences; a URL that is none is refused, and never shown."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise Refused("url: its host or its port cannot be read", field="url") from None
    if parts.scheme not in ("amqp", "amqps") or not host:
        raise Refused("url: must be like amqp://user:password@host:5672/vhost, or amqps://", field="url")
    return f"RabbitMQ at {host}" + (f":{port}" if port else "")


def _short(text: str, *, field: str) -> str:
    if len(text.encode()) > MOST_NAME:
        raise Refused(f"{field}: {text[:40]!r}… is longer than {MOST_NAME} bytes", field=field)
    return text
