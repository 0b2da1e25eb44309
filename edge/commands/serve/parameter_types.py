"""Kinds of values that options take: each says what is wrong with one (`edge.commands.options.Parsed`)."""

from __future__ import annotations

import ipaddress
import re
from typing import Final

from edge.callers import Networks
from edge.commands.options import either, ipv4, parsed
from ipxe import parameters
from ipxe.binaries import KINDS
from tink.kube.manifests import DEFAULT_NAMESPACE

_LEAST_BYTES = 100_000  # no kernel is smaller
_LEAST_MEMORY = 200_000_000  # The gRPC server needs half of that before the first agent connects.
_IPV6 = 6
_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_NAME = rf"{_LABEL}(\.{_LABEL})*"
_LONGEST_NAME = 253
_LONGEST_SELECTOR = 2000
_LABEL_VALUE = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_LABEL_KEY = rf"({_NAME}/)?{_LABEL_VALUE}"
_VALUE = rf"({_LABEL_VALUE})?"
_REQUIREMENT = (
    rf"\s*(!\s*{_LABEL_KEY}"
    rf"|{_LABEL_KEY}(\s*(=|==|!=)\s*{_VALUE}|\s+(in|notin)\s*\(\s*{_VALUE}(\s*,\s*{_VALUE})*\s*\))?)\s*"
)
_SELECTOR = re.compile(rf"{_REQUIREMENT}(,{_REQUIREMENT})*")
_UNITS: Final[dict[str, int]] = {"": 1} | {
    f"{prefix}{suffix}": base ** (power + 1)
    for suffix, base in (("b", 1000), ("ib", 1024))
    for power, prefix in enumerate("kmgt")
}


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and 0 < int(text) < 1 << 16


def _parts(text: str) -> list[str]:
    """What stands between commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


@parsed("ip")
def ip_or_all(text: str) -> str:
    """An IPv4 or IPv6 address of this host; 0.0.0.0 for all of them, `::` for those of IPv6, too."""
    return text if text in ("0.0.0.0", "::") else either.read(text)  # noqa: S104 - compared


@parsed("ip[:port]")
def edge_address(text: str) -> tuple[str, int]:
    """Where another edge is, `10.1.0.3`, `10.1.0.3:7080`, `fd00::3` or `[fd00::3]:7080`: the port is 0 where none is
    given, this edge's own then.
    """
    if text.count(":") > 1 and not text.startswith("["):
        return either.read(text), 0
    match = re.fullmatch(r"(?:\[([^]]*)\]|([^:]*))(?::(.*))?", text, re.DOTALL)
    if match is None or (match[3] is not None and not _is_port(match[3])):
        raise ValueError(f"{text!r} must be like 10.1.0.3, 10.1.0.3:7080, fd00::3 or [fd00::3]:7080")
    port = int(match[3] or 0)
    return (either.read(match[1]) if match[2] is None else ipv4.read(match[2])), port


@parsed("url")
def upstream_edge(text: str) -> tuple[str, int]:
    """An edge of another site, `http://10.1.0.3:7080`, as `edge_address` has it: what is asked there is signed for an
    address, so names and https are not taken."""
    plain = text.removeprefix("http://").removesuffix("/")
    if "://" in plain or "/" in plain:
        raise ValueError(f"{text!r} must be like http://10.1.0.3:7080: an address, without a path, not https")
    return edge_address.read(plain)


@parsed("kind=file")
def boot_file(text: str) -> tuple[str, str]:
    """Which machines get which file: `x86_64=ipxe-signed.efi`."""
    kind, equals, name = text.partition("=")
    if kind not in KINDS or not equals or not name or "/" in name:
        raise ValueError(f"{text!r} must be like x86_64=ipxe-signed.efi, of {', '.join(KINDS)}")
    return kind, name


@parsed("name")
def peer_group(text: str) -> str:
    """A name that edges have in common, fit for a label of Kubernetes."""
    if text and not re.fullmatch(_LABEL_VALUE, text):
        raise ValueError(f"{text!r} is no value of a label, such as tinkedge or rack-7: 63 characters at most")
    return text


@parsed("address")
def api_address(text: str) -> str:
    """An address of this host that others reach, or 0.0.0.0 for all; in its shortest form."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise ValueError(f"{text!r} is no address; names are for --api-name") from None
    if address.is_loopback:
        raise ValueError(f"the API is always there on loopback; leave {text} out")
    if address.is_multicast or (address.is_unspecified and address.version == _IPV6):
        raise ValueError(f"{text} is not the address of one host: give those that this host has")
    return str(address)


