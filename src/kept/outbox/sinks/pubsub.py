"""Google Pub/Sub: requests of many messages, an ordering key for each aggregate."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterable, Mapping, Sequence

from kept.durations import Duration
from kept.errors import Refused
from kept.jobs.text import message_of
from kept.outbox.sink import HELD, PUBLISHED, Answer, Message, Rejected, Sink, Unreachable
from kept.outbox.sinks.parts import limit, missing

try:
    import google.auth
    import grpc.aio  # type: ignore[import-untyped]
    from google.api_core import exceptions as api
    from google.auth.credentials import Credentials
    from google.auth.exceptions import GoogleAuthError
    from google.pubsub_v1 import PublisherAsyncClient, PublishRequest, PubsubMessage
    from google.pubsub_v1.services.publisher.transports import PublisherGrpcAsyncIOTransport
except ImportError as error:
    raise missing("google-cloud-pubsub", extra="pubsub") from error

MOST_MESSAGES = 1000  # in a request, and below that of bytes: what Google takes
MOST_BYTES = 9_500_000
SCOPES = ("https://www.googleapis.com/auth/pubsub",)
_TOPIC = re.compile(r"(?!goog)[A-Za-z][A-Za-z0-9._~+%-]{2,254}")
_PROJECT = re.compile(r"(?:projects/)?([A-Za-z0-9][A-Za-z0-9.:-]{0,98}[A-Za-z0-9])")
# A lost connection is tried again within a second, not within two minutes; a dead one is noticed.
_OPTIONS = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
]


class PubSubSink(Sink):
    """Publishes to the topics of *project*, with an aggregate's events under an ordering key unless *ordering* is off.

    Credentials are Google's default ones, or those given. *emulator* (or PUBSUB_EMULATOR_HOST) is the address of
    one: no credentials, no TLS. *endpoint* names a region's, like ``europe-west1-pubsub.googleapis.com``.
    """

    kind = "pubsub"
    batch = 1000

    def __init__(
        self,
        project: str,
        *,
        topic: str,
        name: str | None = None,
        topics: Mapping[str, str] | None = None,
        ordering: bool = True,
        credentials: Credentials | None = None,
        endpoint: str = "pubsub.googleapis.com",
        emulator: str | None = None,
        timeout: Duration = "10s",
    ) -> None:
        if (found := _PROJECT.fullmatch(project)) is None:
            raise Refused(f"project: {project[:60]!r} is not the id of a project", field="project")
        self._project = f"projects/{found[1]}"
        self._ordering = ordering
        self._credentials = credentials
        self._endpoint = endpoint
        self._emulator = emulator or os.environ.get("PUBSUB_EMULATOR_HOST")
        self._timeout = limit(timeout)
        self._client: PublisherAsyncClient | None = None
        self._lock = asyncio.Lock()
        super().__init__(name=name, topic=topic, topics=topics)
        # Where there is one topic, nothing can be published while it is missing; else only its own events cannot.
        self._only = topic if not topics and "{" not in topic else None

    def check_topic(self, topic: str) -> None:
        if not _TOPIC.fullmatch(topic):
            raise Refused(
                f"topic: {topic[:60]!r} is none for Pub/Sub: 3 to 255 letters, digits and -._~+%, beginning with a "
                "letter and not with 'goog'",
                field="topic",
            )

    async def publish(self, messages: Sequence[Message], *, ordered: bool) -> list[Answer]:
        """A request for each topic and ordering key; *ordered*: those of one key one after the other."""
        answers: list[Answer] = [HELD] * len(messages)
        runs: dict[object, list[int]] = {}
        for place, message in enumerate(messages):
            together = message.key if ordered else (message.topic, self._ordering_key(message))
            runs.setdefault(place if together is None else together, []).append(place)

        async def send_run(places: list[int]) -> None:
            for portion in self._portions(messages, places):
                given = await self._request([messages[place] for place in portion], ordered=ordered)
                for place, answer in zip(portion, given, strict=True):
                    answers[place] = answer
                if ordered and given[-1] != PUBLISHED:
                    return

        await asyncio.gather(*map(send_run, runs.values()))
        return answers

    async def send(self, message: Message) -> Answer:
        return (await self._request([message], ordered=False))[0]

    async def ping(self) -> Unreachable | None:
        """Whether Pub/Sub answers, and has the topic if there is only one: None, or why not."""
        topic = self._only or "kept-ping"
        try:
            async with asyncio.timeout(self._timeout):
                client = await self._opened()
                await client.get_topic(topic=self._path(topic), retry=None, timeout=self._timeout)
        except api.PermissionDenied:
            return None  # who may publish need not be allowed to look
        except api.NotFound as error:
            return self._no_topic(topic, error) if self._only else None
        except Exception as error:  # noqa: BLE001
            return self._away(error)
        return None

    async def close(self) -> None:
        client, self._client, self._lock = self._client, None, asyncio.Lock()
        if client is not None:
            await client.transport.close()  # type: ignore[no-untyped-call]

    # --- requests

    async def _request(self, messages: list[Message], *, ordered: bool) -> list[Answer]:
        """Publish in one request: Pub/Sub takes all of them or none."""
        if len(messages) == 1 and (unfit := self._unfit(messages[0])) is not None:
            return [unfit]
        answer: Answer
        try:
            async with asyncio.timeout(self._timeout):
                client = await self._opened()
                told = await client.publish(self._write(messages), retry=None, timeout=self._timeout)
        except api.InvalidArgument as error:
            if len(messages) > 1:  # one of them, but which?
                return await (self.in_order(messages) if ordered else self._singly(messages))
            said = f"Pub/Sub does not take this message: {message_of(error)}"
            answer = Rejected("refused_by_broker", said, retryable=False)
        except api.NotFound as error:
            away = self._no_topic(messages[0].topic, error)
            answer = away if self._only else Rejected(away.code, away.message)
        except Exception as error:  # noqa: BLE001
            answer = self._away(error)
        else:
            whole = len(told.message_ids) == len(messages)
            answer = PUBLISHED if whole else Unreachable("broker_error", "Pub/Sub acknowledged only some of a request")
        return [answer] * len(messages)

    async def _singly(self, messages: Sequence[Message]) -> list[Answer]:
        return list(await asyncio.gather(*map(self.send, messages)))

    def _portions(self, messages: Sequence[Message], places: Iterable[int]) -> Iterable[list[int]]:
        """*places* cut into requests: of one topic, of a size that is taken, whatever is unfit by itself."""
        portion: list[int] = []
        size = 0
        for place in places:
            message = messages[place]
            more, unfit = _size(message), self._unfit(message) is not None
            full = len(portion) == MOST_MESSAGES or size + more > MOST_BYTES
            if portion and (full or unfit or messages[portion[-1]].topic != message.topic):
                yield portion
                portion, size = [], 0
            portion.append(place)
            size += more
            if unfit:
                yield portion
                portion, size = [], 0
        if portion:
            yield portion

    def _unfit(self, message: Message) -> Rejected | None:
        size = _size(message)
        if size > MOST_BYTES:
            said = f"{size} bytes; Pub/Sub takes at most {MOST_BYTES}"
            return Rejected("message_too_large", said, retryable=False)
        return self.misfit(message)

    def _write(self, messages: list[Message]) -> PublishRequest:
        return PublishRequest(
            topic=self._path(messages[0].topic),
            messages=[
                PubsubMessage(
                    data=message.body, attributes=dict(message.headers), ordering_key=self._ordering_key(message) or ""
                )
                for message in messages
            ],
        )

    def _ordering_key(self, message: Message) -> str | None:
        return message.key if self._ordering else None

    def _path(self, topic: str) -> str:
        return f"{self._project}/topics/{topic}"

    # --- the connection

    async def _opened(self) -> PublisherAsyncClient:
        """The client, whose connection heals by itself."""
        async with self._lock:
            if self._client is None:
                transport = PublisherGrpcAsyncIOTransport(channel=await self._channel())
                self._client = PublisherAsyncClient(transport=transport)
            return self._client

    async def _channel(self) -> grpc.aio.Channel:
        if self._emulator:
            return grpc.aio.insecure_channel(self._emulator, options=_OPTIONS)
        credentials = self._credentials
        if credentials is None:  # may read files and ask the network
            credentials, _ = await asyncio.to_thread(google.auth.default, scopes=SCOPES)
        return PublisherGrpcAsyncIOTransport.create_channel(
            self._endpoint, credentials=credentials, scopes=SCOPES, options=_OPTIONS
        )

    # --- what went wrong

    def _no_topic(self, topic: str, error: Exception) -> Unreachable:
        return Unreachable("unknown_topic", f"{self._project} has no topic {topic!r}: {message_of(error)}")

    def _away(self, error: Exception) -> Unreachable:
        said = message_of(error) or type(error).__name__
        found = "unreachable", f"cannot be used: {said}"
        match error:
            case TimeoutError() | api.DeadlineExceeded():
                found = "timeout", f"did not answer within {self._timeout:g} s"
            case api.Unauthenticated() | GoogleAuthError():
                found = "unauthorized", f"does not know who we are: {said}"
            case api.PermissionDenied():
                found = "forbidden", f"does not let us: {said}"
            case api.ResourceExhausted():
                found = "overrun", f"takes no more now: {said}"
        return Unreachable(found[0], f"Pub/Sub ({self._project}) {found[1]}")


def _size(message: Message) -> int:
    """More than the message has on the wire: no character of an attribute is longer than four bytes."""
    return len(message.body) + sum(len(name) + 4 * len(value) + 10 for name, value in message.headers.items()) + 100
