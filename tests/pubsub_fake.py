"""A small Pub/Sub over gRPC, as a process that can be killed: ``python pubsub_fake.py PORT FILE``.

It keeps what it acknowledges in FILE. Like Google's, it takes all messages of a request or none, and refuses a request
with several ordering keys. A topic called ``fails-CODE`` exists and fails so; an attribute ``bad`` is refused.
"""

from __future__ import annotations

import base64
import itertools
import json
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
from google.protobuf import empty_pb2
from google.pubsub_v1 import types

MOST_BYTES = 10_000_000


class Fake:
    """Topics, subscriptions and everything ever published, in order."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._topics: set[str] = set()
        self._log: list[tuple[str, types.PubsubMessage]] = []
        self._subscriptions: dict[str, tuple[str, int]] = {}  # topic, and how far it has been read
        self._ids = itertools.count(1)
        for line in file.read_text().splitlines() if file.exists() else []:
            self._replay(*json.loads(line))

    def _replay(self, what: str, name: str, value: str) -> None:
        match what:
            case "topic":
                self._topics.add(name)
            case "message":
                self._log.append((name, types.PubsubMessage.deserialize(base64.b64decode(value))))
            case "subscription":
                self._subscriptions[name] = (value, 0)

    def _keep(self, *facts: tuple[str, str, str]) -> None:
        with self._file.open("a") as file:
            file.writelines(json.dumps(fact) + "\n" for fact in facts)
        for fact in facts:
            self._replay(*fact)

    def create_topic(self, request: types.Topic, context: grpc.ServicerContext) -> types.Topic:
        with self._lock:
            self._keep(("topic", request.name, ""))
        return request

    def get_topic(self, request: types.GetTopicRequest, context: grpc.ServicerContext) -> types.Topic:
        self._must_exist(request.topic, context)
        return types.Topic(name=request.topic)

    def publish(self, request: types.PublishRequest, context: grpc.ServicerContext) -> types.PublishResponse:
        self._must_exist(request.topic, context)
        if len({each.ordering_key for each in request.messages}) > 1 or not request.messages:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "all messages must have the same ordering key")
        if any("bad" in each.attributes for each in request.messages):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "an attribute is bad")
        with self._lock:
            for each in request.messages:
                each.message_id = str(next(self._ids))
            kept = [base64.b64encode(types.PubsubMessage.serialize(each)).decode() for each in request.messages]
            self._keep(*(("message", request.topic, each) for each in kept))
        return types.PublishResponse(message_ids=[each.message_id for each in request.messages])

    def create_subscription(self, request: types.Subscription, context: grpc.ServicerContext) -> types.Subscription:
        with self._lock:
            self._keep(("subscription", request.name, request.topic))
        return request

    def pull(self, request: types.PullRequest, context: grpc.ServicerContext) -> types.PullResponse:
        with self._lock:
            topic, read = self._subscriptions[request.subscription]
            here = [message for name, message in self._log if name == topic]
            given = here[read : read + request.max_messages]
            self._subscriptions[request.subscription] = (topic, read + len(given))
        return types.PullResponse(
            received_messages=[types.ReceivedMessage(ack_id=each.message_id, message=each) for each in given]
        )

    def acknowledge(self, request: types.AcknowledgeRequest, context: grpc.ServicerContext) -> empty_pb2.Empty:
        return empty_pb2.Empty()

    def _must_exist(self, topic: str, context: grpc.ServicerContext) -> None:
        _, _, code = topic.rpartition("/fails-")
        if code != topic and code:
            context.abort(grpc.StatusCode[code.upper()], "as the topic says")
        if topic not in self._topics:
            context.abort(grpc.StatusCode.NOT_FOUND, f"Topic not found: {topic}")


def serve(port: int, file: Path) -> None:
    """Answer until killed."""
    fake = Fake(file)
    server = grpc.server(ThreadPoolExecutor(8), options=[("grpc.max_receive_message_length", 2 * MOST_BYTES)])
    publisher = {
        "CreateTopic": method(fake.create_topic, types.Topic, types.Topic),
        "GetTopic": method(fake.get_topic, types.GetTopicRequest, types.Topic),
        "Publish": method(fake.publish, types.PublishRequest, types.PublishResponse),
    }
    subscriber = {
        "CreateSubscription": method(fake.create_subscription, types.Subscription, types.Subscription),
        "Pull": method(fake.pull, types.PullRequest, types.PullResponse),
        "Acknowledge": method(fake.acknowledge, types.AcknowledgeRequest, None),
    }
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler("google.pubsub.v1.Publisher", publisher),
            grpc.method_handlers_generic_handler("google.pubsub.v1.Subscriber", subscriber),
        )
    )
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    server.wait_for_termination()


def method(call: Callable[..., object], takes: type, gives: type | None) -> grpc.RpcMethodHandler:
    write = gives.serialize if gives is not None else lambda answer: answer.SerializeToString()
    return grpc.unary_unary_rpc_method_handler(call, request_deserializer=takes.deserialize, response_serializer=write)


if __name__ == "__main__":
    serve(int(sys.argv[1]), Path(sys.argv[2]))
