"""The API's patterns mean the same to Python as to RE2, by which an API server asks them."""

from __future__ import annotations

from ipaddress import IPv6Address

import pytest
import re2
from hypothesis import given
from hypothesis import strategies as st

from tink.api import patterns
from tink.api.v1alpha2 import HardwareSpec

PATTERNS = {name: value for name, value in vars(patterns).items() if name.isupper() and isinstance(value, str)}
PATTERNS = {name: value for name, value in PATTERNS.items() if not name.startswith("_")}
PARTS = (
    "10.0.0.1",
    "255",
    "52:54:00:12:34:56",
    "a-b.c",
    "http://a/b?c",
    "file:///a",
    "/dev/sda",
    "/dev/nvme0n1p1",
    "&&",
    ":/a",
)
TEXTS = st.lists(st.sampled_from((*PARTS, *" \t\n\v\f\r\x00\x7f\x85\xa0#;|$é0aZ_/.:-")), max_size=6).map("".join)


@pytest.mark.parametrize("name", PATTERNS)
@given(text=TEXTS)
def test_text_is_judged_by_a_converter_as_by_an_api_server(name: str, text: str) -> None:
    pattern = PATTERNS[name]
    assert (patterns.compiled(pattern).search(text) is None) == (re2.search(pattern, text) is None)


@given(st.ip_addresses(v=6))
def test_every_ipv6_address_is_taken_as_rfc_5952_spells_it(address: IPv6Address) -> None:
    if address.ipv4_mapped is None and not address.is_unspecified:
        assert patterns.compiled(patterns.IPV6).search(str(address)), str(address)


@given(st.text("0123456789abcdef:", max_size=42))
def test_what_is_taken_for_an_ipv6_address_is_one(text: str) -> None:
    if patterns.compiled(patterns.IPV6).search(text):
        IPv6Address(text)


@pytest.mark.parametrize(
    "text", ["FD00::1", "fd00::1%eth0", "fd00::1/64", "fd00::0001", "fd00:::1", "1::2::3", "1:2:3:4:5:6:7", "10.0.0.1"]
)
def test_what_is_no_ipv6_address_or_spelled_otherwise_is_refused(text: str) -> None:
    assert not patterns.compiled(patterns.IPV6).search(text)


@pytest.mark.parametrize("text", ["fe80::1", "ff02::1", "::1"])
def test_address_that_is_of_no_host_beyond_its_link_is_refused(text: str) -> None:
    assert patterns.compiled(patterns.NO_UNICAST_IPV6).search(text)
    assert not patterns.compiled(patterns.NO_UNICAST_IPV6).search("fd00::1")


FIELDS = {
    "DEVICE_PATH": lambda text: {"storageDevices": [text]},
    "HTTP_URL": lambda text: {"ipxe": {"url": text}},
    **{
        name: lambda text, field=field: {"networkInterfaces": {"52:54:00:12:34:56": {"dhcp": {field: text}}}}
        for name, field in (("IPV4", "ip"), ("NETMASK", "netmask"), ("HOSTNAME", "hostname"))
    },
}


@pytest.mark.parametrize("name", FIELDS)
@given(data=st.data())
def test_what_the_api_takes_can_be_read(name: str, data: st.DataObject) -> None:
    """Objects that are stored are not for us to refuse."""
    text = data.draw(st.from_regex(patterns.compiled(PATTERNS[name])))
    HardwareSpec.model_validate(FIELDS[name](text))
