"""The network of `kept verify` is open to its own user only: the server behind it trusts whoever comes from there."""

from __future__ import annotations

import os
import pwd
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from kept.verify import neighbours
from kept.verify.database import HERE
from kept.verify.neighbours import user_at, user_in
from kept.verify.proxy import Proxy, proxy_before
from support import eventually
from tls import WANTS_TLS

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else as well")
HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
LINE = (
    "   7: {other} {ours} {state} 00000000:00000000 00:00000000 00000000  {uid}        0 {inode} 1 00000000 20 4 30\n"
)
OTHER, OURS = ("127.0.0.1", 0xB3F1), ("127.0.0.1", 0x1F90)
SPELLED = "0100007F:B3F1", "0100007F:1F90"  # as a machine writes it whose words begin with their least byte
MAPPED = "0000000000000000FFFF0000"


def table(
    other: str = SPELLED[0], ours: str = SPELLED[1], *, state: str = "01", uid: int = 1000, inode: int = 5
) -> str:
    before = LINE.format(other="0100007F:1F90", ours="00000000:0000", state="0A", uid=3, inode=1)
    return HEAD + before + LINE.format(other=other, ours=ours, state=state, uid=uid, inode=inode)


def test_the_line_that_leads_from_there_to_us_says_whose_it_is() -> None:
    assert user_in(table(), OTHER, OURS) == 1000
    assert user_in(table(uid=0), OTHER, OURS) == 0


def test_a_socket_of_ipv6_that_leads_to_us_is_found() -> None:
    assert user_in(table(MAPPED + SPELLED[0], MAPPED + SPELLED[1]), OTHER, OURS) == 1000


@pytest.mark.parametrize(
    "line",
    [
        {"other": SPELLED[1], "ours": SPELLED[0]},  # our own end
        {"other": "0100007F:B3F2"},
        {"other": "0200007F:B3F1"},
        {"ours": "0100007F:1F91"},
        {"ours": MAPPED + SPELLED[1]},
    ],
)
def test_other_lines_say_nothing(line: dict[str, str]) -> None:
    assert user_in(table(**line), OTHER, OURS) is None


@pytest.mark.parametrize(("state", "inode"), [("05", 0), ("06", 0), ("01", 0), ("08", 5), ("04", 5)])
def test_what_nobody_holds_any_more_is_not_root_s_although_it_says_so(state: str, inode: int) -> None:
    assert user_in(table(state=state, uid=0, inode=inode), OTHER, OURS) is None


@pytest.mark.parametrize("text", ["", HEAD, "\n\n", HEAD + "   7: torn"])
def test_a_table_without_lines_says_nothing(text: str) -> None:
    assert user_in(text, OTHER, OURS) is None


@contextmanager
def connected(family: int = socket.AF_INET) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Our own end of a connection, and the other one, a socket of *family*."""
    host = "127.0.0.1" if family == socket.AF_INET else "::ffff:127.0.0.1"
    with closing(socket.create_server(("127.0.0.1", 0))) as listener, closing(socket.socket(family)) as other:
        other.connect((host, listener.getsockname()[1]))
        with closing(listener.accept()[0]) as ours:
            yield ours, other


def user_beyond(ours: socket.socket) -> int | None:
    return user_at(ours.getpeername(), ours.getsockname())


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_the_kernel_says_that_we_are_who_we_are(family: int) -> None:
    with connected(family) as (ours, _):
        assert user_beyond(ours) == os.geteuid()


def test_who_said_something_and_left_is_nobody_we_know() -> None:
    with connected() as (ours, other):
        other.sendall(b"what is to be done without any answer")
        other.close()
        eventually(lambda: user_beyond(ours) is None)


def answer(proxy: Proxy, uid: int) -> bytes:
    """What the server says to a socket of *uid* that asks for TLS through *proxy*."""
    os.seteuid(uid)
    try:
        client = socket.socket()
    finally:
        os.seteuid(0)
    with client:
        client.settimeout(10)
        client.connect((HERE, int(conninfo_to_dict(proxy.url)["port"])))
        try:
            client.sendall(WANTS_TLS)
            return client.recv(1)
        except ConnectionError:
            return b""


@ROOT_ONLY
def test_another_user_of_this_machine_does_not_get_to_the_server(database: str) -> None:
    nobody = pwd.getpwnam("nobody").pw_uid
    with proxy_before(database) as proxy:
        assert (answer(proxy, nobody), answer(proxy, 0)) == (b"", b"N")
    with proxy_before(database, {nobody}) as proxy:
        assert (answer(proxy, nobody), answer(proxy, 1)) == (b"N", b"")


def test_whom_the_kernel_calls_another_user_is_refused_by_the_proxy(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with proxy_before(database) as proxy:
        psycopg.connect(proxy.url).close()
        monkeypatch.setattr(neighbours, "TABLES", ())
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(proxy.url)
        monkeypatch.setattr("kept.verify.proxy.user_at", lambda *_: os.geteuid() + 1)
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(proxy.url)
