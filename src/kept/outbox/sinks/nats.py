"""NATS JetStream: many messages in flight over one connection, each acknowledged by its stream."""

from __future__ import annotations

import asyncio
import math
import re
import ssl
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from kept.durations import Duration
from kept.errors import Refused
from kept.outbox.sink import PUBLISHED, Answer, Message, Rejected, Unreachable
from kept.outbox.sinks.connected import GRACE, ConnectedSink
from kept.outbox.sinks.nats_link import Flight, NatsLink
from kept.outbox.sinks.parts import address, bad_topic, missing, portions, said, too_large
from kept.showable import clean

try:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.errors import NoServersError
    from nats.js.errors import NotFoundError
except ImportError:
    raise missing("nats-py", extra="nats") from None

_PART = r"[^\s.*>\x00-\x1f\x7f]+"
# What begins with a dollar sign is the server's own. A command's line has 4096 bytes, and more than this is on it.
_SUBJECT = re.compile(rf"(?!\$)(?=.{{1,500}}\Z){_PART}(?:\.{_PART})*")
_STREAM = re.compile(r"[^\s.*>/\\\x00-\x1f\x7f]{1,255}")
_SCHEMES = ("nats", "tls", "ws", "wss")
_HEADER_FRAME = len("NATS/1.0\r\n\r\n")
_NO_RESPONDERS = "503"


class NatsSink(ConnectedSink[NatsLink]):
    """Publishes to JetStream subjects; a message is published when its stream has acknowledged it.

    *url*: a server, or several of one cluster with commas between them. *stream*: the one that must take the
    messages; with *create_stream* it is created, for the subjects of all topics, if there is none of that name.
    *credentials*: the path of a ``.creds`` file.
    """

    kind = "nats"
    broker = "NATS"
    dedups = "by event_id, within the stream's duplicate window (2 minutes unless the stream says otherwise)"
    orders = "by aggregate where asked: each event is sent when the one before it is acknowledged"

    def __init__(
        self,
        url: str = "nats://127.0.0.1:4222",
        *,
        name: str | None = None,
        topic: str = "events.{type}",
        topics: Mapping[str, str] | None = None,
        stream: str | None = None,
        create_stream: bool = False,
        credentials: str | Path | None = None,
        tls: ssl.SSLContext | None = None,
        timeout: Duration = "10s",
    ) -> None:
        servers = [each.strip() for each in url.split(",")]
        where = ", ".join(map(_address, servers))
        super().__init__(name=name, topic=topic, topics=topics, where=where, timeout=timeout)
        self._servers = servers
        self._stream = _checked(stream, needed=create_stream)
        self._subjects = _subjects(self.topics.templates) if create_stream else []
        self._credentials = None if credentials is None else str(credentials)
        self._tls = tls

    def check_topic(self, topic: str) -> None:
        """Refuse what is no subject to publish to: spaces, wildcards, empty tokens."""
        super().check_topic(topic)
        if not _SUBJECT.fullmatch(topic):
            raise Refused(
                f"topic: {topic[:80]!r} is not a NATS subject: tokens with dots between them, without spaces, '*' and "
                "'>', not beginning with '$', at most 500 characters",
                field="topic",
            )

    # --- the connection

    async def connect(self) -> NatsLink:
        """Connect, and see to the stream if that is asked for."""
        link = NatsLink()
        try:
            await link.open(self._servers, self.timeout, self._tls, self._credentials)
            if self._subjects:
                await self._create_stream(link.client)
        except BaseException as error:
            with suppress(Exception):
                async with asyncio.timeout(GRACE):
                    await link.close()
            if isinstance(error, NoServersError) and link.complaint is not None:
                raise link.complaint from error  # says more
            raise
        return link

    async def disconnect(self, link: NatsLink) -> None:
        """Close the connection."""
        await link.close()

    def usable(self, link: NatsLink) -> bool:
        """Whether the connection still stands."""
        return link.client.is_connected

    def complaint(self, link: NatsLink) -> Exception | None:
        """What the server said last."""
        return link.complaint

    async def probe(self, link: NatsLink) -> None:
        """A PING and its PONG."""
        await link.client.flush(timeout=math.ceil(self.timeout))

    def refusal(self, error: Exception) -> Unreachable:
        """Wrong credentials are told from a server that is away."""
        text = said(error)
        if "authorization" in text.lower() or "authentication" in text.lower():
            return Unreachable("unauthorized", f"NATS at {self.where} refuses our credentials ({text})")
        return super().refusal(error)

    async def _create_stream(self, client: Client) -> None:
        streams = client.jetstream(timeout=self.timeout)
        try:
            await streams.stream_info(str(self._stream))
        except NotFoundError:
            await streams.add_stream(name=self._stream, subjects=self._subjects)

    # --- messages

    async def send_all(self, link: NatsLink, messages: Sequence[Message], answers: list[Answer | None]) -> None:
        """Send *messages* and fill in *answers* as they come; return early if the connection is lost."""
        most = link.client.max_payload
        answers[:] = [self._unfit(message, most) for message in messages]
        fit = [place for place, answer in enumerate(answers) if answer is None]
        for portion in portions(messages, fit):
            flight = Flight(messages, answers, portion, self._meaning)
            await link.fly(flight, self._headers)
            if flight.left:
                break
        if PUBLISHED in answers:  # not the broker's fault then: the subject's
            answers[:] = [_subjects_fault(answer) for answer in answers]

    def _unfit(self, message: Message, most: int) -> Rejected | None:
        """Why *message* cannot be sent: the server would break the connection, and with it all the others."""
        if not _SUBJECT.fullmatch(message.topic):
            return bad_topic(message.topic)
        if len(message.body) < most // 2:
            return None
        headers = self._headers(message).items()
        size = len(message.body) + _HEADER_FRAME + sum(len(f"{key}: {value}\r\n".encode()) for key, value in headers)
        return too_large(size, most) if size > most else None

    def _headers(self, message: Message) -> dict[str, str]:
        headers = {"Nats-Msg-Id": message.event_id, **message.headers}
        if self._stream is not None:
            headers["Nats-Expected-Stream"] = self._stream
        return headers

    def _meaning(self, topic: str, reply: Msg) -> Answer:
        """What a reply says about the message it belongs to."""
        if reply.headers and reply.headers.get("Status") == _NO_RESPONDERS:
            return self._no_stream(topic)
        try:
            word = _decode(reply.data)
        except msgspec.MsgspecError:
            word = _Word()
        if word.error is not None:
            return _judge(word.error)
        if not word.stream:
            return Unreachable("no_stream", f"what replies on {topic!r} of NATS at {self.where} is not a stream")
        return PUBLISHED

    def _no_stream(self, topic: str) -> Unreachable:
        first, dot, _ = topic.partition(".")
        command = f"nats stream add {self._stream or 'EVENTS'} --subjects '{first}{dot and '.>'}'"
        return Unreachable(
            "no_stream",
            f"no stream of NATS at {self.where} takes {topic!r}: create one ({command}), or pass stream= and "
            "create_stream=True; JetStream must be on",
        )


