"""``kept jobs list`` and ``kept jobs show``."""

from __future__ import annotations

import json

import pytest

from planted import claim, enqueue, failed, settle, worker

# A title set, a colour, text written right to left, a line of its own.
HOSTILE = "\x1b]0;owned\x07\x1b[31mred\u202eback\x9b2J\nline"


def harmless(text: str) -> bool:
    return all(char.isprintable() or char == "\n" for char in text)


def test_jobs_are_listed_as_aligned_text(kept, conn):
    first, second = enqueue(conn), failed(conn)
    said = kept("jobs", "list")
    head, *rows = said.out.splitlines()
    assert said.code == 0
    assert head.split() == ["id", "state", "queue", "task", "attempts", "age", "code", "key"]
    assert [row.split()[:5] for row in rows] == [
        [str(second), "failed", "mail", "send", "3/3"],
        [str(first), "pending", "mail", "send", "0/3"],
    ]
    assert {row.index("mail") for row in rows} == {head.index("queue")}


def test_a_list_says_when_there_is_more_and_how_to_go_on(kept, conn):
    ids = [enqueue(conn) for _ in range(3)]
    said = kept("jobs", "list", "--limit", 2)
    assert f"there is more; go on with --before {ids[1]}" in said.err
    rest = kept("jobs", "list", "--limit", 2, "--before", ids[1])
    assert rest.out.split("\n")[1].split()[0] == str(ids[0])
    assert rest.err == ""


def test_a_list_as_json_has_stable_keys_and_ids_as_strings(kept, conn):
    old = failed(conn)
    kept("jobs", "retry", old)
    said = kept("jobs", "list", "--json").json
    assert set(said) == {"jobs", "more", "before"}
    assert said["more"] is False and said["before"] is None
    newest = said["jobs"][0]
    assert newest["retry_of"] == str(old)
    assert isinstance(newest["id"], str)
    assert newest["created_at"].endswith("+00:00")
    assert set(newest) == {
        *("id", "queue", "task", "state", "key", "priority", "attempt", "charged", "max_attempts", "suspect"),
        *("created_at", "due_at", "claimed_at", "settled_at", "locked_by", "locked_until"),
        *("code", "reason", "message", "retry_of", "age"),
    }


def test_filters_narrow_a_list(kept, conn):
    enqueue(conn, "send", "mail", key="a")
    enqueue(conn, "render", "pdf")
    failed(conn)

    def ids(*filters):
        return [job["id"] for job in kept("jobs", "list", "--json", *filters).json["jobs"]]

    assert ids("--queue", "pdf") == ids("--task", "render") == ["2"]
    assert ids("--state", "pending") == ["2", "1"]
    assert ids("--state", "pending", "--state", "failed") == ["3", "2", "1"]
    assert ids("--code", "timeout") == ["3"]
    assert ids("--key", "a") == ["1"]
    assert ids("--older-than", "1h") == []
    assert ids("--newer-than", "1h") == ["3", "2", "1"]


def test_nothing_to_list_is_said_and_is_no_failure(kept):
    said = kept("jobs", "list")
    assert (said.code, said.out) == (0, "no job matches\n")


def test_an_unknown_task_is_an_error_that_names_near_ones(kept, conn):
    enqueue(conn)
    said = kept("jobs", "list", "--task", "sent")
    assert said.code == 1
    assert said.err == "kept: there is no task 'sent'; near: send\n"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["list", "--older-than", "soon"], "'soon' is not a duration"),
        (["list", "--limit", "0"], "--limit"),
        (["list", "--before", "x"], "'x' is not the id of a job"),
        (["list", "--key", "\udcff"], "is not valid UTF-8"),
        (["show", "0"], "'0' is not the id of a job"),
        (["show", "9" * 30], "is not the id of a job"),
        (["show", "\x1b[31m"], r"'\x1b[31m' is not the id of a job"),
        (["list", "--state", "dead"], "dead"),
    ],
)
def test_bad_arguments_are_refused_with_a_sentence(kept, words, sentence):
    said = kept("jobs", *words)
    assert said.code == 2
    assert sentence in said.err


