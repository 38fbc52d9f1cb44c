"""A task as it was declared: its handler and how it is to be run."""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Any, Literal, get_type_hints

from kept.errors import Refused
from kept.jobs.context import Context
from kept.jobs.model import Lane
from kept.jobs.payload import Signature
from kept.jobs.retry import Retry

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # in the repr of a default: another in every process


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """What ``@app.task`` wrote down."""

    name: str
    aliases: tuple[str, ...]
    queue: str
    retry: Retry
    timeout: float  # seconds
    priority: int
    handler: Callable[..., Any]
    is_async: bool
    takes_context: bool
    signature: Signature
    ordered: Literal["no", "block", "step_aside"] = "no"  # what a job that failed and comes back does to its order key
    batch: int = 0  # above 0: the handler is given so many jobs at once, at most, and answers for each
    concurrency: int = 1  # calls with a batch at a time, in one worker

    def lane(self) -> Lane:
        """The lane this task is declared with; its id is the database's to give."""
        return Lane(
            id=0,
            queue=self.queue,
            task=self.name,
            max_attempts=self.retry.max_attempts,
            priority=self.priority,
            retry_base=self.retry.delays[0],
            retry_max=max(self.retry.max_delay, self.retry.delays[0]),
            ordered=self.ordered != "no",
        )

    def digest(self) -> str:
        """Differs when two workers would treat the same job differently."""
        retry = [sorted(v) if isinstance(v, frozenset) else v for v in astuple(self.retry)]
        order = (self.ordered, self.batch, self.concurrency)
        facts = (self.queue, retry, self.timeout, self.priority, order, str(inspect.signature(self.handler)))
        return hashlib.sha256(_ADDRESS.sub("", repr(facts)).encode()).hexdigest()[:12]


def wants_context(handler: Callable[..., object], task: str) -> bool:
    """Whether the handler takes the Context: its first parameter, by annotation, or by the name ``ctx``."""
    parameters = list(inspect.signature(handler).parameters.values())
    try:
        hints = get_type_hints(handler)
    except (NameError, TypeError):
        hints = {}
    marked = [
        hints.get(p.name) is Context or (p.annotation is p.empty and p.name == "ctx" and index == 0)
        for index, p in enumerate(parameters)
    ]
    if any(marked[1:]):
        raise Refused(f"task {task!r}: the Context must be the first parameter")
    return any(marked)
