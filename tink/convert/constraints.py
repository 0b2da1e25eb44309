"""Check values of v1alpha2 fields for converters. A check returns the reason for a refusal, or None.

The rules themselves are CEL in `tink.api.rules`, which only an API server evaluates. A converter checks each field
before it writes the field, so that it can leave out a bad value and keep the rest. Patterns, bounds and reasons are
those of `tink.api`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from tink.api import bounds, patterns, rules
from tink.api.v1alpha2 import RUFIO_GROUP
from tink.mac import is_mac

PID_NAMESPACE = "must be host, the machine's own PID namespace, or not be there: the action gets one of its own"
NOT_OVER_IPV6 = "v1alpha2 serves it over IPv4 only"
NO_NETMASK6 = "must be the length of a prefix, such as 64, or its mask, ffff::"
NO_IPV6_ADDRESS = "v1alpha2 serves IPv6 name servers with an IPv6 address, and the interface has none"
ROUTERS_ADVERTISE = "IPv6 routers advertise themselves: use your router, or this host (--ipv6-router)"

_THIS_NETWORK = ipaddress.IPv4Network("0.0.0.0/8")
_NO_UNICAST_IPV6 = patterns.compiled(patterns.NO_UNICAST_IPV6)
_AGENT_ID = patterns.compiled(patterns.AGENT_ID)
_MACHINES = frozenset({"machine", f"machine.{RUFIO_GROUP}"})
"""Kinds of v1alpha1's bmcRef that mean a Machine, in lower case."""
_SPACE = patterns.compiled(patterns.SPACE)
_VOLUME = patterns.compiled(patterns.VOLUME)
_PARTITION = patterns.compiled(patterns.PARTITION)
_ENDS_IPXE_COMMAND = patterns.compiled(patterns.ENDS_IPXE_COMMAND)

Check = Callable[[str], str | None]
"""Returns the reason why a value is refused, or None if the value is good."""


def _matching(pattern: str, rule: rules.Rule, longest: int | None = None, bound: str = "") -> Check:
    """Return the check of a rule: a pattern and perhaps a maximum length, which `bound` adds to the reason."""
    compiled = patterns.compiled(pattern)

    @lru_cache(1024)  # the same servers, netmasks and URLs for a whole rack
    def check(text: str) -> str | None:
        good = (longest is None or len(text) <= longest) and compiled.search(text)
        return None if good else rule.message + bound

    return check


_URL_BOUND = f" (at most {bounds.MAX_URL_CHARACTERS} characters)"
ipv4 = _matching(patterns.IPV4, rules.IPV4)
"""An address, in dotted form."""
netmask = _matching(patterns.NETMASK, rules.NETMASK)
"""A netmask, in dotted form."""
hostname = _matching(patterns.HOSTNAME, rules.HOSTNAME, bounds.MAX_NAME_CHARACTERS)
"""A host name (RFC 1123)."""
http_url = _matching(patterns.HTTP_URL, rules.HTTP_URL, bounds.MAX_URL_CHARACTERS, _URL_BOUND)
"""The URL of an iPXE script."""
artifact_url = _matching(patterns.ARTIFACT_URL, rules.ARTIFACT_URL, bounds.MAX_URL_CHARACTERS, _URL_BOUND)
"""The URL of a kernel or an initrd."""
object_name = _matching(patterns.OBJECT_NAME, rules.OBJECT_NAME, bounds.MAX_NAME_CHARACTERS)
"""The name of an object that is referred to."""
_device_path = _matching(patterns.DEVICE_PATH, rules.DEVICE_PATH, bounds.MAX_DEVICE_PATH_CHARACTERS)
_like_an_address = _matching(patterns.LIKE_AN_ADDRESS, rules.SERVER)
_vlan = _matching(patterns.VLAN, rules.VLAN)
_ipv6 = _matching(patterns.IPV6, rules.IPV6)


def ipv6(text: str) -> str | None:
    """Check an IPv6 address that v1alpha2 serves: canonical and unicast."""
    return _ipv6(text) or (rules.UNICAST_IPV6.message if _NO_UNICAST_IPV6.search(text) else None)


def is_ipv6(text: object) -> bool:
    """Return True if a value is the text of an IPv6 address, maybe with the length of its prefix."""
    if not isinstance(text, str) or ":" not in text:
        return False
    try:
        ipaddress.IPv6Interface(text)
    except ValueError:
        return False
    return True


