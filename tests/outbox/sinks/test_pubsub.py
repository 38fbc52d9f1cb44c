"""Google Pub/Sub: against a small fake, and against Google's emulator where PUBSUB_EMULATOR_JAR names one."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import grpc
import pytest
from google.auth.credentials import Credentials
from google.auth.exceptions import RefreshError
from google.pubsub_v1 import PublisherClient, PubsubMessage, SubscriberClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

from brokers import kinds, message, until_away
from kept.errors import Refused
from kept.outbox.sink import PUBLISHED, Answer
from kept.outbox.sinks.pubsub import PubSubSink
from support import aeventually, eventually, freeze

FAKE = Path(__file__).parents[2] / "pubsub_fake.py"
JAR = os.environ.get("PUBSUB_EMULATOR_JAR")
SERVERS = ["fake", "emulator"] if JAR else ["fake"]
PROJECT = "projects/kept-tests"


class Server:
    """The fake or the emulator, with a client that makes topics and reads them."""

    def __init__(self, kind: str, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        port = str(self._port)
        self.address = f"127.0.0.1:{port}"
        self._command = [sys.executable, FAKE, port, folder / "log"]
        if kind == "emulator":
            self._command = ["java", "-Xmx256m", "-jar", JAR, "--host=127.0.0.1", f"--port={port}"]
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        eventually(self._answers, 30, what="Pub/Sub")
        self._channel = grpc.insecure_channel(self.address)
        self._publisher = PublisherClient(transport=PublisherGrpcTransport(channel=self._channel))
        self._subscriber = SubscriberClient(transport=SubscriberGrpcTransport(channel=self._channel))

    def kill(self) -> None:
        self._channel.close()
        self._process.kill()
        self._process.wait()

    def freeze(self) -> None:
        freeze(self._process.pid)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def make_topic(self) -> str:
        name = f"t-{uuid4().hex}"
        self._publisher.create_topic(name=f"{PROJECT}/topics/{name}")
        self._subscriber.create_subscription(
            {
                "name": f"{PROJECT}/subscriptions/{name}",
                "topic": f"{PROJECT}/topics/{name}",
                "enable_message_ordering": True,
            }
        )
        return name

    def taken(self, topic: str, *, least: int = 0) -> list[PubsubMessage]:
        """What was published to *topic* and not taken before: at least this many, or (of the fake) all of it."""
        found: list[PubsubMessage] = []
        subscription = f"{PROJECT}/subscriptions/{topic}"

        def pull() -> bool:
            told = self._subscriber.pull(subscription=subscription, max_messages=1000)
            found.extend(each.message for each in told.received_messages)
            if told.received_messages:
                ids = [each.ack_id for each in told.received_messages]
                self._subscriber.acknowledge(subscription=subscription, ack_ids=ids)
            return len(found) >= least if least else not told.received_messages

        eventually(pull, what=f"{least} messages of {topic}")
        return found

    def _answers(self) -> bool:
        assert self._process.poll() is None
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(request.param, tmp_path_factory.mktemp("pubsub"))
    yield server
    server.kill()


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Only the fake: it fails as it is told, and what it acknowledged outlives a kill."""
    server = Server("fake", tmp_path_factory.mktemp("pubsub-fake"))
    yield server
    server.kill()


def to(server: Server, topic: str, **options: object) -> PubSubSink:
    return PubSubSink(PROJECT, topic=topic, emulator=server.address, **options)


def ids(messages: list[PubsubMessage]) -> list[str]:
    return [each.attributes["event_id"] for each in messages]


# --- what arrives


async def test_an_event_arrives_with_its_attributes_and_its_ordering_key(server: Server) -> None:
    topic = server.make_topic()
    sink = to(server, topic)
    assert await sink.ping() is None
    sent = message(topic, body='{"n": "ü"}'.encode(), key="invoice/7", aggregate_id="Müller", traceparent="00-ab-cd-01")
    assert await sink.publish([sent], ordered=True) == [PUBLISHED]
    await sink.close()
    (got,) = server.taken(topic, least=1)
    assert (got.data, dict(got.attributes), got.ordering_key) == (sent.body, sent.headers, "invoice/7")


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("ordering", [True, False])
async def test_a_batch_arrives_whole_and_each_aggregate_in_order(server: Server, ordered: bool, ordering: bool) -> None:
    topic = server.make_topic()
    sink = to(server, topic, ordering=ordering)
    sent = [message(topic, key=f"k{n % 7}" if n % 10 else None, body=b"%d" % n) for n in range(1500)]
    assert await sink.publish(sent, ordered=ordered) == [PUBLISHED] * 1500
    await sink.close()
    got = server.taken(topic, least=1500)
    assert sorted(ids(got)) == sorted(each.event_id for each in sent)
    assert {each.ordering_key for each in got} == ({"", *(f"k{n}" for n in range(7))} if ordering else {""})
    if ordering:
        for key in (f"k{n}" for n in range(7)):
            assert ids([each for each in got if each.ordering_key == key]) == [m.event_id for m in sent if m.key == key]


