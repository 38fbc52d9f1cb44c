"""How long to wait, and when to look where. Pure: time and chance are arguments."""

from __future__ import annotations

from dataclasses import dataclass

LONG = 0.008  # seconds: a sleep worth asking to be woken from
FLAG_FOR = 15.0  # seconds a wish to be woken lasts
FLAG_LEFT = 5.0  # seconds left of it when it is renewed
BUSY_AFTER = 1.0  # seconds without a long sleep after which the wish is withdrawn
MANY = 200  # wake-ups within a second after which it is withdrawn too: they cost those who enqueue
SURVEY_BUSY = 0.25  # seconds between surveys while there is work
SURVEY_LATEST = 1.0  # … and while one wake-up follows the other
SURVEY_HINTED = 0.015  # seconds until the next one after a wake-up that brought nothing to an idle worker
BOTTOM_EVERY = 0.5  # seconds between looks below the floors, at least
BOTTOM_COST = 20  # … and at least so many times what the last one took
BOTTOM_LATEST = 10.0  # … but not longer: what took long may have been an answer that was late, not a look that was dear
SCHEDULES_AGAIN = 1.0  # seconds before another look at schedules that we could not decide on, at most
RECONNECT_MAX = 5.0  # seconds between tries to reach the database


@dataclass(frozen=True, slots=True)
class Pacing:
    """Delays in seconds."""

    idle_min: float = 0.001
    idle_max: float = 1.0
    idle_jitter: float = 0.5
    busy: float = 0.0
    error: float = 30.0
    error_jitter: float = 2.0


def idle_delay(pacing: Pacing, streak: int, draw: float) -> float:
    """The wait after *streak* passes in a row that found nothing: doubling, then jittered, never above the most.

    Jitter only shortens, and only long waits: a lost wake-up must not cost more than the longest wait.
    """
    delay = min(pacing.idle_max, pacing.idle_min * 2.0 ** min(streak, 40))
    if delay < LONG:
        return delay
    return delay - min(pacing.idle_jitter, delay / 2) * draw


def error_delay(pacing: Pacing, draw: float) -> float:
    """The wait after a pass that failed for a reason we do not understand."""
    return pacing.error + pacing.error_jitter * draw


def reconnect_delay(failures: int, draw: float) -> float:
    """The wait before the next try to reach a database that did not answer *failures* times."""
    return min(RECONNECT_MAX, 0.1 * 2.0 ** min(failures, 20)) * (0.5 + draw / 2)


def schedules_again(looks: int) -> float:
    """The wait after *looks* in a row at schedules that somebody else is at: others come due meanwhile."""
    return min(SCHEDULES_AGAIN, 0.05 * 2.0 ** min(looks, 20))


def until(*moments: float | None, now: float) -> float | None:
    """Seconds from *now* to the earliest of *moments*, not negative; None if there is none."""
    known = [moment for moment in moments if moment is not None]
    return max(0.0, min(known) - now) if known else None


def bottom_allowed(now: float, last: float, cost: float) -> bool:
    """Whether a look below the floors is worth its price again."""
    return now - last >= min(BOTTOM_LATEST, max(BOTTOM_EVERY, BOTTOM_COST * cost))
