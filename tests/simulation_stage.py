"""A stage: many actors in one process, of which one at a time moves, by one statement. Time and chance are the stage's.

An actor is a name that tasks inherit. Whatever it says to the database first waits at a *gate*; who opens it decides
what becomes of the statement. When nothing is left to run and nothing is on its way, all is *quiet*, and the next gate
may be opened. So the same choices give the same story, although the code is the real one and so is PostgreSQL.
"""

from __future__ import annotations

import asyncio
import random
import selectors
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import psycopg

from kept.db.connect import Link
from kept.worker import board, keeper, post

ACTOR: ContextVar[str] = ContextVar("actor", default="")
SOON = 0.002  # real seconds after which a statement without an answer may be one that waits for a lock
IMPATIENT = "select set_config('deadlock_timeout', '2ms', false)"
# Whether each waits for a lock, for whom, and whether it has looked for a deadlock: one that comes later is found by
# whoever comes later. A server looks once, when deadlock_timeout is over.
WAITS = """
select p, pg_blocking_pids(p),
       exists (select from pg_locks where pid = p and clock_timestamp() > waitstart + interval '10ms')
  from unnest(%s::int[]) p
"""


class Died(BaseException):
    """An actor ended here. No Exception: nothing of it may go on."""


class Loop(asyncio.SelectorEventLoop):
    """An event loop whose time is moved by hand, and which says when there is nothing left to run."""

    def __init__(self) -> None:
        self.moment = 1000.0
        self.busy: Callable[[], bool] = lambda: False  # something is on its way
        self.judge: Callable[[], bool] = lambda: True  # it does not count, though
        self.frozen: dict[str, list[tuple[asyncio.Handle, Callable[..., object]]]] = {}
        self.waiter: asyncio.Future[None] | None = None
        super().__init__(_Selector(self))

    def time(self) -> float:
        return self.moment

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, context: Any = None) -> Any:
        """As always; but what is frozen hears no clock before it is thawed."""
        actor, holder = ACTOR.get(), []

        def ring() -> None:
            if actor in self.frozen:
                self.frozen[actor].append((holder[0], partial(callback, *args)))
            else:
                callback(*args)

        holder.append(super().call_at(when, ring, context=context))
        return holder[0]

    def thaw(self, actor: str) -> None:
        for handle, ring in self.frozen.pop(actor, []):
            if not handle.cancelled():
                self.call_soon(ring)

    async def quiet(self) -> None:
        """Wait until nobody can move by himself."""
        self.waiter = self.create_future()
        await self.waiter


