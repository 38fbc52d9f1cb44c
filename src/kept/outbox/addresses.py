"""Which addresses a webhook may go to: those of the public internet, and what is allowed besides. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from kept.errors import Refused

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# Global unicast: all that was ever handed out to the public. Everything else in IPv6 is special.
_PUBLIC_6 = IPv6Network("2000::/3")
_NAT64 = IPv6Network("64:ff9b::/96")
_CGNAT = IPv4Network("100.64.0.0/10")
_CLOUD = IPv4Network("168.63.129.16/32")  # public by its number, but inside Azure it is the host
# Pythons differ in what they call private.
_RESERVED = tuple(map(ip_network, ("192.0.0.0/24", "192.88.99.0/24", "240.0.0.0/4", "2001::/23", "3fff::/20")))


class Allowed:
    """Public addresses, and those of *networks*; True: any address."""

    def __init__(self, networks: bool | Iterable[str] = False) -> None:  # noqa: FBT001, FBT002
        self._any = networks is True
        self._networks = [] if isinstance(networks, bool) else [_network(each) for each in networks]

    def refuses(self, text: str) -> str | None:
        """Why nothing may be sent to this address; None if it may."""
        try:
            given = ip_address(text)
        except ValueError:
            return "which is not an address"
        if self._any or self._permits(given):
            return None
        inner = _inside(given)
        if inner is not None and self._permits(inner):
            return None
        return special(given if inner is None else inner)

    def _permits(self, address: Address) -> bool:
        return any(address in network for network in self._networks)


def special(address: Address) -> str | None:
    """What is special about an address that is not simply a public one."""
    unknown = isinstance(address, IPv6Address) and address not in _PUBLIC_6
    reserved = any(address in network for network in _RESERVED)
    kinds = {
        "a loopback address": address.is_loopback,
        "unspecified": address.is_unspecified,
        "link-local": address.is_link_local,
        "a multicast address": address.is_multicast,
        "shared by a provider (CGNAT)": address in _CGNAT,
        "a cloud's own service": address in _CLOUD,
        "private or reserved": unknown or reserved or address.is_private or not address.is_global,
    }
    return next((f"which is {kind}" for kind, holds in kinds.items() if holds), None)


def _inside(address: Address) -> IPv4Address | None:
    """The IPv4 address that packets to this IPv6 address end up at: mapped, compatible, 6to4, NAT64."""
    if isinstance(address, IPv4Address):
        return None
    if address.ipv4_mapped is not None or address.sixtofour is not None:
        return address.ipv4_mapped or address.sixtofour
    if address in _NAT64 or 1 < int(address) < 1 << 32:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return None


def _network(text: str) -> Network:
    try:
        return ip_network(text)
    except ValueError as error:
        raise Refused(f"allow_private: {error}; write it like '10.1.0.0/16'", field="allow_private") from None
