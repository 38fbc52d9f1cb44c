"""What a run stands on, as far as its faults need it: a server of our own, a small disk, a standby, proxies."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from kept.db.embedded import Embedded, is_embedded, let_through, location
from kept.verify import clocks, pooler
from kept.verify.disk import Disk
from kept.verify.proxy import Proxy, proxy_before
from kept.verify.replica import Pair
from kept.verify.server import Server

SERVER, DISK = "pg", "disk"


class Rig:
    """Opened before anything else, and closed after everything else, in *folder*."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open = ExitStack()
        self.server: Server | None = None
        self.proxy: Proxy | None = None
        self.database = self.direct = ""  # URLs: as workers and producers know it, and past the faults
        self.extras: dict[str, Any] = {}

    def open(self, database: str | None, needs: frozenset[str]) -> None:
        """Set up what *needs* names, on the server of *database* or one of our own."""
        if database is None:
            self._start(needs)
        elif is_embedded(database):
            self.direct = self._open.enter_context(Embedded(location(database))).url()
        else:
            self.direct = database
        self.database = self.direct
        if "proxy" in needs:
            others = {pooler.account(self._folder).uid} if "pooler" in needs else ()
            to = self.server.url if self.server else self.direct
            self.proxy = self._open.enter_context(proxy_before(to, others))
            self.database = self.proxy.url
        if "pooler" in needs:
            found = self.extras["pooler"] = self._open.enter_context(pooler.Pooler(self.database, self._folder))
            self.database = found.url

    def close(self) -> None:
        """Take everything down again."""
        self._open.close()
        clocks.sweep()

    def _start(self, needs: frozenset[str]) -> None:
        folder = self._folder
        let_through(folder)
        if "disk" in needs:
            disk = self.extras["disk"] = self._open.enter_context(Disk(folder / DISK))
            folder = disk.folder
        if "replica" in needs:
            self._start_pair(folder)
        else:
            self.server = self._open.enter_context(Server(folder / SERVER))
            self.direct = self.server.url

    def _start_pair(self, folder: Path) -> None:
        """Which server is the primary changes: a second proxy, which is always calm, leads to it past the first."""
        pair = self.extras["replica"] = self._open.enter_context(Pair(folder))
        aside = self.extras["aside"] = self._open.enter_context(proxy_before(pair.primary.url))
        self.server, self.direct = pair.primary, aside.url
