"""What a broker is to the outbox: messages go in, an answer for each comes out. No broker is named here."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from kept.errors import Refused
from kept.jobs.payload import check_name
from kept.outbox.rules import check_pattern

MOST_NAME = 100


class Message(Struct, frozen=True):
    """One event on its way to one topic.

    *body* is the envelope as JSON. *headers* are ``event_id``, ``event_type``, ``aggregate_type``, ``aggregate_id``,
    ``created_at`` and ``traceparent``, those that there are. *key* names the aggregate, for brokers that keep order.
    """

    event_id: str
    type: str
    topic: str
    body: bytes
    headers: Mapping[str, str]
    key: str | None = None


# --- what became of a message


class Published(Struct, frozen=True):
    """The broker acknowledged it."""


class Rejected(Struct, frozen=True):
    """This message failed and others need not: charged, and tried again unless it cannot help."""

    code: str
    message: str
    retryable: bool = True
    after: float | None = None  # seconds, if the broker says so


class Unreachable(Struct, frozen=True):
    """The broker is away, refuses us, or is overrun: nobody is charged, and the sink pauses in the whole cluster."""

    code: str
    message: str
    after: float | None = None  # seconds, if the broker says so


class Gone(Struct, frozen=True):
    """The receiver says that it is gone for good: the sink is disabled until somebody enables it again."""

    code: str
    message: str


class Held(Struct, frozen=True):
    """Not sent, because an earlier message of its key was not published or time ran out: it goes back uncharged."""


Answer = Published | Rejected | Unreachable | Gone | Held
PUBLISHED = Published()
HELD = Held()


class Sink(ABC):
    """A broker that events are published to.

    A sink belongs to one event loop at a time and opens its connection when it is first needed. Credentials never
    appear in an answer, an error or a log line. *topic* is a name, possibly with ``{type}``, ``{aggregate_type}``,
    ``{aggregate_id}`` in it; *topics* maps a type, or a pattern that ends in ``.*``, to another one.
    """

    kind: str  # "nats", "rabbitmq", …
    batch: int = 500  # messages handed over at once, at most

    def __init__(self, *, name: str | None, topic: str, topics: Mapping[str, str] | None = None) -> None:
        self.name = check_name(name or self.kind, what="sink", most=MOST_NAME)
        self.topics = Topics(topic, topics or {}, self.fit)
        for each in self.topics.templates:
            self.check_topic(sample(each))

    def check_topic(self, topic: str) -> None:
        """Raise :class:`Refused` if no broker of this kind would take *topic*."""
        if not topic:
            raise Refused("topic: must not be empty", field="topic")

    def fit(self, value: str) -> str:
        """*value* as it may stand in a topic."""
        return value

    def misfit(self, message: Message) -> Rejected | None:
        """What is wrong with the topic of *message*, which may hold anything an aggregate is called."""
        try:
            self.check_topic(message.topic)
        except Refused as refused:
            return Rejected("bad_topic", str(refused), retryable=False)
        return None

    async def publish(self, messages: Sequence[Message], *, ordered: bool) -> list[Answer]:
        """An answer for each message, in order; *ordered*: those of one key one after the other."""
        if ordered:
            return await self.in_order(messages)
        return list(await asyncio.gather(*(self.send(message) for message in messages)))

    async def in_order(self, messages: Sequence[Message]) -> list[Answer]:
        """Keys side by side; within one, each only after the one before was acknowledged."""
        answers: list[Answer] = [HELD] * len(messages)

        async def send_run(places: list[int]) -> None:
            for place in places:
                answers[place] = await self.send(messages[place])
                if answers[place] != PUBLISHED:
                    return

        await asyncio.gather(*map(send_run, runs(messages)))
        return answers

    async def in_waves(self, messages: Sequence[Message], *, within: float) -> list[Answer]:
        """Like :meth:`in_order`, for a sink whose :meth:`publish` sends many at once: the first of every key, then the
        second of those whose first was acknowledged, and so on.

        No wave begins when the broker is away, or after *within* seconds: what is left is held.
        """
        answers: list[Answer] = [HELD] * len(messages)
        left = [iter(run) for run in runs(messages)]
        clock = asyncio.get_running_loop().time
        end = clock() + within
        while wave := [(place, run) for run in left if (place := next(run, None)) is not None]:
            given = await self.publish([messages[place] for place, _ in wave], ordered=False)
            for (place, _), answer in zip(wave, given, strict=True):
                answers[place] = answer
            left = [run for (_, run), answer in zip(wave, given, strict=True) if answer == PUBLISHED]
            if clock() > end or any(isinstance(answer, Unreachable) for answer in given):
                break
        return answers

    @abstractmethod
    async def send(self, message: Message) -> Answer:
        """Publish one message and wait for the broker's word. Raises nothing but cancellation."""

    @abstractmethod
    async def ping(self) -> Unreachable | None:
        """Whether the broker answers: None, or why it does not."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of the connection; a sink that is used again opens another."""


def runs(messages: Sequence[Message]) -> list[list[int]]:
    """The places of *messages*, those of one key together and in order; without a key each is by itself."""
    found: dict[str | int, list[int]] = {}
    for place, message in enumerate(messages):
        found.setdefault(place if message.key is None else message.key, []).append(place)
    return list(found.values())


class Topics:
    """Which topic an event goes to: the rule for its very type, else the longest pattern, else the default."""

    def __init__(self, default: str, rules: Mapping[str, str], fit: Callable[[str], str] = str) -> None:
        self._fit = fit
        self.templates = (default, *rules.values())
        for template in self.templates:
            sample(template)
        for rule in rules:
            check_pattern(rule)
        self._default = default
        self._exact = {rule: topic for rule, topic in rules.items() if not rule.endswith("*")}
        patterns = [(rule[:-1], topic) for rule, topic in rules.items() if rule.endswith("*")]
        self._patterns = sorted(patterns, key=lambda pattern: -len(pattern[0]))

    def of(self, type: str, aggregate_type: str | None, aggregate_id: str | None) -> str:
        """The topic of an event."""
        found = self._exact.get(type)
        if found is None:
            found = next((topic for start, topic in self._patterns if type.startswith(start)), self._default)
        type, kind, id = map(self._fit, (type, aggregate_type or "none", aggregate_id or "none"))
        return found.format(type=type, aggregate_type=kind, aggregate_id=id)


def sample(template: str) -> str:
    """*template* filled with plain words, or :class:`Refused` if it cannot be filled."""
    try:
        return template.format(type="invoice.created", aggregate_type="invoice", aggregate_id="7")
    except (KeyError, IndexError, ValueError, AttributeError) as error:
        raise Refused(
            f"topic: {template!r} cannot be filled in ({error}); it may hold {{type}}, {{aggregate_type}} and "
            "{aggregate_id}",
            field="topic",
        ) from None
