"""A producer of `kept verify`: what it writes down is what it meant, and what it was told."""

from __future__ import annotations

from pathlib import Path
from random import Random

import psycopg
import pytest

from kept.config import Settings
from kept.verify import ledger
from kept.verify.app import app
from kept.verify.books import Books
from kept.verify.conditions import ResetAfterCommit, ResetBeforeCommit
from kept.verify.draft import MOST, Draft, Wanted, bulk, single
from kept.verify.model import Told
from kept.verify.producer import open_producer
from kept.verify.proxy import proxy_before


@pytest.fixture
def proxy(database):
    app.configure(Settings(database=database))
    with proxy_before(database) as proxy:
        yield proxy


@pytest.fixture
def producer(proxy, tmp_path):
    producer, _ = open_producer(tmp_path, proxy.url, 3)
    yield producer
    producer.close()


class Once:
    """The reply to one commit is lost; from then on the network is calm."""

    def __init__(self):
        self._reset = ResetAfterCommit(Random(1), 1)

    async def carry(self, talk, data, *, upwards):
        if self._reset.hits:
            await talk.pass_on(data, upwards=upwards)
        else:
            await self._reset.carry(talk, data, upwards=upwards)


def answers(folder: Path) -> list[str]:
    return [line.answer for line in ledger.told(folder) if isinstance(line, Told)]


def tokens(conn: psycopg.Connection) -> list[int]:
    return [row[0] for row in conn.execute("select (payload ->> 'token')::bigint from kept.jobs order by 1")]


def test_what_is_committed_has_the_tokens_that_were_written_down(producer, conn, tmp_path):
    draft = bulk(Random(1), 3, 40)
    while draft.roll_back:
        draft = bulk(Random(2), 3, 40)
    assert producer.send(draft) == "committed"
    books = Books(ledger.told(tmp_path))
    assert tokens(conn) == [token for token, _ in books.committed()]
    assert len(tokens(conn)) == 40
    (key,) = books.orders()
    assert len(books.orders()[key]) == 5


def test_what_is_rolled_back_is_refused_and_not_there(producer, conn, tmp_path):
    assert producer.send(Draft((Wanted("plain"),), roll_back=True)) == "refused"
    assert answers(tmp_path) == ["refused"]
    assert tokens(conn) == []
    assert not Books(ledger.told(tmp_path)).may_exist(producer.first - 1)


def test_a_commit_whose_reply_is_lost_is_unknown(producer, proxy, conn, tmp_path):
    with proxy.under(ResetAfterCommit(Random(1), 1)):
        assert producer.send(Draft((Wanted("plain"),))) == "unknown"
    assert len(tokens(conn)) == 1, "it was committed all the same"
    with proxy.under(ResetBeforeCommit(Random(1), 1)):
        assert producer.send(Draft((Wanted("plain"),))) == "unknown"
    assert len(tokens(conn)) == 1, "it was not"


def test_a_keyed_job_is_tried_again_until_it_is_known_and_is_one_job(producer, proxy, conn, tmp_path):
    with proxy.under(Once()):
        assert producer.send(Draft((Wanted("keyed"),), again=True)) == "committed"
    assert answers(tmp_path) == ["unknown", "committed"]
    assert tokens(conn) == [producer.first - 1]


def test_a_producer_that_was_replaced_uses_no_token_twice_and_knows_what_was_sent(producer, proxy, tmp_path):
    producer.send(Draft((Wanted("plain"), Wanted("plain"))))
    producer.send(Draft((Wanted("plain"),), roll_back=True))
    again, sent = open_producer(tmp_path, proxy.url, 3)
    other, none = open_producer(tmp_path, proxy.url, 4)
    assert (sent, none) == (2, 0)
    assert len({producer.first, again.first, other.first}) == 3
    for each in (again, other):
        each.close()


@pytest.mark.parametrize("seed", range(20))
def test_a_draft_is_what_the_log_says_it_is(seed):
    chance = Random(seed)
    for draft in (single(chance, 1), bulk(chance, 1, 7), bulk(chance, 1, 10_000)):
        assert sum(part.count for part in draft.parts) == len(draft.wanted) <= MOST
        assert not (draft.again and draft.roll_back)
        assert all((part.order is not None) == (part.task == "in_order") for part in draft.parts)
