"""``inbox.once(event_id, tx)``: the marker of an event commits together with what the event has caused."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, TypeVar
from uuid import UUID

from kept.config import Settings
from kept.db.queries import Queries, load
from kept.db.tx import Steps
from kept.durations import Duration, duration
from kept.errors import Refused, Unavailable
from kept.jobs.payload import check_name
from kept.outbox.inbox import rules, store
from kept.outbox.inbox.model import Marked
from kept.outbox.inbox.rules import Key
from kept.outbox.inbox.store import Event
from kept.signals import EventSeen, Signals, Warned

if TYPE_CHECKING:
    from kept.outbox.inbox.redis import Accelerator

T = TypeVar("T")
SHORTEST_TTL = timedelta(seconds=1)


class Home(Protocol):
    """Where the markers live and how to get there: the App."""

    signals: Signals

    @property
    def settings(self) -> Settings: ...

    def run_in(self, steps: Steps[T], tx: object | None) -> T: ...
    async def arun_in(self, steps: Steps[T], tx: object | None) -> T: ...
    def run_alone(self, steps: Steps[T]) -> T: ...
    async def arun_alone(self, steps: Steps[T]) -> T: ...


class Inbox:
    """The events that one consumer has handled: ``app.inbox("mailer")``.

    Threads and coroutines may share it. A marker lasts for *ttl* (KEPT_INBOX_TTL); an event that comes again after
    that counts as new.
    """

    def __init__(self, home: Home, consumer: str, *, ttl: Duration | None = None, redis: str | None = None) -> None:
        self.consumer = check_name(consumer, what="consumer", most=rules.MOST_CONSUMER)
        self._home = home
        self._ttl = None if ttl is None else _check_ttl(ttl)
        self._identity: str | None = None
        self._accelerator = None if redis is None else _accelerator(redis, self._warn)

    @property
    def ttl(self) -> timedelta:
        """How long a marker lasts."""
        return self._home.settings.inbox_ttl if self._ttl is None else self._ttl

    def once(self, event_id: str | UUID, tx: object | None = None) -> Once:
        """Handle an event once: ``with inbox.once(event_id, tx) as first:``, or ``async with`` for an async *tx*.

        *first* is True exactly if this consumer has not committed this event before. The marker is written before
        the body runs, in *tx*: it commits with the effect, and a rollback leaves nothing. The same event in another
        transaction waits for this one's end, and then gets the right answer. If the body raises, the marker is taken
        back, and the exception goes on: let it roll the transaction back.
        """
        return Once(self, rules.check_event_id(event_id), tx)

    def forget(self, event_id: str | UUID) -> bool:
        """Remove a marker, at once and for good, so that the event is handled again; whether there was one."""
        event = self._event(rules.check_event_id(event_id))
        found, identity = self._home.run_alone(store.forget(self._sql, event))
        if self._accelerator is not None and not self._accelerator.drop(self._key(event, identity)):
            raise _still_known(event)
        return found

    async def aforget(self, event_id: str | UUID) -> bool:
        """:meth:`forget` for async code."""
        event = self._event(rules.check_event_id(event_id))
        found, identity = await self._home.arun_alone(store.forget(self._sql, event))
        if self._accelerator is not None and not await self._accelerator.adrop(self._key(event, identity)):
            raise _still_known(event)
        return found

    def close(self) -> None:
        """Let go of Redis; the inbox can be used again."""
        if self._accelerator is not None:
            self._accelerator.close()

    async def aclose(self) -> None:
        """:meth:`close` for async code."""
        if self._accelerator is not None:
            await self._accelerator.aclose()
            self._accelerator.close()

    # --- for Once

    def _mark(self, event_id: str, tx: object | None) -> bool:
        event, home, accelerator = self._event(event_id), self._home, self._accelerator
        if accelerator is None:
            return self._answer(home.run_in(self._steps(event), tx))
        home.run_in(_nothing(), tx)  # a wrong transaction is refused whatever Redis knows
        known = accelerator.knows(self._key(event, self._identity)) if self._identity else False
        if known:
            return self._cached()
        began = monotonic()
        marked = home.run_in(self._steps(event), tx)
        identity = self._identify(marked)
        # Only what another transaction has committed; and who did not answer just now is not asked again.
        if marked.seconds_left is not None and known is False:
            accelerator.note(self._key(event, identity), rules.key_ttl(marked.seconds_left, monotonic() - began))
        return self._answer(marked)

    async def _amark(self, event_id: str, tx: object | None) -> bool:
        event, home, accelerator = self._event(event_id), self._home, self._accelerator
        if accelerator is None:
            return self._answer(await home.arun_in(self._steps(event), tx))
        await home.arun_in(_nothing(), tx)
        known = await accelerator.aknows(self._key(event, self._identity)) if self._identity else False
        if known:
            return self._cached()
        began = monotonic()
        marked = await home.arun_in(self._steps(event), tx)
        identity = self._identify(marked)
        if marked.seconds_left is not None and known is False:
            ttl = rules.key_ttl(marked.seconds_left, monotonic() - began)
            await accelerator.anote(self._key(event, identity), ttl)
        return self._answer(marked)

    def _take_back(self, event_id: str, tx: object | None) -> None:
        self._home.run_in(store.take_back(self._sql, self._event(event_id)), tx)

    async def _atake_back(self, event_id: str, tx: object | None) -> None:
        await self._home.arun_in(store.take_back(self._sql, self._event(event_id)), tx)

    # --- parts

    @property
    def _sql(self) -> Queries:
        return load("kept.outbox.inbox", self._home.settings.schema)

    def _event(self, event_id: str) -> Event:
        return Event(self.consumer, event_id)

    def _steps(self, event: Event) -> Steps[Marked]:
        identify = self._accelerator is not None
        return store.mark(self._sql, event, ttl=self.ttl.total_seconds(), identify=identify)

    def _key(self, event: Event, identity: str) -> Key:
        return rules.key(identity, self._home.settings.schema, event.consumer, event.event_id)

    def _identify(self, marked: Marked) -> str:
        """Which database has answered. It has to be the same each time: Redis is asked before the database is."""
        assert marked.identity is not None
        self._identity = self._identity or marked.identity
        if marked.identity != self._identity:
            raise Refused(
                f"tx: is in another database than before; an inbox with Redis serves one database, so make an App "
                f"and an inbox {self.consumer!r} for each",
                field="tx",
            )
        return marked.identity

    def _answer(self, marked: Marked) -> bool:
        self._home.signals.report(EventSeen(consumer=self.consumer, answer="first" if marked.first else "duplicate"))
        return marked.first

    def _cached(self) -> bool:
        self._home.signals.report(EventSeen(consumer=self.consumer, answer="cached"))
        return False

    def _warn(self, message: str) -> None:
        self._home.signals.report(Warned(code="inbox_redis", message=f"inbox {self.consumer}: {message}"))


class Once:
    """One event in one transaction; what ``with`` or ``async with`` gives is whether it is the first time."""

    __slots__ = ("_event_id", "_first", "_inbox", "_tx")

    def __init__(self, inbox: Inbox, event_id: str, tx: object | None) -> None:
        self._inbox = inbox
        self._event_id = event_id
        self._tx = tx
        self._first = False

    def __enter__(self) -> bool:
        self._first = self._inbox._mark(self._event_id, self._tx)
        return self._first

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if error is None or not self._first:
            return
        try:
            self._inbox._take_back(self._event_id, self._tx)
        except Exception as failed:  # noqa: BLE001  # the caller's own exception is the one to be seen
            _tell(error, failed)

    async def __aenter__(self) -> bool:
        self._first = await self._inbox._amark(self._event_id, self._tx)
        return self._first

    async def __aexit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if error is None or not self._first:
            return
        try:
            await self._inbox._atake_back(self._event_id, self._tx)
        except Exception as failed:  # noqa: BLE001  # the caller's own exception is the one to be seen
            _tell(error, failed)


def _nothing() -> Steps[None]:
    """No statement at all: the transaction is only checked."""
    yield from ()


def _tell(error: BaseException, failed: Exception) -> None:
    """The marker could not be taken back. Refused means that there is no transaction left that could commit it."""
    if not isinstance(failed, Refused):
        error.add_note(f"kept: the marker of this event was not taken back ({failed}); roll the transaction back")


def _still_known(event: Event) -> Unavailable:
    return Unavailable(
        f"event {event.event_id!r} is forgotten in PostgreSQL, but Redis did not answer and may go on telling "
        f"{event.consumer} for up to a day that it is handled; try again"
    )


def _check_ttl(ttl: object) -> timedelta:
    given = duration(ttl, field="ttl")
    if given < SHORTEST_TTL:
        raise Refused("ttl: must be at least 1s", field="ttl")
    return given


def _accelerator(url: str, warn: Callable[[str], None]) -> Accelerator:
    from kept.outbox.inbox.redis import Accelerator

    return Accelerator(url, warn)
