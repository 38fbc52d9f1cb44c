"""RabbitMQ: what counts as published is in a queue, and whatever else happens is told as it is."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from uuid import uuid4

import aio_pika
import pytest
from aio_pika.abc import AbstractIncomingMessage

import rabbit
from brokers import kinds, message, until_away
from kept.errors import Refused
from kept.outbox.sink import PUBLISHED, Answer
from kept.outbox.sinks.rabbitmq import RabbitSink
from rabbit import MOST_BYTES, Rabbit
from support import aeventually

ALARM = "{resource_limit, memory, node()}"

needs_rabbit = [
    pytest.mark.debian,
    pytest.mark.skipif(not rabbit.FOUND, reason="rabbitmq-server is not installed"),
]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rabbit]:
    node = Rabbit(tmp_path_factory.mktemp("rabbit"))
    yield node
    node.end()


@pytest.fixture
def queue(node: Rabbit) -> str:
    """The name of a durable queue of this test's own."""
    name = f"q-{uuid4().hex}"
    asyncio.run(declare(node, name))
    return name


async def declare(node: Rabbit, name: str, *, exchange: str | None = None, **arguments: object) -> None:
    async with await aio_pika.connect(node.url()) as conn, conn.channel() as channel:
        declared = await channel.declare_queue(name, durable=True, arguments=arguments or None)
        if exchange:
            kept = await channel.declare_exchange(exchange, aio_pika.ExchangeType.TOPIC, durable=True)
            await declared.bind(kept, "invoice.*")


async def taken(node: Rabbit, name: str) -> list[AbstractIncomingMessage]:
    """Everything in the queue."""
    found = []
    async with await aio_pika.connect(node.url()) as conn, conn.channel() as channel:
        declared = await channel.get_queue(name)
        while (each := await declared.get(no_ack=True, fail=False)) is not None:
            found.append(each)
    return found


def ids(messages: list[AbstractIncomingMessage]) -> list[str]:
    return [each.message_id for each in messages]


