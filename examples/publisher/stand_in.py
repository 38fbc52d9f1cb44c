"""A stand-in for Google Pub/Sub that can be stopped and started: as much of it as the example needs.

At least once, like Google's: whatever was not acknowledged when it stopped is delivered again, and so is every
twentieth message anyway. Everything is in memory.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import grpc
from google.protobuf import empty_pb2
from google.pubsub_v1 import types

AGAIN_EVERY = 20
PATIENCE = 0.5  # seconds a pull waits for messages


class Subscription:
    """What is still to be delivered, and what was delivered and not acknowledged, both in order."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.waiting: deque[types.PubsubMessage] = deque()
        self.given: dict[str, types.PubsubMessage] = {}

    def publish(self, message: types.PubsubMessage) -> None:
        again = int(message.message_id) % AGAIN_EVERY == 0
        self.waiting.extend([message] * (2 if again else 1))

    def give_back(self) -> None:
        self.waiting.extendleft(reversed(self.given.values()))
        self.given.clear()


class StandIn:
    """The server; *address* is for PUBSUB_EMULATOR_HOST."""

    def __init__(self) -> None:
        self._topics: set[str] = set()
        self._subscriptions: dict[str, Subscription] = {}
        self._changed = threading.Condition()
        self._message_ids, self._ack_ids = map(str, itertools.count(1)), map(str, itertools.count(1))
        self._address = "127.0.0.1:0"
        self.start()

    @property
    def address(self) -> str:
        return self._address

    def start(self) -> None:
        """Answer, from the second time on at the same address and with everything that was there."""
        for each in self._subscriptions.values():
            each.give_back()
        self._server = grpc.server(ThreadPoolExecutor(8, thread_name_prefix="pubsub"))
        self._server.add_generic_rpc_handlers(self._services())
        self._address = f"127.0.0.1:{self._server.add_insecure_port(self._address)}"
        self._server.start()

    def stop(self) -> None:
        """Break every connection and refuse new ones."""
        self._server.stop(None).wait()

    # --- what Pub/Sub does

    def _create_topic(self, request: types.Topic, context: grpc.ServicerContext) -> types.Topic:
        self._topics.add(request.name)
        return request

    def _get_topic(self, request: types.GetTopicRequest, context: grpc.ServicerContext) -> types.Topic:
        self._must_exist(request.topic, context)
        return types.Topic(name=request.topic)

    def _publish(self, request: types.PublishRequest, context: grpc.ServicerContext) -> types.PublishResponse:
        self._must_exist(request.topic, context)
        with self._changed:
            for message in request.messages:
                message.message_id = next(self._message_ids)
                for each in self._subscriptions.values():
                    if each.topic == request.topic:
                        each.publish(message)
            self._changed.notify_all()
        return types.PublishResponse(message_ids=[message.message_id for message in request.messages])

    def _subscribe(self, request: types.Subscription, context: grpc.ServicerContext) -> types.Subscription:
        self._subscriptions[request.name] = Subscription(request.topic)
        return request

    def _pull(self, request: types.PullRequest, context: grpc.ServicerContext) -> types.PullResponse:
        asked = self._subscriptions[request.subscription]
        with self._changed:
            self._changed.wait_for(lambda: asked.waiting, PATIENCE)
            count = min(request.max_messages, len(asked.waiting))
            taken = {next(self._ack_ids): asked.waiting.popleft() for _ in range(count)}
            asked.given |= taken
        received = [types.ReceivedMessage(ack_id=ack_id, message=message) for ack_id, message in taken.items()]
        return types.PullResponse(received_messages=received)

    def _acknowledge(self, request: types.AcknowledgeRequest, context: grpc.ServicerContext) -> empty_pb2.Empty:
        with self._changed:
            for ack_id in request.ack_ids:
                self._subscriptions[request.subscription].given.pop(ack_id, None)
        return empty_pb2.Empty()

    def _must_exist(self, topic: str, context: grpc.ServicerContext) -> None:
        if topic not in self._topics:
            context.abort(grpc.StatusCode.NOT_FOUND, f"there is no {topic}")

    # --- how gRPC finds it

    def _services(self) -> tuple[grpc.GenericRpcHandler, ...]:
        publisher = {
            "CreateTopic": _method(self._create_topic, types.Topic, types.Topic.serialize),
            "GetTopic": _method(self._get_topic, types.GetTopicRequest, types.Topic.serialize),
            "Publish": _method(self._publish, types.PublishRequest, types.PublishResponse.serialize),
        }
        subscriber = {
            "CreateSubscription": _method(self._subscribe, types.Subscription, types.Subscription.serialize),
            "Pull": _method(self._pull, types.PullRequest, types.PullResponse.serialize),
            "Acknowledge": _method(self._acknowledge, types.AcknowledgeRequest, empty_pb2.Empty.SerializeToString),
        }
        return (
            grpc.method_handlers_generic_handler("google.pubsub.v1.Publisher", publisher),
            grpc.method_handlers_generic_handler("google.pubsub.v1.Subscriber", subscriber),
        )


def _method(call: Callable[..., object], takes: type, write: Callable[..., bytes]) -> grpc.RpcMethodHandler:
    return grpc.unary_unary_rpc_method_handler(call, takes.deserialize, write)
