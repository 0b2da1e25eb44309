"""Options that several commands have. Nothing of the stack is imported, for commands that need none of it."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.core import ParameterSource

from edge.settings import FilePath

if TYPE_CHECKING:
    from edge.run.process import OperatorAddresses

Command = Callable[..., None]
T = TypeVar("T")

METRICS_PORTS: Final = {"controller": 7091, "server": 7092, "apiserver": 7093, "metal3": 7094, "metal3-webhook": 7095}
"""Where the services have their metrics that have no operators' HTTP as the edge has, unless told otherwise."""

NOWHERE: Final = ("", 0)


def address_and_port(text: str) -> tuple[str, int]:
    """What `7091` (of loopback), `10.0.0.1:7091` and `[fd00::1]:7091` name. Raises ValueError."""
    host, _, port = text.rpartition(":")
    inner = host.removeprefix("[").removesuffix("]")
    address = ipaddress.ip_address(inner) if host else ipaddress.IPv4Address("127.0.0.1")
    # In brackets, as in URLs (RFC 3986, section 3.2.2): where would the address end else?
    if host and (host == f"[{inner}]") != (address.version == 6):
        raise ValueError(f"{text!r}: brackets are for IPv6 addresses")
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{text!r} does not end with a port")
    return str(address), int(port)


class Parsed(click.ParamType[T]):
    """What `read` makes of text; the ValueError that it raises is the usage error."""

    def __init__(self, name: str, read: Callable[[str], T], path_of: Callable[[str], str] = lambda _text: "") -> None:
        """`name` is what stands for a value in `--help`. `path_of` returns the part of a text that is a path, or an
        empty string."""
        self.name = name
        self.read = read
        self.path_of = path_of

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> T:
        """The value; of one that is no text, itself."""
        if not isinstance(value, str):
            found: T = value
            return found
        try:
            return self.read(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def parsed(name: str, path_of: Callable[[str], str] = lambda _text: "") -> Callable[[Callable[[str], T]], Parsed[T]]:
    """A decorator that makes a function the type of an option."""
    return partial(Parsed, name, path_of=path_of)


@parsed("[ip:]port")
def _health_address(text: str) -> tuple[str, int]:
    """Where operators' questions are answered: `7091`, which is on loopback, `10.0.0.1:7091` or `[fd00::1]:7091`;
    `0.0.0.0:7091`: everywhere; `[::]:7091`: so, with IPv6.
    """
    try:
        return address_and_port(text)
    except ValueError as error:
        raise ValueError(f"{error}: it must be like 7082, 127.0.0.1:7082 or [::1]:7082") from error


@parsed("[ip:]port")
def _metrics_address(text: str) -> tuple[str, int]:
    """The same, or `none`: nowhere."""
    return NOWHERE if text == "none" else _health_address.read(text)


@parsed("ipv4")
def ipv4(text: str) -> str:
    """An IPv4 address of this host, in dotted form."""
    try:
        address = ipaddress.IPv4Address(text)
    except ValueError:
        raise ValueError(f"{text!r} is no IPv4 address") from None
    if address.is_unspecified or address.is_multicast:
        raise ValueError(f"{text} is not the address of one host: machines must be able to reach it")
    return str(address)


@parsed("ip")
def either(text: str) -> str:
    """The same, or an IPv6 address that routers know, in its one spelling."""
    if ":" not in text:
        return ipv4.read(text)
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        raise ValueError(f"{text!r} is no IP address") from None
    if address.is_unspecified or address.is_multicast or address.is_link_local:
        raise ValueError(f"{text} is not the address of one host: machines must be able to reach it")
    return str(address)


@parsed("ipv6")
def ipv6_address(text: str) -> str:
    """An IPv6 address of this host."""
    if ":" not in text:
        raise ValueError(f"{text!r} is no IPv6 address")
    return either.read(text)


@parsed("name[=ipv4]")
def interface(text: str) -> tuple[str, str]:
    """An interface that faces machines, and this host's address there, or empty: `eth1` or `eth1=10.0.0.1`."""
    name, equals, address = text.partition("=")
    if not name or (equals and not address):
        raise ValueError(f"{text!r} must be like eth1 or eth1=10.0.0.1")
    return name, ipv4.read(address) if address else ""


@parsed("registry=file", path_of=lambda text: text.partition("=")[2])
def registry_ca(text: str) -> tuple[str, Path]:
    """The authority of a registry: `registry.example.org:5000=/etc/tinkedge/registry-ca.pem`."""
    host, equals, file = text.partition("=")
    if not equals or not file or not host or "/" in host:
        raise ValueError(f"{text!r} must be like registry.example.org:5000=FILE: HOST or HOST:PORT, not a URL")
    return host, Path(os.path.expanduser(file))  # noqa: PTH111 - an unknown user stays as written


health_address = click.option(
    "--health-address",
    type=_health_address,
    default=None,
    help="Answer /healthz, /livez and /readyz here, too: 7082 (on loopback), 10.0.0.1:7082, [fd00::1]:7082; "
    "[::]:7082 is everywhere. Default: nowhere.",
)

_DEFAULTS = ", ".join(f"{port} ({name})" for name, port in METRICS_PORTS.items())


def metrics_address(command: Command) -> Command:
    """Give a command the option, with the port that it has by its name."""
    port = METRICS_PORTS.get(command.__name__.replace("_", "-"))
    return click.option(
        "--metrics-address",
        type=_metrics_address,
        default=f"127.0.0.1:{port}" if port else None,
        help="Answer /metrics here, for Prometheus, and what --health-address has: 7091 (on loopback), 10.0.0.1:7091, "
        f"[fd00::1]:7091; none: nowhere. Default: loopback, ports {_DEFAULTS}; up and edge have it at --admin-address.",
    )(command)


def operator_addresses(ctx: click.Context) -> OperatorAddresses:
    """What the options of a command say."""
    from edge.run.process import OperatorAddresses

    metrics = ctx.params["metrics_address"]
    wanted = ctx.get_parameter_source("metrics_address") is not ParameterSource.DEFAULT
    return OperatorAddresses(ctx.params["health_address"], None if metrics == NOWHERE else metrics, wanted)


log_level = click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", help="Verbosity."
)
log_format = click.option(
    "--log-format", type=click.Choice(["text", "json"]), default="text", help="Lines for people or programs."
)
context = click.option("--context", default=None, help="A context of the kubeconfig.  [default: its current one]")
empty_checksum_type = click.option(
    "--empty-checksum-type",
    type=click.Choice(["md5", "auto"]),
    default="md5",
    help="What an image of a BareMetalHost v1alpha1 without a checksumType means: md5, or auto where the "
    "baremetal-operator detects it.",
)
"""All commands about Metal3's hosts must agree on it."""