# --- show


def test_show_tells_a_jobs_whole_story(kept, conn):
    id = enqueue(conn, key="welcome:7", payload='{"user": 7}', headers='{"trace": "t1"}')
    settle(conn, id, "failed", code="timeout", message="took too long", attempt=3)
    conn.execute(
        "insert into kept.job_log (job, at, attempt, event, code, message, detail) "
        "values (%s, kept.now(), 1, 'retry', 'timeout', 'took too long', E'Traceback:\\n  line 1')",
        [id],
    )
    kept("jobs", "retry", id)
    out = kept("jobs", "show", id).out
    for fact in (
        f"job        {id}",
        "task       send in queue mail, priority 0",
        "state      failed (exhausted)",
        "error      timeout: took too long",
        "key        welcome:7",
        "attempts   3 of 3 charged, claimed 3 times",
        "retried as job",
        '    "user": 7',
        '    "trace": "t1"',
        "    Traceback:\n      line 1",
        "attempt 1  retry  timeout: took too long",
    ):
        assert fact in out


def test_show_links_a_retry_both_ways(kept, conn):
    old = failed(conn)
    new = kept("jobs", "retry", old, "--json").json["jobs"][0]["retried_as"]
    assert kept("jobs", "show", old, "--json").json["retries"] == [new]
    assert kept("jobs", "show", new, "--json").json["retry_of"] == str(old)
    assert f"retry of   job {old}" in kept("jobs", "show", new).out


def test_show_tells_who_has_a_running_job_and_until_when(kept, conn):
    id = claim(conn, enqueue(conn), worker(conn, "north:7"))
    assert "locked by  north:7 until 20" in kept("jobs", "show", id).out


def test_show_as_json_holds_the_documents(kept, conn):
    id = enqueue(conn, payload='{"a": [1, 2.5, "ü"]}')
    settle(conn, id, "done", result={"ok": True})
    shown = kept("jobs", "show", id, "--json").json
    assert shown["payload"] == {"a": [1, 2.5, "ü"]}
    assert shown["result"] == {"ok": True}
    assert (shown["headers"], shown["log"], shown["retries"]) == (None, [], [])


def test_a_job_that_is_not_there_is_an_error(kept):
    said = kept("jobs", "show", 77)
    assert (said.code, said.err) == (1, "kept: there is no job 77; it may have been purged\n")


def test_numbers_that_no_float_holds_and_endless_nesting_can_be_shown(kept, conn):
    big = enqueue(conn, payload='{"a": 1e400}')
    assert kept("jobs", "show", big, "--json").json["payload"] == {"a": "1e400"}
    deep = enqueue(conn, payload='{"a": ' + "[" * 2000 + "]" * 2000 + "}")
    assert "[[[[" in kept("jobs", "show", deep).out.replace("\n", "").replace(" ", "")
    assert kept("jobs", "show", deep, "--json").code == 0


# --- what jobs hold cannot steer a terminal


def test_hostile_keys_messages_and_payloads_are_spelled_out(kept, conn):
    document = json.dumps({"a": HOSTILE, HOSTILE: 1}, ensure_ascii=False)
    id = enqueue(conn, key=HOSTILE, payload=document, headers=json.dumps({"h": HOSTILE}))
    settle(conn, id, code=HOSTILE, message=HOSTILE, result=HOSTILE)
    conn.execute(
        "insert into kept.job_log (job, at, attempt, event, code, message, detail) "
        "values (%(id)s, kept.now(), 1, %(text)s, %(text)s, %(text)s, %(text)s)",
        {"id": id, "text": HOSTILE},
    )
    for words in (["list"], ["show", id], ["list", "--json"], ["show", id, "--json"]):
        said = kept("jobs", *words)
        assert said.code == 0
        assert harmless(said.out), words
    assert r"\x1b[31mred\u202eback" in kept("jobs", "show", id).out
    assert kept("jobs", "show", id, "--json").json["payload"]["a"] == HOSTILE
