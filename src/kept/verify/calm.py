"""Who looks after the processes of a run; and the calm before its faults and after them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from kept.errors import NotFound
from kept.verify.app import SCHEDULE, app
from kept.verify.ledger import LEDGER
from kept.verify.place import Conn, Place
from kept.verify.scene import Scene

LOOK = 0.2  # seconds between looks
CALM = 60.0  # seconds without any job settled, after the last fault: who has not run by then never will


@contextmanager
def looked_after(scene: Scene) -> Iterator[Problem]:
    """Meanwhile, who dies is replaced.

    Once for a whole run: the kernel ends those that are started here when this thread ends.
    """
    over = threading.Event()
    problem = Problem()

    def look() -> None:
        while not over.wait(LOOK):
            try:
                scene.workers.look_after()
                scene.producers.look_after()
            except Exception as error:  # noqa: BLE001  # told where it can be answered
                problem.error = error
                return

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield problem
    finally:
        over.set()
        thread.join()


@dataclass(slots=True)
class Problem:
    """What went wrong in the background, raised in the foreground."""

    error: Exception | None = None

    def __call__(self) -> None:
        if self.error is not None:
            raise self.error


# --- before and after


def at_work(where: Place, problem: Problem) -> int:
    """The database's time, in seconds, when the first handler has written something down, or should have."""
    until = time.monotonic() + CALM
    while not any(where.folder.glob(f"{LEDGER}-*")) and time.monotonic() < until:
        problem()
        time.sleep(LOOK)
    with where.connect() as conn:
        return _moment(conn, where)[0]


def calm(scene: Scene, where: Place, problem: Problem) -> int:
    """No more faults, then no more slots: wait until nothing is live, or nothing moves any more.

    Returns until when slots are due.
    """
    scene.producers.clear()  # whoever is not done by now hangs; the judgement will say so
    with where.connect() as conn:
        due = _fired(conn, where, problem)
        with suppress(NotFound), conn.transaction():  # one that is not even declared by now never fired
            app.schedules.pause(SCHEDULE, tx=conn)
        least, until = None, time.monotonic() + CALM
        while (live := _live(conn, where)) and time.monotonic() < until:
            problem()
            if least is None or live < least:
                least, until = live, time.monotonic() + CALM
            time.sleep(LOOK)
    scene.workers.stop()
    return due


def _fired(conn: Conn, where: Place, problem: Problem) -> int:
    """The database's time, in seconds, after the schedule has come so far, or had long enough for it."""
    now, last = _moment(conn, where)
    until = time.monotonic() + CALM
    while (last is None or last < now) and time.monotonic() < until:
        problem()
        time.sleep(LOOK)
        _, last = _moment(conn, where)
    return now


def _moment(conn: Conn, where: Place) -> tuple[int, int | None]:
    """The database's time, and the last slot, in seconds."""
    row = conn.execute(where.sql["moment"], {"schedule": SCHEDULE}).fetchone()
    assert row is not None
    return row[0], row[1]


def _live(conn: Conn, where: Place) -> int:
    row = conn.execute(where.sql["live"]).fetchone()
    assert row is not None
    return int(row[0])
