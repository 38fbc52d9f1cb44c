"""A RabbitMQ of the tests' own: other ports, other files, and ended with everything it started."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path

from support import eventually, freeze

PROGRAMS = Path("/usr/lib/rabbitmq/bin")  # those of /usr/sbin insist on their own user and folder
EPMD = shutil.which("epmd")
FOUND = EPMD is not None and (PROGRAMS / "rabbitmq-server").exists()

MOST_BYTES = 200_000
SETTINGS = """
listeners.tcp.1 = 127.0.0.1:{port}
max_message_size = {most}
disk_free_limit.absolute = 1MB
"""


class Rabbit:
    """One node on 127.0.0.1; its data outlives a kill."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.port, distribution, names = _free_ports(3)
        (folder / "rabbitmq.conf").write_text(SETTINGS.format(port=self.port, most=MOST_BYTES))
        (folder / "enabled_plugins").write_text("[].")
        self._env = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),  # the cookie
            "LANG": "C.UTF-8",
            "ERL_EPMD_PORT": str(names),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"kept{self.port}@localhost",
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(folder),
            "RABBITMQ_LOG_BASE": str(folder),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none",
        }
        self._names = subprocess.Popen([EPMD, "-port", str(names)], env=self._env)
        self.start()

    def url(self, *, user: str = "guest", password: str = "guest", host: str = "/") -> str:
        return f"amqp://{user}:{password}@127.0.0.1:{self.port}/{host if host != '/' else '%2F'}"

    def start(self) -> None:
        with (self._folder / "out").open("ab") as log:
            self._process = subprocess.Popen(
                [PROGRAMS / "rabbitmq-server"], env=self._env, cwd=self._folder, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        eventually(self._answers, 60, what="RabbitMQ")

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        self._process.wait()

    def freeze(self) -> None:
        freeze(*self._pids())

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        os.killpg(self._process.pid, number)

    def _pids(self) -> list[int]:
        """The node and what it started."""
        running = [int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()]
        return [pid for pid in running if _group_of(pid) == self._process.pid]

    def control(self, *args: str) -> str:
        told = subprocess.run(
            [PROGRAMS / "rabbitmqctl", "-q", *args], env=self._env, cwd=self._folder, check=False,
            capture_output=True, text=True,
        )  # fmt: skip
        assert told.returncode == 0, told.stdout + told.stderr
        return told.stdout

    def end(self) -> None:
        self.kill()
        self._names.kill()
        self._names.wait()

    def _answers(self) -> bool:
        assert self._process.poll() is None, (self._folder / "out").read_text(errors="replace")
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as conn:
                conn.settimeout(2)
                conn.sendall(b"AMQP\x00\x00\x09\x01")
                return conn.recv(1) == b"\x01"
        except OSError:
            return False


def _group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