async def test_topics_follow_the_type(server: Server) -> None:
    first, second = server.make_topic(), server.make_topic()
    sink = to(server, first, topics={"invoice.*": second})
    topics = [sink.topics.of(type, None, None) for type in ("order.placed", "invoice.created")]
    sent = [message(topic, key="k") for topic in topics for _ in range(3)]
    assert await sink.publish(sent, ordered=True) == [PUBLISHED] * 6
    await sink.close()
    assert ids(server.taken(first, least=3)) == [each.event_id for each in sent[:3]]
    assert ids(server.taken(second, least=3)) == [each.event_id for each in sent[3:]]


def test_a_sink_may_be_used_in_one_loop_after_another(server: Server) -> None:
    topic = server.make_topic()
    sink = to(server, topic)

    async def once() -> list[Answer]:
        try:
            return await sink.publish([message(topic) for _ in range(3)], ordered=False)
        finally:
            await sink.close()

    assert asyncio.run(once()) == asyncio.run(once()) == [PUBLISHED] * 3


# --- what does not


async def test_a_missing_topic_stops_a_sink_that_has_no_other(server: Server) -> None:
    sink = to(server, "not-there")
    answers = await sink.publish([message("not-there") for _ in range(3)], ordered=False)
    assert kinds([*answers, await sink.ping()]) == ["Unreachable:unknown_topic"] * 4
    assert "'not-there'" in answers[0].message
    await sink.close()


async def test_a_missing_topic_among_several_costs_its_own_events_only(server: Server) -> None:
    topic = server.make_topic()
    sink = to(server, "{type}")
    answers = await sink.publish([message(topic), message("not-there"), message("x"), message(topic)], ordered=False)
    assert kinds(answers) == ["Published", "Rejected:unknown_topic", "Rejected:bad_topic", "Published"]
    assert answers[1].retryable
    assert not answers[2].retryable
    assert await sink.ping() is None
    await sink.close()


async def test_an_event_that_is_too_large_is_refused_for_good_and_costs_the_others_nothing(server: Server) -> None:
    topic = server.make_topic()
    sink = to(server, topic)
    sizes = [10, 9_600_000, 6_000_000, 6_000_000, 20]
    sent = [message(topic, body=b"x" * size) for size in sizes]
    answers = await sink.publish(sent, ordered=False)
    assert kinds(answers) == ["Published", "Rejected:message_too_large", "Published", "Published", "Published"]
    assert not answers[1].retryable
    await sink.close()


@pytest.mark.parametrize("ordering", [True, False])
async def test_in_order_an_event_that_fails_holds_those_of_its_key_and_no_others(fake: Server, ordering: bool) -> None:
    topic = fake.make_topic()
    sink = to(fake, topic, ordering=ordering)
    keys = ["a", "b", "a", "b", "a", "b"]
    sent = [message(topic, key=key, **({"bad": "1"} if place == 2 else {})) for place, key in enumerate(keys)]
    answers = await sink.publish(sent, ordered=True)
    assert kinds(answers) == ["Published", "Published", "Rejected:refused_by_broker", "Published", "Held", "Published"]
    assert not answers[2].retryable
    sent.append(message(topic, key="a", body=b"x" * 9_600_000))
    sent.append(message(topic, key="a"))
    answers = await sink.publish(sent[-3:], ordered=True)
    assert kinds(answers) == ["Published", "Rejected:message_too_large", "Held"]
    await sink.close()


async def test_one_bad_event_of_a_request_is_found(fake: Server) -> None:
    topic = fake.make_topic()
    sink = to(fake, topic)
    sent = [message(topic, **({"bad": "1"} if n == 5 else {})) for n in range(10)]
    answers = await sink.publish(sent, ordered=False)
    await sink.close()
    assert kinds(answers) == ["Published"] * 5 + ["Rejected:refused_by_broker"] + ["Published"] * 4
    assert sorted(ids(fake.taken(topic))) == sorted(each.event_id for n, each in enumerate(sent) if n != 5)


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        ("UNAVAILABLE", "unreachable"),
        ("DEADLINE_EXCEEDED", "timeout"),
        ("PERMISSION_DENIED", "forbidden"),
        ("UNAUTHENTICATED", "unauthorized"),
        ("RESOURCE_EXHAUSTED", "overrun"),
        ("INTERNAL", "unreachable"),
        ("UNKNOWN", "unreachable"),
    ],
)
async def test_a_pubsub_that_refuses_us_is_unreachable(fake: Server, code: str, answer: str) -> None:
    sink = to(fake, f"fails-{code}")
    assert kinds(await sink.publish([message(f"fails-{code}")] * 2, ordered=False)) == [f"Unreachable:{answer}"] * 2
    ping = await sink.ping()
    assert ping is None if code == "PERMISSION_DENIED" else kinds([ping]) == [f"Unreachable:{answer}"]
    await sink.close()