# --- what a stream replies


class _Complaint(Struct):
    code: int = 0
    err_code: int = 0
    description: str = ""


class _Word(Struct):
    stream: str = ""
    error: _Complaint | None = None


_decode = msgspec.json.Decoder(_Word).decode

_TOO_LARGE = 10054
_FULL = (10023, 10047, 10077)
_OTHER_STREAM = 10060


def _subjects_fault(answer: Answer | None) -> Answer | None:
    """Where other subjects have a stream, one that has none must not keep them waiting."""
    if isinstance(answer, Unreachable) and answer.code == "no_stream":
        return Rejected(answer.code, answer.message)
    return answer


def _judge(complaint: _Complaint) -> Answer:
    """Whether a stream's error is about this message, or about the stream."""
    text = clean(f"the stream refuses it: {complaint.description} ({complaint.err_code})")
    if complaint.err_code == _TOO_LARGE:
        return Rejected("message_too_large", text, retryable=False)
    if "per subject" in complaint.description:
        return Rejected("subject_full", text)
    if complaint.err_code in _FULL:
        return Unreachable("broker_full", text)
    if complaint.err_code == _OTHER_STREAM:
        return Unreachable("no_stream", text)
    if complaint.code >= 500:
        return Unreachable("broker_error", text)
    return Rejected("refused_by_broker", text)


# --- settings


def _address(server: str) -> str:
    found = address(server, _SCHEMES)
    if found is None:
        raise Refused("url: write it like nats://user:password@host:4222, or with tls://, ws://, wss://", field="url")
    return found


def _checked(stream: str | None, *, needed: bool) -> str | None:
    if stream is None and needed:
        raise Refused("create_stream: needs stream=, the name of the stream", field="stream")
    if stream is not None and not _STREAM.fullmatch(stream):
        raise Refused(
            f"stream: {stream[:80]!r} is not the name of a stream: without spaces, dots, '*', '>' and slashes",
            field="stream",
        )
    return stream


def _subjects(templates: Sequence[str]) -> list[str]:
    """The subjects of a stream that takes all topics; a type may be several tokens."""
    wanted: list[str] = []
    for template in templates:
        head, opened, _ = template.partition("{")
        fixed = head.rpartition(".")[0]
        if opened and not fixed:
            raise Refused(f"create_stream: {template!r} must begin with a fixed token and a dot", field="topic")
        wanted.append(f"{fixed}.>" if opened else template)
    wide = [each[:-1] for each in wanted if each.endswith(".>")]
    covered = {each for each in wanted if any(each.startswith(one) and each != f"{one}>" for one in wide)}
    return [each for each in dict.fromkeys(wanted) if each not in covered]