@parsed("name")
def host_name(text: str) -> str:
    """A DNS name, in lower case, or an address."""
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        name = text.lower().rstrip(".")
    if len(name) > _LONGEST_NAME or not re.fullmatch(_NAME, name):
        raise ValueError(f"{text!r} is no name of a host, such as tinkedge.example.org")
    return name


@parsed("size")
def size(text: str) -> int:
    """Parse a size on disk, in bytes or with a unit: 500MB, 20GB, 1TiB."""
    found = _bytes(text)
    if found < _LEAST_BYTES:
        raise ValueError(f"{text!r} is less than {_LEAST_BYTES} bytes: no kernel fits")
    return found


@parsed("size")
def memory(text: str) -> int:
    """Parse a size in memory, in the format of `size`."""
    found = _bytes(text)
    if found < _LEAST_MEMORY:
        raise ValueError(f"{text!r} is less than 200MB: the gRPC server does not start with that")
    return found


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d{1,15})\s*([a-z]*)", text.strip().lower())
    if match is None or match[2] not in _UNITS:
        raise ValueError(f"{text!r} is no size; 20GB and 512MiB are")
    return int(match[1]) * _UNITS[match[2]]


@parsed("[namespace/]name")
def osie(text: str) -> tuple[str, str]:
    """The namespace and the name of an OSIE; without a namespace it is in `default`."""
    namespace, slash, name = text.rpartition("/")
    if not name or (slash and not namespace) or "/" in namespace:
        raise ValueError(f"{text!r} must be like hook or provisioning/hook")
    return namespace or DEFAULT_NAMESPACE, name


@parsed("words")
def kernel_words(text: str) -> tuple[str, ...]:
    """Words of a kernel's command line, as iPXE splits it, with places for what is known of a machine."""
    try:
        words = parameters.kernel_words(text)
        parameters.check_places(words)
    except ValueError as error:
        raise ValueError(f"{text!r} {error}") from error
    return tuple(words)


@parsed("name,...")
def namespaces(text: str) -> tuple[str, ...]:
    """Names of namespaces, each once, with commas in between: `berlin,ulm`."""
    names = tuple(dict.fromkeys(_parts(text)))
    for name in names:
        if not re.fullmatch(_LABEL, name):
            raise ValueError(f"{name!r} is no name of a namespace: lower case letters, digits and '-'")
    return names


@parsed("name")
def namespace(text: str) -> str:
    """Return the name of one namespace, or an empty text. Raises ValueError."""
    if text and not re.fullmatch(_LABEL, text):
        raise ValueError(f"{text!r} is no name of a namespace: lower case letters, digits and '-'")
    return text


@parsed("selector")
def label_selector(text: str) -> str:
    """Which objects, by their labels, as kubectl's option -l takes it: `site=berlin`, `site in (berlin,ulm),!spare`."""
    selector = text.strip()
    if selector and (len(selector) > _LONGEST_SELECTOR or not _SELECTOR.fullmatch(selector)):
        raise ValueError(f"{text!r} is no label selector such as site=berlin or 'site in (berlin,ulm)'")
    return selector


@parsed("port,...")
def ports(text: str) -> tuple[int, ...]:
    """TCP ports, each once, with commas in between: `50061,8080`."""
    for part in _parts(text):
        if not _is_port(part):
            raise ValueError(f"{part!r} is no port: 1 to 65535, with commas in between")
    return tuple(dict.fromkeys(map(int, _parts(text))))


def _no_network(text: str, error: ValueError) -> str:
    try:
        near = ipaddress.ip_network(text, strict=False)
    except ValueError:
        return f"{text!r} is no network such as 10.1.0.0/16: {error}"
    return f"{text!r} is no network such as {near}: write that, or the address alone"


@parsed("cidr,...")
def networks(text: str) -> Networks:
    """Networks and single addresses, IPv4 or IPv6, with commas in between: `10.1.0.0/16,192.0.2.7`."""
    found = []
    for part in _parts(text):
        try:
            found.append(ipaddress.ip_network(part))
        except ValueError as error:
            raise ValueError(_no_network(part, error)) from error
    return tuple(found)
