"""What tests of sinks share: events on their way."""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

from kept.outbox.sink import Answer, Message, Sink, Unreachable


def message(
    topic: str, *, body: bytes = b"{}", key: str | None = None, id: str | None = None, **headers: str
) -> Message:
    """A message to *topic* as the outbox makes them."""
    id = id or str(uuid4())
    return Message(
        event_id=id,
        type="invoice.created",
        topic=topic,
        body=body,
        headers={"event_id": id, "event_type": "invoice.created", **headers},
        key=key,
    )


def kinds(answers: list[object]) -> list[str]:
    """Answers by their names, with their codes."""
    return [":".join([type(answer).__name__, *filter(None, [getattr(answer, "code", "")])]) for answer in answers]


async def until_away(
    sink: Sink, make: Callable[[int], Message], *, ordered: bool
) -> tuple[list[Message], list[Answer]]:
    """Publish batch after batch until the broker is felt to be gone: what was sent, and what became of each."""
    sent: list[Message] = []
    answers: list[Answer] = []
    while not any(isinstance(answer, Unreachable) for answer in answers):
        batch = [make(len(sent) + number) for number in range(500)]
        sent += batch
        answers += await sink.publish(batch, ordered=ordered)
    return sent, answers
