"""What v1alpha2 takes in a field, for converters: each check gives the reason for a refusal, or None.

The rules themselves are CEL in `tink.api.rules`, which only an API server evaluates; these are the same in Python,
with the rules' own words, so that what a conversion writes is not refused when it is applied.
"""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache

from tink.api import rules
from tink.api.v1alpha2 import IPV4_PATTERN, MAC_PATTERN, NETMASK_PATTERN

NO_PID_NAMESPACE = (
    "v1alpha2 has no PID namespaces: the action gets its own. One that restarts the machine can do it by "
    "/proc/sysrq-trigger"
)
LONGEST_TEXT = 1 << 20
"""Characters of user-data, vendor-data and scripts."""
MOST_SERVERS = 32
MOST_DISKS = 256
MOST_PARAMS = 256
MOST_INTERFACES = 64
LONGEST_LEASE = 4294967295

_THIS_NETWORK = ipaddress.IPv4Network("0.0.0.0/8")
_LABEL = "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_IPV4 = re.compile(IPV4_PATTERN.removesuffix("$") + r"\Z")
_NETMASK = re.compile(NETMASK_PATTERN.removesuffix("$") + r"\Z")
_MAC = re.compile(MAC_PATTERN.removesuffix("$") + r"\Z")
_HOSTNAME = re.compile(rf"{_LABEL}(?:[.]{_LABEL})*\Z")
_NUMERIC = re.compile(r"[0-9.]+\Z")
_VLAN = re.compile(r"[1-9][0-9]{0,3}\Z")
# RE2's \s is ASCII's five; Python's would be Unicode's.
_HTTP_URL = re.compile(r"https?://[^\t\n\f\r /?#]+(?:[/?#][^\t\n\f\r ]*)?\Z")
_ARTIFACT_URL = re.compile(
    r"(?:https?://[^\t\n\f\r /?#]+(?:[/?#][^\t\n\f\r ]*)?|file://(?:localhost)?/[^\t\n\f\r ]+)\Z"
)
_NO_PARAM = re.compile(r"[\x00-\x1f\x7f]|(?:^|[\t\n\f\r ])(?:&&|\|\||;)(?:[\t\n\f\r ]|\Z)|(?:^|[\t\n\f\r ])#")
_DEVICE = re.compile(r"(?:/[^/\t\n\f\r ]+)+/?\Z")
# `tink.api.v1alpha2.DEVICE_PATTERN`, which the models read with, has no slash at the end.
_PARTITION = re.compile(
    r"/dev/(?:(?:sd|hd|vd|xvd)[a-z]+[0-9]+|(?:cciss/|ida/|rd/)?[a-z]+[a-z0-9]*[0-9]p[0-9]+"
    r"|disk/by-[a-z]+/[^\n]*-part[0-9]+|mapper/[^\n]*-part[0-9]+|disk/by-part(?:uuid|label)/[^\n]*)/?\Z"
)
_OBJECT_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?\Z")


def unicast(address: str) -> str | None:
    """An IPv4 address that one machine can have. v1alpha2 takes others, too; no host of a tenant's needs them."""
    it = ipaddress.IPv4Address(address)
    if it.is_loopback or it.is_multicast or it.is_unspecified or it.is_reserved or it in _THIS_NETWORK:
        return "must be an address that a machine can have: not 0.x, 127.x, or from 224.x on"
    return None


def ipv4(text: str) -> str | None:
    """An address, in dotted form."""
    return None if _IPV4.match(text) else rules.IPV4.message


@lru_cache(1024)
def netmask(text: str) -> str | None:
    """A netmask, in dotted form."""
    return None if _NETMASK.match(text) else rules.NETMASK.message


def mac(text: str) -> str | None:
    """A MAC address in lower case with colons."""
    return None if _MAC.match(text) else "must be a MAC address, such as 52:54:00:12:34:56"


def hostname(text: str) -> str | None:
    """A host name (RFC 1123)."""
    return None if len(text) <= 253 and _HOSTNAME.match(text) else rules.HOSTNAME.message


@lru_cache(1024)
def server(text: str) -> str | None:
    """A name server or a time server: an IPv4 address or a host name."""
    good = _IPV4.match(text) if _NUMERIC.match(text) else len(text) <= 253 and _HOSTNAME.match(text)
    return None if good else rules.SERVER.message


def vlan(text: str) -> str | None:
    """A VLAN ID, as a string."""
    return None if _VLAN.match(text) and int(text) <= 4094 else rules.VLAN.message


def http_url(text: str) -> str | None:
    """The URL of an iPXE script."""
    return (
        None if len(text) <= 2048 and _HTTP_URL.match(text) else f"{rules.HTTP_URL.message} (at most 2048 characters)"
    )


@lru_cache(1024)
def artifact_url(text: str) -> str | None:
    """The URL of a kernel or an initrd."""
    good = len(text) <= 2048 and _ARTIFACT_URL.match(text)
    return None if good else f"{rules.ARTIFACT_URL.message} (at most 2048 characters)"


def kernel_param(text: str) -> str | None:
    """One parameter of the kernel's command line."""
    return None if len(text) <= 2048 and not _NO_PARAM.search(text) else rules.KERNEL_PARAM.message


def disk(text: str) -> str | None:
    """A whole disk's path in the OSIE."""
    if len(text) > 255 or not _DEVICE.match(text):
        return rules.DEVICE_PATH.message
    return rules.WHOLE_DISK.message if _PARTITION.match(text) else None


def object_name(text: str) -> str | None:
    """The name of an object that is referred to."""
    return None if len(text) <= 253 and _OBJECT_NAME.match(text) else rules.OBJECT_NAME.message


def long_text(text: str) -> str | None:
    """User-data, vendor-data, a script."""
    return None if len(text) <= LONGEST_TEXT else f"longer than {LONGEST_TEXT} characters, the most that v1alpha2 takes"


def script(text: str) -> str | None:
    """An inline iPXE script."""
    if "\0" in text:
        return "must not hold a NUL character"
    return long_text(text) if len(text.encode()) <= LONGEST_TEXT else f"longer than {LONGEST_TEXT} bytes"


def gateway_in_subnet(ip: str, mask: str, gateway: str) -> bool:
    """Whether the gateway of a good address with a good netmask can be reached, as `rules.GATEWAY_IN_SUBNET` asks."""
    if mask == "255.255.255.255":
        return True
    bits = _number(mask)
    return _number(ip) & bits == _number(gateway) & bits


@lru_cache(1024)
def _number(address: str) -> int:
    """An address that `ipv4` or `netmask` has found good, as 32 bits."""
    a, b, c, d = map(int, address.split("."))
    return a << 24 | b << 16 | c << 8 | d
