"""DBOS: prepare | fill QUEUE N | work."""

from __future__ import annotations

import os
import signal
import sys
import threading

import psycopg
from dbos import DBOS, DBOSConfig

from tally import PAYLOAD, Tally, answer

URL = os.environ["BENCH_URL"]
CONFIG: DBOSConfig = {
    "name": "bench",
    "system_database_url": URL.replace("postgresql://", "postgresql+psycopg://"),
    "sys_db_pool_size": 20,
    "application_version": "1",
    "log_level": "ERROR",
}
# The function DBOS offers to producers that speak SQL.
ADD = "select dbos.enqueue_workflow('bench', %s, named_args => json_build_object('n', n, 'text', %s::text)) from generate_series(0, %s - 1) n"  # noqa: E501
tally = Tally()


@DBOS.workflow(name="bench")
def bench(n: int, text: str) -> None:
    tally.note(n)


def launch() -> None:
    DBOS(config=CONFIG)
    DBOS.launch()


def prepare() -> None:
    launch()
    DBOS.register_queue("bench", polling_interval_sec=0.05)
    DBOS.destroy()
    answer(ok=True)


def fill(queue: str, total: str) -> None:
    with psycopg.connect(URL) as conn:
        conn.execute(ADD, [queue, PAYLOAD, int(total)])
    answer(ok=True)


def work() -> None:
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    launch()
    ended.wait()
    os._exit(0)


if __name__ == "__main__":
    verb, *args = sys.argv[1:]
    {"prepare": prepare, "fill": fill, "work": work}[verb](*args)
