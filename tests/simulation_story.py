"""Stories of the world of jobs: drawn from a seed, told, ended well; and made short if they end badly."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from time import monotonic

import psycopg

from kept.worker.pacing import BOTTOM_LATEST, RECONNECT_MAX
from simulation_cast import LEASE, SCAN, TASKS, Wish
from simulation_jobs import Event, World
from simulation_oracle import Oracle
from simulation_stage import Loop, owned

STEPS = 200
PLACES = ("w1", "w2", "w3")
PRODUCERS = ("p1", "p2", "p3")
FATES = {"ok": 94, "lost": 2, "cut": 1, "die": 1, "held": 2}
OUTCOMES = {"return": 40, "raise": 14, "fatal": 3, "defer": 10, "skip": 4, "complete": 14, "unkept": 4, "die": 4}
OTHERWISE = {
    "tick": 40,
    "produce": 16,
    "renew": 18,
    "start": 8,
    "hand_back": 6,
    "hint": 5,
    "thaw": 5,
    "freeze": 4,
    "stir": 4,
    "resume": 3,
    "cancel": 2,
    "kill": 2,
    "jump": 2,
    "stop": 1,
    "pause": 1,
}
QUICK = timedelta(seconds=0.5)  # steps of time while the world heals
FOUND = timedelta(seconds=BOTTOM_LATEST + 2)  # the longest that a due job may stay unseen by a worker with room
RECONNECTED = timedelta(seconds=2 * RECONNECT_MAX) + 2 * SCAN  # who was cut off lets others come back first
HEALED = 240  # seconds


@dataclass
class Told:
    """A story that was told to its end, or to where a promise broke."""

    seed: int
    events: list[Event] = field(default_factory=list)
    trace: list[tuple[object, ...]] = field(default_factory=list)
    broken: str | None = None
    oracle: Oracle | None = None

    @property
    def promise(self) -> str:
        return (self.broken or "").partition(":")[0]


# --- what happens next


def draw(world: World, chance: Random) -> Event:
    """The next event of a world: mostly somebody goes on."""
    open_to = [place for place in sorted(world.stage.gates) if not world._is_frozen(place)]
    if open_to and chance.random() < 0.75:
        place = chance.choice(open_to)
        return ("go", place, _weighted(OUTCOMES if _is_handler(place) else FATES, chance))
    return _other(_weighted(OTHERWISE, chance), chance)


def _other(verb: str, chance: Random) -> Event:
    match verb:
        case "tick":
            return verb, chance.choice([0.002, 0.02, 0.1, 0.1, 0.3, 0.3, 1.0, 1.0, 3.0, 11.0])
        case "jump":
            return verb, chance.choice([-30.0, -5.0, -1.0, 1.0, 5.0, 15.0])
        case "produce":
            wishes = [_wish(chance) for _ in range(chance.choice([1, 2, 3, 5]))]
            return verb, chance.choice(PRODUCERS), wishes, "commit" if chance.random() < 0.85 else "rollback"
        case "hint":
            return verb, chance.choice(PLACES), chance.randint(0, len(TASKS)), chance.choice([0, 5])
        case "pause" | "resume":
            return verb, chance.randint(1, len(TASKS))
        case "cancel":
            return verb, chance.randint(0, 20)
        case _:
            return verb, chance.choice(PLACES)


def _wish(chance: Random) -> Wish:
    task = chance.choice(list(TASKS))
    return Wish(
        task,
        key=chance.choice([None, None, None, "a", "b"]),
        delay=chance.choice([0.0, 0.0, 0.0, 0.5, 2.0, 8.0]),
        priority=chance.choice([None, None, None, 5, -5]),
        order_key=chance.choice(["x", "y"]) if TASKS[task].get("ordered") else None,
        unique_for=chance.choice([1.0, 15.0, 86_400.0]),
    )


def _weighted(weights: dict[str, int], chance: Random) -> str:
    return chance.choices(list(weights), list(weights.values()))[0]


def _is_handler(place: str) -> bool:
    return "." in place and not place.endswith("t")


def drawn(world: World, seed: int, steps: int) -> Iterator[Event]:
    """The events of a seed, as the world turns."""
    chance = Random(seed)
    yield from (("start", place) for place in PLACES)
    for _ in range(3):
        yield _other("produce", chance)
    for _ in range(steps):
        yield draw(world, chance)


# --- telling


def tell(
    database: str, conn: psycopg.Connection, seed: int, events: Sequence[Event] | None = None, steps: int = STEPS
) -> Told:
    """The story of *seed*, or of these *events* under that seed."""
    told = Told(seed)
    with asyncio.Runner(loop_factory=Loop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, Loop)
        world = World(database, conn, loop)
        with owned(loop, seed, world.connect):
            runner.run(_told(world, told, events, steps))
    return told


async def _told(world: World, told: Told, events: Sequence[Event] | None, steps: int) -> None:
    await world.begin()
    try:
        for event in drawn(world, told.seed, steps) if events is None else events:
            told.events.append(event)
            if not await world.happen(event):
                told.events.pop()
        await heal(world)
    except AssertionError as error:
        told.broken = str(error)
    finally:
        told.trace, told.oracle = world.trace, world.oracle
        with suppress(AssertionError):
            await world.close()


# --- a good end


async def heal(world: World) -> None:
    """No faults any more: within the promised time everything accepted is settled."""
    for place in list(world.workers):
        await world.happen(("thaw", place))
    for lane in world.oracle.lanes:
        await world.happen(("resume", lane))
    await world.happen(("jump", (world.furthest - world.now).total_seconds()))
    await world.happen(("start", "w1"))
    since: dict[int, object] = {}
    begun, renewed = world.now, world.now - LEASE
    while world.oracle.live or world.producing:
        assert world.now < begun + timedelta(seconds=HEALED), f"3: never settled: {list(world.oracle.live.values())}"
        await _all_go_on(world)
        _nobody_is_overlooked(world, since)
        late = world.oracle.overdue(world.now, 1.1 * SCAN + 4 * QUICK)
        assert not late or world.now < begun + RECONNECTED, f"6: still in the name of the dead: {late}"
        if world.now >= renewed + LEASE / 4:
            renewed = world.now
            for place in list(world.workers):
                await world.happen(("renew", place))
        if "w1" not in world.workers:
            await world.happen(("start", "w1"))
        await world.happen(("tick", QUICK.total_seconds()))
    world.judge()


async def _all_go_on(world: World) -> None:
    for _ in range(500):
        if not world.stage.gates:
            return
        for place in sorted(world.stage.gates):
            await world.happen(("go", place, "return" if _is_handler(place) else "ok"))
    raise AssertionError(f"they go on and on without time passing: {sorted(world.stage.gates)}")


def _nobody_is_overlooked(world: World, since: dict[int, object]) -> None:
    """13: floors hide a job for no longer than it takes to look below them."""
    due = world.oracle.due(world.now)
    for id in set(since) - due:
        del since[id]
    room = [hand for hand in world.workers.values() if hand.worker.running == 0 and not hand.stopping]
    for id in due if room else ():
        first = since.setdefault(id, world.now)
        assert world.now - first <= FOUND, f"13: job {id} is due, and nobody looks: {world.oracle.live[id]}"


# --- a short story


def shortened(database: str, conn: psycopg.Connection, told: Told, seconds: float = 60.0) -> Told:
    """The same promise broken by fewer events: parts are left out for as long as it still breaks."""
    until, best = monotonic() + seconds, told
    size = max(1, len(best.events) // 2)
    while monotonic() < until:
        at, cut = 0, False
        while at < len(best.events) and monotonic() < until:
            fewer = best.events[:at] + best.events[at + size :]
            again = tell(database, conn, told.seed, fewer)
            if again.broken and again.promise == told.promise:
                best, cut = again, True
            else:
                at += size
        if size == 1 and not cut:
            break
        size = max(1, size // 2)
    return best


def printed(told: Told) -> str:
    """What happened, for a reader."""
    lines = [" ".join(str(part) for part in event if part != "") for event in told.trace]
    return "\n".join(f"  {number:3} {line}" for number, line in enumerate(lines, 1))
