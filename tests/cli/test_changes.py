"""``kept jobs retry``, ``cancel`` and ``delete``."""

from __future__ import annotations

import psycopg
import pytest

from planted import claim, enqueue, failed, settle, states, worker


def test_a_failed_job_is_retried_by_its_id(kept, conn):
    id = failed(conn)
    said = kept("jobs", "retry", id)
    assert said.code == 0
    assert said.out == f"job {id} is retried as job {id + 1}\n1 job retried\n"


def test_a_second_retry_is_refused_unless_told_again(kept, conn):
    id = failed(conn)
    kept("jobs", "retry", id)
    said = kept("jobs", "retry", id)
    assert said.code == 1
    assert "was retried already, as job" in said.err and "--again" in said.err
    assert kept("jobs", "retry", id, "--again").code == 0


def test_a_running_job_is_not_cancelled_and_the_sentence_says_so(kept, conn):
    pending, running = enqueue(conn), claim(conn, enqueue(conn), worker(conn))
    said = kept("jobs", "cancel", pending, running)
    assert said.code == 1
    assert said.err == f"kept: job {running} is running; only pending jobs can be cancelled\n"
    assert said.out == "1 job cancelled, 1 skipped\n"


def test_a_live_job_is_not_deleted_and_the_advice_is_to_cancel(kept, conn):
    said = kept("jobs", "delete", enqueue(conn))
    assert said.code == 1
    assert "cancel it first" in said.err


def test_without_a_terminal_a_bulk_is_refused_and_changes_nothing(kept, conn):
    id = enqueue(conn)
    said = kept("jobs", "cancel", "--queue", "mail")
    assert said.code == 2
    assert said.err == "kept: 1 job would be cancelled; there is nobody to ask, so say --yes\n"
    assert states(conn) == {id: "pending"}


def test_with_yes_a_bulk_is_done_and_counted(kept, conn):
    for _ in range(3):
        enqueue(conn)
    other = enqueue(conn, "render", "pdf")
    said = kept("jobs", "cancel", "--queue", "mail", "--yes")
    assert (said.code, said.out) == (0, "3 jobs cancelled\n")
    assert states(conn)[other] == "pending"


def test_a_bulk_counts_what_others_hold_as_skipped(kept, conn, database):
    held = enqueue(conn)
    enqueue(conn)
    with psycopg.connect(database) as other:
        other.execute("select from kept.job where id = %s for update", [held])
        said = kept("jobs", "cancel", "--queue", "mail", "--yes")
    assert (said.code, said.out) == (0, "1 job cancelled, 1 skipped\n")


def test_failed_jobs_of_one_code_are_retried_together(kept, conn):
    wanted = [failed(conn), failed(conn)]
    settle(conn, enqueue(conn), code="other")
    said = kept("jobs", "retry", "--code", "timeout", "--yes", "--json").json
    assert [job["id"] for job in said["jobs"]] == [str(id) for id in wanted]
    again = kept("jobs", "retry", "--code", "timeout", "--yes")
    assert (again.code, again.out) == (0, "no job matches\n")


def test_a_bulk_stops_at_its_limit(kept, conn):
    for _ in range(3):
        failed(conn)
    said = kept("jobs", "delete", "--state", "failed", "--limit", 2, "--yes")
    assert said.out == "2 jobs deleted\n"
    assert len(states(conn)) == 1


def test_a_change_as_json_has_stable_keys_and_ids_as_strings(kept, conn):
    id, live = failed(conn), enqueue(conn)
    said = kept("jobs", "retry", id, live, 77, "--json")
    assert said.code == 1
    assert said.json == {
        "action": "retry",
        "matched": 3,
        "done": 1,
        "skipped": 2,
        "jobs": [{"id": str(id), "retried_as": str(live + 1)}],
        "refused": [
            {
                "id": str(live),
                "code": "is_pending",
                "message": f"job {live} is pending; only failed, cancelled or skipped jobs can be retried",
            },
            {"id": "77", "code": "not_found", "message": "there is no job 77; it may have been purged"},
        ],
    }
    assert kept("jobs", "delete", id, "--json").json["jobs"] == [{"id": str(id)}]


@pytest.mark.parametrize("action", ["retry", "cancel", "delete"])
def test_neither_ids_nor_filters_is_refused_and_so_are_both(kept, action):
    for words in ([], ["--yes"], ["1", "--queue", "mail"]):
        said = kept("jobs", action, *words)
        assert said.code == 2
        assert said.err.startswith(f"kept: say which jobs to {action}: by ids, or by filters")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["cancel", "--state", "running"], "--state running: only pending jobs can be cancelled"),
        (["delete", "--state", "pending"], "only settled jobs can be deleted; cancel it first"),
        (["retry", "--state", "done"], "only failed, cancelled or skipped jobs can be retried"),
        (["cancel", "--code", "timeout"], "only settled jobs have an error code"),
    ],
)
def test_filters_that_cannot_mean_anything_are_refused(kept, words, sentence):
    said = kept("jobs", *words, "--yes")
    assert said.code == 2
    assert sentence in said.err
