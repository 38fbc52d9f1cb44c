"""From a subscription's jobs to its sink: batches under the lease, and a rest for a broker that is away."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from time import monotonic
from typing import Any, Literal, Protocol, TypeVar, assert_never

import msgspec
from msgspec import Struct

from kept.db.queries import Queries
from kept.db.tx import Steps
from kept.errors import Refused
from kept.jobs.model import NOTHING, Claimed, Deferred, Outcome, Raised, Released
from kept.jobs.text import message_of
from kept.outbox import breaker
from kept.outbox.handling import read_envelope
from kept.outbox.model import cloudevent
from kept.outbox.rules import Rest
from kept.outbox.sink import Answer, Gone, Held, Message, Published, Rejected, Sink, Unreachable
from kept.signals import EventsSent, Sending, Signals, SinkClosed, SinkDisabled, SinkOpened

T = TypeVar("T")
Format = Literal["envelope", "cloudevents"]
LOOK_EVERY = 5.0  # seconds between notes that the broker answers
AGAIN_AFTER = 1.0  # seconds before what could not be noted is tried again


class Ask(Protocol):
    """Who runs steps in a transaction of their own: the App."""

    def __call__(self, steps: Steps[T], /) -> Awaitable[T]: ...


class Routing(Struct, frozen=True):
    """What of an envelope a message needs besides the whole."""

    event_id: str
    type: str
    aggregate_type: str | None = None
    aggregate_id: str | None = None
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)


_ROUTING = msgspec.json.Decoder(Routing)


class Publisher:
    """The handler of a sink's subscription: jobs in, outcomes out."""

    def __init__(
        self,
        sink: Sink,
        subscription: str,
        *,
        ordered: bool,
        format: Format,
        source: str,
        rest: Callable[[], Rest],
        sql: Callable[[], Queries],
        ask: Ask,
        signals: Signals,
    ) -> None:
        self.sink = sink
        self.trouble: Unreachable | Gone | None = None  # what the broker said last, if it did not take the messages
        self._subscription = subscription
        self._ordered = ordered
        self._format = format
        self._source = source
        self._rest = rest
        self._sql = sql
        self._ask = ask
        self._signals = signals
        self._noted_at = float("-inf")

    async def publish(self, jobs: Sequence[Claimed]) -> list[Outcome]:
        """Publish the events of *jobs*; those the broker does not acknowledge are tried again."""
        began = monotonic()
        made = [self._message(job) for job in jobs]
        messages = [each for each in made if isinstance(each, Message)]
        answers = iter(await self.sink.publish(messages, ordered=self._ordered) if messages else ())
        answered = [(each, next(answers)) if isinstance(each, Message) else each for each in made]
        told = [pair for pair in answered if isinstance(pair, tuple)]
        self._report(told, len(jobs), monotonic() - began)
        back = await self._note([answer for _, answer in told])
        return [self._outcome(each[1], back) if isinstance(each, tuple) else each for each in answered]

    async def check(self) -> None:
        """Ask the broker whether it is there, so that a worker knows before the first event."""
        self.trouble = await self.sink.ping()

    def _message(self, job: Claimed) -> Message | Raised:
        try:
            routing = _ROUTING.decode(job.payload)
            topic = self.sink.topics.of(routing.type, routing.aggregate_type, routing.aggregate_id)
            self.sink.check_topic(topic)
            body = self._body(job.payload)
        except (msgspec.DecodeError, Refused) as error:
            return Raised("invalid_event", message_of(error), retryable=False)
        key = None if routing.aggregate_id is None else f"{routing.aggregate_type}/{routing.aggregate_id}"
        return Message(routing.event_id, routing.type, topic, body, headers(job, routing), key)

    def _body(self, payload: str) -> bytes:
        if self._format == "envelope":
            return payload.encode()
        envelope = read_envelope(payload)
        return msgspec.json.encode(cloudevent(envelope.event(envelope.data, envelope.version), self._source))

    async def _note(self, answers: Sequence[Answer]) -> Outcome:
        """Have the cluster know how the broker is doing. What becomes of events that have to wait for it."""
        away = next((a for a in answers if isinstance(a, Unreachable | Gone)), None)
        if away is None and not any(isinstance(a, Published) for a in answers):
            return Released()
        self.trouble = away
        try:
            match away:
                case None:
                    await self._works()
                case Unreachable():
                    await self._rests(away)
                case Gone():
                    await self._ask(breaker.disable(self._sql(), self.sink.name, away.code, away.message))
                    self._signals.report(SinkDisabled(sink=self.sink.name, code=away.code, message=away.message))
        except Exception:  # noqa: BLE001  # the database is away: the jobs must not come back at once all the same
            return Deferred(AGAIN_AFTER, "the state of the sink could not be written")
        return Released()

    async def _works(self) -> None:
        if monotonic() >= self._noted_at + LOOK_EVERY:
            self._noted_at = monotonic()
            if await self._ask(breaker.works(self._sql(), self.sink.name)):
                self._signals.report(SinkClosed(sink=self.sink.name))

    async def _rests(self, away: Unreachable) -> None:
        self._noted_at = float("-inf")
        draw = random.random()  # noqa: S311  # workers must not come back all at once
        rested = await self._ask(
            breaker.rests(self._sql(), self.sink.name, away.code, away.message, self._rest(), away.after, draw)
        )
        if rested is not None:
            self._signals.report(
                SinkOpened(
                    sink=self.sink.name,
                    code=away.code,
                    message=away.message,
                    failures=rested.failures,
                    pause=rested.seconds,
                )
            )

    def _outcome(self, answer: Answer, back: Outcome) -> Outcome:
        match answer:
            case Published():
                return NOTHING
            case Rejected(code, message, retryable, after):
                return Raised(code, message, retryable=retryable, after=after)
            case Unreachable() | Gone() | Held():
                return back
            case _:
                assert_never(answer)

    def _report(self, told: Sequence[tuple[Message, Answer]], size: int, seconds: float) -> None:
        if told:
            sent = [_sending(message, answer) for message, answer in told]
            self._signals.report(
                EventsSent(
                    sink=self.sink.name,
                    subscription=self._subscription,
                    batch_size=size,
                    duration=seconds,
                    events=sent,
                )
            )


def headers(job: Claimed, routing: Routing) -> dict[str, str]:
    """What a message says of its event beside the body; text that goes through any broker."""
    told: dict[str, Any] = {
        "event_id": routing.event_id,
        "event_type": routing.type,
        "aggregate_type": routing.aggregate_type,
        "aggregate_id": routing.aggregate_id,
        "created_at": job.created_at.isoformat(),
        "traceparent": routing.headers.get("traceparent"),
    }
    return {name: value for name, value in told.items() if value is not None}


def _sending(message: Message, answer: Answer) -> Sending:
    of = message.headers
    return Sending(
        event_id=message.event_id,
        event_type=message.type,
        aggregate_type=of.get("aggregate_type"),
        aggregate_id=of.get("aggregate_id"),
        outcome=type(answer).__name__.lower(),
        code=getattr(answer, "code", None),
        message=getattr(answer, "message", None),
    )
