"""pgbouncer in transaction mode before a test's database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kept.verify.pooler import Pooler, account, program
from kept.verify.proxy import proxy_before

PGBOUNCER = program()


@contextmanager
def pooler_before(database: str, folder: Path) -> Iterator[str]:
    """The URL of *database* behind pgbouncer, which is gone when the block ends."""
    # Through the proxy: pgbouncer refuses to be root, and others may not see the server's socket.
    with proxy_before(database, {account(folder).uid}) as proxy, Pooler(proxy.url, folder) as pooler:
        yield pooler.url
