"""The run: customers come, the publisher is killed, Pub/Sub goes away and comes back; at the end all is compared."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import psycopg
from google.api_core.exceptions import GoogleAPICallError

import packfinder
import search_index
from customers import Customers
from judge import Verdict, judge
from kept import Error
from parts import Publisher, StoryFailed, broker, create_subscription, database, kept, published, say
from search_index import SearchIndex
from stand_in import StandIn

PATIENCE = 60.0  # seconds for anything that must happen
TELL_EVERY = 2.0  # seconds


def tell(folder: Path, seconds: float, enough: threading.Event) -> Verdict:
    """Play it, *enough* ends it early; no process is left behind."""
    try:
        with database(folder), broker() as stand_in:
            return Story(stand_in, Publisher(folder / "publisher.log"), enough).play(seconds)
    except (Error, psycopg.Error, GoogleAPICallError, OSError) as error:
        raise StoryFailed(" ".join(str(error).split())) from error


class Story:
    """What happens, in order."""

    def __init__(self, stand_in: StandIn | None, publisher: Publisher, enough: threading.Event) -> None:
        self._tell_at = 0.0
        self._stand_in, self._publisher, self._enough = stand_in, publisher, enough
        self._closing, self._leaving = threading.Event(), threading.Event()  # for customers, for the search index
        self._threads: list[Future[None]] = []
        self._conn = psycopg.connect(packfinder.app.database, autocommit=True)

    def play(self, seconds: float) -> Verdict:
        """From an empty database to the verdict."""
        self._set_up()
        run = uuid4().hex[:8]  # an emulator may still have those of another run
        audit = create_subscription(f"audit-{run}")
        self._customers, self._index = Customers(), SearchIndex(create_subscription(f"search-index-{run}"))
        with self._conn, ThreadPoolExecutor() as pool:
            try:
                self._publisher.start()
                say(f"the publisher is kept worker packfinder:app, pid {self._publisher.pid}")
                self._threads.append(pool.submit(self._customers.come, self._closing))
                self._threads.append(pool.submit(self._index.follow, self._leaving))
                self._wait_for_effects(1)
                began = time.monotonic()
                self._watch(0.2 * seconds)
                self._kill_the_publisher()
                self._watch(0.2 * seconds)
                self._stop_the_broker(0.15 * seconds)
                self._watch(began + seconds - time.monotonic())
                self._finish()
            finally:
                self._closing.set()
                self._leaving.set()
                self._publisher.stop()
            return self._compare(audit)

    def _set_up(self) -> None:
        self._conn.execute("drop schema if exists kept, pf, search cascade")
        self._conn.execute(packfinder.TABLES + search_index.TABLES)
        kept("migrate")
        kept("sync", "packfinder:app")  # from now on events go to whom the App declares, whoever emits them

    def _wait_for_effects(self, count: int) -> None:
        """Until the search index has applied so many events."""
        deadline = time.monotonic() + PATIENCE
        while len(search_index.applied(self._conn)) < count and not self._enough.wait(0.1):
            self._look(deadline, f"event {count} at the search index")

    # --- what goes wrong

    def _kill_the_publisher(self) -> None:
        if self._enough.is_set():
            return
        self._publisher.kill()
        say(f"the publisher (pid {self._publisher.pid}) was killed with SIGKILL")
        self._enough.wait(1.0)  # as long as a supervisor takes
        self._publisher.start()
        say(f"another publisher starts, pid {self._publisher.pid}")
        self._wait_for_effects(len(self._customers.emitted))
        say("it has published what the other one left")

    def _stop_the_broker(self, seconds: float) -> None:
        if self._enough.is_set():
            return
        if self._stand_in is None:
            say("PUBSUB_EMULATOR_HOST names an emulator: it is yours to stop")
            return
        self._wait_for_sink("closed")
        self._stand_in.stop()
        say("Pub/Sub is away")
        self._wait_for_sink("open")
        self._watch(seconds)
        self._stand_in.start()
        say("Pub/Sub is back")
        self._wait_for_sink("closed")

    def _wait_for_sink(self, state: str) -> None:
        """Call ``kept sinks`` until it says so, and show what it says."""
        deadline = time.monotonic() + PATIENCE
        while (lines := kept("sinks").splitlines())[1].split()[2] != state:
            self._look(deadline, f"the sink to be {state}")
            time.sleep(0.5)
        say("\n           ".join(["kept sinks", *lines]))

    # --- the end

    def _finish(self) -> None:
        """Customers leave; what they did is published, applied and noted."""
        say("no more customers: finishing what was committed")
        self._closing.set()
        self._threads[0].result()
        deadline = time.monotonic() + PATIENCE
        unfinished = (
            "select (select count(distinct event_id) from search.applied) < %s"
            " or (select count(distinct event_id) from pf.stay) < %s"
        )
        wanted = [len(self._customers.emitted), len(self._customers.stays)]
        while self._conn.execute(unfinished, wanted).fetchone() == (True,) and time.monotonic() < deadline:
            self._look(deadline + 1, "the end")
            time.sleep(0.1)

    def _compare(self, audit: str) -> Verdict:
        """Against what the customers know, not against Kept's tables."""
        stays = sorted((str(id), nights) for id, nights in self._conn.execute("select event_id, nights from pf.stay"))
        if stays != sorted(self._customers.stays.items()):
            raise StoryFailed("the stays are not those that were reserved")
        effects = search_index.applied(self._conn)
        say(f"{len(stays)} stays noted, those of version 1 among them; all as reserved")
        say(f"{self._index.deliveries} deliveries, {self._index.deliveries - len(effects)} of them again")
        return judge(self._customers.emitted, published(audit), effects)

    # --- looking and telling

    def _watch(self, seconds: float) -> None:
        """Let time pass, and tell how far they are."""
        deadline = time.monotonic() + seconds
        while not self._enough.wait(min(0.1, max(0.0, deadline - time.monotonic()))) and time.monotonic() < deadline:
            self._look(deadline + PATIENCE, "time to pass")

    def _look(self, deadline: float, what: str) -> None:
        self._publisher.must_run()
        for each in self._threads:
            if each.done():
                each.result()
        if time.monotonic() > deadline:
            raise StoryFailed(f"waited {PATIENCE:.0f} s for {what}")
        if time.monotonic() > self._tell_at:
            self._tell_at = time.monotonic() + TELL_EVERY
            say(f"emitted {len(self._customers.emitted)}, applied {search_index.applied(self._conn).total()}")
