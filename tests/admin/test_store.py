"""What an operator sees, on a real database."""

from __future__ import annotations

import psycopg
import pytest

from kept.admin import store
from kept.admin.model import Filter
from kept.db.queries import load
from kept.db.tx import run
from kept.errors import NotFound, Refused
from planted import claim, declare, enqueue, failed, settle, worker
from support import Clock

SQL = load("kept.admin")


def listed(conn: psycopg.Connection, wanted: Filter | None = None, **where) -> list[int]:
    limit = where.pop("limit", 50)
    page = run(conn, store.list_jobs(SQL, wanted or Filter(**where), limit=limit))
    return [job.id for job in page.jobs]


# --- lists of jobs


def test_jobs_are_listed_newest_first_wherever_they_live(conn):
    first, second, third = enqueue(conn), failed(conn), enqueue(conn)
    assert listed(conn) == [third, second, first]


def test_a_list_goes_on_where_the_last_page_ended(conn):
    ids = [enqueue(conn) if n % 2 else failed(conn) for n in range(5)]
    first = run(conn, store.list_jobs(SQL, Filter(), limit=3))
    rest = run(conn, store.list_jobs(SQL, Filter(), limit=3, before=first.jobs[-1].id))
    assert [job.id for job in (*first.jobs, *rest.jobs)] == ids[::-1]
    assert (first.more, rest.more) == (True, False)


def test_a_list_that_just_fits_has_no_more(conn):
    enqueue(conn)
    assert not run(conn, store.list_jobs(SQL, Filter(), limit=1)).more


def test_a_list_is_filtered_by_state(conn):
    pending, gone = enqueue(conn), failed(conn)
    running = claim(conn, enqueue(conn), worker(conn))
    assert listed(conn, states=("pending",)) == [pending]
    assert listed(conn, states=("running",)) == [running]
    assert listed(conn, states=("failed", "running")) == [running, gone]


def test_a_list_is_filtered_by_code_and_then_holds_no_live_job(conn):
    enqueue(conn)
    settle(conn, enqueue(conn), code="other")
    assert listed(conn, code="timeout") == []
    assert len(listed(conn, code="other")) == 1


def test_a_list_is_filtered_by_key(conn):
    enqueue(conn, key="a")
    wanted, old = enqueue(conn, key="b"), failed(conn, queue="other", key="b")
    assert listed(conn, key="b") == [old, wanted]


def test_ages_count_from_the_settlement_or_the_enqueue(conn, clock: Clock):
    old, settled_late = enqueue(conn), enqueue(conn)
    clock.advance("2h")
    settle(conn, settled_late)
    new = enqueue(conn)
    assert listed(conn, older_than=3600.0) == [old]
    assert listed(conn, newer_than=3600.0) == [new, settled_late]


def test_a_list_is_filtered_by_queue_and_task(conn):
    enqueue(conn, "send", "mail")
    wanted = enqueue(conn, "render", "pdf")
    lanes = run(conn, store.lanes_of(SQL, "pdf", None))
    assert listed(conn, lanes=lanes) == [wanted]
    assert run(conn, store.lanes_of(SQL, "pdf", "send")) == ()
    assert listed(conn, lanes=()) == []


def test_an_unknown_queue_names_near_ones(conn):
    enqueue(conn, "send", "mail")
    with pytest.raises(NotFound, match="there is no queue 'mial'; near: mail"):
        run(conn, store.lanes_of(SQL, "mial", None))


def test_the_first_and_the_last_due_time_allowed_can_be_listed(conn):
    for due_at in ("0002-01-01 00:00+00", "9998-12-31 00:00+00"):
        enqueue(conn, due_at=due_at)
    page = run(conn, store.list_jobs(SQL, Filter(), limit=50))
    assert sorted(job.due_at.year for job in page.jobs if job.due_at) == [2, 9998]
    assert run(conn, store.lanes(SQL))[0].due == 1


# --- one job


def test_show_tells_everything(conn):
    id = enqueue(conn, key="k", payload='{"a": 1}', headers='{"x": "y"}')
    settle(conn, id, "done", attempt=2, result={"ok": True})
    conn.execute(
        "insert into kept.job_log (job, at, attempt, event, code, message, detail) "
        "values (%s, kept.now(), 1, 'failed', 'timeout', 'took too long', 'Traceback')",
        [id],
    )
    detail = run(conn, store.show_job(SQL, id))
    assert (detail.job.state, detail.job.key, detail.job.charged, detail.job.attempt) == ("done", "k", 2, 2)
    assert (detail.headers, detail.payload, detail.result) == ('{"x": "y"}', '{"a": 1}', '{"ok": true}')
    assert [(line.event, line.code, line.detail) for line in detail.log] == [("failed", "timeout", "Traceback")]


def test_show_tells_where_a_running_job_is_locked(conn):
    id = claim(conn, enqueue(conn), worker(conn, "north:7"))
    detail = run(conn, store.show_job(SQL, id))
    assert detail.job.locked_by == "north:7"
    assert detail.job.locked_until is not None


def test_a_job_that_is_not_there_is_not_found(conn):
    with pytest.raises(NotFound, match="there is no job 77"):
        run(conn, store.show_job(SQL, 77))


def test_only_the_newest_lines_of_a_long_log_are_shown(conn):
    id = enqueue(conn)
    conn.execute(
        "insert into kept.job_log (job, at, attempt, event) "
        "select %s, kept.now() + n * interval '1 ms', n, 'deferred' from generate_series(1, 250) n",
        [id],
    )
    log = run(conn, store.show_job(SQL, id)).log
    assert (len(log), log[0].attempt, log[-1].attempt) == (store.MOST_LINES, 51, 250)


