"""Kafka: an idempotent producer, every message acknowledged by all replicas in sync."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from functools import partial

from kept.durations import Duration
from kept.errors import Misconfigured, Refused
from kept.outbox.sink import Answer, Message, Rejected, Unreachable
from kept.outbox.sinks.connected import ConnectedSink
from kept.outbox.sinks.kafka_link import KafkaLink, is_fatal, producer
from kept.outbox.sinks.parts import bad_topic, missing, said
from kept.showable import clean

try:
    from confluent_kafka import KafkaError, KafkaException
except ImportError:
    raise missing("confluent-kafka", extra="kafka") from None

_TOPIC = re.compile(r"(?!\.{1,2}\Z)[a-zA-Z0-9._-]{1,249}")
_SERVER = re.compile(r"(?:\w+://)?(?:[^\s/@:,]+|\[[0-9a-fA-F:]+\])(?::\d{1,5})?")
_LARGEST = 64 * 1024 * 1024  # bytes: the broker says what is too large, not the client

_FIRST = 0.8  # of our time limit: the client's own comes first, because it knows more to say

# What the answers rest on.
_OURS = {"enable.idempotence": True, "acks": "all", "delivery.report.only.error": False}
_NOT_YOURS = {*_OURS, "bootstrap.servers", "transactional.id", "message.timeout.ms", "delivery.timeout.ms", "error_cb"}

_TOO_LARGE = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG_SIZE, KafkaError.RECORD_LIST_TOO_LARGE)
_UNKNOWN_TOPIC = (KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION)
_REFUSED = (KafkaError.INVALID_RECORD, KafkaError.TOPIC_EXCEPTION, KafkaError.POLICY_VIOLATION)
_UNREACHABLE = {
    KafkaError._TIMED_OUT: "timeout",
    KafkaError._AUTHENTICATION: "unauthorized",
    KafkaError.SASL_AUTHENTICATION_FAILED: "unauthorized",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "forbidden",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "forbidden",
    KafkaError._QUEUE_FULL: "broker_full",
}


class KafkaSink(ConnectedSink[KafkaLink]):
    """Produces to topics, with the aggregate as key; published is what all replicas in sync have taken.

    *servers*: ``host:9092``, several with commas between them. *options* are librdkafka's, for example
    ``security.protocol``, ``sasl.username`` and ``sasl.password``, ``compression.type``, ``linger.ms``.
    """

    kind = "kafka"
    broker = "Kafka"
    dedups = "what the client itself sends again; an event that Kept publishes again is a second record"
    orders = "by aggregate where asked: each event is sent when the one before it is acknowledged"

    def __init__(
        self,
        servers: str = "127.0.0.1:9092",
        *,
        name: str | None = None,
        topic: str = "events",
        topics: Mapping[str, str] | None = None,
        options: Mapping[str, str | float | bool] | None = None,
        timeout: Duration = "10s",
    ) -> None:
        super().__init__(name=name, topic=topic, topics=topics, where=_checked(servers), timeout=timeout)
        milliseconds = int(self.timeout * 1000)
        self._options = {
            "message.max.bytes": _LARGEST,
            "partitioner": "murmur2_random",  # a key's partition is the one that Java's clients choose
            "linger.ms": 0,  # we hand over batches; waiting for more would slow ordered events down
            **_permitted(options or {}),
            **_OURS,
            "message.timeout.ms": max(1, int(milliseconds * _FIRST)),
            "topic.metadata.propagation.max.ms": milliseconds // 2,
        }
        try:
            producer(self._options)  # without servers it connects to nobody
        except (KafkaException, ValueError, TypeError) as error:
            raise Misconfigured(f"sink {self.name}: {said(error)}") from None

    def check_topic(self, topic: str) -> None:
        """Refuse what Kafka takes for no topic's name."""
        super().check_topic(topic)
        if not _TOPIC.fullmatch(topic):
            raise Refused(
                f"topic: {topic[:80]!r} is not a Kafka topic: letters, digits, '.', '_' and '-', at most 249",
                field="topic",
            )

    async def connect(self) -> KafkaLink:
        """A producer; it connects by itself."""
        return KafkaLink({**self._options, "bootstrap.servers": self.where})

    async def disconnect(self, link: KafkaLink) -> None:
        """Give up the producer."""
        link.close()

    def abandon(self, link: KafkaLink) -> None:
        """Its thread is not the event loop's."""
        link.close()

    def usable(self, link: KafkaLink) -> bool:
        """A producer that lost its sequence for good, or whose credentials were refused, is of no more use."""
        return link.broken is None

    def complaint(self, link: KafkaLink) -> str | None:
        """What the client said last."""
        return None if link.complaint is None else link.complaint.str()

    async def probe(self, link: KafkaLink) -> None:
        """Ask for the cluster's metadata, in a thread: the client has no other way."""
        try:
            await asyncio.to_thread(link.producer.list_topics, timeout=self.timeout * _FIRST)
        except KafkaException as error:
            raise KafkaException(link.complaint or error.args[0]) from None  # the first says more than "timed out"

    async def send_all(self, link: KafkaLink, messages: Sequence[Message], answers: list[Answer | None]) -> None:
        """Hand over all at once; those that were too large together, once more by themselves."""
        fit = [place for place, message in enumerate(messages) if _TOPIC.fullmatch(message.topic)]
        for place in {*range(len(messages))}.difference(fit):
            answers[place] = bad_topic(messages[place].topic)
        judge = partial(self._judge, link)
        await link.deliver(messages, fit, answers, judge)
        # The broker measures what the client has packed together, and says the same of every message in it.
        crowded = [place for place in fit if _is_too_large(answers[place])] if len(fit) > 1 else []
        for place in crowded:
            await link.deliver(messages, [place], answers, judge)

    def refusal(self, error: Exception) -> Unreachable:
        """What a client's error says about the cluster."""
        if isinstance(error, KafkaException) and isinstance(error.args[0], KafkaError):
            return self._unreachable(error.args[0])
        return super().refusal(error)

    def _judge(self, link: KafkaLink, error: KafkaError) -> Answer:
        """Whether an error is about this message, or about the cluster."""
        code = error.code()
        text = f"Kafka at {self.where} refuses it: {clean(error.str())}"
        if code in _TOO_LARGE:
            return Rejected("message_too_large", text, retryable=False)
        if code in _UNKNOWN_TOPIC:
            return Rejected("unknown_topic", text)
        if code in _REFUSED:
            return Rejected("refused_by_broker", text, retryable=False)
        if code == KafkaError._MSG_TIMED_OUT:
            return self.silence(link)
        return self._unreachable(error)

    def _unreachable(self, error: KafkaError) -> Unreachable:
        code = "fatal" if is_fatal(error) else _UNREACHABLE.get(error.code(), "unreachable")
        if code == "unauthorized":
            return Unreachable(code, f"Kafka at {self.where} refuses our credentials ({clean(error.str())})")
        return Unreachable(code, f"Kafka at {self.where} cannot be used: {clean(error.str())}")


def _is_too_large(answer: Answer | None) -> bool:
    return isinstance(answer, Rejected) and answer.code == "message_too_large"


def _checked(servers: str) -> str:
    if not all(_SERVER.fullmatch(server.strip()) for server in servers.split(",")):
        raise Refused("servers: write them like host:9092, with commas between several", field="servers")
    return servers


def _permitted(options: Mapping[str, str | float | bool]) -> Mapping[str, str | float | bool]:
    taken = sorted(_NOT_YOURS & options.keys())
    if taken:
        raise Refused(f"options: {', '.join(taken)} are the sink's own business", field="options")
    return options
