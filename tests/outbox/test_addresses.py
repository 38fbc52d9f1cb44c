"""Which addresses a webhook may go to."""

from __future__ import annotations

from ipaddress import IPv4Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kept.errors import Refused
from kept.outbox.addresses import Allowed, special

REFUSED = {
    "127.0.0.1": "loopback",
    "127.255.255.254": "loopback",
    "::1": "loopback",
    "0.0.0.0": "unspecified",
    "0.1.2.3": "private or reserved",
    "::": "unspecified",
    "10.0.0.1": "private or reserved",
    "172.31.255.255": "private or reserved",
    "192.168.1.1": "private or reserved",
    "192.0.0.192": "private or reserved",
    "198.18.0.1": "private or reserved",
    "fd00:ec2::254": "private or reserved",
    "169.254.169.254": "link-local",
    "fe80::1": "link-local",
    "fe80::1%eth0": "link-local",
    "100.64.0.1": "CGNAT",
    "100.100.100.200": "CGNAT",
    "168.63.129.16": "cloud",
    "192.88.99.1": "private or reserved",
    "224.0.0.1": "multicast",
    "ff02::1": "multicast",
    "240.0.0.1": "private or reserved",
    "255.255.255.255": "private or reserved",
    "2001:db8::1": "private or reserved",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2": "private or reserved",  # Teredo
    "3fff::1": "private or reserved",
    "fec0::1": "private or reserved",
    "100::1": "private or reserved",
    "4000::1": "private or reserved",
    "64:ff9b:1::7f00:1": "private or reserved",
    # IPv4 inside IPv6
    "::ffff:127.0.0.1": "loopback",
    "::ffff:a9fe:a9fe": "link-local",
    "::7f00:1": "loopback",
    "2002:7f00:1::1": "loopback",
    "2002:a00:1::1": "private or reserved",
    "64:ff9b::7f00:1": "loopback",
    "64:ff9b::10.1.2.3": "private or reserved",
    "64:ff9b::6440:1": "CGNAT",
    "localhost": "not an address",
}
PUBLIC = ["1.1.1.1", "93.184.215.14", "2606:4700:4700::1111", "64:ff9b::1.1.1.1", "::ffff:1.1.1.1", "2002:101:101::1"]


@pytest.mark.parametrize(("address", "why"), REFUSED.items())
def test_an_address_that_is_not_public_is_refused(address: str, why: str) -> None:
    said = Allowed().refuses(address)
    assert said is not None, address
    assert why in said


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_is_not_refused(address: str) -> None:
    assert Allowed().refuses(address) is None


def test_networks_allow_more_however_the_address_is_written() -> None:
    allowed = Allowed(["10.1.0.0/16", "fd00::/8"])
    assert [allowed.refuses(each) for each in ("10.1.2.3", "::ffff:10.1.2.3", "64:ff9b::10.1.2.3", "fd00::7")] == [
        None
    ] * 4
    assert allowed.refuses("10.2.0.1")
    assert allowed.refuses("127.0.0.1")
    assert Allowed(True).refuses("127.0.0.1") is None


def test_a_network_that_is_none_is_refused() -> None:
    with pytest.raises(Refused, match="allow_private"):
        Allowed(["10.1.2.3/8"])


@given(st.integers(0, 2**32 - 1))
def test_no_disguise_of_an_ipv4_address_is_judged_otherwise_than_the_address(number: int) -> None:
    plain = IPv4Address(number)
    packed = f"{number >> 16:x}:{number & 0xFFFF:x}"
    for disguise in (f"::ffff:{plain}", f"64:ff9b::{packed}", f"2002:{packed}::1"):
        assert Allowed().refuses(disguise) == special(plain)
