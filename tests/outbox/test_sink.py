"""Order within a key, and which topic an event goes to: no broker is needed to see that."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from kept import Refused
from kept.outbox.sink import HELD, PUBLISHED, Answer, Message, Rejected, Sink, Topics, Unreachable

AWAY = Unreachable("unreachable", "away")
BAD = Rejected("bad", "bad")


class Paper(Sink):
    """Writes down what it is sent; *answers* are given by a message's body."""

    kind = "paper"

    def __init__(self, answers: dict[bytes, Answer], *, takes: float = 0, within: float = 60) -> None:
        super().__init__(name=None, topic="events")
        self.waves: list[list[bytes]] = []
        self._answers = answers
        self._takes = takes
        self._within = within

    async def publish(self, messages: Sequence[Message], *, ordered: bool) -> list[Answer]:
        if ordered:
            return await self.in_waves(messages, within=self._within)
        self.waves.append([each.body for each in messages])
        await asyncio.sleep(self._takes)
        return [self._answers.get(each.body, PUBLISHED) for each in messages]

    async def send(self, message: Message) -> Answer:
        raise NotImplementedError

    async def ping(self) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError


def batch(*words: str) -> list[Message]:
    """``"a1"`` is the first message of key a; ``"-1"`` has no key."""
    return [Message(word, "t", "events", word.encode(), {}, None if word[0] == "-" else word[0]) for word in words]


async def test_a_wave_holds_one_message_of_each_key_and_all_without() -> None:
    sink = Paper({})
    assert await sink.publish(batch("a1", "a2", "-1", "b1", "-2", "a3", "b2"), ordered=True) == [PUBLISHED] * 7
    assert sink.waves == [[b"a1", b"-1", b"b1", b"-2"], [b"a2", b"b2"], [b"a3"]]


async def test_a_rejected_message_holds_back_what_follows_in_its_key_and_nothing_else() -> None:
    sink = Paper({b"a2": BAD})
    answers = await sink.publish(batch("a1", "a2", "a3", "b1", "b2", "b3"), ordered=True)
    assert answers == [PUBLISHED, BAD, HELD, PUBLISHED, PUBLISHED, PUBLISHED]


async def test_a_broker_that_is_away_is_asked_no_more() -> None:
    sink = Paper({b"a1": AWAY})
    assert await sink.publish(batch("a1", "a2", "b1", "b2"), ordered=True) == [AWAY, HELD, PUBLISHED, HELD]
    assert len(sink.waves) == 1


async def test_a_slow_broker_is_left_when_the_time_is_over() -> None:
    sink = Paper({}, takes=0.01, within=0)
    assert await sink.publish(batch("a1", "a2", "a3"), ordered=True) == [PUBLISHED, HELD, HELD]


@pytest.mark.parametrize("ordered", [True, False])
async def test_nothing_to_publish_is_no_trouble(ordered: bool) -> None:
    assert await Paper({}).publish([], ordered=ordered) == []


def test_topics_are_by_type_then_by_the_longest_pattern_then_by_any():
    topics = Topics("rest", {"a.b": "one", "a.*": "some", "a.b.*": "more", "*": "any"})
    told = [topics.of(type, None, None) for type in ("a.b", "a.c", "a.b.c", "x")]
    assert told == ["one", "some", "more", "any"]


def test_a_rule_that_could_never_match_is_refused():
    with pytest.raises(Refused, match="star elsewhere"):
        Topics("rest", {"invoice*": "money"})
