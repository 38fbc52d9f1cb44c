"""pgbouncer in transaction mode before a test's database."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psycopg

from proxy import proxy_before
from support import eventually

SETTINGS = """
[databases]
* = host=127.0.0.1 port={upstream} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 5
max_client_conn = 100
"""
PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


@contextmanager
def pooler_before(database: str, folder: Path) -> Iterator[str]:
    """The URL of *database* behind pgbouncer, which is gone when the block ends."""
    with proxy_before(database) as proxy, socket.create_server(("127.0.0.1", 0)) as free:
        # Through the proxy: pgbouncer refuses to be root, and others may not see the server's socket.
        upstream, port = urlsplit(proxy.url), free.getsockname()[1]
        free.close()
        (folder / "pgbouncer.ini").write_text(SETTINGS.format(upstream=upstream.port, port=port))
        with (folder / "pgbouncer.log").open("wb") as log:
            account = ["-u", "nobody"] if os.geteuid() == 0 else []
            process = subprocess.Popen([PGBOUNCER, *account, folder / "pgbouncer.ini"], stdout=log, stderr=log)
        url = f"postgresql://postgres@127.0.0.1:{port}{upstream.path}"
        try:
            eventually(lambda: answers(url), what="pgbouncer")
            yield url
        finally:
            process.kill()
            process.wait()


def answers(url: str) -> bool:
    try:
        psycopg.connect(url, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True
