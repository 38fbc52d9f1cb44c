"""The measured processes: whose settings they have, and what is said when one of them fails."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kept.bench import crew
from kept.bench.app import DRAIN
from kept.bench.drain import DEFAULT
from kept.bench.place import Place, Unsound, place, site


@pytest.fixture
def here(empty_database: str) -> Iterator[Place]:
    with site(empty_database) as there, place(there) as made:
        yield made


def test_settings_of_the_user_do_not_reach_what_is_measured(here, monkeypatch):
    monkeypatch.setenv("KEPT_LEASE", "2s")
    monkeypatch.setenv("KEPT_DATABASE_URL", "postgresql://elsewhere/x")
    monkeypatch.setenv("MAX_CONCURRENCY", "1")
    monkeypatch.setenv("PGAPPNAME", "mine")
    given = crew.environment(here, DEFAULT)
    assert "KEPT_LEASE" not in given and "MAX_CONCURRENCY" not in given
    assert (given["KEPT_DATABASE_URL"], given["KEPT_SCHEMA"]) == (here.url, here.schema)
    assert given["PGAPPNAME"] == "mine", "libpq's own are part of how the database is reached"


def test_what_is_measured_may_keep_its_bytecode_as_an_installed_package_does(here, monkeypatch):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    assert "PYTHONDONTWRITEBYTECODE" not in crew.environment(here, DEFAULT)


def test_a_measured_process_that_dies_is_told(here):
    with crew.workers(here, DEFAULT, jobs=1) as worker:
        worker.start()
        worker.members[0].process.kill()
        with pytest.raises(crew.Stuck, match="ended with code -9"):
            worker.wait_for(1)


def test_a_measured_process_that_cannot_begin_says_why(here):
    said = pytest.raises(crew.Stuck, match="ended with code 2: kept: queue: 'not a queue'")
    with said, crew.workers(here, DEFAULT, jobs=1, queue="not a queue") as worker:
        worker.start()


def test_jobs_that_were_not_done_make_a_round_unsound(here):
    lane = here.lane("nothing", DRAIN)
    here.fill(lane, 3)
    with pytest.raises(Unsound, match=r"of 3 jobs, not all were done: \(done, left\) is \(0, 3\)"):
        here.check_done(lane, 3)
    with crew.workers(here, DEFAULT, jobs=3) as worker:
        worker.start()
        worker.wait_for(3)
        assert worker.seconds > 0
    here.check_done(lane, 3)


def test_a_schema_in_which_nothing_was_done_is_empty_again(here):
    here.fill(here.lane("nothing", DRAIN), 5)
    here.empty()
    here.check_done(here.lane("nothing", DRAIN), 0)
