"""A Kafka producer whose delivery reports come in a thread of its own and wake the event loop once for a batch."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from kept.outbox.sink import PUBLISHED, Answer, Message
from kept.outbox.sinks.parts import missing

try:
    from confluent_kafka import KafkaError, KafkaException, Producer
except ImportError:
    raise missing("confluent-kafka", extra="kafka") from None

_POLL = 0.1  # seconds: how long the thread of a closed producer lives on
_REFUSED = (KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._SSL)
# A message's report may say so before the producer does.
_FATAL = (
    KafkaError._FATAL,
    KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
    KafkaError.UNKNOWN_PRODUCER_ID,
    KafkaError.INVALID_PRODUCER_EPOCH,
)

Judge = Callable[[KafkaError], Answer]
Report = Callable[[KafkaError | None, object], None]


# The client would write to stderr; what there is to say is in the answers.
_SILENT = logging.getLogger("kept.outbox.kafka")
_SILENT.disabled = True


def is_fatal(error: KafkaError) -> bool:
    """Whether the producer that says so will never deliver anything again."""
    return error.fatal() or error.code() in _FATAL


def producer(options: Mapping[str, object]) -> Producer:
    """A producer, or a KafkaException if *options* make no sense; it connects by itself, in the background."""
    return Producer({**options, "logger": _SILENT})


class _Batch:
    """Messages handed to the producer; the last report ends it."""

    def __init__(self, answers: list[Answer | None], judge: Judge) -> None:
        self._answers = answers
        self._judge = judge
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self.fatal: KafkaError | None = None
        self._reports = 0
        self._expected: int | None = None  # not known while messages are still handed over

    def report(self, place: int, error: KafkaError | None, _message: object) -> None:
        """The producer's word on one message, in the producer's thread."""
        self._answers[place] = PUBLISHED if error is None else self._judge(error)
        if error is not None and is_fatal(error):
            self.fatal = error
        self._reports += 1
        if self._reports == self._expected:
            self.end()

    def end(self) -> None:
        """Nothing more will be reported. From any thread."""
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(self._ended.set)

    async def wait(self, expected: int) -> None:
        """Until *expected* messages are reported, or the batch is ended."""
        # Set first and compared then: the thread counts first and compares then, so one of us sees the end.
        self._expected = expected
        if self._reports < expected:
            await self._ended.wait()


class KafkaLink:
    """A producer and the thread that listens to it."""

    def __init__(self, options: Mapping[str, object]) -> None:
        self.complaint: KafkaError | None = None  # what it complained of last
        self.broken: KafkaError | None = None  # why this producer will never deliver anything again
        self.producer = producer({**options, "error_cb": self._complain})
        self._batches: set[_Batch] = set()
        self._closed = threading.Event()
        threading.Thread(target=self._listen, name="kept-kafka", daemon=True).start()

    async def deliver(
        self, messages: Sequence[Message], places: Sequence[int], answers: list[Answer | None], judge: Judge
    ) -> None:
        """Hand over the messages at *places* and wait for the report on each."""
        batch = _Batch(answers, judge)
        self._batches.add(batch)
        try:
            handed = 0
            for place in places:
                refused = self._hand_over(messages[place], partial(batch.report, place))
                if refused is None:
                    handed += 1
                else:
                    answers[place] = judge(refused)
            await batch.wait(handed)
        finally:
            self._batches.discard(batch)
        self.broken = self.broken or batch.fatal
        if self.broken is not None:
            raise KafkaException(self.broken)

    def close(self) -> None:
        """Give up what was not delivered; the thread lets go of the producer."""
        self._closed.set()
        self._end_batches()

    def _hand_over(self, message: Message, report: Report) -> KafkaError | None:
        try:
            self.producer.produce(
                message.topic,
                value=message.body,
                key=message.key,
                headers=list(message.headers.items()),
                on_delivery=report,
            )
        except BufferError:
            return KafkaError(KafkaError._QUEUE_FULL)
        except KafkaException as refused:
            error: KafkaError = refused.args[0]
            return error
        return None

    def _listen(self) -> None:
        while not self._closed.is_set():
            try:
                self.producer.poll(_POLL)
            except KafkaException as fatal:  # raised here instead of being handed to the callback
                self._break(fatal.args[0])
        self.producer.purge()
        with suppress(KafkaException):
            self.producer.flush(_POLL)

    def _complain(self, error: KafkaError) -> None:
        self.complaint = error
        if error.code() in _REFUSED:
            self._break(error)

    def _break(self, error: KafkaError) -> None:
        self.broken = error
        self._end_batches()

    def _end_batches(self) -> None:
        for batch in list(self._batches):
            batch.end()
