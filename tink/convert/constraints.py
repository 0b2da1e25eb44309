"""What v1alpha2 takes in a field, for converters: each check gives the reason for a refusal, or None.

The rules themselves are CEL in `tink.api.rules`, which only an API server evaluates. A converter asks before it writes,
field by field, because it leaves out what would be refused and keeps the rest; the patterns and bounds are those of
`tink.api`, and the reasons the rules' own words.
"""

from __future__ import annotations

import ipaddress
from functools import lru_cache

from tink.api import bounds, patterns, rules
from tink.mac import is_mac

NO_PID_NAMESPACE = (
    "v1alpha2 has no PID namespaces: the action gets its own. One that restarts the machine can do it by "
    "/proc/sysrq-trigger"
)
IPV4_ONLY = "v1alpha2 serves IPv4 only"

_THIS_NETWORK = ipaddress.IPv4Network("0.0.0.0/8")
_IPV4 = patterns.compiled(patterns.IPV4)
_NETMASK = patterns.compiled(patterns.NETMASK)
_HOSTNAME = patterns.compiled(patterns.HOSTNAME)
_LIKE_AN_ADDRESS = patterns.compiled(patterns.LIKE_AN_ADDRESS)
_VLAN = patterns.compiled(patterns.VLAN)
_HTTP_URL = patterns.compiled(patterns.HTTP_URL)
_ARTIFACT_URL = patterns.compiled(patterns.ARTIFACT_URL)
_ENDS_IPXE_COMMAND = patterns.compiled(patterns.ENDS_IPXE_COMMAND)
_DEVICE_PATH = patterns.compiled(patterns.DEVICE_PATH)
_PARTITION = patterns.compiled(patterns.PARTITION)
_OBJECT_NAME = patterns.compiled(patterns.OBJECT_NAME)
_SPACE = patterns.compiled(patterns.SPACE)
_VOLUME = patterns.compiled(patterns.VOLUME)
_URL_BOUND = f"(at most {bounds.MAX_URL_CHARACTERS} characters)"


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


def canonical_mac(text: str) -> str:
    """A MAC address as v1alpha2 writes it, if it is one."""
    return text.strip().lower().replace("-", ":")


def mac(text: str) -> str | None:
    """A MAC address in lower case with colons."""
    return None if is_mac(text) else "must be a MAC address, such as 52:54:00:12:34:56"


def hostname(text: str) -> str | None:
    """A host name (RFC 1123)."""
    return None if len(text) <= bounds.MAX_NAME_CHARACTERS and _HOSTNAME.match(text) else rules.HOSTNAME.message


@lru_cache(1024)
def server(text: str) -> str | None:
    """A name server or a time server: an IPv4 address or a host name."""
    good = (
        _IPV4.match(text)
        if _LIKE_AN_ADDRESS.match(text)
        else len(text) <= bounds.MAX_NAME_CHARACTERS and _HOSTNAME.match(text)
    )
    return None if good else rules.SERVER.message


def vlan(text: str) -> str | None:
    """A VLAN ID, as a string."""
    return None if _VLAN.match(text) and int(text) <= patterns.MAX_VLAN else rules.VLAN.message


def http_url(text: str) -> str | None:
    """The URL of an iPXE script."""
    good = len(text) <= bounds.MAX_URL_CHARACTERS and _HTTP_URL.match(text)
    return None if good else f"{rules.HTTP_URL.message} {_URL_BOUND}"


@lru_cache(1024)
def artifact_url(text: str) -> str | None:
    """The URL of a kernel or an initrd."""
    good = len(text) <= bounds.MAX_URL_CHARACTERS and _ARTIFACT_URL.match(text)
    return None if good else f"{rules.ARTIFACT_URL.message} {_URL_BOUND}"


def kernel_param(text: str) -> str | None:
    """One parameter of the kernel's command line."""
    good = len(text) <= bounds.MAX_KERNEL_PARAM_CHARACTERS and not _ENDS_IPXE_COMMAND.search(text)
    return None if good else rules.KERNEL_PARAM.message


def disk(text: str) -> str | None:
    """A whole disk's path in the OSIE."""
    if len(text) > bounds.MAX_DEVICE_PATH_CHARACTERS or not _DEVICE_PATH.match(text):
        return rules.DEVICE_PATH.message
    return rules.WHOLE_DISK.message if _PARTITION.match(text) else None


def image(text: str) -> str | None:
    """An OCI image, or a template of one."""
    return rules.IMAGE.message if "{{" not in text and _SPACE.search(text) else None


def volume(text: str) -> str | None:
    """A volume of a container, or a template of one."""
    return None if "{{" in text or _VOLUME.match(text) else rules.VOLUME.message


def object_name(text: str) -> str | None:
    """The name of an object that is referred to."""
    return None if len(text) <= bounds.MAX_NAME_CHARACTERS and _OBJECT_NAME.match(text) else rules.OBJECT_NAME.message


def long_text(text: str) -> str | None:
    """User-data, vendor-data, a script."""
    longest = bounds.MAX_DATA_CHARACTERS
    return None if len(text) <= longest else f"longer than {longest} characters, the most that v1alpha2 takes"


def script(text: str) -> str | None:
    """An inline iPXE script."""
    if "\0" in text:
        return "must not hold a NUL character"
    longest = bounds.MAX_DATA_CHARACTERS
    return long_text(text) if len(text.encode()) <= longest else f"longer than {longest} bytes"


def gateway_of(ip: str, mask: str, gateway: str) -> str | None:
    """A gateway of a good address with a good netmask, as `rules.GATEWAY_IN_SUBNET` asks."""
    bits = _number(mask)
    if mask == "255.255.255.255" or _number(ip) & bits == _number(gateway) & bits:
        return None
    return f"{gateway} is not in the subnet of {ip} with netmask {mask}"


@lru_cache(1024)
def _number(address: str) -> int:
    """An address that `ipv4` or `netmask` has found good, as 32 bits."""
    a, b, c, d = map(int, address.split("."))
    return a << 24 | b << 16 | c << 8 | d