class _Selector(selectors.DefaultSelector):
    def __init__(self, loop: Loop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        """The loop has nothing to run if it may wait here."""
        if timeout is not None and timeout <= 0:
            return super().select(0)
        waiter = self._loop.waiter
        if waiter is None:
            return super().select(0.05 if timeout is None else min(timeout, 0.05))
        found = super().select(SOON if self._loop.busy() else 0)
        if not found and self._loop.judge():
            self._loop.waiter = None
            waiter.set_result(None)
        return found


class Gated(psycopg.AsyncConnection[Any]):
    """A connection whose every exchange with the server waits at a gate."""

    stage: Stage
    place: str
    actor: str
    pid: int
    inside: bool

    async def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        if self.inside:
            return await super().wait(gen, *args, **kwargs)
        what = {"_enter_gen": "begin", "_exit_gen": "end"}.get(gen.__name__, "statement")
        return await self.stage.through(self, what, lambda: super(Gated, self).wait(gen, *args, **kwargs))

    async def close(self) -> None:
        """Nothing of it is left on the server after this."""
        if not self.closed:
            self.stage.end_session(self)
        await super().close()


def end_session(conn: psycopg.Connection, pid: int) -> None:
    """The server ends a session, and has ended it when this returns."""
    conn.execute("select pg_terminate_backend(%s)", [pid])
    while conn.execute("select from pg_stat_activity where pid = %s", [pid]).fetchone() is not None:
        pass  # the function's own timeout looks every 100 ms


class Stage:
    """Gates, connections and time. *conn* is its own, to look and to end sessions with."""

    def __init__(self, conn: psycopg.Connection, loop: Loop, names: dict[str, str]) -> None:
        self.conn = conn
        self.loop = loop
        self.names = names  # of statements, by their text
        self.gates: dict[str, tuple[str, asyncio.Future[str]]] = {}  # by place: what waits there
        self.dead: set[str] = set()
        self.easy: set[object] = set()  # tasks that need not wait at gates
        self.done: list[tuple[Gated, str]] = []  # statements that were carried out since anybody asked
        self.failed: set[Gated] = set()  # with a statement that was not carried out, or not heard of
        self.held: set[str] = set()  # actors whose last statement was carried out, and that are not to know
        self.connections: dict[str, list[Gated]] = {}
        self.tasks: dict[str, set[asyncio.Task[Any]]] = {}
        self._under_way: dict[object, Gated | None] = {}
        loop.busy, loop.judge = (lambda: bool(self._under_way)), self._is_quiet
        loop.set_task_factory(self._task)
        loop.set_exception_handler(lambda *_: None)  # of those who died

    # --- actors

    def _task(self, loop: Any, coro: Any, **options: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=loop, **options)
        self.tasks.setdefault(ACTOR.get(), set()).add(task)
        task.add_done_callback(self.tasks[ACTOR.get()].discard)
        return task

    def play(self, actor: str, coro: Any) -> asyncio.Task[Any]:
        """Let *coro* be something that *actor* does."""
        token = ACTOR.set(actor)
        try:
            return self.loop.create_task(coro)
        finally:
            ACTOR.reset(token)

    async def kill(self, actor: str) -> None:
        """SIGKILL: its sessions end, and nothing of it goes on."""
        self.dead.add(actor)
        self.held.discard(actor)
        self.loop.thaw(actor)
        connections = self.connections.pop(actor, [])
        for conn in connections:
            self.end_session(conn)
        for _ in range(50):
            left = [task for task in self.tasks.get(actor, ()) if not task.done()]
            if not left:
                break
            for task in left:
                task.cancel()
            await self.loop.quiet()
        else:
            raise RuntimeError(f"{actor} does not end: {left}")
        for conn in connections:
            conn.pgconn.finish()

    def end_session(self, conn: Gated) -> None:
        """The server ends it; once this returns, whatever it had not committed is undone."""
        end_session(self.conn, conn.pid)
        if conn not in self._under_way.values():
            conn.pgconn.finish()

    async def link(self, place: str, database: str) -> Link:
        """A connection of whoever asks."""
        actor = ACTOR.get()
        if actor in self.dead:
            raise Died(actor)
        key = object()
        self._under_way[key] = None
        try:
            link = await Link.open(database, name=place)
            await link.conn.execute(IMPATIENT)
        finally:
            del self._under_way[key]
        conn: Any = link.conn
        conn.__class__ = Gated
        conn.stage, conn.actor, conn.place, conn.inside = self, actor, place, False
        conn.pid = conn.info.backend_pid
        self.connections.setdefault(actor, []).append(conn)
        asked = link.ask

        async def ask(query: Any, params: Any = None) -> Any:
            return await self.through(conn, self.names.get(query, "statement"), lambda: asked(query, params))

        link.ask = ask  # type: ignore[method-assign]
        return link

    # --- gates

    async def gate(self, place: str, what: str) -> str:
        """Wait to be let through; what is to become of it."""
        actor = ACTOR.get()
        if actor in self.dead:
            raise Died(actor)
        if asyncio.current_task() in self.easy:
            return "ok"
        opened: asyncio.Future[str] = self.loop.create_future()
        self.gates[place] = (what, opened)
        try:
            return await opened
        finally:
            self.gates.pop(place, None)

    def open(self, place: str, fate: str) -> None:
        self.gates[place][1].set_result(fate)

    async def through(self, conn: Gated, what: str, go: Callable[[], Awaitable[Any]]) -> Any:
        """Carry out a statement, once the gate is open, and let *conn*'s actor know, or not."""
        try:
            return await self._through(conn, what, go)
        except BaseException:
            self.failed.add(conn)
            raise

    async def _through(self, conn: Gated, what: str, go: Callable[[], Awaitable[Any]]) -> Any:
        fate = await self.gate(conn.place, what)
        if fate == "cut":
            self.end_session(conn)
        conn.inside, self._under_way[conn] = True, conn
        try:
            answer = await go()
        finally:
            conn.inside = False
            del self._under_way[conn]
        self.done.append((conn, what))
        if fate == "lost":
            self.end_session(conn)
            raise psycopg.OperationalError("the connection was lost before the answer came")
        if fate == "held":
            self.held.add(conn.actor)
            await self.loop.create_future()
        return answer

    def _is_quiet(self) -> bool:
        """Whether everything on its way waits for a lock, and will for as long as nobody else moves."""
        pids = [None if conn is None else conn.pid for conn in self._under_way.values()]
        if None in pids:
            return False
        waits = self.conn.execute(WAITS, [pids]).fetchall() if pids else []
        patient = all(blockers and has_looked for _, blockers, has_looked in waits)
        return patient and not is_deadlock({pid: set(blockers) for pid, blockers, _ in waits})

    @property
    def waiting(self) -> list[str]:
        """Places whose statement waits for somebody's lock."""
        return sorted(conn.place for conn in self._under_way.values() if conn is not None)


def is_deadlock(waits: dict[int, set[int]]) -> bool:
    """Whether some of them wait for each other: the server is about to give one up."""
    left = dict(waits)
    while free := [pid for pid, blockers in left.items() if not blockers & left.keys()]:
        for pid in free:
            del left[pid]
    return bool(left)


@contextmanager
def owned(loop: Loop, seed: int, open_link: Callable[..., Awaitable[Link]]) -> Iterator[None]:
    """Time and chance of everything in Kept are the loop's and the seed's; workers connect by *open_link*."""
    draws = random.Random(seed)  # of identities
    random.seed(seed)
    with ExitStack() as stack:
        for name, module in sorted(sys.modules.items()):
            if name.startswith("kept.") and getattr(module, "monotonic", None) is time.monotonic:
                stack.enter_context(patch.object(module, "monotonic", loop.time))
        nanoseconds = lambda: int(loop.time() * 1e9)  # noqa: E731
        stack.enter_context(patch.object(board, "clock", nanoseconds))
        stack.enter_context(patch.object(keeper, "clock", nanoseconds))
        stack.enter_context(patch.object(uuid, "os", SimpleNamespace(urandom=draws.randbytes)))
        for module in (post, keeper):
            stack.enter_context(patch.object(module, "Link", SimpleNamespace(open=open_link)))
        yield
