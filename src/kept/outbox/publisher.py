"""From a subscription's jobs to its sink: batches under the lease, and a rest for a broker that is away."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from time import monotonic
from typing import Any, Literal, Protocol, TypeVar, assert_never
from uuid import UUID

import msgspec
from msgspec import Struct

from kept.db import points
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
NOTED_WITHIN = 5.0  # seconds for noting it
PING_WITHIN = 15.0  # seconds for a broker to say that it is there: more than a sink allows itself


class Ask(Protocol):
    """Who runs steps in a transaction of their own: the App."""

    def __call__(self, steps: Steps[T], /) -> Awaitable[T]: ...


class Routing(Struct, frozen=True):
    """What of an envelope a message needs besides the whole."""

    event_id: UUID  # and nothing else, whoever wrote it: it becomes a header, or a broker's key
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
        timeout: float,
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
        self._timeout = timeout
        self._rest = rest
        self._sql = sql
        self._ask = ask
        self._signals = signals
        self._noted_at = float("-inf")  # when the database was last told that the broker works
        self._unnoted = False  # it has worked since
        self._failed_at = float("-inf")

    async def publish(self, jobs: Sequence[Claimed]) -> list[Outcome]:
        """Publish the events of *jobs*; those the broker does not acknowledge are tried again."""
        began = monotonic()
        made = [self._message(job) for job in jobs]
        messages = [each for each in made if isinstance(each, Message)]
        answers = iter(await self._answers(messages))
        answered = [(each, next(answers)) if isinstance(each, Message) else each for each in made]
        told = [pair for pair in answered if isinstance(pair, tuple)]
        self._report(told, len(jobs), monotonic() - began)
        back = await self._note(jobs[0].lane, [answer for _, answer in told])
        return [self._outcome(each[1], back) if isinstance(each, tuple) else each for each in answered]

    async def check(self) -> None:
        """Ask the broker whether it is there, so that a worker knows before the first event.

        One that answers, but took no event when it was last given some, is not there yet.
        """
        try:
            async with asyncio.timeout(PING_WITHIN):
                trouble = await self.sink.ping()
        except TimeoutError:
            trouble = self._silence(PING_WITHIN)
        if trouble is not None or monotonic() > self._failed_at + 2 * self._rest().most:
            self.trouble = trouble
        if self._unnoted:
            await self._works()

    async def _answers(self, messages: Sequence[Message]) -> list[Answer]:
        """What the sink says to each. A topic that no broker takes is not handed over; silence is a broker away."""
        misfits = [self.sink.misfit(message) for message in messages]
        fit = [message for message, misfit in zip(messages, misfits, strict=True) if misfit is None]
        given: Sequence[Answer] = ()
        if fit:
            try:
                async with asyncio.timeout(self._timeout):
                    points.before("outbox.publish")
                    given = await self.sink.publish(fit, ordered=self._ordered)
                    points.after("outbox.publish")
            except TimeoutError:
                given = [self._silence(self._timeout)] * len(fit)
        if len(given) != len(fit):
            raise RuntimeError(f"sink {self.sink.name!r} gave {len(given)} answers to {len(fit)} messages")
        answers = iter(given)
        return [next(answers) if misfit is None else misfit for misfit in misfits]

    def _silence(self, seconds: float) -> Unreachable:
        return Unreachable("timeout", f"sink {self.sink.name!r} did not answer within {seconds:g} s")

    def _message(self, job: Claimed) -> Message | Raised:
        try:
            routing = _ROUTING.decode(job.payload)
            body = self._body(job.payload)
        except (msgspec.DecodeError, Refused, RecursionError) as error:  # one event, not all that are sent with it
            return Raised("invalid_event", message_of(error), retryable=False)
        topic = self.sink.topics.of(routing.type, routing.aggregate_type, routing.aggregate_id)
        key = None if routing.aggregate_id is None else f"{routing.aggregate_type}/{routing.aggregate_id}"
        return Message(str(routing.event_id), routing.type, topic, body, headers(job, routing), key)

    def _body(self, payload: str) -> bytes:
        if self._format == "envelope":
            return payload.encode()
        envelope = read_envelope(payload)
        return msgspec.json.encode(cloudevent(envelope.event(envelope.data, envelope.version), self._source))

    # --- how the broker is doing

    async def _note(self, lane: int, answers: Sequence[Answer]) -> Outcome:
        """Have the cluster know how the broker is doing. What becomes of events that have to wait for it."""
        away = next((a for a in answers if isinstance(a, Unreachable | Gone)), None)
        took = any(isinstance(a, Published) for a in answers)
        if away is None and not took:
            return Released()
        self.trouble, self._unnoted = away, away is None
        try:
            async with asyncio.timeout(NOTED_WITHIN):
                if away is not None:
                    await self._away(away, lane, took=took)
                elif monotonic() >= self._noted_at + LOOK_EVERY:
                    await self._works()
        except Exception:  # noqa: BLE001  # the database is away, say: the jobs must not come back at once all the same
            return Deferred(AGAIN_AFTER, "the state of the sink could not be written")
        return Released()

    async def _works(self) -> None:
        closed = await self._ask(breaker.works(self._sql(), self.sink.name))
        self._noted_at, self._unnoted = monotonic(), False
        if closed:
            self._signals.report(SinkClosed(sink=self.sink.name))

    async def _away(self, away: Unreachable | Gone, lane: int, *, took: bool) -> None:
        self._failed_at, self._noted_at = monotonic(), float("-inf")
        met = breaker.Met(self.sink.name, lane, message_of(away.code), message_of(away.message), took)
        if isinstance(away, Gone):
            if await self._ask(breaker.disable(self._sql(), met)):
                self._signals.report(SinkDisabled(sink=met.sink, code=met.code, message=met.error))
            return
        draw = random.random()  # noqa: S311  # workers must not come back all at once
        rested = await self._ask(breaker.rests(self._sql(), met, self._rest(), away.after, draw))
        if rested is not None:
            failures, seconds = rested
            self._signals.report(
                SinkOpened(sink=met.sink, code=met.code, message=met.error, failures=failures, pause=seconds)
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
        "event_id": str(routing.event_id),
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
