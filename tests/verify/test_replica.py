"""The pair of servers that `kept verify` fails over: what was not copied is lost and named, what was is not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from kept.verify.replica import Pair, only_on
from kept.verify.server import Server

pytestmark = pytest.mark.acceptance


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with Pair(tmp_path) as pair:
        with pair.primary.connect() as conn:
            conn.execute("create schema work")
            conn.execute("create table work.jobs (payload json)")
        yield pair


def enqueue(server: Server, token: int) -> None:
    with server.connect() as conn:
        conn.execute("set synchronous_commit = on")
        conn.execute("insert into work.jobs values (json_build_object('token', %s::bigint))", [token])


def test_a_standby_takes_over_again_and_again_with_all_that_was_confirmed_in_step(pair: Pair) -> None:
    for token in (1, 2):
        pair.keep_in_step(on=True)
        enqueue(pair.primary, token)
        old = pair.fail_over()
        assert not old.answers()
        enqueue(pair.primary, token + 10)  # it takes writes, and waits for nobody
        old.start()
        assert only_on(old, pair.primary, "work") == []
        assert only_on(pair.primary, old, "work") == [token + 10]
        old.remove()
        pair.renew()
    with pair.primary.connect() as conn:
        assert conn.execute("select count(*) from work.jobs").fetchone() == (4,)


def test_what_a_standby_had_not_heard_of_is_on_the_old_primary_alone(pair: Pair) -> None:
    pair.keep_in_step(on=True)
    enqueue(pair.primary, 1)
    pair.keep_in_step(on=False)
    pair.fall_silent()
    enqueue(pair.primary, 2)
    old = pair.fail_over()
    old.start()
    assert only_on(old, pair.primary, "work") == [2]


def test_nothing_is_confirmed_while_a_standby_that_is_waited_for_does_not_hear(pair: Pair) -> None:
    told = threading.Event()
    primary = pair.primary

    def ask() -> None:
        with pytest.raises(psycopg.OperationalError):
            enqueue(primary, 3)
        told.set()

    pair.keep_in_step(on=True)
    pair.fall_silent()
    asking = threading.Thread(target=ask)
    asking.start()
    assert not told.wait(0.5)
    pair.fail_over()
    assert told.wait(20)
    asking.join()


def test_a_pair_leaves_no_server_behind(tmp_path: Path) -> None:
    with Pair(tmp_path) as pair:
        old = pair.fail_over()
        old.start()
    assert not old.answers()
    assert not pair.primary.answers()
