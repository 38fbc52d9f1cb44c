"""Hits every crash point in every way while jobs, events and slots flow; then calm, and the judgement of `kept verify`.

``python tests/crash_points.py`` is the whole of it; names of points as arguments choose some. A point that is never hit
is a failure.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from kept.db import migrate
from kept.db.points import VARIABLE
from kept.verify.crew import own_environment
from kept.verify.model import Breach, Report
from kept.verify.place import Place, place
from points_stage import WAYS, Point, Stage, arm

Hits = Counter[tuple[str, str]]
Say = Callable[[str], None]


def points_of(names: str, provoked: str = "") -> list[Point]:
    return [Point(name, provoked=provoked) for name in names.split()]


STEP = "jobs.step"
POINTS = [
    # enqueue
    *points_of("jobs.enqueue jobs.enqueue_later jobs.enqueue_many jobs.lane_ids jobs.reserve jobs.copy_jobs"),
    *points_of("tx.commit caller.commit outbox.emit outbox.emit_many"),
    # claim
    *points_of("jobs.claim jobs.claim_ordered"),
    *points_of("jobs.claim_suspects", "kill"),
    *points_of("wire.early", "quiet"),
    # settle, retry, defer
    Point("settle", STEP, where={"attempts": "1"}),
    Point("retry", STEP, where={"park_charged": "t"}),
    Point("defer", STEP, where={"park_charged": "f"}),
    Point("fail", STEP, "poison", where={"reasons": "worker_died"}),
    *points_of("jobs.complete jobs.present jobs.still_ours"),
    *points_of("jobs.next_session jobs.adopt", "cut"),
    *points_of("jobs.settled_by", "lose_reply"),
    # promote
    *points_of("jobs.survey"),
    # reclaim
    *points_of("jobs.held jobs.leave_word jobs.lose jobs.orphans jobs.sweep jobs.wake", "kill"),
    *points_of("reclaim.started reclaim.rest jobs.take_word", "kill"),
    *points_of("jobs.lose_expired reclaim.expired", "expire"),
    *points_of("reclaim.hand_back", "freeze"),
    *points_of("jobs.abandoned reclaim.abandoned", "upkeep"),
    # the lease
    *points_of("jobs.register jobs.declare", "kill"),
    *points_of("jobs.renew"),
    *points_of("jobs.close", "stop"),
    # schedule slots
    *points_of("schedules.due schedules.fire"),
    *points_of("schedules.settled schedules.close schedules.note_successes", "upkeep"),
    # publish
    *points_of("outbox.publish outbox.sink_works"),
    *points_of("outbox.lock_sink outbox.sink_failed outbox.rest_sink", "outage"),
    # runners
    *points_of("runners.take runners.finish"),
    *points_of("runners.abandon", "kill"),
]


@dataclass
class Outcome:
    """How often each point was hit, in which ways, and what that broke."""

    points: Sequence[str]
    hits: Hits
    report: Report
    breaches: list[Breach]

    @property
    def never(self) -> list[tuple[str, str]]:
        return [(name, way) for name in self.points for way in WAYS if not self.hits[name, way]]

    @property
    def clean(self) -> bool:
        return not self.never and not self.breaches


def hit_points(
    points: Sequence[Point],
    *,
    seed: int = 1,
    migrations: bool = False,
    environ: Mapping[str, str] | None = None,
    say: Say = lambda _: None,
) -> Outcome:
    """Each of *points* in each way, in an order that the seed decides; *environ* is for workers and producers."""
    hits: Hits = Counter()
    names = [point.name for point in points]
    with place(None, frozenset({"own_server"})) as where:
        broken = hit_migrations(where, names, hits, say) if migrations else []
        stage = Stage(where, seed, environ or {})
        with stage.looked_after():
            for point in random.Random(seed).sample(points, len(points)):
                began = time.monotonic()
                for way in WAYS:
                    hits[point.name, way] += stage.hit(point, way)
                say(_line(point.name, hits, time.monotonic() - began))
            stage.calm()
        report = stage.judge(seed)
        return Outcome(names, hits, report, [*broken, *report.breaches, *stage.judge_events(), *stage.judge_runner()])


def _line(name: str, hits: Hits, seconds: float) -> str:
    marks = " ".join("x" if hits[name, way] else "-" for way in WAYS)
    return f"{name:34}{marks}{seconds:7.1f} s"


# --- migrations: each cut off in each way, in a process of its own


def hit_migrations(where: Place, names: list[str], hits: Hits, say: Say) -> list[Breach]:
    """Whatever happens around a commit, a migration is there as a whole or not at all, and the next try goes on."""
    labels = [migrate.label(one) for one in migrate.migrations()]
    points = [f"migration.{label}" for label in labels]
    began = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(lambda way: _migrate(where, way, labels, hits), WAYS)
        broken = [breach for each in found for breach in each]
    names += points
    for name in points:
        say(_line(name, hits, (time.monotonic() - began) / len(points)))
    return broken


def _migrate(where: Place, way: str, labels: Sequence[str], hits: Hits) -> list[Breach]:
    when, what = WAYS[way]
    schema = f"points_{list(WAYS).index(way)}"
    folder = where.folder / schema / "armed"
    folder.mkdir(parents=True)
    broken = []
    for number, label in enumerate(labels):
        armed = arm(folder, f"{when}.migration.{label}", what)
        _run_migrate(where, schema, folder)
        hits[f"migration.{label}", way] += not armed.exists()
        expected = list(labels[: number + (when == "after")])
        if _applied(where, schema) != expected:
            broken.append(Breach(0, f"a migration is half applied, {way}", (label,)))
    _run_migrate(where, schema, folder)
    if _applied(where, schema) != list(labels):
        broken.append(Breach(0, f"migrations did not go on, {way}"))
    return broken


def _run_migrate(where: Place, schema: str, folder: Path) -> None:
    environ = {"KEPT_DATABASE_URL": where.direct, "KEPT_SCHEMA": schema, VARIABLE: str(folder)}
    command = [sys.executable, "-c", "from kept.cli import main; main()", "migrate"]
    subprocess.run(command, env=own_environment() | environ, capture_output=True, check=False)


def _applied(where: Place, schema: str) -> list[str]:
    with where.connect() as conn:
        return [migrate.label(one) for one in migrate.status(conn, schema).applied]


def main() -> int:
    """0 if every point was hit and no promise broke."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("points", nargs="*")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    chosen = [point for point in POINTS if not given.points or point.name in given.points]
    outcome = hit_points(chosen, seed=given.seed, migrations=not given.points, say=lambda line: print(line, flush=True))
    for each in outcome.breaches:
        print(f"promise {each.promise}: {each.sentence}: {', '.join(each.items)}")
    for name, way in outcome.never:
        print(f"never hit: {name}, {way}")
    print(f"{len(outcome.points)} points in {len(WAYS)} ways: {sum(outcome.hits.values())} hits")
    report = outcome.report
    print(f"{report.accepted} accepted, lost {report.lost}, phantom {report.phantom}, twice {report.duplicates}")
    return 0 if outcome.clean else 1


if __name__ == "__main__":
    sys.exit(main())
