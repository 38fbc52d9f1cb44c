"""What a program declares: tasks, handlers of events, and which events go to which broker."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import partial
from typing import Any, Literal, TypeVar

from kept.config import Settings
from kept.durations import Duration, duration
from kept.errors import Refused
from kept.events import Events
from kept.jobs.declaration import Declaration, wants_context
from kept.jobs.payload import Signature, check_name
from kept.jobs.retry import Retry
from kept.outbox.handling import EventSignature
from kept.outbox.publisher import Format, Publisher
from kept.outbox.rules import Rest, check_pattern
from kept.outbox.sink import Sink
from kept.outbox.subscriptions import Subscription
from kept.signals import Signals, Warned
from kept.tasks import MOST_QUEUE, MOST_TASK, AsyncTask, SyncTask, TaskDecorator, check_priority, is_async

H = TypeVar("H", bound=Callable[..., Any])
Ordered = bool | Literal["step_aside"]
TO_NOTE = timedelta(seconds=10)  # for a publisher to write down how its broker is doing


class Declaring(Events):
    """Where declarations are made and found again."""

    def __init__(
        self,
        database: str | None,
        settings: Settings | None,
        default_tx: Callable[[], object | None] | None,
    ) -> None:
        super().__init__(database, settings, default_tx)
        self.signals = Signals()

    def task(
        self,
        *,
        name: str | None = None,
        aliases: Iterable[str] = (),
        queue: str = "default",
        retry: Retry | None = None,
        timeout: Duration | None = None,
        priority: int = 0,
        ordered: Ordered = False,
    ) -> TaskDecorator:
        """Declare a task: ``@app.task(queue="mail", retry=Retry(max_attempts=5), timeout="30s")``.

        *ordered*: jobs with one ``order_key`` run one at a time, in the order in which they were committed. One that
        failed and will be retried keeps those behind it waiting, or steps aside.
        """

        def decorate(handler: Callable[..., Any]) -> AsyncTask[Any, Any] | SyncTask[Any, Any]:
            declaration = self._declare(handler, name, aliases, queue, retry, timeout, priority, ordered=ordered)
            kind = AsyncTask if declaration.is_async else SyncTask
            return kind(self, declaration)

        return decorate  # type: ignore[return-value]  # its overloads say which of the two comes back

    def on(
        self,
        *patterns: str,
        name: str | None = None,
        queue: str = "default",
        retry: Retry | None = None,
        timeout: Duration | None = None,
        priority: int = 0,
        ordered: Ordered = False,
    ) -> Callable[[H], H]:
        """Declare a handler of events: ``@app.on("invoice.created")``, or of all that begin so: ``"invoice.*"``.

        Every event becomes one job for every handler, with retries of its own. The function stays as it is. *ordered*:
        events of one aggregate reach it one at a time, in the order of their commits; one that fails and is retried
        holds up its aggregate, or with ``"step_aside"`` lets the others pass.
        """
        wanted = _patterns(patterns)

        def decorate(handler: H) -> H:
            signature = partial(EventSignature, types=self.event_types, warn=self._warn_of_newer)
            declaration = self._declare(handler, name, (), queue, retry, timeout, priority, signature, ordered=ordered)
            self.subscriptions.add(Subscription(declaration.name, wanted, declaration.queue))
            return handler

        return decorate

    def _warn_of_newer(self, message: str) -> None:
        self.signals.report(Warned(code="newer_event", message=message))

    def publish(
        self,
        *patterns: str,
        to: Sink,
        name: str | None = None,
        queue: str = "default",
        retry: Retry | None = None,
        timeout: Duration = "60s",
        priority: int = 0,
        ordered: Ordered = False,
        format: Format = "envelope",
        source: str = "kept",
    ) -> None:
        """Publish events to a broker: ``app.publish("invoice.*", to=NatsSink("nats://…"))``.

        Every event becomes one job, which is done when the broker has acknowledged it. While the broker is away the
        sink rests in the whole cluster, and nobody is charged. *name* is needed when one sink has several of these.
        """
        wanted = _patterns(patterns)
        within = duration(timeout, field="timeout")
        called = f"publish:{check_name(name or to.name, what='name', most=MOST_TASK - len('publish:'))}"
        publisher = Publisher(
            to,
            called,
            ordered=bool(ordered),
            format=format,
            source=source,
            timeout=within.total_seconds(),
            rest=lambda: Rest(self.settings.sink_pause.total_seconds(), self.settings.sink_pause_max.total_seconds()),
            sql=lambda: self.outbox_sql,
            ask=self.arun_alone,  # never in a transaction of the user's
            signals=self.signals,
        )
        policy = retry or Retry(max_attempts=self.settings.sink_attempts, delay="1s", max_delay="10m")
        batch = self.settings.sink_batch or to.batch
        limit = within and within + TO_NOTE  # past its own it tells the cluster, and charges nobody
        self.subscriptions.check(called, to)
        declared = self._declare(
            publisher.publish, called, (), queue, policy, limit, priority, ordered=ordered, batch=batch
        )
        self.subscriptions.add(Subscription(declared.name, wanted, declared.queue, publisher))

    def _declare(
        self,
        handler: Callable[..., Any],
        name: str | None,
        aliases: Iterable[str],
        queue: str,
        retry: Retry | None,
        timeout: Duration | None,
        priority: int,
        signature: Callable[..., Signature] = Signature,
        *,
        ordered: Ordered = False,
        batch: int = 0,
    ) -> Declaration:
        called = check_name(name or getattr(handler, "__name__", None), what="task", most=MOST_TASK)
        takes_context = wants_context(handler, called)
        limit = self.settings.timeout if timeout is None else duration(timeout, field="timeout")
        if not limit:
            raise Refused(f"task {called!r}: the timeout must not be zero", field="timeout")
        declaration = Declaration(
            name=called,
            aliases=tuple(check_name(alias, what="alias", most=MOST_TASK) for alias in aliases),
            queue=check_name(queue, what="queue", most=MOST_QUEUE),
            retry=retry or self._default_retry(),
            timeout=limit.total_seconds(),
            priority=check_priority(priority),
            handler=handler,
            is_async=is_async(handler),
            takes_context=takes_context,
            signature=signature(handler, task=called, takes_context=takes_context),
            ordered=_order(ordered),
            batch=batch,
        )
        self.registry.add(declaration)
        return declaration

    def _default_retry(self) -> Retry:
        settings = self.settings
        return Retry(
            max_attempts=settings.max_attempts,
            delay=settings.retry_base,
            max_delay=settings.retry_max,
            jitter=settings.retry_jitter,
        )


def _order(ordered: object) -> Literal["no", "block", "step_aside"]:
    match ordered:
        case False:
            return "no"
        case True:
            return "block"
        case "step_aside":
            return "step_aside"
        case _:
            raise Refused(f"ordered: {ordered!r} is neither True, False nor 'step_aside'", field="ordered")


def _patterns(given: Iterable[str]) -> tuple[str, ...]:
    patterns = tuple(dict.fromkeys(map(check_pattern, given)))
    if not patterns:
        raise Refused("pattern: name the events that are wanted, such as 'invoice.created'", field="pattern")
    return patterns