# --- lanes


def test_a_lane_counts_what_is_due_parked_and_running(conn, clock: Clock):
    enqueue(conn)
    clock.advance("90s")
    enqueue(conn)
    enqueue(conn, due_at="2200-01-01Z")
    claim(conn, enqueue(conn), worker(conn))
    (lane,) = run(conn, store.lanes(SQL))
    assert (lane.queue, lane.task, lane.due, lane.parked, lane.running) == ("mail", "send", 2, 1, 1)
    assert lane.oldest_due == pytest.approx(90, abs=5)


def test_a_lane_is_declared_once_a_worker_said_so(conn):
    enqueue(conn)
    assert not run(conn, store.lanes(SQL))[0].declared
    declare(conn)
    assert run(conn, store.lanes(SQL))[0].declared


def test_a_pause_ends_by_itself(conn, clock: Clock):
    enqueue(conn)
    (lane,) = run(conn, store.find_lanes(SQL, "mail"))
    run(conn, store.pause(SQL, [lane.id], 3600.0))
    paused = run(conn, store.lanes(SQL))[0]
    assert paused.paused and paused.paused_until is not None
    clock.advance("61min")
    assert not run(conn, store.lanes(SQL))[0].paused


def test_a_pause_without_end_lasts_until_resumed(conn, clock: Clock):
    enqueue(conn)
    (lane,) = run(conn, store.find_lanes(SQL, "mail/send"))
    run(conn, store.pause(SQL, [lane.id], None))
    clock.advance("3650d")
    paused = run(conn, store.lanes(SQL))[0]
    assert paused.paused and paused.paused_until is None
    assert run(conn, store.resume(SQL, [lane.id])) == 1
    assert run(conn, store.resume(SQL, [lane.id])) == 0
    assert not run(conn, store.lanes(SQL))[0].paused


def test_resuming_wakes_workers(conn):
    enqueue(conn)
    (lane,) = run(conn, store.find_lanes(SQL, "mail"))
    run(conn, store.pause(SQL, [lane.id], None))
    conn.execute('listen "kept:wake"')
    run(conn, store.resume(SQL, [lane.id]))
    assert [note.payload for note in conn.notifies(timeout=10, stop_after=1)] == ["lanes"]


def test_a_queue_means_all_its_lanes_and_a_task_one(conn):
    enqueue(conn, "send", "mail")
    enqueue(conn, "bounce", "mail")
    assert len(run(conn, store.find_lanes(SQL, "mail"))) == 2
    assert [lane.task for lane in run(conn, store.find_lanes(SQL, "mail/bounce"))] == ["bounce"]


def test_an_unknown_lane_names_near_ones(conn):
    enqueue(conn, "send", "mail")
    with pytest.raises(NotFound, match="there is no lane 'mail/sned'; near: mail/send"):
        run(conn, store.find_lanes(SQL, "mail/sned"))


def test_a_name_that_means_two_things_is_refused(conn):
    enqueue(conn, "b", "a")
    enqueue(conn, "c", "a/b")
    with pytest.raises(Refused, match="'a/b' is both a queue and the task 'b' in queue 'a'"):
        run(conn, store.find_lanes(SQL, "a/b"))


# --- workers


def test_workers_that_live_come_first_and_those_gone_only_when_asked_for(conn):
    worker(conn, "closed", state="closed", lease=-5)
    worker(conn, "lost", state="lost", lease=-5)
    worker(conn, "expired", lease=-5)
    live = worker(conn, "live", queues=["mail"])
    claim(conn, enqueue(conn), live)
    found = run(conn, store.workers(SQL))
    assert [each.name for each in found] == ["live", "expired", "lost"]
    assert (found[0].queues, found[0].running, found[0].alive) == (("mail",), 1, True)
    assert not found[1].alive
    assert {each.name for each in run(conn, store.workers(SQL, all=True))} >= {"closed"}


# --- the whole


def test_status_counts_the_last_hour_by_lane(conn, clock: Clock):
    failed(conn)
    clock.advance("2h")
    failed(conn)
    for attempts in (1, 3, 2):
        settle(conn, enqueue(conn), "done", attempt=attempts)
    settle(conn, enqueue(conn, "render", "pdf"), "done")
    status = run(conn, store.status(SQL))
    by_lane = {lane.name: recent for lane, recent in status.lanes}
    assert (by_lane["mail/send"].done, by_lane["mail/send"].failed) == (3, 1)
    assert by_lane["mail/send"].failure_rate == 0.25
    assert by_lane["mail/send"].churn == 2.0
    assert (status.recent.done, status.recent.failed) == (4, 1)


def test_the_oldest_due_job_is_not_one_of_a_paused_lane(conn, clock: Clock):
    enqueue(conn, "send", "mail")
    clock.advance("1h")
    enqueue(conn, "render", "pdf")
    (lane,) = run(conn, store.find_lanes(SQL, "mail"))
    run(conn, store.pause(SQL, [lane.id], None))
    status = run(conn, store.status(SQL))
    assert status.oldest is not None and status.oldest.queue == "pdf"
    assert status.due == 2


def test_an_empty_database_has_rates_of_nothing(conn):
    status = run(conn, store.status(SQL))
    assert (status.due, status.oldest, status.recent.failure_rate, status.recent.churn) == (0, None, None, None)
