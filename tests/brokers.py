"""What tests of sinks share: events on their way."""

from __future__ import annotations

from uuid import uuid4

from kept.outbox.sink import Message


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
