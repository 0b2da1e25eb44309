"""The types of option values. Each parses a text and explains what is wrong with it.

Nothing of the stack is imported here at the top: the agent and `tinkedge health` use these types, too.
"""

from __future__ import annotations

import ipaddress
import math
import os
import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

if TYPE_CHECKING:
    from edge.callers import Networks
    from tink.discovery.model import AdmissionRule

T = TypeVar("T")

NOWHERE: Final = ("", 0)  # the value of --metrics-address if it is `none`

_MIN_ARTIFACT_BYTES: Final = 100_000  # no kernel is smaller
_MIN_SERVER_BYTES: Final = 200_000_000  # The gRPC server needs half of that before the first agent connects.
_IPV6: Final = 6
_LABEL: Final = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_NAME: Final = rf"{_LABEL}(\.{_LABEL})*"
_MAX_NAME: Final = 253
_MAX_SELECTOR: Final = 2000
_LABEL_VALUE: Final = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_LABEL_KEY: Final = rf"({_NAME}/)?{_LABEL_VALUE}"
_VALUE: Final = rf"({_LABEL_VALUE})?"
_REQUIREMENT: Final = (
    rf"\s*(!\s*{_LABEL_KEY}"
    rf"|{_LABEL_KEY}(\s*(=|==|!=)\s*{_VALUE}|\s+(in|notin)\s*\(\s*{_VALUE}(\s*,\s*{_VALUE})*\s*\))?)\s*"
)
_SELECTOR: Final = rf"{_REQUIREMENT}(,{_REQUIREMENT})*"
_UNITS: Final[dict[str, int]] = {"": 1} | {
    f"{prefix}{suffix}": base ** (power + 1)
    for suffix, base in (("b", 1000), ("ib", 1024))
    for power, prefix in enumerate("kmgt")
}


