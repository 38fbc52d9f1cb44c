"""A small HTTP server for probes and scrapes: ``/livez``, ``/readyz``, ``/metrics``.

It answers from threads of its own, so that it can say "the loop stands still" while the loop stands still.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from time import monotonic

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from kept.errors import Misconfigured
from kept.showable import clean

_TEXT = "text/plain; charset=utf-8"
PATIENCE = 5.0  # seconds for one client, from its coming to its going
MOST = 64  # clients at a time; the oldest makes room

Answer = tuple[HTTPStatus, bytes, str]


class HealthServer:
    """Serves until closed. Binding happens at once, so that a taken port stops the start with a sentence."""

    def __init__(
        self,
        *,
        port: int,
        host: str = "127.0.0.1",
        registry: CollectorRegistry,
        beat_age: Callable[[], float],
        limit: float,
        ready: Callable[[], str | None],
    ) -> None:
        """*beat_age*: seconds since the loop moved, alive under *limit*. *ready*: None, or why not yet."""
        self._registry = registry
        self._beat_age = beat_age
        self._limit = limit
        self._ready = ready
        self._server = _bind(host, port, self.answer)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="kept-health", daemon=True
        )
        self._thread.start()

    @property
    def port(self) -> int:
        """The port it listens on: the one asked for, or the one the system chose for 0."""
        return self._server.server_port

    def close(self) -> None:
        """Stop answering and free the port. Closing twice is fine."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, path: str, accept: str) -> Answer:
        """What a GET of *path* is told. A question that fails is an answer too."""
        try:
            match path:
                case "/livez":
                    return self._alive()
                case "/readyz":
                    reason = self._ready()
                    return _line(HTTPStatus.OK, "ready") if reason is None else _line(_UNWELL, reason)
                case "/metrics":
                    encode, content_type = choose_encoder(accept)
                    return HTTPStatus.OK, encode(self._registry), content_type
                case _:
                    return _line(HTTPStatus.NOT_FOUND, "not found; there are /livez, /readyz and /metrics")
        except Exception as error:  # noqa: BLE001  whatever it is, the prober wants an answer
            return _line(_UNWELL, f"{type(error).__name__}: {error}")

    def _alive(self) -> Answer:
        age = self._beat_age()
        if age < self._limit:
            return _line(HTTPStatus.OK, f"alive: the loop moved {age:.1f} s ago")
        return _line(_UNWELL, f"the loop has not moved for {age:.1f} s; the limit is {self._limit:g} s")


_UNWELL = HTTPStatus.SERVICE_UNAVAILABLE


def _line(status: HTTPStatus, text: str) -> Answer:
    return status, f"{clean(text)}\n".encode(), _TEXT


class _Server(ThreadingHTTPServer):
    """Clients that dawdle, however many, neither pile up nor keep a probe from its answer."""

    request_queue_size = 128

    def __init__(self, address: tuple[str, int], answer: Callable[[str, str], Answer]) -> None:
        self.answer = answer
        self._clients: dict[socket.socket, float] = {}  # and when each came, the oldest first
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Bind without asking DNS for our own name: where DNS is slow, that delays the start by seconds."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = "kept", int(self.server_address[1])

    def process_request(self, request: socket.socket, client_address: object) -> None:  # type: ignore[override]
        self._clients[request] = monotonic()
        self._send_off()
        super().process_request(request, client_address)

    def shutdown_request(self, request: socket.socket) -> None:  # type: ignore[override]
        self._clients.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Called several times a second."""
        self._send_off()

    def _send_off(self) -> None:
        """End what takes too long. A client that sends a byte now and then never runs into a limit for each byte."""
        clients = list(self._clients.items())
        for number, (client, since) in enumerate(clients, 1):
            if monotonic() - since > PATIENCE or len(clients) - number >= MOST:
                with contextlib.suppress(OSError):  # it has just gone
                    client.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is no news."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version = "kept"
    sys_version = ""

    def do_GET(self) -> None:
        self._send(self.server.answer(self.path.partition("?")[0], self.headers.get("Accept", "")))

    def send_error(self, code: int, *_texts: str | None, **_more: str | None) -> None:
        """One line instead of a page; a method we do not serve is refused as such."""
        known = HTTPStatus(code)
        refused = known is HTTPStatus.NOT_IMPLEMENTED
        status = HTTPStatus.METHOD_NOT_ALLOWED if refused else known
        self._send(_line(status, "only GET is served" if refused else status.phrase))

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: probes come every few seconds."""

    def _send(self, answer: Answer) -> None:
        status, body, content_type = answer
        self.send_response(status)
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET")
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _bind(host: str, port: int, answer: Callable[[str, str], Answer]) -> _Server:
    try:
        return _Server((host, port), answer)
    except (OSError, OverflowError, ValueError) as error:
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            sentence = "is taken by another process; choose another port"
        else:
            sentence = f"cannot be listened on: {error}"
        raise Misconfigured(f"metrics: port {port} of {host} {sentence}") from error