class DataDirectory(FilePath):
    """One that this user may work in. It is for its owner alone, and most people are somebody else."""

    def __init__(self, *, checked_later: bool = False) -> None:
        """`checked_later`: whoever takes it says by itself, with more words, that it is no directory."""
        super().__init__(file_okay=checked_later, readable=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Raises BadParameter, with whom to be instead."""
        from tink.files.data_directory import DataDirectoryError, as_owner  # options load no other part of tink

        path: Any = super().convert(value, param, ctx)
        try:
            if path.is_dir():  # else there is none to look into yet
                with as_owner(path):
                    next(path.iterdir(), None)
        except DataDirectoryError as error:
            self.fail(str(error), param, ctx)
        except PermissionError:
            self.fail(f"'{path}' is for {_owner(path)} alone: {_instead(path)}", param, ctx)
        except OSError:
            pass  # not there yet, or what the command itself says more about
        return path


def _owner(path: Path) -> str:
    try:
        return f"user {path.owner()}"
    except (KeyError, OSError):
        return "its owner"


def _instead(path: Path) -> str:
    """Return the remedy for a directory that this user may not read."""
    from tink.files.data_directory import give, service_user

    service = service_user()
    if service is not None and os.geteuid() == service.user:  # as root it would work, and never for the service
        return f"as root: '{give(path, service.user)}'"
    return "run this as root (sudo), or as that user"


def data_dir(what: str) -> Callable[[Command], Command]:
    """The option of a command that works in a data directory."""
    return click.option("--data-dir", type=DataDirectory(), default=Path("/var/lib/tinkedge"), help=what)


def admin_token_from(command: Command) -> Command:
    """The options of a command that shows the admin token: where the edge has it, or a copy."""
    # A copy is for those who may not look into the directory.
    directory = FilePath(readable=False)
    where = "The edge's, where its admin token is."
    command = click.option(
        "--admin-token-file",
        type=FilePath(readable=False),
        default=None,
        help="Or a copy of it. Default: DATA_DIR/admin-token.",
    )(command)
    return click.option("--data-dir", type=directory, default=Path("/var/lib/tinkedge"), help=where)(command)


def kubeconfig(whose: str) -> Callable[[Command], Command]:
    """The option of a command that is used as kubectl is, and finds the cluster where kubectl does."""

    def found(_ctx: click.Context, _option: click.Parameter, given: Path | None) -> Path | None:
        own = Path.home() / ".kube" / "config"
        return given or (own if own.is_file() else None)

    return click.option(
        "--kubeconfig",
        type=FilePath(dir_okay=False),
        envvar=["TINKEDGE_KUBECONFIG", "KUBECONFIG"],
        default=None,
        callback=found,
        help=f"{whose}  [default: $KUBECONFIG, ~/.kube/config, or the service account of the pod]",
    )
