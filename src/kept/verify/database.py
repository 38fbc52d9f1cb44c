"""The database to verify on: which of its hosts is meant, as whom, and how it is reached at another address."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import LiteralString
from urllib.parse import quote

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from kept.db.connect import connect_sync, conninfo
from kept.db.embedded import is_embedded

NAME = "kept verify"
HERE = "127.0.0.1"
BY_GSSAPI: LiteralString = "select coalesce(bool_or(encrypted), false) from pg_stat_gssapi where pid = pg_backend_pid()"
ONLY_TCP = ("channel_binding", "gssencmode", "requirepeer")


@dataclass(frozen=True, slots=True)
class Database:
    """A database, or none: then it will be one of our own."""

    url: str | None = None
    encrypted: bool = False  # what is said to it cannot be read on the way


def look(database: str | None) -> Database:
    """What *database* is once somebody has connected: of several hosts, the one that is the primary."""
    if database is None or is_embedded(database):
        return Database(database)
    conninfo(database)  # one that cannot be read is told as everywhere
    wanted = {"target_session_attrs": "primary"} | _given(database)
    with connect_sync(make_conninfo(**wanted), name=NAME) as conn:
        row = conn.execute(BY_GSSAPI).fetchone()
        return Database(_pinned(database, conn.info), conn.pgconn.ssl_in_use or bool(row and row[0]))


def _pinned(database: str, found: psycopg.ConnectionInfo) -> str:
    """*database* with what was found and not guessed again: by default much of it comes from elsewhere."""
    given = _given(database) | {"host": found.host, "port": str(found.port), "user": found.user, "dbname": found.dbname}
    if "hostaddr" in given:
        given["hostaddr"] = found.hostaddr
    if found.password:
        given["password"] = found.password  # a password file knows it by the address
    return _url(given)


def url_at(database: str, port: int) -> str:
    """*database*, but at *port* of this machine. Its name stays that of the server, which certificates are made for."""
    given = _given(database)
    if is_socket(given.get("host", "")):
        return _url(_in_clear(given) | {"host": HERE, "hostaddr": HERE, "port": str(port)})
    return _url({"host": given.get("hostaddr", HERE)} | given | {"hostaddr": HERE, "port": str(port)})


def url_on(database: str, folder: str, port: int) -> str:
    """*database*, but on the socket for *port* in *folder*."""
    given = {name: value for name, value in _in_clear(_given(database)).items() if name != "hostaddr"}
    return _url(given | {"host": folder, "port": str(port)})


def address_of(database: str) -> tuple[str, int]:
    """Where the server of *database* listens: a host, or the folder of a socket, and a port."""
    given = _given(database)
    return given.get("hostaddr") or given.get("host") or "localhost", int(given.get("port") or 5432)


def is_socket(host: str) -> bool:
    """Whether *host* is the folder of a socket."""
    return host.startswith("/")


def _in_clear(given: Mapping[str, str]) -> dict[str, str]:
    """*given* without what only a server on TCP can do: on a socket it speaks in clear, whatever it is asked for."""
    kept = {name: value for name, value in given.items() if not name.startswith("ssl") and name not in ONLY_TCP}
    return {**kept, "sslmode": "disable", "gssencmode": "disable"}


def _given(database: str) -> dict[str, str]:
    return {name: str(value) for name, value in conninfo_to_dict(database).items() if value is not None}


def _url(given: Mapping[str, str]) -> str:
    rest = dict(given)
    user, name = quote(rest.pop("user", ""), safe=""), quote(rest.pop("dbname", ""), safe="")
    password = f":{quote(rest.pop('password'), safe='')}" if "password" in rest else ""
    options = "&".join(f"{key}={quote(value, safe='')}" for key, value in rest.items())
    return f"postgresql://{user}{password}{'@' if user or password else ''}/{name}?{options}"