def prefix_length(netmask: str) -> int | None:
    """Return the prefix length of an IPv6 netmask: `64`, `/64` or `ffff:ffff:ffff:ffff::`.

    None if the text is not a netmask or the length is 0.
    """
    bits = netmask.removeprefix("/")
    if bits.isascii() and bits.isdigit():
        return int(bits) if len(bits) < 4 and 1 <= int(bits) <= 128 else None
    try:
        mask = int(ipaddress.IPv6Address(bits))
    except ValueError:
        return None
    zeros = (mask ^ (1 << 128) - 1).bit_length()
    return 128 - zeros if mask and mask == (1 << 128) - (1 << zeros) else None


def unicast(address: str) -> str | None:
    """Check that an IPv4 address can belong to one machine. v1alpha2 accepts others too, but no host needs them."""
    it = ipaddress.IPv4Address(address)
    if it.is_loopback or it.is_multicast or it.is_unspecified or it.is_reserved or it in _THIS_NETWORK:
        return "must be an address that a machine can have: not 0.x, 127.x, or from 224.x on"
    return None


def canonical_mac(text: str) -> str:
    """Return a MAC address as v1alpha2 writes it; other text is only changed in case and separators."""
    return text.strip().lower().replace("-", ":")


def mac(text: str) -> str | None:
    """Check a MAC address in lower case with colons."""
    return None if is_mac(text) else "must be a MAC address, such as 52:54:00:12:34:56"


def agent_id(text: str) -> str | None:
    """Check an agent id that is not a MAC address."""
    return (
        None if _AGENT_ID.search(text) else "must be one word of letters, digits and . _ : / -, at most 253 characters"
    )


def server(text: str) -> str | None:
    """Check a name server or a time server: an IPv4 address or a host name."""
    refused = hostname(text) if _like_an_address(text) else ipv4(text)
    return rules.SERVER.message if refused else None


def vlan(text: str) -> str | None:
    """Check a VLAN ID, as a string."""
    return _vlan(text) or (None if int(text) <= patterns.MAX_VLAN else rules.VLAN.message)


def kernel_param(text: str) -> str | None:
    """Check one parameter of the kernel's command line."""
    good = len(text) <= bounds.MAX_KERNEL_PARAM_CHARACTERS and not _ENDS_IPXE_COMMAND.search(text)
    return None if good else rules.KERNEL_PARAM.message


def disk(text: str) -> str | None:
    """Check the path of a whole disk in the OSIE."""
    return _device_path(text) or (rules.WHOLE_DISK.message if _PARTITION.match(text) else None)


def image(text: str) -> str | None:
    """Check an OCI image, or a template of one."""
    return rules.IMAGE.message if "{{" not in text and _SPACE.search(text) else None


def volume(text: str) -> str | None:
    """Check a volume of a container, or a template of one."""
    return None if "{{" in text or _VOLUME.match(text) else rules.VOLUME.message


def long_text(text: str) -> str | None:
    """Check user-data, vendor-data or a script."""
    longest = bounds.MAX_DATA_CHARACTERS
    return None if len(text) <= longest else f"longer than {longest} characters, the most that v1alpha2 takes"


def machine_reference(group: Any, kind: Any) -> str | None:
    """Return why a v1alpha1 bmcRef with this apiGroup and kind names no Machine; None if it names one.

    Tinkerbell's documentation also writes the kind as machine.bmc.tinkerbell.org.
    """
    group, kind = group or RUFIO_GROUP, kind or "Machine"
    if group == RUFIO_GROUP and isinstance(kind, str) and kind.lower() in _MACHINES:
        return None
    return f"v1alpha2 refers to a Machine of {RUFIO_GROUP}, not to the kind {kind} of {group}"


def script(text: str) -> str | None:
    """Check an inline iPXE script."""
    if "\0" in text:
        return "must not hold a NUL character"
    longest = bounds.MAX_DATA_CHARACTERS
    return long_text(text) if len(text.encode()) <= longest else f"longer than {longest} bytes"


def gateway_of(ip: str, mask: str, gateway: str) -> str | None:
    """Check that a gateway is in the subnet of a valid address and netmask (`rules.GATEWAY_IN_SUBNET`)."""
    bits = _number(mask)
    if mask == "255.255.255.255" or _number(ip) & bits == _number(gateway) & bits:
        return None
    return f"{gateway} is not in the subnet of {ip} with netmask {mask}"


@lru_cache(1024)
def _number(address: str) -> int:
    """Return a valid IPv4 address or netmask as 32 bits."""
    a, b, c, d = map(int, address.split("."))
    return a << 24 | b << 16 | c << 8 | d
