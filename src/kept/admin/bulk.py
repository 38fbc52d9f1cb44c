"""Retry, cancel and delete: in batches, each a transaction of its own that waits for nobody.

A pass goes upwards over the ids that were there when it began: it ends, and does not meet what it makes.
"""

from __future__ import annotations

from typing import NamedTuple

import psycopg
from msgspec import Struct, structs

from kept.admin.model import Action, Filter
from kept.admin.store import NEWEST, params
from kept.db.connect import array
from kept.db.queries import Queries, load
from kept.db.tx import Steps, SyncConnection, run
from kept.errors import Refused
from kept.jobs.model import State

BATCH = 500
TRIES = 5

# The states an action applies to, and those it means when a filter does not say.
MAY: dict[Action, tuple[State, ...]] = {
    "retry": ("failed", "cancelled", "skipped"),
    "cancel": ("pending",),
    "delete": ("done", "failed", "cancelled", "skipped"),
}
MEANS: dict[Action, tuple[State, ...]] = {**MAY, "retry": ("failed",)}


class Matched(NamedTuple):
    """How many jobs a filter means now, and the highest id among them."""

    jobs: int
    upto: int


class Changed(NamedTuple):
    """A job that was retried (as *became*), cancelled or deleted."""

    id: int
    became: int | None = None


class Standing(NamedTuple):
    """What is known of a job that was not changed."""

    id: int
    state: State
    retried_as: int | None
    holder: int | None


class Refusal(Struct, frozen=True):
    """Why a job was not changed."""

    id: int
    code: str
    message: str


class Bulk(Struct, frozen=True, kw_only=True):
    """What to do to which jobs. *again*: also to jobs that were retried before."""

    action: Action
    wanted: Filter
    again: bool = False

    def params(self) -> dict[str, object]:
        again = self.again or self.action != "retry"
        return params(self.wanted) | {"again": again}


def bulk(action: Action, wanted: Filter, *, again: bool = False, states: tuple[State, ...] = ()) -> Bulk:
    """The bulk for *states*, or for those the action means; states it does not apply to are refused."""
    for state in states:
        if state not in MAY[action]:
            raise Refused(f"--state {state}: {_cannot(action, state)}", field="state")
    if action == "cancel" and wanted.code is not None:
        raise Refused(
            "--code: only settled jobs have an error code, and only pending jobs can be cancelled", field="code"
        )
    default = MAY[action] if wanted.ids is not None else MEANS[action]
    return Bulk(action=action, wanted=structs.replace(wanted, states=states or default), again=again)


def count(sql: Queries, bulk: Bulk) -> Steps[Matched]:
    """How much there is to do."""
    rows = yield sql["count_pending" if bulk.action == "cancel" else "count_settled"], bulk.params()
    return Matched(rows[0][0], rows[0][1] or 0)


def change(conn: SyncConnection, schema: str, bulk: Bulk, *, upto: int = NEWEST, most: int = NEWEST) -> list[Changed]:
    """Do it, batch by batch, to at most *most* jobs with ids up to *upto*; locked ones are skipped.

    *conn* is in autocommit mode.
    """
    changed: list[Changed] = []
    after = 0
    while len(changed) < most:
        limit = min(BATCH, most - len(changed))
        taken, done = _patiently(conn, schema, bulk, {"after": after, "upto": upto, "limit": limit})
        if not taken:
            break
        changed += done
        after = taken[-1]
    return changed


def _patiently(
    conn: SyncConnection, schema: str, bulk: Bulk, place: dict[str, object]
) -> tuple[list[int], list[Changed]]:
    """One batch; begun anew when it met another transaction the wrong way round."""
    for _ in range(TRIES - 1):
        try:
            with conn.transaction():
                return run(conn, _batch(schema, bulk, place))
        except (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure):
            continue
    with conn.transaction():
        return run(conn, _batch(schema, bulk, place))


def _batch(schema: str, bulk: Bulk, place: dict[str, object]) -> Steps[tuple[list[int], list[Changed]]]:
    """The ids taken, and what was changed of them."""
    sql = load("kept.admin", schema)
    rows = yield sql["take_pending" if bulk.action == "cancel" else "take_settled"], bulk.params() | place
    taken = [int(row[0]) for row in rows]
    if not taken:
        return [], []
    ids = {"ids": array(taken)}
    match bulk.action:
        case "retry":
            rows = yield sql["retry"], ids | {"again": bulk.again}
            return taken, [Changed(row[0], row[1]) for row in rows]
        case "cancel":
            rows = yield load("kept.jobs", schema)["cancel"], ids
        case "delete":
            rows = yield sql["delete"], ids
    return taken, sorted(Changed(row[0]) for row in rows)


def change_named(conn: SyncConnection, schema: str, bulk: Bulk) -> tuple[list[Changed], list[Refusal]]:
    """Do it to the jobs named by id, and say of each that was left why."""
    changed = change(conn, schema, bulk)
    done = {each.id for each in changed}
    left = [id for id in dict.fromkeys(bulk.wanted.ids or ()) if id not in done]
    known = run(conn, _standing(load("kept.admin", schema), left)) if left else {}
    return changed, [refusal(bulk, id, known.get(id)) for id in left]


def _standing(sql: Queries, ids: list[int]) -> Steps[dict[int, Standing]]:
    rows = yield sql["standing"], {"ids": array(ids)}
    return {row[0]: Standing(*row) for row in rows}


def refusal(bulk: Bulk, id: int, standing: Standing | None) -> Refusal:
    """Why the job was not changed, in one sentence."""
    if standing is None:
        return Refusal(id, "not_found", f"there is no job {id}; it may have been purged")
    if standing.state not in MAY[bulk.action]:
        return Refusal(
            id,
            f"is_{standing.state}",
            f"job {id} is {standing.state}; {_cannot(bulk.action, standing.state)}",
        )
    if bulk.action == "retry" and standing.retried_as is not None and not bulk.again:
        return Refusal(
            id,
            "retried_already",
            f"job {id} was retried already, as job {standing.retried_as}; --again retries it once more",
        )
    if bulk.action == "retry" and standing.holder is not None:
        return Refusal(id, "key_held", f"job {id} was not retried: job {standing.holder} has its key by now")
    return Refusal(id, "busy", f"job {id} is in other hands this very moment; look again")


def _cannot(action: Action, state: State) -> str:
    """Which jobs *action* is for, said about one in *state*."""
    match action, state:
        case "retry", _:
            return "only failed, cancelled or skipped jobs can be retried"
        case "cancel", _:
            return "only pending jobs can be cancelled"
        case _, "pending":
            return "only settled jobs can be deleted; cancel it first"
        case _:
            return "only settled jobs can be deleted; let it end first"
