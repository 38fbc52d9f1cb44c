"""Connections to addresses that were checked: a name is resolved once, and the very addresses found are used."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable

import httpcore2

from kept.outbox.addresses import Allowed

_MOST_TRIED = 4  # addresses of one name
_PATIENCE = 60.0  # seconds, if nobody says


class Blocked(Exception):
    """The name stands for an address that nothing may be sent to."""


class NoAddress(Exception):
    """The name stands for nothing."""


class PinnedBackend(httpcore2.AsyncNetworkBackend):
    """Opens connections for a pool, which then secures them: TLS is verified against the name, not the address.

    Between the check and the connection nobody is asked again, so an answer that changes changes nothing.
    """

    def __init__(self, allowed: Allowed) -> None:
        self._allowed = allowed
        self._network = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        addresses = await self._addresses(host, port)
        share = (timeout or _PATIENCE) / len(addresses)
        failed: Exception | None = None
        for address in addresses:
            try:
                return await self._network.connect_tcp(address, port, share, local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failed = error
        raise failed or NoAddress(f"{host} has no address")

    async def _addresses(self, host: str, port: int) -> list[str]:
        """Where to connect to. One address that is refused spoils all: an honest name has no such mixture."""
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise NoAddress(f"{host} cannot be resolved: {error}") from None
        addresses = list(dict.fromkeys(str(place[0]) for *_, place in found))
        for address in addresses:
            if (why := self._allowed.refuses(address)) is not None:
                raise Blocked(f"{host} stands for {address}, {why}")
        return addresses[:_MOST_TRIED]
