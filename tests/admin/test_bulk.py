"""Retry, cancel and delete, on a real database with others about."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from kept import App
from kept.admin import bulk as bulks
from kept.admin import store
from kept.admin.bulk import Changed
from kept.admin.model import Filter
from kept.db.queries import load
from kept.db.tx import run
from kept.errors import Refused
from planted import claim, enqueue, failed, settle, states, worker

SQL = load("kept.admin")


def named(conn, action, *ids, again=False):
    return bulks.change_named(conn, "kept", bulks.bulk(action, Filter(ids=ids), again=again))


def everything(conn, action, **where):
    bulk = bulks.bulk(action, Filter(**where))
    found = run(conn, bulks.count(SQL, bulk))
    return found, bulks.change(conn, "kept", bulk, upto=found.upto)


def purged(conn) -> dict[str, int]:
    return dict(conn.execute("select state, jobs from kept.purged").fetchall())


# --- retry


def test_a_retry_is_a_new_job_that_links_to_the_old_record(conn):
    id = enqueue(conn, payload='{"user": 7}', headers='{"trace": "t"}')
    settle(conn, id, attempt=3)
    ((old, new),), refused = named(conn, "retry", id)
    assert (old, refused) == (id, [])
    again = run(conn, store.show_job(SQL, new))
    assert (again.job.state, again.job.retry_of, again.job.attempt) == ("pending", id, 0)
    assert (again.payload, again.headers) == ('{"user": 7}', '{"trace": "t"}')
    assert states(conn)[id] == "failed"
    assert run(conn, store.show_job(SQL, id)).retries == (new,)


def test_a_retry_can_be_claimed_at_once(conn):
    (changed,), _ = named(conn, "retry", failed(conn))
    ready = conn.execute("select ready, due_at <= kept.now() from kept.job where id = %s", [changed.became])
    assert ready.fetchone() == (True, True)


def test_a_job_is_retried_once_unless_told_again(conn):
    id = failed(conn)
    (first,), _ = named(conn, "retry", id)
    changed, (refusal,) = named(conn, "retry", id)
    assert changed == []
    assert refusal.code == "retried_already"
    assert f"as job {first.became}" in refusal.message
    (second,), _ = named(conn, "retry", id, again=True)
    assert second.became not in (None, first.became)
    assert run(conn, store.show_job(SQL, id)).retries == (first.became, second.became)


def test_cancelled_and_skipped_jobs_can_be_retried_and_done_ones_cannot(conn):
    cancelled, skipped, done = (settle(conn, enqueue(conn), state) for state in ("cancelled", "skipped", "done"))
    changed, (refusal,) = named(conn, "retry", cancelled, skipped, done)
    assert [each.id for each in changed] == [cancelled, skipped]
    assert (refusal.id, refusal.code) == (done, "is_done")


def test_by_filter_only_failed_jobs_are_retried_unless_a_state_is_named(conn):
    failed_id, cancelled = failed(conn), settle(conn, enqueue(conn), "cancelled")
    _, changed = everything(conn, "retry")
    assert [each.id for each in changed] == [failed_id]
    bulk = bulks.bulk("retry", Filter(), states=("cancelled",))
    assert [each.id for each in bulks.change(conn, "kept", bulk)] == [cancelled]


def test_a_retry_takes_the_key_over(conn):
    id = failed(conn, key="welcome:7")
    (changed,), _ = named(conn, "retry", id)
    assert enqueue(conn, key="welcome:7") == changed.became


def test_a_job_whose_key_another_has_is_not_retried(conn):
    id = failed(conn, key="k")
    conn.execute("update kept.unique_key set expires_at = kept.now() - interval '1 s'")
    newer = enqueue(conn, key="k")
    changed, (refusal,) = named(conn, "retry", id)
    assert changed == []
    assert (refusal.code, refusal.message) == (
        "key_held",
        f"job {id} was not retried: job {newer} has its key by now",
    )
    assert states(conn) == {id: "failed", newer: "pending"}


def test_of_several_failed_jobs_with_one_key_the_newest_is_retried(conn):
    ids = []
    for _ in range(3):
        ids.append(failed(conn, key="k"))
        conn.execute("update kept.unique_key set expires_at = kept.now() - interval '1 s'")
    found, changed = everything(conn, "retry")
    assert found.jobs == 3
    assert [each.id for each in changed] == [ids[-1]]


def test_a_retry_wakes_sleeping_workers(conn):
    id = failed(conn)
    conn.execute("insert into kept.sleeper select id, gen_random_uuid(), kept.now() + interval '1 min' from kept.lane")
    conn.execute('listen "kept:wake"')
    named(conn, "retry", id)
    (lane,) = conn.execute("select id from kept.lane").fetchone()
    assert [note.payload for note in conn.notifies(timeout=10, stop_after=1)] == [f"{lane}:0"]


def test_two_operators_retry_a_job_once(conn, database):
    id = failed(conn)
    bulk = bulks.bulk("retry", Filter(ids=(id,)))
    with psycopg.connect(database, autocommit=True) as other, other.transaction():
        first = bulks.change(other, "kept", bulk)
        _, (refusal,) = named(conn, "retry", id)
        assert refusal.code == "busy"
    _, (refusal,) = named(conn, "retry", id)
    assert len(first) == 1
    assert refusal.code == "retried_already"


def test_a_record_that_was_retried_after_it_was_taken_is_left_alone(conn):
    id = failed(conn)
    named(conn, "retry", id)
    assert conn.execute(SQL["retry"], {"ids": [id], "again": False}).fetchall() == []


# --- cancel


def test_pending_jobs_are_cancelled_and_a_running_one_is_refused(conn):
    pending, running = enqueue(conn), claim(conn, enqueue(conn), worker(conn))
    changed, (refusal,) = named(conn, "cancel", pending, running)
    assert changed == [Changed(pending)]
    assert refusal.message == f"job {running} is running; only pending jobs can be cancelled"
    assert states(conn) == {pending: "cancelled", running: "running"}


def test_a_job_in_other_hands_is_skipped_and_not_waited_for(conn, database):
    held, free = enqueue(conn), enqueue(conn)
    with psycopg.connect(database) as other:
        other.execute("select from kept.job where id = %s for update", [held])
        changed, (refusal,) = named(conn, "cancel", held, free)
        found, _ = everything(conn, "cancel")
    assert changed == [Changed(free)]
    assert (refusal.id, refusal.code) == (held, "busy")
    assert found.jobs == 1
    assert states(conn)[held] == "pending"


def test_a_bulk_goes_over_many_batches(conn, monkeypatch):
    monkeypatch.setattr(bulks, "BATCH", 3)
    ids = [enqueue(conn) for _ in range(10)]
    found, changed = everything(conn, "cancel")
    assert found.jobs == 10
    assert [each.id for each in changed] == ids
    assert set(states(conn).values()) == {"cancelled"}


def test_a_bulk_does_not_touch_what_came_after_the_count(conn):
    first = enqueue(conn)
    bulk = bulks.bulk("cancel", Filter())
    found = run(conn, bulks.count(SQL, bulk))
    second = enqueue(conn)
    bulks.change(conn, "kept", bulk, upto=found.upto)
    assert states(conn) == {first: "cancelled", second: "pending"}


async def test_a_bulk_cancel_and_a_worker_at_the_same_jobs_lose_none_and_do_none_twice(conn, database):
    app = App(database)
    ran: list[int] = []

    @app.task(queue="mail")
    async def send(n: int) -> None:
        ran.append(n)

    await app.aenqueue_many([send.bind(n) for n in range(3000)])
    found = run(conn, bulks.count(SQL, bulks.bulk("cancel", Filter())))
    bulk = bulks.bulk("cancel", Filter())
    cancelling = asyncio.to_thread(bulks.change, conn, "kept", bulk, upto=found.upto)
    _, cancelled = await asyncio.gather(app.drain(), cancelling)
    await app.drain()
    await app.aclose()
    assert len(ran) == len(set(ran))
    assert len(ran) + len(cancelled) == 3000
    assert set(states(conn).values()) <= {"cancelled", "done"}


def test_a_bulk_stops_at_its_limit(conn):
    ids = [enqueue(conn) for _ in range(4)]
    changed = bulks.change(conn, "kept", bulks.bulk("cancel", Filter()), most=2)
    assert [each.id for each in changed] == ids[:2]


def test_a_cancel_by_error_code_is_refused_rather_than_taken_for_all(conn):
    with pytest.raises(Refused, match="only settled jobs have an error code"):
        bulks.bulk("cancel", Filter(code="timeout"))


@pytest.mark.parametrize(
    ("action", "state"),
    [("cancel", "running"), ("cancel", "done"), ("retry", "done"), ("retry", "pending"), ("delete", "pending")],
)
def test_a_state_that_an_action_is_not_for_is_refused(action, state):
    with pytest.raises(Refused, match=f"--state {state}: only"):
        bulks.bulk(action, Filter(), states=(state,))


# --- delete


def test_a_deleted_record_is_counted_as_purged(conn):
    ids = [failed(conn), settle(conn, enqueue(conn), "done"), failed(conn)]
    changed, refused = named(conn, "delete", *ids)
    assert (len(changed), refused) == (3, [])
    assert states(conn) == {}
    assert purged(conn) == {"failed": 2, "done": 1}
    named(conn, "delete", failed(conn))
    assert purged(conn)["failed"] == 3


def test_a_deleted_record_takes_its_log_and_its_key_along(conn):
    id = failed(conn, key="k")
    conn.execute("insert into kept.job_log (job, at, attempt, event) values (%s, kept.now(), 1, 'failed')", [id])
    named(conn, "delete", id)
    assert conn.execute("select count(*) from kept.job_log").fetchone() == (0,)
    fresh = enqueue(conn, key="k")
    assert fresh != id
    assert states(conn) == {fresh: "pending"}


def test_a_key_that_moved_on_to_a_retry_outlives_the_deleted_record(conn):
    id = failed(conn, key="k")
    (changed,), _ = named(conn, "retry", id)
    named(conn, "delete", id)
    assert enqueue(conn, key="k") == changed.became


def test_live_jobs_are_not_deleted(conn):
    pending, running = enqueue(conn), claim(conn, enqueue(conn), worker(conn))
    changed, refused = named(conn, "delete", pending, running, 999)
    assert changed == []
    assert [each.message for each in refused] == [
        f"job {pending} is pending; only settled jobs can be deleted; cancel it first",
        f"job {running} is running; only settled jobs can be deleted; let it end first",
        "there is no job 999; it may have been purged",
    ]


def test_deleting_by_filter_leaves_live_jobs_alone(conn):
    pending = enqueue(conn)
    failed(conn)
    settle(conn, enqueue(conn), "done")
    _, changed = everything(conn, "delete")
    assert len(changed) == 2
    assert states(conn) == {pending: "pending"}


def test_a_batch_that_lost_a_deadlock_is_begun_anew(conn):
    conn.execute(
        """
        create sequence tries;
        create function deadlock_once() returns trigger language plpgsql as $$ begin
          if nextval('tries') = 1 then raise exception 'deadlock detected' using errcode = 'deadlock_detected'; end if;
          return new;
        end $$;
        create trigger deadlock_once before insert on kept.purged for each row execute function deadlock_once()
        """
    )
    changed, refused = named(conn, "delete", failed(conn))
    assert (len(changed), refused) == (1, [])
    assert purged(conn) == {"failed": 1}


def test_a_batch_that_fails_changes_nothing(conn, database):
    id = failed(conn, key="k")
    with psycopg.connect(database) as other:
        other.execute("select from kept.unique_key for update")
        conn.execute("set lock_timeout = '50ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            named(conn, "delete", id)
    assert states(conn) == {id: "failed"}
    assert purged(conn) == {}
