"""An old primary is known by its timeline; whoever cannot tell is not kept from working."""

from __future__ import annotations

import psycopg
import pytest

from kept import Unavailable
from kept.db.connect import connect
from kept.db.lineage import Lineage, followed, lineage_of


@pytest.mark.parametrize(
    ("before", "now", "then"),
    [
        (None, None, None),
        (None, Lineage(7, 1), Lineage(7, 1)),
        (Lineage(7, 1), Lineage(7, 1), Lineage(7, 1)),
        (Lineage(7, 1), Lineage(7, 2), Lineage(7, 2)),
        (Lineage(7, 2), None, Lineage(7, 2)),
        (Lineage(7, 2), Lineage(8, 1), Lineage(8, 1)),
    ],
)
def test_a_server_of_the_same_or_a_later_timeline_is_followed(before, now, then):
    assert followed(before, now) == then


def test_a_server_of_an_earlier_timeline_is_refused():
    with pytest.raises(Unavailable, match="timeline 1 and we have worked on timeline 2"):
        followed(Lineage(7, 2), Lineage(7, 1))


async def test_a_server_says_which_it_is(database: str) -> None:
    async with await connect(database) as conn:
        first, second = await lineage_of(conn), await lineage_of(conn)
    assert first == second
    assert first is not None
    assert first.timeline == 1


async def test_a_role_that_may_not_ask_goes_on_without(role: str, database: str, conn: psycopg.Connection) -> None:
    conn.execute("revoke execute on function pg_control_system() from public")
    async with await connect(database) as ours:
        await ours.execute(psycopg.sql.SQL("set role {}").format(psycopg.sql.Identifier(role)))
        assert await lineage_of(ours) is None
