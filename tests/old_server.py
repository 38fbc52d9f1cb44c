"""A server that says it is PostgreSQL 14: just enough of the wire protocol to be asked, and to refuse the rest."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from typing import BinaryIO

PID = 4711
ENCRYPTION = (80877103, 80877104)  # a client that asks for SSL or GSS before it says who it is
INT4, BOOL, TEXT = 23, 16, 25
Answer = tuple[tuple[int, ...], tuple[str, ...]]
# By a word of the statement: the columns' types, and the one row, as text.
ANSWERS: dict[str, Answer] = {
    "server_version_num": ((INT4, BOOL, BOOL), ("14", "f", "f")),
    "pg_backend_pid": ((INT4,), (str(PID),)),
    "set_config": ((TEXT,), ("off",)),
}


class OldServer:
    """Listens on 127.0.0.1; *refused* holds every statement that it knows nothing to say to."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"postgresql://somebody@127.0.0.1:{self._listener.getsockname()[1]}/somewhere"
        self.refused: list[str] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=[client], daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, client.makefile("rb") as said, contextlib.suppress(OSError, EOFError):
            while _code(_body(said)) in ENCRYPTION:
                client.sendall(b"N")
            client.sendall(_greeting())
            talk = Talk(self.refused)
            while (kind := _exactly(said, 1)) != b"X":
                client.sendall(talk.answer(kind, _body(said)))


class Talk:
    """One client's conversation: simple and extended queries, transactions, errors."""

    def __init__(self, refused: list[str]) -> None:
        self._refused = refused
        self._status = b"I"
        self._query = ""
        self._failed = False  # then everything is skipped until the client says Sync

    def answer(self, kind: bytes, body: bytes) -> bytes:
        if kind == b"Q":
            self._query = body[:-1].decode()
            said = b"".join(self._steps(b"D", b"E"))
            self._failed = False
            return said + self._ready()
        if kind == b"S":
            self._failed = False
            return self._ready()
        if kind == b"P":
            self._query = body.split(b"\0")[1].decode()
        return b"".join(self._steps(kind))

    def _steps(self, *kinds: bytes) -> Iterator[bytes]:
        for kind in kinds:
            if not self._failed:
                yield self._step(kind)

    def _step(self, kind: bytes) -> bytes:
        match kind:
            case b"P":
                return _message(b"1")
            case b"B":
                return _message(b"2")
            case b"D":
                found = self._found()
                return _columns(found[0]) if found else _message(b"n") if self._is_command() else self._refuse()
            case b"E":
                found = self._found()
                return (_row(found[1]) if found else b"") + _message(b"C", self._execute() + b"\0")
            case _:
                return b""

    def _found(self) -> Answer | None:
        return next((answer for word, answer in ANSWERS.items() if word in self._query), None)

    def _is_command(self) -> bool:
        return self._query.split()[0].lower() in ("begin", "commit", "rollback")

    def _execute(self) -> bytes:
        word = self._query.split()[0].lower()
        self._status = {"begin": b"T", "commit": b"I", "rollback": b"I"}.get(word, self._status)
        return word.upper().encode() + (b" 1" if word == "select" else b"")

    def _refuse(self) -> bytes:
        self._refused.append(self._query)
        self._failed = True
        self._status = b"E" if self._status != b"I" else b"I"
        fields = {"S": "ERROR", "V": "ERROR", "C": "42P01", "M": 'relation "kept.lane" does not exist'}
        return _message(b"E", b"".join(f"{name}{text}\0".encode() for name, text in fields.items()) + b"\0")

    def _ready(self) -> bytes:
        return _message(b"Z", self._status)


def _greeting() -> bytes:
    told = {"server_version": "14.19", "client_encoding": "UTF8", "standard_conforming_strings": "on"}
    parameters = b"".join(_message(b"S", f"{name}\0{value}\0".encode()) for name, value in told.items())
    return _message(b"R", struct.pack("!i", 0)) + parameters + _message(b"K", struct.pack("!ii", PID, 1)) + _idle()


def _idle() -> bytes:
    return _message(b"Z", b"I")


def _columns(types: tuple[int, ...]) -> bytes:
    fields = b"".join(b"c\0" + struct.pack("!ihihih", 0, 0, oid, -1, -1, 0) for oid in types)
    return _message(b"T", struct.pack("!h", len(types)) + fields)


def _row(values: tuple[str, ...]) -> bytes:
    fields = b"".join(struct.pack("!i", len(value)) + value.encode() for value in values)
    return _message(b"D", struct.pack("!h", len(values)) + fields)


def _message(kind: bytes, body: bytes = b"") -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


def _body(stream: BinaryIO) -> bytes:
    return _exactly(stream, struct.unpack("!i", _exactly(stream, 4))[0] - 4)


def _code(startup: bytes) -> int:
    code: int = struct.unpack("!i", startup[:4])[0]
    return code


def _exactly(stream: BinaryIO, count: int) -> bytes:
    found = stream.read(count)
    if len(found) < count:
        raise EOFError
    return found