class Parsed(click.ParamType[T]):
    """A type made of a function that parses a text and raises ValueError if the text is wrong."""

    def __init__(self, name: str, read: Callable[[str], T], path_of: Callable[[str], str] = lambda _text: "") -> None:
        """`name` stands for a value in `--help`. `path_of` returns the path in a text; empty if there is none."""
        self.name = name
        self.read = read
        self.path_of = path_of

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> T:
        """Return the parsed text, or a value that is not a text as it is. Raises click.BadParameter."""
        if not isinstance(value, str):
            found: T = value
            return found
        try:
            return self.read(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def parsed(name: str, path_of: Callable[[str], str] = lambda _text: "") -> Callable[[Callable[[str], T]], Parsed[T]]:
    """Return a decorator that turns a parsing function into the type of an option."""
    return partial(Parsed, name, path_of=path_of)


# --- numbers ----------------------------------------------------------------------------------------------------------


class _BoundsNamed(click.ParamType[Any]):
    """A mixin for click's types of numbers that names the bounds in error messages. It refuses infinity and NaN."""

    min: Any
    max: Any
    min_open: bool

    def __init__(self, bounds: click.IntRange | click.FloatRange) -> None:
        super().__init__(bounds.min, bounds.max, bounds.min_open, bounds.max_open, bounds.clamp)  # type: ignore[call-arg]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number. Raises click.BadParameter."""
        try:
            found = super().convert(value, None, None)
        except click.BadParameter:
            found = math.nan
        if not math.isfinite(found):  # float() reads "nan", which is within all bounds, and "inf"
            noun = "port" if param is not None and str(param.name).endswith("port") else "number"
            self.fail(f"{str(value)!r} is not a {noun} {self._bounds()}", param, ctx)
        return found

    def _bounds(self) -> str:
        if self.min is None:
            return f"up to {self.max}"
        if self.max is None:
            return f"{'greater than' if self.min_open else 'from'} {self.min}{'' if self.min_open else ' on'}"
        return f"from {self.min} to {self.max}"


class WholeNumber(_BoundsNamed, click.IntRange):
    """An integer within bounds."""


class Number(_BoundsNamed, click.FloatRange):
    """A finite number within bounds."""


def with_bounds(option_type: click.ParamType[Any]) -> click.ParamType[Any]:
    """Return the type of this module that replaces click's type of a number, or the given type if it is another."""
    replacements: dict[type, Any] = {click.IntRange: WholeNumber, click.FloatRange: Number}
    return replacements[type(option_type)](option_type) if type(option_type) in replacements else option_type


# --- paths ------------------------------------------------------------------------------------------------------------


class FilePath(click.Path):
    """The type of options and arguments that are paths. `~` and `~user` are the home directories that a shell means."""

    def __init__(self, **constraints: Any) -> None:
        """`constraints` are those of click.Path."""
        super().__init__(path_type=Path, **constraints)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path. Raises click.BadParameter."""
        if str(value) == "":  # Path("") would be the working directory
            self.fail("the path is empty: name one, or leave the option out", param, ctx)
        # A shell expands `~` neither in `--data-dir=~/d`, nor in a variable or the settings file.
        if str(value).startswith("~"):
            try:
                value = Path(value).expanduser()
            except RuntimeError:
                self.fail(f"'{value}': there is no such user's home directory; './{value}' is a file", param, ctx)
        return super().convert(value, param, ctx)

    def path_of(self, text: str) -> str:
        """Return the part of a value that is a path: all of it."""
        return text


class DataDirectory(FilePath):
    """A data directory, which only its owner may use. Users often run commands as another user."""

    def __init__(self, *, checked_later: bool = False) -> None:
        """`checked_later`: the command itself reports a path that is not a directory, in more words."""
        super().__init__(file_okay=checked_later, readable=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path. Raises click.BadParameter with the remedy if this user may not use the directory."""
        from tink.files.data_directory import DataDirectoryError, as_owner

        path: Any = super().convert(value, param, ctx)
        try:
            if path.is_dir():  # The command makes a missing directory, or reports it.
                with as_owner(path):
                    next(path.iterdir(), None)
        except DataDirectoryError as error:
            self.fail(str(error), param, ctx)
        except PermissionError:
            owner = "its owner"
            with suppress(KeyError, OSError):
                owner = f"user {path.owner()}"
            self.fail(f"'{path}' is for {owner} alone: {_remedy(path)}", param, ctx)
        except OSError:
            pass  # The command reports every other error, in more words.
        return path


def _remedy(path: Path) -> str:
    """Return the remedy for a directory that this user may not read."""
    from tink.files.data_directory import give, service_user

    service = service_user()
    if service is not None and os.geteuid() == service.user:
        # Running the command as root would work once, and never for the service.
        return f"as root: '{give(path, service.user)}'"
    return "run this as root (sudo), or as that user"


# --- addresses and networks -------------------------------------------------------------------------------------------


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and 0 < int(text) < 1 << 16


def _parts(text: str) -> list[str]:
    """Return the parts of a text that commas divide."""
    return [part.strip() for part in text.split(",") if part.strip()]


def address_and_port(text: str) -> tuple[str, int]:
    """Parse `7091` (on loopback), `10.0.0.1:7091` or `[fd00::1]:7091`. Raises ValueError."""
    host, _, port = text.rpartition(":")
    inner = host.removeprefix("[").removesuffix("]")
    address = ipaddress.ip_address(inner) if host else ipaddress.IPv4Address("127.0.0.1")
    # An IPv6 address is in brackets, as in URLs (RFC 3986, section 3.2.2), to show where it ends.
    if host and (host == f"[{inner}]") != (address.version == _IPV6):
        raise ValueError(f"{text!r}: brackets are for IPv6 addresses")
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{text!r} does not end with a port")
    return str(address), int(port)


@parsed("[ip:]port")
def health_address(text: str) -> tuple[str, int]:
    """Parse an address to listen on. `0.0.0.0:7091` is all IPv4 addresses, `[::]:7091` those of IPv6, too."""
    try:
        return address_and_port(text)
    except ValueError as error:
        raise ValueError(f"{error}: it must be like 7082, 127.0.0.1:7082 or [::1]:7082") from error


@parsed("[ip:]port")
def metrics_address(text: str) -> tuple[str, int]:
    """Parse an address to listen on, or `none`."""
    return NOWHERE if text == "none" else health_address.read(text)


@parsed("ipv4")
def ipv4(text: str) -> str:
    """Parse an IPv4 address of one host."""
    try:
        address = ipaddress.IPv4Address(text)
    except ValueError:
        raise ValueError(f"{text!r} is not an IPv4 address") from None
    if address.is_unspecified or address.is_multicast:
        raise ValueError(f"{text} is not the address of one host: machines must be able to reach it")
    return str(address)


@parsed("ip")
def ip_address(text: str) -> str:
    """Parse an IPv4 address of one host, or an IPv6 address that is not link-local, into its canonical form."""
    if ":" not in text:
        return ipv4.read(text)
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        raise ValueError(f"{text!r} is not an IP address") from None
    if address.is_unspecified or address.is_multicast or address.is_link_local:
        raise ValueError(f"{text} is not the address of one host: machines must be able to reach it")
    return str(address)


@parsed("ipv6")
def ipv6_address(text: str) -> str:
    """Parse an IPv6 address of one host."""
    if ":" not in text:
        raise ValueError(f"{text!r} is not an IPv6 address")
    return ip_address.read(text)


@parsed("ip")
def ip_or_all(text: str) -> str:
    """Parse an address of one host, or 0.0.0.0 or `::` for all addresses of this host."""
    return text if text in ("0.0.0.0", "::") else ip_address.read(text)  # noqa: S104 - compared


@parsed("name[=ipv4]")
def interface(text: str) -> tuple[str, str]:
    """Parse the name of an interface and this host's address there (empty if not given): `eth1`, `eth1=10.0.0.1`."""
    name, equals, address = text.partition("=")
    if not name or (equals and not address):
        raise ValueError(f"{text!r} must be like eth1 or eth1=10.0.0.1")
    return name, ipv4.read(address) if address else ""


@parsed("ip[:port]")
def edge_address(text: str) -> tuple[str, int]:
    """Parse the address of another edge: `10.1.0.3`, `10.1.0.3:7080`, `fd00::3`, `[fd00::3]:7080`. 0: no port."""
    if text.count(":") > 1 and not text.startswith("["):
        return ip_address.read(text), 0
    match = re.fullmatch(r"(?:\[([^]]*)\]|([^:]*))(?::(.*))?", text, re.DOTALL)
    if match is None or (match[3] is not None and not _is_port(match[3])):
        raise ValueError(f"{text!r} must be like 10.1.0.3, 10.1.0.3:7080, fd00::3 or [fd00::3]:7080")
    port = int(match[3] or 0)
    return (ip_address.read(match[1]) if match[2] is None else ipv4.read(match[2])), port


@parsed("url")
def upstream_edge(text: str) -> tuple[str, int]:
    """Parse the URL of an edge at another site, such as `http://10.1.0.3:7080`, as `edge_address` does."""
    # Requests to that edge are signed for an address, so names and https are refused.
    plain = text.removeprefix("http://").removesuffix("/")
    if "://" in plain or "/" in plain:
        raise ValueError(f"{text!r} must be like http://10.1.0.3:7080: an address, without a path, not https")
    return edge_address.read(plain)


@parsed("address")
def api_address(text: str) -> str:
    """Parse an address of this host at which other hosts reach the API, or 0.0.0.0 for all of them."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise ValueError(f"{text!r} is not an address; names are for --api-name") from None
    if address.is_loopback:
        raise ValueError(f"the API is always there on loopback; leave {text} out")
    if address.is_multicast or (address.is_unspecified and address.version == _IPV6):
        raise ValueError(f"{text} is not the address of one host: give those that this host has")
    return str(address)


@parsed("name")
def host_name(text: str) -> str:
    """Parse a DNS name, into lower case, or an address."""
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        name = text.lower().rstrip(".")
    if len(name) > _MAX_NAME or not re.fullmatch(_NAME, name):
        raise ValueError(f"{text!r} is not the name of a host, such as tinkedge.example.org")
    return name


@parsed("cidr,...")
def networks(text: str) -> Networks:
    """Parse IPv4 and IPv6 networks and single addresses, divided by commas: `10.1.0.0/16,192.0.2.7`."""
    found = []
    for part in _parts(text):
        try:
            found.append(ipaddress.ip_network(part))
        except ValueError as error:
            raise ValueError(_not_a_network(part, error)) from error
    return tuple(found)


def _not_a_network(text: str, error: ValueError) -> str:
    try:
        near = ipaddress.ip_network(text, strict=False)
    except ValueError:
        return f"{text!r} is not a network such as 10.1.0.0/16: {error}"
    return f"{text!r} is not a network such as {near}: write that, or the address alone"


@parsed("port,...")
def ports(text: str) -> tuple[int, ...]:
    """Parse TCP ports, divided by commas: `50061,8080`. A port that is given twice is returned once."""
    for part in _parts(text):
        if not _is_port(part):
            raise ValueError(f"{part!r} is not a port: 1 to 65535, with commas in between")
    return tuple(dict.fromkeys(map(int, _parts(text))))


# --- names and objects of Kubernetes ----------------------------------------------------------------------------------


@parsed("name")
def peer_group(text: str) -> str:
    """Parse the name that the edges of a site share. It must be a valid label value."""
    if text and not re.fullmatch(_LABEL_VALUE, text):
        raise ValueError(f"{text!r} is not a label value, such as tinkedge or rack-7: 63 characters at most")
    return text


@parsed("[namespace/]name")
def osie(text: str) -> tuple[str, str]:
    """Parse the namespace and the name of an OSIE. The namespace is `default` if none is given."""
    from tink.kube.manifests import DEFAULT_NAMESPACE

    namespace, slash, name = text.rpartition("/")
    if not name or (slash and not namespace) or "/" in namespace:
        raise ValueError(f"{text!r} must be like hook or provisioning/hook")
    return namespace or DEFAULT_NAMESPACE, name


@parsed("name")
def namespace(text: str) -> str:
    """Parse the name of a namespace, or an empty text."""
    if text and not re.fullmatch(_LABEL, text):
        raise ValueError(f"{text!r} is not the name of a namespace: lower case letters, digits and '-'")
    return text


@parsed("name,...")
def namespaces(text: str) -> tuple[str, ...]:
    """Parse names of namespaces, divided by commas: `berlin,ulm`. A name that is given twice is returned once."""
    return tuple(dict.fromkeys(map(namespace.read, _parts(text))))


@parsed("selector")
def label_selector(text: str) -> str:
    """Parse a label selector as kubectl's option -l takes it: `site=berlin`, `site in (berlin,ulm),!spare`."""
    selector = text.strip()
    if selector and (len(selector) > _MAX_SELECTOR or not re.fullmatch(_SELECTOR, selector)):
        raise ValueError(f"{text!r} is not a label selector such as site=berlin or 'site in (berlin,ulm)'")
    return selector


@parsed("rule")
def admission_rule(text: str) -> AdmissionRule:
    """Parse a rule of admission: `range=172.31.8.10-172.31.8.250/24,gateway=172.31.8.1,osie=hook`."""
    from tink.discovery.admission import read_rule

    return read_rule(text)


empty_checksum_type = click.Choice(["md5", "auto"])
EMPTY_CHECKSUM_TYPE_HELP: Final = (
    "The meaning of an image of a BareMetalHost v1alpha1 without a checksumType: md5, or auto where the "
    "baremetal-operator detects it."
)
"""All commands for Metal3's hosts must use the same value."""


# --- boot files, kernels and sizes ------------------------------------------------------------------------------------


@parsed("kind=file")
def boot_file(text: str) -> tuple[str, str]:
    """Parse a kind of machine and the name of its boot file: `x86_64=ipxe-signed.efi`."""
    from ipxe.binaries import KINDS

    kind, equals, name = text.partition("=")
    if kind not in KINDS or not equals or not name or "/" in name:
        raise ValueError(f"{text!r} must be like x86_64=ipxe-signed.efi, of {', '.join(KINDS)}")
    return kind, name


@parsed("words")
def kernel_words(text: str) -> tuple[str, ...]:
    """Parse words of a kernel command line, as iPXE splits it. They may contain places such as {{.MAC}}."""
    from ipxe import parameters

    try:
        words = parameters.kernel_words(text)
        parameters.check_places(words)
    except ValueError as error:
        raise ValueError(f"{text!r} {error}") from error
    return tuple(words)


@parsed("registry=file", path_of=lambda text: text.partition("=")[2])
def registry_ca(text: str) -> tuple[str, Path]:
    """Parse a registry and the file of its authority: `registry.example.org:5000=/etc/tinkedge/registry-ca.pem`."""
    host, equals, file = text.partition("=")
    if not equals or not file or not host or "/" in host:
        raise ValueError(f"{text!r} must be like registry.example.org:5000=FILE: HOST or HOST:PORT, not a URL")
    return host, Path(os.path.expanduser(file))  # noqa: PTH111 - an unknown user stays as written


@parsed("size")
def size(text: str) -> int:
    """Parse a size on disk, in bytes or with a unit: 500MB, 20GB, 1TiB."""
    found = _bytes(text)
    if found < _MIN_ARTIFACT_BYTES:
        raise ValueError(f"{text!r} is less than {_MIN_ARTIFACT_BYTES} bytes: no kernel fits")
    return found


@parsed("size")
def memory(text: str) -> int:
    """Parse a size in memory, in the format of `size`."""
    found = _bytes(text)
    if found < _MIN_SERVER_BYTES:
        raise ValueError(f"{text!r} is less than 200MB: the gRPC server does not start with that")
    return found


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d{1,15})\s*([a-z]*)", text.strip().lower())
    if match is None or match[2] not in _UNITS:
        raise ValueError(f"{text!r} is not a size; 20GB and 512MiB are")
    return int(match[1]) * _UNITS[match[2]]