class TestAgainstABroker:
    pytestmark = needs_rabbit

    async def test_an_event_arrives_with_its_id_and_headers_and_outlives_the_broker(
        self, node: Rabbit, queue: str
    ) -> None:
        exchange = f"x-{queue}"
        await declare(node, queue, exchange=exchange)
        sink = RabbitSink(node.url(), exchange=exchange)
        topic = sink.topics.of("invoice.created", None, None)
        sent = message(topic, body='{"n": "ü"}'.encode(), aggregate_id="Müller", traceparent="00-ab-cd-01")
        assert await sink.publish([sent], ordered=False) == [PUBLISHED]
        await sink.close()
        node.kill()
        node.start()
        (got,) = await taken(node, queue)
        assert (got.body, got.message_id, got.type) == (sent.body, sent.event_id, "invoice.created")
        assert dict(got.headers) == sent.headers
        assert (got.routing_key, got.content_type) == ("invoice.created", "application/json")
        assert got.delivery_mode == aio_pika.DeliveryMode.PERSISTENT

    async def test_a_batch_is_under_way_at_once_and_each_event_is_confirmed(self, node: Rabbit, queue: str) -> None:
        sink = RabbitSink(node.url(), topic=queue)
        sent = [message(queue) for _ in range(500)]
        assert await sink.publish(sent, ordered=False) == [PUBLISHED] * 500
        await sink.close()
        assert sorted(ids(await taken(node, queue))) == sorted(each.event_id for each in sent)

    async def test_an_event_that_no_queue_takes_comes_back(self, node: Rabbit, queue: str) -> None:
        sink = RabbitSink(node.url())
        answers = await sink.publish([message(queue), message("nobody.listens"), message(queue)], ordered=False)
        await sink.close()
        assert kinds(answers) == ["Published", "Rejected:unroutable", "Published"]
        assert answers[1].retryable
        assert "nobody.listens" in answers[1].message

    async def test_one_event_to_two_topics_is_answered_for_each(self, node: Rabbit, queue: str) -> None:
        sink = RabbitSink(node.url())
        sent = message(queue)
        lost = message("nobody.listens")
        lost = type(lost)(sent.event_id, lost.type, lost.topic, lost.body, sent.headers)
        for _ in range(20):
            answers = await sink.publish([lost, sent, lost], ordered=False)
            assert kinds(answers) == ["Rejected:unroutable", "Published", "Rejected:unroutable"]
        await sink.close()

    async def test_a_full_queue_refuses_and_others_go_on(self, node: Rabbit, queue: str) -> None:
        full = f"{queue}-full"
        await declare(node, full, **{"x-max-length": 1, "x-overflow": "reject-publish"})
        sink = RabbitSink(node.url())
        assert await sink.send(message(full)) == PUBLISHED
        answers = await sink.publish([message(full), message(queue)], ordered=False)
        await sink.close()
        assert kinds(answers) == ["Rejected:refused_by_broker", "Published"]

    async def test_an_event_that_is_too_large_is_refused_for_good_and_costs_the_others_nothing(
        self, node: Rabbit, queue: str
    ) -> None:
        sink = RabbitSink(node.url())
        sizes = [10, MOST_BYTES + 1, 2 * MOST_BYTES, MOST_BYTES] + [20] * 300
        sent = [message(queue, body=b"x" * size) for size in sizes]
        sent.append(message(queue, aggregate_id="x" * 200_000))
        answers = await sink.publish(sent, ordered=False)
        too_large = "Rejected:message_too_large"
        assert kinds(answers) == ["Published", too_large, too_large, *["Published"] * 301, too_large]
        assert not any(answer.retryable for answer in answers if answer != PUBLISHED)
        await sink.close()
        published = {each.event_id for each, answer in zip(sent, answers, strict=True) if answer == PUBLISHED}
        assert set(ids(await taken(node, queue))) == published

    async def test_in_order_an_event_that_fails_holds_those_of_its_key_and_no_others(
        self, node: Rabbit, queue: str
    ) -> None:
        sink = RabbitSink(node.url())
        topics = [(queue, "a"), (queue, "b"), ("nobody.listens", "a"), (queue, "b"), (queue, "a"), (queue, "b")]
        sent = [message(topic, key=key) for topic, key in topics]
        answers = await sink.publish(sent, ordered=True)
        assert kinds(answers) == ["Published", "Published", "Rejected:unroutable", "Published", "Held", "Published"]
        await sink.close()
        of_b = [each.event_id for each in sent if each.key == "b"]
        assert [id for id in ids(await taken(node, queue)) if id in of_b] == of_b

    async def test_a_missing_exchange_is_told_and_used_as_soon_as_it_is_there(self, node: Rabbit, queue: str) -> None:
        exchange = f"x-{queue}"
        sink = RabbitSink(node.url(), exchange=exchange)
        answers = await sink.publish([message("invoice.created") for _ in range(500)], ordered=False)
        assert set(kinds([*answers, await sink.ping()])) == {"Unreachable:no_exchange"}
        assert exchange in answers[0].message
        await declare(node, queue, exchange=exchange)
        assert await sink.ping() is None
        assert await sink.send(message("invoice.created")) == PUBLISHED
        await sink.close()

    @pytest.mark.parametrize(
        ("given", "code"),
        [
            ({"password": "hunter2"}, "unauthorized"),
            ({"user": "nobody"}, "unauthorized"),
            ({"host": "none"}, "forbidden"),
        ],
    )
    async def test_whoever_is_not_let_in_hears_why_once_and_without_the_password(
        self, node: Rabbit, given: dict[str, str], code: str
    ) -> None:
        sink = RabbitSink(node.url(**given), timeout="20s")
        begun = time.monotonic()
        answers: list[Answer | None] = [*await sink.publish([message("q")] * 50, ordered=False), await sink.ping()]
        assert time.monotonic() - begun < 15, "a refusal takes a second or more: they must not queue up for their own"
        await sink.close()
        assert set(kinds(answers)) == {f"Unreachable:{code}"}
        assert "hunter2" not in str(answers)

    async def test_a_broker_that_is_short_of_memory_takes_nothing_and_then_goes_on(
        self, node: Rabbit, queue: str
    ) -> None:
        sink = RabbitSink(node.url(), timeout="2s")
        assert await sink.ping() is None
        node.control("eval", f"rabbit_alarm:set_alarm({{{ALARM}, []}}).")
        try:
            answers = await sink.publish([message(queue) for _ in range(5)], ordered=False)
            assert set(kinds([*answers, await sink.ping()])) == {"Unreachable:blocked"}
        finally:
            node.control("eval", f"rabbit_alarm:clear_alarm({ALARM}).")
        assert await aeventually(lambda: fine(sink))
        assert await sink.send(message(queue)) == PUBLISHED
        await sink.close()

    async def test_a_frozen_broker_is_unreachable_in_time(self, node: Rabbit, queue: str) -> None:
        sink = RabbitSink(node.url(), timeout="1s")
        assert await sink.ping() is None
        node.freeze()
        try:
            begun = time.monotonic()
            answers = await sink.publish([message(queue) for _ in range(100)], ordered=False)
            again = [await sink.send(message(queue)), await sink.ping()]
            assert time.monotonic() - begun < 8
            assert set(kinds([*answers, *again])) == {"Unreachable:timeout"}
        finally:
            node.thaw()
        assert await aeventually(lambda: fine(sink))
        assert await sink.send(message(queue)) == PUBLISHED
        await sink.close()

    async def test_what_a_killed_broker_confirmed_is_there_when_it_is_back(self, node: Rabbit, queue: str) -> None:
        sink = RabbitSink(node.url())
        told = asyncio.create_task(until_away(sink, lambda _: message(queue), ordered=False))
        await aeventually(lambda: deeper(node, queue, 500), what="one of the second batch, so the first is confirmed")
        node.kill()
        sent, answers = await told
        assert kinds([await sink.ping()]) == ["Unreachable:unreachable"]
        node.start()
        published = {each.event_id for each, answer in zip(sent, answers, strict=True) if answer == PUBLISHED}
        assert 0 < len(published) < len(sent)
        assert set(kinds(answers)) <= {"Published", "Unreachable:connection_lost", "Unreachable:unreachable"}
        assert await sink.send(message(queue)) == PUBLISHED, "the same sink, a new connection"
        await sink.close()
        assert published <= set(ids(await taken(node, queue)))

    async def test_cancellation_passes_and_the_sink_goes_on(self, node: Rabbit, queue: str) -> None:
        sink = RabbitSink(node.url())
        sending = [asyncio.create_task(sink.send(message(queue))) for _ in range(20)]
        await asyncio.sleep(0)
        for task in sending:
            task.cancel()
        ended = await asyncio.gather(*sending, return_exceptions=True)
        assert {type(each) for each in ended} == {asyncio.CancelledError}
        assert await sink.send(message(queue)) == PUBLISHED
        await sink.close()

    def test_a_sink_may_be_used_in_one_loop_after_another(self, node: Rabbit, queue: str) -> None:
        sink = RabbitSink(node.url())

        async def once() -> list[Answer]:
            try:
                return await sink.publish([message(queue) for _ in range(3)], ordered=False)
            finally:
                await sink.close()

        assert asyncio.run(once()) == asyncio.run(once()) == [PUBLISHED] * 3


