"""Which server this is, and how often its line was taken over: an old primary that comes back must not be worked on."""

from __future__ import annotations

from typing import NamedTuple

import psycopg

from kept.db.wire import Connection
from kept.errors import Unavailable

# By the name of the WAL file that is written now: what the control file says is as old as the last checkpoint.
_ASK = """
select system_identifier, ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint
  from pg_control_system()
"""


class Lineage(NamedTuple):
    """A cluster, and the number of its timeline, which rises when a standby is promoted."""

    cluster: int
    timeline: int


async def lineage_of(conn: Connection) -> Lineage | None:
    """What the server says of itself; None if it does not: some do not let us ask, some have no timelines."""
    try:
        row = await (await conn.execute(_ASK)).fetchone()
    except psycopg.OperationalError:
        raise
    except psycopg.Error:
        return None
    return None if row is None else Lineage(int(row[0]), int(row[1]))


def followed(before: Lineage | None, now: Lineage | None) -> Lineage | None:
    """The newer of the two; Unavailable if *now* is a server whose place another one took while we were at work.

    Another cluster is another matter: somebody moved the database, and knows why.
    """
    if before is None or now is None or before.cluster != now.cluster:
        return now or before
    if now.timeline < before.timeline:
        raise Unavailable(
            f"this server is on timeline {now.timeline} and we have worked on timeline {before.timeline}: "
            "an old primary that came back; Kept waits for the one that took over from it"
        )
    return now
