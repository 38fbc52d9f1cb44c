"""Whose process is at the other end of a connection within this machine, by what the kernel says of it. Linux only."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

End = tuple[str, int]  # an address of IPv4 and a port

TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
MAPPED = b"\0" * 10 + b"\xff\xff"  # before an address of IPv4, in a socket of IPv6
STATE, UID, INODE = 0, 4, 6  # columns behind both ends
ESTABLISHED, NOBODYS = "01", "0"
TRIES = 3  # while others come and go, a line may be missed


def user_at(other: End, ours: End) -> int | None:
    """The uid of whoever holds the end *other* of a connection to our end; None if the kernel knows nobody."""
    for _ in range(TRIES):
        for path in TABLES:
            with suppress(OSError):  # a kernel without IPv6
                if (found := user_in(path.read_text(encoding="ascii"), other, ours)) is not None:
                    return found
    return None


def user_in(table: str, other: End, ours: End) -> int | None:
    """The uid beside the line of *table* that leads from *other* to *ours*, as long as a process holds it open.

    Once that has closed it, the kernel forgets whose it was and says that it is root's.
    """
    for ends in zip(_spelled(other), _spelled(ours), strict=True):
        _, found, rest = table.partition(f" {' '.join(ends)} ")  # there may be thousands of others
        words = rest.split(maxsplit=INODE + 1)
        if found and len(words) > INODE:
            return int(words[UID]) if words[STATE] == ESTABLISHED and words[INODE] != NOBODYS else None
    return None


def _spelled(end: End) -> Iterator[str]:
    """*end* as a socket of IPv4 and one of IPv6 have it: words of 32 bits in the machine's own order."""
    address, port = socket.inet_aton(end[0]), end[1]
    for whole in (address, MAPPED + address):
        words = (whole[at : at + 4] for at in range(0, len(whole), 4))
        yield "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words) + f":{port:04X}"
