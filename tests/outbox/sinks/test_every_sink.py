"""What holds for every sink that has a connection, each against its own broker."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kept.outbox.sink import PUBLISHED, Answer, Unreachable
from servers import KafkaCluster, NatsServer, Server, Valkey, message, messages, running
from support import aeventually

SHORT = "1s"
ALL = {"nats": NatsServer, "redis": Valkey, "kafka": KafkaCluster}


@pytest.fixture(params=ALL)
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    with running(ALL[request.param](tmp_path)) as server:
        yield server


async def test_what_is_published_is_what_a_consumer_reads(broker) -> None:
    sink = broker.sink()
    sent = messages(range(3), topic=broker.topic, keys=3)
    assert await sink.publish(sent, ordered=False) == [PUBLISHED] * 3
    await sink.close()
    stored = {each.event_id: each for each in await broker.stored()}
    assert len(stored) == 3
    for each in sent:
        assert stored[each.event_id].body == each.body
        assert stored[each.event_id].headers == each.headers
        assert stored[each.event_id].key in (each.key, None)


@pytest.mark.parametrize("broker", ["nats", "redis"], indirect=True)  # the mock cluster keeps 5 MB
async def test_a_batch_larger_than_what_is_sent_at_once_arrives_whole(broker) -> None:
    sink = broker.sink()
    body = b"x" * 900_000
    sent = [message(number, topic=broker.topic, body=body) for number in range(20)]
    assert await sink.publish(sent, ordered=False) == [PUBLISHED] * 20
    await sink.close()
    assert {each.event_id for each in await broker.stored()} == {each.event_id for each in sent}


async def test_events_of_one_aggregate_stay_in_order(broker) -> None:
    sink = broker.sink()
    sent = messages(range(60), topic=broker.topic, keys=7)
    assert await sink.publish(sent, ordered=True) == [PUBLISHED] * 60
    await sink.close()
    stored = await broker.stored()
    for key in range(7):
        of_key = [each.event_id for each in stored if each.headers["aggregate_id"] == str(key)]
        assert of_key == [each.event_id for each in sent if each.key == str(key)]


async def test_nothing_is_acknowledged_that_a_killed_broker_does_not_have(broker) -> None:
    sink = broker.sink(timeout="3s")
    acknowledged: set[str] = set()
    answers: list[Answer] = []

    async def publish_until_it_fails() -> None:
        for start in range(0, 400_000, 2000):
            sent = messages(range(start, start + 2000), topic=broker.topic)
            answers[:] = await sink.publish(sent, ordered=False)
            acknowledged.update(
                each.event_id for each, answer in zip(sent, answers, strict=True) if answer == PUBLISHED
            )
            if set(answers) != {PUBLISHED}:
                return

    publishing = asyncio.create_task(publish_until_it_fails())
    await aeventually(lambda: len(acknowledged) >= 4000)
    await asyncio.to_thread(broker.kill)
    await publishing
    assert {type(answer) for answer in answers if answer != PUBLISHED} == {Unreachable}
    broker.start()
    assert acknowledged <= {each.event_id for each in await broker.stored()}
    # The same sink goes on with the one that is back.
    await aeventually(lambda: is_published(sink, broker))
    await sink.close()


async def is_published(sink, broker) -> bool:
    return await sink.send(message(999_999, topic=broker.topic)) == PUBLISHED


async def test_a_frozen_broker_is_unreachable_within_the_timeout(broker) -> None:
    sink = broker.sink(timeout=SHORT)
    assert await sink.ping() is None
    broker.freeze()
    large = [message(number, topic=broker.topic, body=b"x" * 900_000) for number in range(10)]
    for sent in (messages(range(10), topic=broker.topic), large):
        started = time.monotonic()
        answers = await sink.publish(sent, ordered=False)
        assert [answer.code for answer in answers] == ["timeout"] * 10
        assert sink.broker in answers[0].message
        assert time.monotonic() - started < 3  # with the time to close a connection that nobody reads from
    unwell = await sink.ping()
    assert isinstance(unwell, Unreachable)
    broker.thaw()
    await aeventually(lambda: is_published(sink, broker))
    assert await sink.ping() is None
    await sink.close()


async def test_a_broker_that_is_away_is_named_and_found_again(broker) -> None:
    sink = broker.sink(timeout=SHORT)
    broker.kill()
    unwell = await sink.ping()
    assert isinstance(unwell, Unreachable)
    assert f"127.0.0.1:{broker.port}" in unwell.message
    answer = await sink.send(message(1, topic=broker.topic))
    assert isinstance(answer, Unreachable)
    broker.start()
    await aeventually(lambda: is_published(sink, broker))
    await sink.close()


async def test_cancelling_a_publish_is_heard_and_the_sink_goes_on(broker) -> None:
    sink = broker.sink()
    assert await sink.ping() is None
    broker.freeze()
    publishing = asyncio.create_task(sink.publish(messages(range(10), topic=broker.topic), ordered=False))
    await asyncio.sleep(0)
    publishing.cancel()
    started = time.monotonic()
    with pytest.raises(asyncio.CancelledError):
        await publishing
    assert time.monotonic() - started < 3
    broker.thaw()
    assert await is_published(sink, broker)
    await sink.close()


def test_a_sink_can_be_used_in_one_event_loop_after_another(broker) -> None:
    sink = broker.sink()

    async def publish(number: int) -> Answer:
        answer = await sink.send(message(number, topic=broker.topic))
        await sink.close()
        return answer

    assert [asyncio.run(publish(number)) for number in range(2)] == [PUBLISHED] * 2


async def test_publishing_twice_at_once_opens_one_connection_and_mixes_nothing_up(broker) -> None:
    sink = broker.sink()
    batches = [messages(range(start, start + 300), topic=broker.topic) for start in (0, 300)]
    answers = await asyncio.gather(*(sink.publish(batch, ordered=False) for batch in batches))
    assert answers == [[PUBLISHED] * 300] * 2
    await sink.close()
    assert len(await broker.stored()) == 600


@pytest.mark.parametrize("library", ["nats", "redis", "confluent_kafka"])
def test_a_missing_library_is_named_with_the_command_that_installs_it(library: str) -> None:
    module = library.removeprefix("confluent_")
    program = f"import sys; sys.modules[{library!r}] = None; import kept.outbox.sinks.{module}"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert f'pip install "kept[{module}]"' in ended.stderr.splitlines()[-1]
    assert "Misconfigured" in ended.stderr.splitlines()[-1]
