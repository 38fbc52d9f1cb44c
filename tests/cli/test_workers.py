"""``kept workers``."""

from __future__ import annotations

from planted import claim, enqueue, worker


def test_workers_tell_their_lease_and_what_they_run(kept, conn):
    live = worker(conn, "north:7", queues=["mail", "pdf"], lease=60)
    claim(conn, enqueue(conn), live)
    worker(conn, "south:8", lease=-65)
    head, first, second = kept("workers").out.splitlines()
    assert head.split() == ["name", "host", "pid", "version", "queues", "state", "lease", "running", "started"]
    assert first.split()[:9] == ["north:7", "host", "1", "0.1.0", "mail,pdf", "live", "59s", "left", "1"]
    assert second.split()[4:9] == ["all", "live", "ended", "65s", "ago"]


def test_workers_that_stopped_are_listed_when_asked_for(kept, conn):
    worker(conn, "gone:1", state="closed", lease=-5)
    assert kept("workers").out == "no worker is alive\n"
    assert "gone:1" in kept("workers", "--all").out


def test_workers_as_json_have_stable_keys(kept, conn):
    id = worker(conn, "north:7", declared={"send": "d"})
    (said,) = kept("workers", "--json").json["workers"]
    assert said["id"] == str(id)
    assert said["tasks"] == ["send"]
    assert said["queues"] is None
    assert set(said) == {
        *("id", "name", "host", "pid", "version", "queues", "state", "lease_left", "started_at", "running", "tasks")
    }


def test_a_hostile_name_is_spelled_out(kept, conn):
    worker(conn, "\x1b[31mnorth")
    assert r"\x1b[31mnorth" in kept("workers").out
