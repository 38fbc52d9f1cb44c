"""Declared tasks as callers see them: enqueue with checked arguments, bind for bulk, call to run right here."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import UTC, datetime
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, cast, overload
from uuid import UUID

from msgspec import Struct, structs

from kept.durations import Duration, duration, moment
from kept.errors import Refused
from kept.jobs.context import Context, Terms
from kept.jobs.declaration import Declaration
from kept.jobs.door import Request
from kept.jobs.handle import Job
from kept.jobs.model import MOST_PRIORITY, Claimed
from kept.jobs.payload import check_key, check_name, check_order_key, encode_headers

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

MOST_QUEUE = 100
MOST_TASK = 200


class Enqueues(Protocol):
    """Who writes the jobs: the App."""

    @property
    def payload_limit(self) -> int: ...
    @property
    def unique_for(self) -> float: ...

    def enqueue_request(self, request: Request, tx: object | None) -> Job[Any]: ...
    async def aenqueue_request(self, request: Request, tx: object | None) -> Job[Any]: ...


class Options(Struct, frozen=True):
    """What ``using`` was given besides the transaction, checked."""

    delay: float = 0.0
    due_at: datetime | None = None
    priority: int | None = None
    key: str | None = None
    unique_for: float | None = None
    queue: str | None = None
    headers: str | None = None
    order_key: str | None = None


PLAIN = Options()


class Call(Struct, Generic[R_co], frozen=True):
    """A task with its arguments and options, checked: for ``enqueue_many``."""

    request: Request
    tx: object | None = None


class Enqueuer(Generic[P, R]):
    """A task and how its next job is to be written."""

    def __init__(
        self, app: Enqueues, declaration: Declaration, options: Options = PLAIN, tx: object | None = None
    ) -> None:
        self._app = app
        self._declaration = declaration
        self._options = options
        self._tx = tx

    @property
    def name(self) -> str:
        """The task's name."""
        return self._declaration.name

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Write a job; with ``using(tx=…)`` it exists if and only if that transaction commits."""
        return self._app.enqueue_request(self._request(args, kwargs), self._tx)

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """:meth:`enqueue` for async code."""
        return await self._app.aenqueue_request(self._request(args, kwargs), self._tx)

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """The call without making it."""
        return Call(self._request(args, kwargs), self._tx)

    def using(
        self,
        *,
        tx: object | None = None,
        delay: Duration | None = None,
        due_at: datetime | None = None,
        priority: int | None = None,
        key: str | None = None,
        unique_for: Duration | None = None,
        queue: str | None = None,
        headers: Mapping[str, str] | None = None,
        order_key: str | None = None,
    ) -> Enqueuer[P, R]:
        """The same task with options for its next job; what is left out stays as it was."""
        if delay is not None and due_at is not None:
            raise Refused("delay and due_at exclude each other", field="delay")
        given: dict[str, Any] = {}
        if delay is not None:
            given["delay"] = duration(delay, field="delay").total_seconds()
        if due_at is not None:
            given["due_at"] = moment(due_at, field="due_at")
        if priority is not None:
            given["priority"] = check_priority(priority)
        if key is not None:
            given["key"] = check_key(key)
        if unique_for is not None:
            given["unique_for"] = duration(unique_for, field="unique_for").total_seconds()
        if queue is not None:
            given["queue"] = check_name(queue, what="queue", most=MOST_QUEUE)
        if headers is not None:
            given["headers"] = encode_headers(headers)
        if order_key is not None:
            given["order_key"] = self._check_order_key(order_key)
        options = structs.replace(self._options, **given) if given else self._options
        return Enqueuer(self._app, self._declaration, options, self._tx if tx is None else tx)

    def _check_order_key(self, order_key: object) -> str:
        if self._declaration.ordered == "no":
            raise Refused(f"order_key: the task {self.name!r} is not declared as ordered", field="order_key")
        return check_order_key(order_key)

    def _request(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Request:
        options = self._options
        declaration = self._declaration
        payload = declaration.signature.encode(args, kwargs, limit=self._app.payload_limit)
        if options is PLAIN:
            return Request(declaration.queue, declaration.name, payload)
        return Request(
            options.queue or declaration.queue,
            declaration.name,
            payload,
            priority=options.priority,
            due_at=options.due_at,
            delay=options.delay,
            key=options.key,
            unique_for=self._app.unique_for if options.unique_for is None else options.unique_for,
            headers=options.headers,
            order_key=options.order_key,
        )

    def _call_here(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        declaration = self._declaration
        context = (_local_context(declaration),) if declaration.takes_context else ()
        return declaration.handler(*context, *args, **kwargs)


class AsyncTask(Enqueuer[P, R]):
    """A task whose handler is a coroutine function."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Run the handler right here; a Context is supplied."""
        return cast("Coroutine[Any, Any, R]", self._call_here(args, kwargs))


class SyncTask(Enqueuer[P, R]):
    """A task whose handler is a plain function; workers run it in a thread."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the handler right here; a Context is supplied."""
        return cast("R", self._call_here(args, kwargs))


class TaskDecorator(Protocol):
    """What ``@app.task(…)`` does to a function. A Context, if wanted, is the first parameter."""

    @overload
    def __call__(self, f: Callable[Concatenate[Context, P], Awaitable[R]], /) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, f: Callable[P, Awaitable[R]], /) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, f: Callable[Concatenate[Context, P], R], /) -> SyncTask[P, R]: ...
    @overload
    def __call__(self, f: Callable[P, R], /) -> SyncTask[P, R]: ...


def is_async(handler: Callable[..., object]) -> bool:
    """Whether calling *handler* gives something to await; an object counts by its ``__call__``."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)


def check_priority(priority: object) -> int:
    """A priority: higher is sooner."""
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise TypeError(f"priority: expected a whole number, got {type(priority).__name__}")
    if not -MOST_PRIORITY <= priority <= MOST_PRIORITY:
        raise Refused(f"priority: {priority} is not between -{MOST_PRIORITY} and {MOST_PRIORITY}", field="priority")
    return priority


def _local_context(declaration: Declaration) -> Context:
    """A Context for a handler that is called directly: nothing behind it is stored."""
    now = datetime.now(UTC)
    claimed = Claimed(0, 0, 0, 1, 0, False, now, now, now, None, None, None, "{}", UUID(int=0))
    return Context(claimed, Terms(declaration.lane(), declaration.timeout, sql=None, limit=2**30))
