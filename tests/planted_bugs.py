"""Plants each bug and expects the alarm, then goes the same way without it and expects silence.

``python tests/planted_bugs.py`` is the whole of it; names of plants as arguments choose some.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from uuid import uuid4

import psycopg

from kept.db import migrate
from kept.db.embedded import Embedded
from kept.verify.model import Breach
from planted_scenes import SCENES, stage_on

# The promise that the oracle finds broken.
PROMISES = {
    "settle_without_the_fence": 4,
    "fence_without_the_attempt": 4,
    "claim_without_the_lease_check": 3,
    "reclaim_by_id": 3,
    "mark_before_effect": 3,
    "attempts_counted_on_failure_only": 5,
    "id_cursor_instead_of_row_state": 3,
    "lock_only_cron": 9,
    "notify_trusted": 3,
    "order_by_rows_skipped": 3,
    "keeper_that_tells_nobody": 6,
}
MACHINE = {"lock_only_cron": ("slow_decisions",)}  # what the scene needs, bug or no bug
AT_ONCE = 2
OPTIONS = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "max_connections": "200"}


@dataclass(frozen=True)
class Outcome:
    """What the oracle said of one scene, with the bug and without."""

    plant: str
    planted: tuple[Breach, ...]
    sound: tuple[Breach, ...]
    seconds: float

    @property
    def caught(self) -> bool:
        return any(breach.promise == PROMISES[self.plant] for breach in self.planted) and not self.sound

    def __str__(self) -> str:
        alarm = "; ".join(f"promise {each.promise}: {each.sentence}" for each in self.planted) or "no alarm"
        false = "".join(f"\n    false alarm: {each}" for each in self.sound)
        return f"{'caught' if self.caught else 'MISSED'}  {self.plant:34}{self.seconds:5.0f} s  {alarm}{false}"


def breaches(database: str, plant: str, folder: Path, *, broken: bool) -> tuple[Breach, ...]:
    """What the oracle has to say of the scene of *plant*, on a migrated database."""
    scene, settings = SCENES[plant]
    plants = (*MACHINE.get(plant, ()), *((plant,) if broken else ()))
    with stage_on(database, Path(mkdtemp(dir=folder)), plants, **settings) as stage:
        scene(stage)
        return stage.judge().breaches


def played(server: str, plant: str, folder: Path, *, broken: bool) -> tuple[Breach, ...]:
    """:func:`breaches`, on a database of its own."""
    name = f"plant_{uuid4().hex}"
    with psycopg.connect(server, autocommit=True) as conn:
        conn.execute(f"create database {name}")
    database = server.replace("/postgres?", f"/{name}?")
    with psycopg.connect(database, autocommit=True) as conn:
        migrate.apply(conn)
    return breaches(database, plant, folder, broken=broken)


def outcome(server: str, plant: str, folder: Path) -> Outcome:
    began = time.monotonic()
    planted, sound = (played(server, plant, folder, broken=broken) for broken in (True, False))
    return Outcome(plant, planted, sound, time.monotonic() - began)


def main(names: Sequence[str]) -> int:
    """0 if every bug was caught, and nothing else was."""
    chosen = list(names) or list(PROMISES)
    with TemporaryDirectory(prefix="kept-plants-") as place:
        folder = Path(place)
        folder.chmod(0o711)
        with Embedded(folder / "pg", options=OPTIONS) as server, ThreadPoolExecutor(AT_ONCE) as pool:
            found = []
            for each in pool.map(lambda plant: outcome(server.url(), plant, folder), chosen):
                print(each, flush=True)
                found.append(each)
    caught = sum(each.caught for each in found)
    print(f"planted bugs caught: {caught}/{len(found)}")
    return 0 if caught == len(found) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
