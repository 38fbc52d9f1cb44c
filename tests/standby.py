"""A real pair of servers: a primary, and a standby that streams from it and can be promoted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psycopg

from kept.db import migrate
from kept.db.embedded import Embedded
from support import eventually

OPTIONS = {"fsync": "off"}  # the machine stays up; commits must be written all the same


@dataclass(frozen=True)
class Pair:
    """A primary with our schema, and its standby."""

    primary: Embedded
    standby: Embedded

    def url(self, **options: str) -> str:
        """Both servers in one URL, the primary first."""
        hosts, ports = zip(*(place(server) for server in (self.primary, self.standby)), strict=True)
        more = "".join(f"&{name}={value}" for name, value in options.items())
        return f"postgresql://postgres@/postgres?host={','.join(hosts)}&port={','.join(ports)}{more}"

    def caught_up(self) -> None:
        """Wait until the standby has everything that was committed by now."""
        with _connect(self.primary) as primary, _connect(self.standby) as standby:
            (upto,) = primary.execute("select pg_current_wal_lsn()").fetchone() or ()
            behind = "select pg_last_wal_replay_lsn() >= %s::pg_lsn"
            eventually(lambda: (standby.execute(behind, [upto]).fetchone() or [False])[0], 30, what="replication")

    def cut(self) -> None:
        """From now on the standby hears nothing of what the primary commits."""
        with _connect(self.standby) as standby:
            standby.execute("alter system set primary_conninfo = ''")
            standby.execute("select pg_reload_conf()")
            heard = "select count(*) from pg_stat_wal_receiver"
            eventually(lambda: standby.execute(heard).fetchone() == (0,), 30, what="the end of replication")

    def promote(self) -> None:
        """Make the standby a primary; returns when it takes writes."""
        with _connect(self.standby) as standby:
            assert standby.execute("select pg_promote()").fetchone() == (True,)


@contextmanager
def pair(folder: Path) -> Iterator[Pair]:
    """A pair of servers in *folder*; both are gone when the block ends."""
    with Embedded(folder / "one", options=OPTIONS) as primary:
        with _connect(primary) as conn:
            migrate.apply(conn)
        standby = Embedded(folder / "two", options=OPTIONS)
        standby.follow(primary.url())
        with standby:
            yield Pair(primary, standby)


def _connect(server: Embedded) -> psycopg.Connection:
    return psycopg.connect(server.url(), autocommit=True)


def place(server: Embedded) -> tuple[str, str]:
    """Host and port of a server, as its URL spells them."""
    given = dict(each.split("=", 1) for each in urlsplit(server.url()).query.split("&"))
    return given["host"], given["port"]
