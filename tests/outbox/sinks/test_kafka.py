"""Kafka's own ways: keys, packs that are too large, topics that are not there, producers that break for good."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError

from kept.errors import Misconfigured, Refused
from kept.outbox.sink import HELD, PUBLISHED, Rejected, Unreachable
from kept.outbox.sinks.kafka import KafkaSink
from servers import KafkaCluster, message, messages, running


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[KafkaCluster]:
    with running(KafkaCluster(tmp_path)) as cluster:
        yield cluster


async def test_the_aggregate_is_the_key(cluster: KafkaCluster) -> None:
    sink = cluster.sink()
    batch = [message(1, topic="events", key="invoice:7"), message(2, topic="events")]
    assert await sink.publish(batch, ordered=False) == [PUBLISHED] * 2
    await sink.close()
    assert {each.key for each in await cluster.stored()} == {"invoice:7", None}


async def test_messages_that_are_too_large_only_together_are_sent_by_themselves(cluster: KafkaCluster) -> None:
    sink = cluster.sink()
    assert await sink.ping() is None
    cluster.tell("refuse", KafkaError.MSG_SIZE_TOO_LARGE, 1)
    batch = messages(range(10), topic="events", keys=1)
    assert await sink.publish(batch, ordered=False) == [PUBLISHED] * 10
    await sink.close()
    assert {each.event_id for each in await cluster.stored()} == {each.event_id for each in batch}


async def test_a_message_that_is_too_large_by_itself_is_rejected_and_holds_back_its_key(cluster: KafkaCluster) -> None:
    sink = cluster.sink(options={"message.max.bytes": 2000})
    batch = [
        message(1, topic="events", key="a"),
        message(2, topic="events", key="a", body=b"x" * 3000),
        message(3, topic="events", key="a"),
        message(4, topic="events", key="b"),
    ]
    answers = await sink.publish(batch, ordered=True)
    await sink.close()
    assert [answers[0], answers[2], answers[3]] == [PUBLISHED, HELD, PUBLISHED]
    assert isinstance(answers[1], Rejected)
    assert (answers[1].code, answers[1].retryable) == ("message_too_large", False)
    assert {each.event_id for each in await cluster.stored()} == {batch[0].event_id, batch[3].event_id}


@pytest.mark.parametrize(
    ("error", "answer", "code"),
    [
        (KafkaError.MSG_SIZE_TOO_LARGE, Rejected, "message_too_large"),
        (KafkaError.INVALID_RECORD, Rejected, "refused_by_broker"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, Unreachable, "forbidden"),
    ],
)
async def test_what_the_broker_refuses_is_answered_for_what_it_is(
    cluster: KafkaCluster, error: int, answer: type, code: str
) -> None:
    sink = cluster.sink()
    assert await sink.ping() is None
    cluster.tell("refuse", error, 1)
    got = await sink.send(message(1, topic="events"))
    assert isinstance(got, answer)
    assert got.code == code
    await sink.close()


async def test_an_unknown_topic_is_its_events_problem_and_nobody_else_s(cluster: KafkaCluster) -> None:
    cluster.tell("topic_error", "gone", KafkaError.UNKNOWN_TOPIC_OR_PART)
    sink = cluster.sink(timeout="4s")
    answers = await sink.publish([message(1, topic="gone"), message(2, topic="events")], ordered=False)
    await sink.close()
    assert isinstance(answers[0], Rejected)
    assert (answers[0].code, answers[0].retryable) == ("unknown_topic", True)
    assert answers[1] == PUBLISHED


async def test_after_a_fatal_error_another_producer_takes_over(cluster: KafkaCluster) -> None:
    sink = cluster.sink()
    assert await sink.send(message(1, topic="events")) == PUBLISHED
    # What an idempotent producer cannot recover from: the broker says that its sequence is not the next one.
    cluster.tell("refuse", KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, 1)
    answers = await sink.publish(messages(range(2, 5), topic="events"), ordered=False)
    refused = [answer for answer in answers if answer != PUBLISHED]
    assert all(isinstance(answer, Unreachable) for answer in refused), "whoever else was under way goes back as well"
    assert "fatal" in {answer.code for answer in refused}
    assert await sink.send(message(5, topic="events")) == PUBLISHED
    await sink.close()


async def test_a_topic_that_became_no_name_when_filled_in_is_rejected(cluster: KafkaCluster) -> None:
    sink = cluster.sink()
    answers = await sink.publish([message(1, topic="events.a b"), message(2, topic="events")], ordered=False)
    await sink.close()
    assert isinstance(answers[0], Rejected)
    assert (answers[0].code, answers[0].retryable) == ("bad_topic", False)
    assert answers[1] == PUBLISHED


async def test_wrong_credentials_are_told_without_showing_them(cluster: KafkaCluster) -> None:
    options = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "kept",
        "sasl.password": "wr0ng",
    }
    sink = cluster.sink(options=options, timeout="3s")
    for unwell in (await sink.send(message(1, topic="events")), await sink.ping()):
        assert isinstance(unwell, Unreachable)
        assert unwell.code == "unauthorized"
        assert "wr0ng" not in unwell.message
    await sink.close()


@pytest.mark.parametrize("topic", ["", ".", "..", "a b", "a/b", "é", "x" * 250, "{type}:x"])
def test_what_is_no_topic_is_refused(topic: str) -> None:
    with pytest.raises(Refused) as refused:
        KafkaSink(topic=topic)
    assert refused.value.field == "topic"


@pytest.mark.parametrize("servers", ["", "a b:9092", "host:port", "user:password@host:9092", "a:9092,,b:9092"])
def test_what_are_no_servers_is_refused_without_repeating_it(servers: str) -> None:
    with pytest.raises(Refused, match="like host:9092") as refused:
        KafkaSink(servers)
    assert refused.value.field == "servers"


def test_the_options_that_the_answers_rest_on_are_not_for_sale() -> None:
    with pytest.raises(Refused, match="acks"):
        KafkaSink(options={"acks": "1"})


def test_options_that_the_client_does_not_know_are_told_at_once() -> None:
    with pytest.raises(Misconfigured, match=r"no\.such\.option"):
        KafkaSink(options={"no.such.option": 1})