async def test_an_ordering_key_is_not_blocked_by_a_failure(fake: Server) -> None:
    topic = fake.make_topic()
    sink = to(fake, topic)
    assert kinds([await sink.send(message(topic, key="k", bad="1"))]) == ["Rejected:refused_by_broker"]
    assert await sink.publish([message(topic, key="k")], ordered=True) == [PUBLISHED]
    await sink.close()


async def test_a_frozen_server_is_unreachable_in_time(server: Server) -> None:
    topic = server.make_topic()
    sink = to(server, topic, timeout="1s")
    assert await sink.send(message(topic)) == PUBLISHED
    server.freeze()
    try:
        begun = time.monotonic()
        answers = await sink.publish([message(topic, key=f"k{n}") for n in range(50)], ordered=True)
        assert set(kinds([*answers, await sink.ping()])) == {"Unreachable:timeout"}
        assert time.monotonic() - begun < 6
    finally:
        server.thaw()
    assert await aeventually(lambda: fine(sink))
    assert await sink.send(message(topic)) == PUBLISHED
    await sink.close()


async def test_what_a_killed_server_acknowledged_is_there_when_it_is_back(fake: Server) -> None:
    topic = fake.make_topic()
    sink = to(fake, topic)
    told = asyncio.create_task(until_away(sink, lambda n: message(topic, key=f"k{n}"), ordered=True))
    await asyncio.to_thread(fake.taken, topic, least=501)  # one of the second batch, so the first is acknowledged
    fake.kill()
    sent, answers = await told
    assert set(kinds(answers)) == {"Published", "Unreachable:unreachable"}
    fake.start()
    assert await aeventually(lambda: fine(sink)), "the same sink, a new connection"
    assert await sink.send(message(topic)) == PUBLISHED
    await sink.close()
    published = {each.event_id for each, answer in zip(sent, answers, strict=True) if answer == PUBLISHED}
    assert published <= set(ids(fake.taken(topic))), "a fake that was restarted tells all of it again"


async def test_cancellation_passes_and_the_sink_goes_on(fake: Server) -> None:
    topic = fake.make_topic()
    sink = to(fake, topic)
    sending = asyncio.create_task(sink.send(message(topic)))
    await asyncio.sleep(0)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    assert await sink.send(message(topic)) == PUBLISHED
    await sink.close()


async def fine(sink: PubSubSink) -> bool:
    return await sink.ping() is None


# --- without a server


class Expired(Credentials):
    """Credentials that Google would not renew."""

    def refresh(self, request: object) -> None:
        raise RefreshError("the key was revoked; password=hunter2")


async def test_credentials_that_cannot_be_used_are_told_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PUBSUB_EMULATOR_HOST", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        where = f"127.0.0.1:{nobody.getsockname()[1]}"
        sink = PubSubSink("kept-tests", topic="events", credentials=Expired(), endpoint=where, timeout="1s")
        answer = await sink.send(message("events"))
        await sink.close()
    assert kinds([answer])[0].startswith("Unreachable:")
    assert "hunter2" not in str(answer)


async def test_missing_credentials_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PUBSUB_EMULATOR_HOST", raising=False)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    sink = PubSubSink("kept-tests", topic="events")
    assert kinds([await sink.send(message("events")), await sink.ping()]) == ["Unreachable:unauthorized"] * 2
    await sink.close()


async def test_a_server_that_is_not_there_is_unreachable() -> None:
    sink = PubSubSink(PROJECT, topic="events", emulator="127.0.0.1:1", timeout="5s")
    answers = [await sink.ping(), *await sink.publish([message("events")] * 3, ordered=False)]
    await sink.close()
    assert kinds(answers) == ["Unreachable:unreachable"] * 4


@pytest.mark.parametrize(
    ("project", "options"),
    [
        ("", {}),
        ("a b", {}),
        ("projects/", {}),
        ("p/topics/t", {}),
        ("kept-tests", {"topic": "ab"}),
        ("kept-tests", {"topic": "1events"}),
        ("kept-tests", {"topic": "google-events"}),
        ("kept-tests", {"topic": "events/all"}),
        ("kept-tests", {"topic": "e" * 256}),
        ("kept-tests", {"topic": "evénts"}),
        ("kept-tests", {"topic": "events\n"}),
        ("kept-tests", {"topics": {"invoice.*": "{id}"}}),
        ("kept-tests", {"timeout": "soon"}),
    ],
)
def test_what_pubsub_would_not_take_is_refused(project: str, options: dict[str, object]) -> None:
    with pytest.raises(Refused):
        PubSubSink(project, **{"topic": "events", **options})


def test_without_the_library_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['google.pubsub_v1'] = None; import kept.outbox.sinks.pubsub"
    told = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert 'Misconfigured: google-cloud-pubsub is not installed; this sink needs it: pip install "kept[pubsub]"' in (
        told.stderr
    )