async def fine(sink: RabbitSink) -> bool:
    return await sink.ping() is None


async def deeper(node: Rabbit, name: str, count: int) -> bool:
    """Whether more than *count* wait in the queue."""
    async with await aio_pika.connect(node.url()) as conn, conn.channel() as channel:
        waiting = (await channel.declare_queue(name, passive=True)).declaration_result.message_count
    return waiting is not None and waiting > count


# --- without a broker


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("http://localhost", {}),
        ("localhost", {}),
        ("amqp://", {}),
        ("amqp://guest:hunter2@localhost:port/", {}),
        ("amqp://localhost", {"topic": ""}),
        ("amqp://localhost", {"topic": "ü" * 128}),
        ("amqp://localhost", {"topic": "{nothing}"}),
        ("amqp://localhost", {"topics": {"invoice.*": "x" * 256}}),
        ("amqp://localhost", {"exchange": "x" * 256}),
        ("amqp://localhost", {"name": "two words"}),
        ("amqp://localhost", {"timeout": "soon"}),
        ("amqp://localhost", {"timeout": "0s"}),
    ],
)
def test_what_no_broker_would_take_is_refused(url: str, options: dict[str, object]) -> None:
    with pytest.raises(Refused) as refused:
        RabbitSink(url, **options)
    assert "hunter2" not in str(refused.value)


async def test_a_routing_key_that_becomes_too_long_is_refused_for_good() -> None:
    sink = RabbitSink("amqp://localhost:1", topic="{aggregate_id}")
    answer = await sink.send(message(sink.topics.of("invoice.created", None, "x" * 256)))
    assert kinds([answer]) == ["Rejected:bad_topic"]
    assert not answer.retryable


async def test_a_broker_that_is_not_there_is_unreachable() -> None:
    sink = RabbitSink("amqp://guest:hunter2@127.0.0.1:1/")
    answers = [await sink.ping(), *await sink.publish([message("q")] * 3, ordered=False)]
    await sink.close()
    assert kinds(answers) == ["Unreachable:unreachable"] * 4
    assert "hunter2" not in str(answers)


def test_without_the_library_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['aiormq'] = None; import kept.outbox.sinks.rabbitmq"
    told = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert 'Misconfigured: aio-pika is not installed; this sink needs it: pip install "kept[rabbitmq]"' in told.stderr
