"""Redis Streams' own ways: trimming, keys of another type, servers that take nothing for now."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from kept.errors import Refused
from kept.outbox.sink import HELD, PUBLISHED, Rejected, Unreachable
from kept.outbox.sinks.redis import RedisStreamSink
from servers import Valkey, message, messages, running
from support import aeventually


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Valkey]:
    with running(Valkey(tmp_path)) as server:
        yield server


async def test_an_event_published_twice_is_two_entries(server: Valkey) -> None:
    sink = server.sink()
    for _ in range(2):
        assert await sink.send(message(1, topic="events")) == PUBLISHED
    await sink.close()
    assert len(await server.stored()) == 2


async def test_a_stream_is_trimmed_to_about_its_length(server: Valkey) -> None:
    sink = server.sink(maxlen=100)
    for start in range(0, 2000, 500):
        assert set(await sink.publish(messages(range(start, start + 500), topic="events"), ordered=False)) == {
            PUBLISHED
        }
    await sink.close()
    assert 100 <= len(await server.stored()) < 500


async def test_a_key_that_is_no_stream_holds_back_only_events_of_that_topic_and_aggregate(server: Valkey) -> None:
    await server.do("SET", "wrong", "a string")
    sink = server.sink()
    batch = [
        message(1, topic="events", key="a"),
        message(2, topic="wrong", key="a"),
        message(3, topic="events", key="a"),
        message(4, topic="events", key="b"),
    ]
    answers = await sink.publish(batch, ordered=True)
    await sink.close()
    assert [answers[0], answers[2], answers[3]] == [PUBLISHED, HELD, PUBLISHED]
    assert isinstance(answers[1], Rejected)
    assert answers[1].code == "wrong_type"
    assert "'wrong'" in answers[1].message
    assert {each.event_id for each in await server.stored()} == {batch[0].event_id, batch[3].event_id}


@pytest.mark.parametrize(
    ("trouble", "code"),
    [
        (["CONFIG", "SET", "maxmemory", "1"], "broker_full"),
        (["REPLICAOF", "127.0.0.1", "1"], "read_only"),
        (["CONFIG", "SET", "min-replicas-to-write", "1"], "no_replicas"),
        (["ACL", "SETUSER", "default", "-xadd"], "forbidden"),
    ],
)
async def test_a_server_that_takes_nothing_is_no_message_s_fault(server: Valkey, trouble: list[str], code: str) -> None:
    sink = server.sink()
    assert await sink.send(message(1, topic="events")) == PUBLISHED
    await server.do(*trouble)
    answers = await sink.publish(messages(range(2, 5), topic="events"), ordered=False)
    await sink.close()
    assert {type(answer) for answer in answers} == {Unreachable}
    assert {answer.code for answer in answers} == {code}


async def test_the_client_does_not_send_a_lost_pipeline_again_by_itself(server: Valkey) -> None:
    sink = server.sink()
    assert await sink.ping() is None
    async with Redis.from_url(server.url) as other:
        await other.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
        publishing = asyncio.create_task(sink.publish(messages(range(3), topic="events"), ordered=False))
        await aeventually(lambda: is_any_blocked(other))
        await other.execute_command("CLIENT", "KILL", "TYPE", "normal")
        answers = await publishing
        await other.execute_command("CLIENT", "UNPAUSE")
        assert {answer.code for answer in answers} == {"unreachable"}
        assert await other.xlen("events") == 0
    await sink.close()


async def is_any_blocked(client: Redis) -> bool:
    return any("b" in each["flags"] for each in await client.client_list())


async def test_a_value_that_the_server_would_break_the_connection_over_is_not_sent(server: Valkey) -> None:
    await server.do("CONFIG", "SET", "proto-max-bulk-len", str(1024**2))
    sink = server.sink()
    batch = [
        message(1, topic="events"),
        message(2, topic="events", body=b"x" * (1024**2 + 1)),
        message(3, topic="events", body=b"x" * 1024**2),
    ]
    answers = await sink.publish(batch, ordered=False)
    await sink.close()
    assert [answers[0], answers[2]] == [PUBLISHED] * 2
    assert isinstance(answers[1], Rejected)
    assert (answers[1].code, answers[1].retryable) == ("message_too_large", False)


async def test_a_server_whose_settings_are_not_ours_to_read_is_published_to(server: Valkey) -> None:
    await server.do("ACL", "SETUSER", "kept", "on", ">s3cret", "~events", "+xadd", "+ping")
    sink = RedisStreamSink(server.url.replace("//", "//kept:s3cret@"))
    assert await sink.ping() is None
    assert await sink.send(message(1, topic="events")) == PUBLISHED
    assert (await sink.send(message(1, topic="other"))).code == "forbidden"
    await sink.close()


async def test_wrong_credentials_are_told_without_showing_them(tmp_path: Path) -> None:
    with running(Valkey(tmp_path, "--requirepass", "s3cret")) as server:
        for userinfo in (":wr0ng@", "kept:wr0ng@", ""):
            sink = RedisStreamSink(server.url.replace("//", f"//{userinfo}"))
            for unwell in (await sink.ping(), await sink.send(message(1, topic="events"))):
                assert isinstance(unwell, Unreachable)
                assert unwell.code == "unauthorized"
                assert f"127.0.0.1:{server.port}" in unwell.message
                assert "wr0ng" not in unwell.message
            await sink.close()


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:6379", "http://x", "redis://", "redis://h:port", "redis://[::1", "unix://"]
)
def test_what_is_no_url_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(Refused, match="redis://user:password@host:6379/0") as refused:
        RedisStreamSink(url)
    assert refused.value.field == "url"


@pytest.mark.parametrize(
    ("options", "field"), [({"topic": ""}, "topic"), ({"topic": "{id}"}, "topic"), ({"maxlen": 0}, "maxlen")]
)
def test_settings_that_cannot_work_are_refused(options: dict[str, object], field: str) -> None:
    with pytest.raises(Refused) as refused:
        RedisStreamSink(**options)
    assert refused.value.field == field
