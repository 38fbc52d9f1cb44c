"""A small world of jobs: workers, their keepers, producers and operators, each moved by one statement at a time, on a
real PostgreSQL with a clock of the world's own. Workers are the real ones, from the loop down to the statements.

What happens is a list of :data:`Event`; the same list gives the same world. One that does not apply is passed over, so
that a list can be made shorter.
"""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import timedelta
from typing import Any

from kept.admin import store as admin
from kept.db.queries import load
from kept.db.tx import run
from kept.jobs import door
from kept.signals import Signals
from kept.worker.keeper import Keeper, Orders
from kept.worker.worker import Worker
from simulation_cast import LEASE, RENEW, SQL, Cast, Hand, Wish
from simulation_oracle import Deed

Event = tuple[Any, ...]

ADMIN = load("kept.admin")
GRACE = "3s"


class World(Cast):
    """One database and everybody in it."""

    # --- events

    async def happen(self, event: Event) -> bool:
        """Whether it could."""
        verb, *args = event
        what = self.stage.gates[args[0]][0] if verb == "go" and args[0] in self.stage.gates else ""
        if not await getattr(self, verb)(*args):
            return False
        await self.loop.quiet()
        while self.stage.held:
            await self._die(min(self.stage.held))
        self._attend()
        self.trace.append((*event, what))
        self.judge(always=verb == "cancel")
        return True

    def judge(self, *, always: bool = True) -> None:
        """Hold the tables against what is known; not *always*: only if somebody may have changed them."""
        deeds = []
        for conn, what in self.stage.done:
            said = self._said.setdefault(conn, [])
            said.append((what, self.now))
            if what == "lose_expired":
                self._dead[conn] = self.oracle.dead(self.now)
            names = [each for each, _ in said]
            if names.count("begin") <= names.count("end"):
                alone = conn not in self._crowded | self.stage.failed
                deeds.append(Deed(conn.actor, tuple(said), alone, self._dead.pop(conn, frozenset())))
                said.clear()
                self._crowded.discard(conn)
                self.stage.failed.discard(conn)
                if conn in self.completing:
                    self.oracle.ends[self.completing.pop(conn)] = "complete"
                self.oracle.accepted |= self.meant.pop(conn, {})
        self.stage.done.clear()
        self._crowd()
        if deeds or always or self.oracle.faults:
            self.oracle.check(deeds, furthest=self.furthest)
        for deed in deeds:
            self._looked_below(deed)

    def _looked_below(self, deed: Deed) -> None:
        """Whoever looked below its floors knows of all that is due."""
        hand = next((each for each in self.workers.values() if each.actor == deed.actor), None)
        if hand is not None and deed.alone and deed.when("survey") and hand.worker._rounds._looked_below:
            self.oracle.looked_below(hand.worker._post.book._floors)

    def _crowd(self) -> None:
        """Transactions that are open together may be in each other's way; so may one that waits for a lock."""
        open = [conn for conn, said in self._said.items() if said and not conn.closed]
        if len(open) > 1 or self.stage.waiting:
            self._crowded.update(open)

    async def go(self, place: str, fate: str) -> bool:
        """Let whoever waits at *place* go on; what becomes of its statement, or what its handler comes to."""
        if place not in self.stage.gates or self._is_frozen(place):
            return False
        if fate == "die":
            actor = self._actor_at(place)
            if actor is not None:
                await self._die(actor)
            return actor is not None
        self.stage.open(place, fate)
        return True

    async def tick(self, seconds: float) -> bool:
        """Time passes."""
        self.loop.moment += seconds
        return self._turn(timedelta(seconds=seconds))

    async def jump(self, seconds: float) -> bool:
        """Somebody sets the clock of the database."""
        return self._turn(timedelta(seconds=seconds))

    def _turn(self, by: timedelta) -> bool:
        self.now += by
        self.furthest = max(self.furthest, self.now)
        self.conn.execute("update kept.world set at = %s", [self.now])
        return True

    async def start(self, place: str) -> bool:
        """A worker starts."""
        if place in self.workers:
            return False
        self._count += 1
        hand = Hand(f"{place}#{self._count}", Worker(self.app.plan(kept=False), Signals()))
        opening = self.stage.play(hand.actor, hand.worker.__aenter__())
        self.stage.easy.add(opening)
        await self.loop.quiet()
        opening.result()
        self.workers[place] = hand
        self.hands.append(hand)
        return True

    async def kill(self, place: str) -> bool:
        """SIGKILL."""
        if place not in self.workers:
            return False
        await self._die(self.workers[place].actor)
        return True

    async def freeze(self, place: str) -> bool:
        """SIGSTOP."""
        if place not in self.workers or self.workers[place].actor in self.loop.frozen:
            return False
        self.loop.frozen[self.workers[place].actor] = []
        return True

    async def thaw(self, place: str) -> bool:
        """SIGCONT."""
        if place not in self.workers or self.workers[place].actor not in self.loop.frozen:
            return False
        self.stirring.discard(self.workers[place].actor)
        self.loop.thaw(self.workers[place].actor)
        return True

    async def stir(self, place: str) -> bool:
        """A worker that was stopped goes on, and has not looked at any clock yet: what it was about to say, it says."""
        if place not in self.workers or not self._is_frozen(place):
            return False
        self.stirring.add(self.workers[place].actor)
        return True

    async def stop(self, place: str) -> bool:
        """SIGTERM."""
        hand = self.workers.get(place)
        if hand is None or hand.stopping or self._is_frozen(place):
            return False
        hand.stopping = True
        self.stage.play(hand.actor, hand.worker.stop(GRACE))
        return True

    async def renew(self, place: str) -> bool:
        """A keeper renews its worker's lease, unless that is stopped."""
        hand = self.workers.get(place)
        if hand is None or self._is_frozen(place) or hand.keeper.board.fenced or hand.keeper.board.closed:
            return False
        return self._keep(place, hand.keeper._renew())

    async def hand_back(self, place: str) -> bool:
        """The keeper of the worker that died here last gives back what it held."""
        ghost = self.ghosts.pop(place, None)
        return ghost is not None and not ghost.keeper.board.closed and self._keep(place, ghost.keeper._hand_back())

    def _keep(self, place: str, what: Any) -> bool:
        keeper = f"k{place}"
        if keeper in self._busy and not self._busy[keeper].done():
            what.close()
            return False
        if f"{keeper}#0" in self.stage.dead:
            self.stage.dead.discard(f"{keeper}#0")
        self._busy[keeper] = self.stage.play(f"{keeper}#0", what)
        return True

    async def hint(self, place: str, lane: int, priority: int) -> bool:
        """A wake-up: true, late or for nothing."""
        if place not in self.workers or self._is_frozen(place):
            return False
        self.workers[place].worker._alarm.hear(f"{lane}:{priority}" if lane else "suspects")
        return True

    async def produce(self, place: str, wishes: list[Wish], end: str) -> bool:
        """A producer begins a transaction with these jobs in it, and means to *end* it so."""
        if place in self._busy and not self._busy[place].done():
            return False
        actor, link = self.producers.get(place, (f"{place}#0", None))
        if actor in self.stage.dead or (link is not None and link.conn.closed):
            self._count += 1
            actor, link = f"{place}#{self._count}", None
        self.producers[place] = (actor, link)
        self._busy[place] = self.stage.play(actor, self._produce(place, wishes, end))
        return True

    async def cancel(self, number: int) -> bool:
        """An operator cancels a job."""
        ids = sorted(self.oracle.live)
        if not ids:
            return False
        id = ids[number % len(ids)]
        if run(self.conn, door.cancel(SQL, id)) == "pending":
            self.oracle.cancelled.add(id)
        return True

    async def pause(self, lane: int) -> bool:
        run(self.conn, admin.pause(ADMIN, [lane], None))
        self.oracle.paused.add(lane)
        return True

    async def resume(self, lane: int) -> bool:
        run(self.conn, admin.resume(ADMIN, [lane]))
        self.oracle.paused.discard(lane)
        return True

    # --- ends

    async def _die(self, actor: str) -> None:
        await self.stage.kill(actor)
        place = actor.partition("#")[0]
        self.oracle.gone.add(actor)
        self._handling = {each for each in self._handling if not each.startswith(f"{place}.")}
        if place in self.workers and self.workers[place].actor == actor:
            self.ghosts[place] = ghost = self.workers.pop(place)
            if ghost.keeper.board.fenced or ghost.keeper.board.renewed_age > LEASE.total_seconds():
                self.oracle.over.add(ghost.worker._post.lease.worker)
        if place in self._busy:
            self._busy.pop(place)

    def _attend(self) -> None:
        """See who has a new identity, and who has ended."""
        for place, hand in list(self.workers.items()):
            post = hand.worker._post
            if hand.stopping and not self.stage.tasks.get(hand.actor):
                self.ghosts[place] = self.workers.pop(place)
                self.oracle.gone.add(hand.actor)
            elif post.lease.worker not in hand.keepers:
                orders = Orders(
                    database=self.database,
                    schema="kept",
                    worker=post.lease.worker,
                    name=place,
                    parent=os.getpid(),
                    board=post.lease.board.fd,
                    slots=post.lease.board.slots,
                    lease=LEASE.total_seconds(),
                    renew=RENEW.total_seconds(),
                    stall=float("inf"),
                )
                hand.keepers[post.lease.worker] = Keeper(orders)
                self.oracle.owner[post.lease.worker] = hand.actor

    def _actor_at(self, place: str) -> str | None:
        base = place.partition(".")[0]
        if base in self.workers:
            return self.workers[base].actor
        if base.startswith("k"):
            return f"{base}#0"
        return self.producers[base][0] if base in self.producers else None

    def _is_frozen(self, place: str) -> bool:
        hand = self.workers.get(place.partition(".")[0])
        return hand is not None and hand.actor in self.loop.frozen and hand.actor not in self.stirring

    async def close(self) -> None:
        """Everybody dies."""
        for actor in [*self.stage.tasks]:
            if actor and actor not in self.stage.dead:
                await self.stage.kill(actor)
        for hand in self.hands:
            with suppress(Exception):  # it may be closed
                hand.worker._post.lease.board.close()
