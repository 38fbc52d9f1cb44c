"""What the example starts: PostgreSQL, the publisher, a Pub/Sub; and how it calls ``kept``."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from google.api_core.exceptions import AlreadyExists, GoogleAPICallError
from google.cloud.pubsub_v1 import PublisherClient, SubscriberClient

from judge import Fact
from packfinder import PROJECT, TOPIC, app
from stand_in import StandIn

HERE = Path(__file__).resolve().parent
KEPT = str(Path(sys.executable).with_name("kept"))
EMULATOR = "PUBSUB_EMULATOR_HOST"
BEGAN = time.monotonic()


class StoryFailed(Exception):
    """A part did not work; the message is a sentence for the reader."""


def say(text: str) -> None:
    print(f"{time.monotonic() - BEGAN:6.1f} s  {text}", flush=True)


@contextlib.contextmanager
def database(folder: Path) -> Iterator[None]:
    """The PostgreSQL in *folder* that the App is configured with; one example at a time has it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock, contextlib.closing(app):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoryFailed("it is running already; KEPT_DEMO_DIR names another folder") from None
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # Ctrl-C is for us, not for the server
        try:
            say("starting PostgreSQL")
            _ = app.database  # starts it
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        yield


@contextlib.contextmanager
def broker() -> Iterator[StandIn | None]:
    """The stand-in, named in PUBSUB_EMULATOR_HOST; None if that names an emulator already."""
    if os.environ.get(EMULATOR):
        yield None
        return
    stand_in = StandIn()
    os.environ[EMULATOR] = stand_in.address
    try:
        yield stand_in
    finally:
        stand_in.stop()


class Publisher:
    """``kept worker``, which is killed and started again."""

    def __init__(self, log: Path) -> None:
        log.unlink(missing_ok=True)
        self._log = log
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def pid(self) -> int:
        return self._processes[-1].pid

    def start(self) -> None:
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [KEPT, "worker", "packfinder:app", "--log-format", "json"],
                cwd=HERE,
                env={**os.environ, "KEPT_PROCESS_INDEX": "0"},  # so it ends with us, whatever ends us
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
            )
        self._processes.append(process)

    def kill(self) -> None:
        """SIGKILL: no clean-up, no farewell."""
        self._processes[-1].kill()
        self._processes[-1].wait()

    def must_run(self) -> None:
        if (code := self._processes[-1].poll()) is not None:
            raise StoryFailed(f"the publisher ended by itself with exit code {code}")

    def stop(self) -> None:
        """SIGTERM and ten seconds for the last one; SIGKILL for what is left of any."""
        for process in self._processes:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def kept(*words: str) -> str:
    """What ``kept WORDS`` says."""
    done = subprocess.run(
        [KEPT, *words], cwd=HERE, env=os.environ, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        check=False, process_group=0,
    )  # fmt: skip
    if done.returncode:
        raise StoryFailed(f"kept {words[0]}: {' '.join(done.stderr.split())}")
    return done.stdout


def create_subscription(name: str) -> str:
    """A subscription to the topic, and the topic if it is missing; Kept creates neither."""
    topic, path = f"projects/{PROJECT}/topics/{TOPIC}", f"projects/{PROJECT}/subscriptions/{name}"
    with contextlib.suppress(AlreadyExists):
        PublisherClient().create_topic(name=topic, retry=None, timeout=10)
    with SubscriberClient() as client:
        client.create_subscription(request={"name": path, "topic": topic, "enable_message_ordering": True})
    return path


def published(subscription: str) -> list[Fact]:
    """Everything that was published to *subscription*, in order. Deliveries of one message count once."""
    found: dict[str, Fact] = {}
    with SubscriberClient() as client, contextlib.suppress(GoogleAPICallError):  # an emulator's way to say: no more
        while got := client.pull(subscription=subscription, max_messages=500, retry=None, timeout=5).received_messages:
            for each in got:
                about = each.message.attributes
                found[each.message.message_id] = Fact(about["event_id"], about["aggregate_id"])
            client.acknowledge(subscription=subscription, ack_ids=[each.ack_id for each in got])
    return list(found.values())
