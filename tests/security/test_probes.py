"""The port for probes and scrapes: a client that is slow, loud or many does not keep others from their answers."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from time import monotonic

import pytest

from kept.cli.worker import worker
from kept.config import Settings
from kept.integrations import health
from kept.integrations.health import HealthServer
from kept.integrations.prometheus import Metrics
from support import eventually


@pytest.fixture
def server() -> Iterator[HealthServer]:
    server = HealthServer(port=0, registry=Metrics().registry, beat_age=lambda: 0.0, limit=30, ready=lambda: None)
    yield server
    server.close()


def alive(server: HealthServer, patience: float = 3.0) -> bool:
    conn = HTTPConnection("127.0.0.1", server.port, timeout=patience)
    with contextlib.closing(conn):
        conn.request("GET", "/livez")
        return conn.getresponse().status == 200


def gone(client: socket.socket) -> bool:
    """Whether the other side has hung up."""
    client.settimeout(0.01)
    try:
        client.sendall(b"a")
        return client.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def test_clients_that_dawdle_neither_pile_up_nor_keep_a_probe_waiting(server: HealthServer) -> None:
    before = threading.active_count()
    with contextlib.ExitStack() as stack:
        slow = [
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), 10))
            for _ in range(2 * health.MOST)
        ]
        for each in slow:
            with contextlib.suppress(OSError):  # the oldest had to make room
                each.sendall(b"GET /livez HTTP/1.1\r\nX: ")
        assert alive(server)
        assert threading.active_count() - before <= health.MOST + 2
        began = monotonic()
        # Each byte comes long before a limit for each byte would end it.
        eventually(
            lambda: sum(not gone(each) for each in slow) == 0, 3 * health.PATIENCE, what="the end of all that dawdle"
        )
        assert monotonic() - began < 2 * health.PATIENCE
        assert alive(server)


@pytest.mark.parametrize(
    "asked",
    [
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
        b"GET /livez HTTP/1.1\r\n" + b"X: y\r\n" * 1000 + b"\r\n",
        b"POST /livez HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n" + b"a" * 1000,
    ],
    ids=["path", "header", "headers", "body"],
)
def test_a_request_that_is_too_large_is_refused_and_not_read(server: HealthServer, asked: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port), 10) as client:
        client.sendall(asked)
        with contextlib.suppress(ConnectionResetError):  # it hung up on what it did not read
            assert client.recv(12) in (b"HTTP/1.0 414", b"HTTP/1.0 431", b"HTTP/1.0 405")
    assert alive(server)


def test_an_answer_repeats_nothing_of_the_question(server: HealthServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port), 10) as client:
        client.sendall(b"GET /<script>%0d%0aSet-Cookie:x HTTP/1.1\r\nHost: evil\r\n\r\n")
        said = b"".join(iter(lambda: client.recv(4096), b""))
    assert said.startswith(b"HTTP/1.0 404")
    assert b"script" not in said
    assert b"evil" not in said
    assert b"Cookie" not in said


def test_nobody_but_this_machine_is_served_unless_asked_for(server: HealthServer) -> None:
    assert server._server.server_address[0] == "127.0.0.1"
    host = next(option for option in worker.params if option.name == "metrics_host")
    assert (host.default, Settings().metrics_port) == ("127.0.0.1", None)
