"""JetStream's own ways: duplicates, streams that are not there, are full or refuse one message, permissions."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import nats
import pytest

from kept.errors import Refused
from kept.outbox.sink import HELD, PUBLISHED, Rejected, Unreachable
from kept.outbox.sinks.nats import NatsSink
from servers import NatsServer, message, messages, running

TOPIC = NatsServer.topic


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    with running(NatsServer(tmp_path)) as server:
        yield server


async def create_stream(server: NatsServer, **config: object) -> None:
    client = await nats.connect(server.url)
    await client.jetstream().add_stream(name="EVENTS", subjects=["events.>"], **config)
    await client.close()


async def test_an_event_published_twice_is_stored_once(server: NatsServer) -> None:
    sink = server.sink()
    for _ in range(2):
        assert await sink.publish(messages(range(5), topic=TOPIC), ordered=False) == [PUBLISHED] * 5
    await sink.close()
    assert len(await server.stored()) == 5


async def test_a_created_stream_takes_all_topics_and_is_left_alone_when_it_exists(server: NatsServer) -> None:
    topics = {"order.*": "events.orders.{aggregate_id}", "order.paid": "billing.paid", "x": "billing.paid"}
    for sink in (server.sink(topics=topics), server.sink(topics={"y": "other.y"})):
        assert await sink.ping() is None
        await sink.close()
    client = await nats.connect(server.url)
    assert (await client.jetstream().stream_info("EVENTS")).config.subjects == ["events.>", "billing.paid"]
    await client.close()


async def test_without_a_stream_the_subject_and_the_way_out_are_named(server: NatsServer) -> None:
    sink = NatsSink(server.url)
    answer = await sink.send(message(1, topic=TOPIC))
    await sink.close()
    assert isinstance(answer, Unreachable)
    assert answer.code == "no_stream"
    assert f"'{TOPIC}'" in answer.message
    assert "nats stream add EVENTS --subjects 'events.>'" in answer.message


async def test_a_stream_of_another_name_is_not_the_one_that_was_asked_for(server: NatsServer) -> None:
    await create_stream(server)
    sink = NatsSink(server.url, stream="ORDERS")
    answer = await sink.send(message(1, topic=TOPIC))
    await sink.close()
    assert answer.code == "no_stream"


async def test_an_answer_of_something_that_is_no_stream_does_not_count(server: NatsServer) -> None:
    client = await nats.connect(server.url)

    async def answer(request: nats.aio.msg.Msg) -> None:
        await request.respond(b"thank you")

    await client.subscribe(TOPIC, cb=answer)
    await client.flush()
    sink = NatsSink(server.url)
    assert (await sink.send(message(1, topic=TOPIC))).code == "no_stream"
    await sink.close()
    await client.close()


async def test_a_message_that_the_stream_finds_too_large_holds_back_only_its_own_key(server: NatsServer) -> None:
    await create_stream(server, max_msg_size=1000)
    sink = server.sink()
    batch = [
        message(1, topic=TOPIC, key="a"),
        message(2, topic=TOPIC, key="b"),
        message(3, topic=TOPIC, key="a", body=b"x" * 2000),
        message(4, topic=TOPIC, key="a"),
        message(5, topic=TOPIC, key="b"),
    ]
    answers = await sink.publish(batch, ordered=True)
    await sink.close()
    assert answers[:2] + answers[3:] == [PUBLISHED, PUBLISHED, HELD, PUBLISHED]
    assert isinstance(answers[2], Rejected)
    assert (answers[2].code, answers[2].retryable) == ("message_too_large", False)
    assert [each.event_id for each in await server.stored()] == [batch[place].event_id for place in (0, 1, 4)]


async def test_what_the_server_would_break_the_connection_over_is_not_sent(tmp_path: Path) -> None:
    with running(NatsServer(tmp_path, "max_payload: 1000")) as server:
        sink = server.sink()
        batch = [
            message(1, topic=TOPIC),
            message(2, topic=TOPIC, body=b"x" * 2000),
            message(3, topic=TOPIC, body=b"x" * 999),  # with its headers, too large
            message(4, topic="events.two words"),
            message(5, topic=TOPIC),
        ]
        answers = await sink.publish(batch, ordered=False)
        await sink.close()
        assert [getattr(answer, "code", None) for answer in answers] == [
            None,
            "message_too_large",
            "message_too_large",
            "bad_topic",
            None,
        ]
        assert not any(answer.retryable for answer in answers[1:4])
        assert len(await server.stored()) == 2


async def test_the_largest_message_that_fits_is_published(tmp_path: Path) -> None:
    with running(NatsServer(tmp_path, "max_payload: 1000")) as server:
        sink = server.sink()
        sizes = range(500, 1000)
        batch = [message(size, topic=TOPIC, body=b"x" * size) for size in sizes]
        answers = await sink.publish(batch, ordered=False)
        await sink.close()
        fits = answers.count(PUBLISHED)
        assert answers == [PUBLISHED] * fits + answers[fits:]
        assert 0 < fits < len(batch)
        assert len(await server.stored()) == fits
        assert "has 1001 bytes; the broker takes 1000" in answers[fits].message


async def test_a_full_stream_is_no_message_s_fault(server: NatsServer) -> None:
    await create_stream(server, max_msgs=2, discard=nats.js.api.DiscardPolicy.NEW)
    sink = server.sink()
    answers = await sink.publish(messages(range(3), topic=TOPIC, keys=1), ordered=True)
    await sink.close()
    assert answers[:2] == [PUBLISHED] * 2
    assert isinstance(answers[2], Unreachable)
    assert answers[2].code == "broker_full"


USERS = """
authorization { users: [
  { user: "kept", password: "s3cret" }
  { user: "half", password: "s3cret", permissions: { publish: ["events.>", "$JS.API.>"], subscribe: "_INBOX.>" } }
] }
"""


async def test_wrong_credentials_are_told_without_showing_them(tmp_path: Path) -> None:
    with running(NatsServer(tmp_path, USERS)) as server:
        for userinfo in ("kept:wr0ng@", "wr0ng@", ""):
            sink = NatsSink(server.url.replace("//", f"//{userinfo}"))
            for unwell in (await sink.ping(), await sink.send(message(1, topic=TOPIC))):
                assert isinstance(unwell, Unreachable)
                assert unwell.code == "unauthorized"
                assert f"127.0.0.1:{server.port}" in unwell.message
                assert "wr0ng" not in unwell.message
            await sink.close()


async def test_a_subject_that_we_may_not_publish_to_is_named_at_once(tmp_path: Path) -> None:
    with running(NatsServer(tmp_path, USERS)) as server:
        url = server.url.replace("//", "//half:s3cret@")
        sink = NatsSink(url, stream="EVENTS", create_stream=True)
        started = time.monotonic()
        answers = await sink.publish([message(1, topic=TOPIC), message(2, topic="Secret.X")], ordered=False)
        assert time.monotonic() - started < 5
        await sink.close()
        assert answers[0] == PUBLISHED
        assert isinstance(answers[1], Unreachable)
        assert answers[1].code == "forbidden"
        assert "secret.x" in answers[1].message.lower()


@pytest.mark.parametrize("topic", ["", "a b", "a..b", ".a", "a.", "a.*", "a.>", "a\tb", "é" * 501, "$JS.x", "{type} x"])
def test_what_is_no_subject_is_refused(topic: str) -> None:
    with pytest.raises(Refused) as refused:
        NatsSink(topic=topic)
    assert refused.value.field == "topic"
    with pytest.raises(Refused):
        NatsSink(topics={"invoice.*": topic})


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1", "http://x", "nats://", "nats://h:port", "nats://[::1", "nats://a,http://b"]
)
def test_what_is_no_url_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(Refused, match="nats://user:password@host:4222") as refused:
        NatsSink(url)
    assert refused.value.field == "url"


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"create_stream": True}, "stream"),
        ({"stream": "a.b"}, "stream"),
        ({"stream": ""}, "stream"),
        ({"stream": "E", "create_stream": True, "topic": "{type}"}, "topic"),
        ({"timeout": "0s"}, "timeout"),
        ({"timeout": "soon"}, "timeout"),
    ],
)
def test_settings_that_cannot_work_are_refused(options: dict[str, object], field: str) -> None:
    with pytest.raises(Refused) as refused:
        NatsSink(**options)
    assert refused.value.field == field
