"""A TCP proxy before PostgreSQL that can lose replies: what was asked is done, and nobody hears of it."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from urllib.parse import parse_qs, unquote, urlsplit

READY = b"Z\x00\x00\x00\x05"  # with one more byte, the end of every reply to a request

Rule = Callable[[bytes], bool]


class Proxy:
    """Listens on 127.0.0.1 and passes everything on, until told to lose something."""

    def __init__(self, database: str) -> None:
        parts = urlsplit(database)
        self._upstream = _upstream(database)
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        self.url = f"postgresql://{parts.username or 'postgres'}@127.0.0.1:{port}{parts.path}"
        self.lost = threading.Event()  # a reply was lost
        self._open = threading.Event()
        self._open.set()
        self._rules: dict[str, Rule] = {}
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._swallowed: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_answer_to(self, asked: Rule) -> None:
        """Lose the whole reply to the next request that *asked* recognises, then admit nobody until told."""
        self._arm("asked", asked)

    def lose_answer(self, answered: Rule) -> None:
        """Lose the next reply that *answered* recognises, then admit nobody until told."""
        self._arm("answered", answered)

    def admit(self) -> None:
        """Let clients in again."""
        self._open.set()

    def cut(self) -> None:
        """Break every connection."""
        with self._lock:
            sockets = list(self._sockets)
        for each in sockets:
            _shut(each)

    def swallow(self) -> None:
        """From now on whatever is said over present connections is acknowledged and goes nowhere."""
        with self._lock:
            self._swallowed |= self._sockets

    def close(self) -> None:
        self._open.set()
        self._listener.close()
        self.cut()

    def _arm(self, what: str, rule: Rule) -> None:
        self.lost.clear()
        with self._lock:
            self._rules = {what: rule}

    def _matches(self, what: str, data: bytes) -> bool:
        """Whether the armed rule is met; a rule is met once."""
        with self._lock:
            rule = self._rules.get(what)
            if rule is None or not rule(data):
                return False
            self._rules = {}
            self._open.clear()
            return True

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=[client], daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        self._open.wait()
        family, address = self._upstream
        server = socket.socket(family)
        server.connect(address)
        with self._lock:
            self._sockets |= {client, server}
        swallow = threading.Event()
        back = threading.Thread(target=self._back, args=[client, server, swallow], daemon=True)
        back.start()
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                if client in self._swallowed:
                    continue
                if self._matches("asked", data):
                    swallow.set()
                server.sendall(data)
        _shut(server)
        back.join()
        with self._lock:
            self._sockets -= {client, server}
        client.close()
        server.close()

    def _back(self, client: socket.socket, server: socket.socket, swallow: threading.Event) -> None:
        reply = b""
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                reply += data
                if (swallow.is_set() or "answered" in self._rules) and not _is_whole(reply):
                    continue
                if swallow.is_set() or self._matches("answered", reply):
                    self.lost.set()
                    break
                client.sendall(reply)
                reply = b""
        _shut(client)


def _is_whole(reply: bytes) -> bool:
    """Whether the server has said all it has to say, for a client that waits for it."""
    negotiated, notified = len(reply) == 1, reply[:1] == b"A"
    return reply[-6:-1] == READY or negotiated or notified


def _upstream(database: str) -> tuple[int, object]:
    parts = urlsplit(database)
    given = parse_qs(parts.query)
    port = parts.port or int(given.get("port", ["5432"])[0])
    host = unquote(parts.hostname or given.get("host", ["localhost"])[0])
    if host.startswith("/"):
        return socket.AF_UNIX, f"{host}/.s.PGSQL.{port}"
    return socket.AF_INET, (host, port)


def _shut(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def proxy_before(database: str) -> Iterator[Proxy]:
    """A proxy that is gone when the block ends."""
    proxy = Proxy(database)
    try:
        yield proxy
    finally:
        proxy.close()
