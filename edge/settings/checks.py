"""Checks of settings as a whole: contradictions between options, and obstacles on this host.

`tinkedge config check`, `tinkedge doctor` and every service at its start run both. A finding names the options, so that
its text can contain the place where each value is set.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from typing import Any, Final

from edge.settings.model import EDGE, FIELDS, Service
from edge.settings.options import Holds
from ipxe.binaries import BinariesError, BootBinaries
from tink.discovery.admission import rule_conflicts
from tink.discovery.model import ALL_NAMESPACES
from tink.files import data_directory
from tink.files.key_file import KeyFile, KeyFileError
from tink.server import AgentAuth, TlsError, endings, what_ends
from tink.webhooks.server import SERVICE_PORT, WebhookSettings

Services = frozenset[Service]
Options = Mapping[str, Any]  # the values of a command's options by click's names, such as `grpc_tls_cert`
Place = Callable[[str], str]
"""Returns where the value of an option is set, by its key: `FILE:LINE`, `env TINKEDGE_...`, `flag` or `default`."""

_ALL_IPV4: Final = "0.0.0.0"  # noqa: S104 - compared, not listened on
_ALL_ADDRESSES: Final = (_ALL_IPV4, "::")
_LOOPBACK: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class SettingsFinding:
    """A problem of settings, with the remedy. `keys` are its options; the first is the one to change."""

    keys: tuple[str, ...]
    message: str
    remedy: str
    is_error: bool = True

    def text(self, place: Place) -> str:
        """Return the finding in one line, with the places of the values."""
        about = ", ".join(f"--{key} ({place(key)})" for key in self.keys)
        return f"{about}: {self.message}: {self.remedy}"


_warning = partial(SettingsFinding, is_error=False)

# --- contradictions: pure ---------------------------------------------------------------------------------------------


def contradictions(services: Services, options: Options) -> Iterator[SettingsFinding]:
    """Yield the contradictions between options of a process with these services. Errors keep it from starting."""
    yield from _check_interfaces(options)
    yield from _check_ports(services, options)
    yield from _check_embedded_api(services, options)
    yield from _check_tls(options)
    yield from _check_agent_auth(services, options)
    yield from _check_webhooks(options)
    yield from _check_modes(services, options)
    yield from _check_checkpoint(services, options)
    yield from _check_peers(options)
    yield from _check_values(options)


def _check_interfaces(options: Options) -> Iterator[SettingsFinding]:
    given: tuple[tuple[str, str], ...] = options.get("interface") or ()
    names = [name for name, _ in given]
    for key, remedy in (
        ("public-ip", "write --interface NAME=IP for each"),
        ("public-ipv6", "leave it out: each has its own first address"),
    ):
        if options.get(key.replace("-", "_")) and len(given) > 1:
            seen = f"--{key} is for a single interface, and there are {len(given)}"
            yield SettingsFinding((key, "interface"), seen, remedy)
    for what, values in (("interface", names), ("address", [ip for _, ip in given if ip])):
        if len(set(values)) < len(values):
            seen = f"an {what} is given twice: {', '.join(values)}"
            yield SettingsFinding(("interface",), seen, "take one of them out")
    for key in ("public-ipv6", "ipv6-router"):
        if options.get(key.replace("-", "_")) and not options.get("ipv6"):
            yield SettingsFinding((key, "ipv6"), "IPv6 is not served", "give --ipv6 as well, or leave it out")
    for name in options.get("ipv6_router") or ():
        if options.get("ipv6") and name not in names:
            seen = f"{name} is not an interface that faces machines"
            yield SettingsFinding(("ipv6-router",), seen, f"give --interface {name}")
    agents = set(options.get("grpc_address") or ())
    for address in agents.intersection(_ALL_ADDRESSES):
        if len(agents) > 1:
            yield SettingsFinding(("grpc-address",), f"{address} is all addresses", "leave the others out")


@dataclass(frozen=True, slots=True)
class ListeningPort:
    """A TCP port on which a service listens. `key` is the option that sets it."""

    key: str
    port: int
    at: frozenset[str]  # addresses. An interface whose address is not known yet stands here by its name.

    def meets(self, other: ListeningPort) -> bool:
        """Return True if the two can't listen at the same time."""
        on_all = any(address in _ALL_ADDRESSES for address in self.at | other.at)
        return self.port == other.port and (on_all or bool(self.at & other.at))


def listeners(services: Services, options: Options) -> Iterator[ListeningPort]:
    """Yield the TCP ports of these services, in the order in which a booting machine uses them."""
    given = options.get("interface") or (("the default route's", ""),)
    machines = frozenset(ip or options.get("public_ip") or (_LOOPBACK if name == "lo" else name) for name, ip in given)
    listening = (
        (Service.HTTP, "http", machines),
        (Service.SERVER, "grpc", frozenset(options.get("grpc_address") or machines)),
        (Service.APISERVER, "api", frozenset({_LOOPBACK})),
        (Service.ADMIN, "admin", frozenset({options.get("admin_address") or _LOOPBACK})),
    )
    for service, name, addresses in listening:
        if service in services and (port := options.get(f"{name}_port")):
            yield ListeningPort(f"{name}-port", port, addresses)
    if Service.HTTP in services:
        for port in options.get("legacy_ports") or ():
            yield ListeningPort("legacy-ports", port, machines)
    # The embedded API reviews writes without a webhook.
    conversions = services & {Service.CONVERSION, Service.V1ALPHA1}
    if conversions or services & {Service.WEBHOOKS, Service.APISERVER} == {Service.WEBHOOKS}:
        reached = bool(options.get("webhook_url") or options.get("webhook_service"))
        port = options.get("webhook_port") or (SERVICE_PORT if reached else 0)
        if port:
            yield ListeningPort("webhook-port", port, frozenset({_ALL_IPV4 if reached else _LOOPBACK}))
    for name in ("health_address", "metrics_address"):
        if (address := options.get(name)) and address[1]:
            yield ListeningPort(name.replace("_", "-"), address[1], frozenset({address[0]}))


def _check_ports(services: Services, options: Options) -> Iterator[SettingsFinding]:
    for one, other in combinations(listeners(services, options), 2):
        # One listener serves both of these if they have the same address.
        probes = {one.key, other.key} == {"health-address", "metrics-address"} and one.at == other.at
        if one.meets(other) and not probes:
            seen = f"both would listen on port {one.port}"
            yield SettingsFinding((other.key, one.key), seen, "give one of them another")


def _check_embedded_api(services: Services, options: Options) -> Iterator[SettingsFinding]:
    addresses, names = set(options.get("api_address") or ()), options.get("api_name") or ()
    for key, given in (("api-address", addresses), ("api-name", names)):
        if given and Service.APISERVER not in services:
            yield SettingsFinding((key,), "the embedded API does not run here", "leave it out")
    if _ALL_IPV4 in addresses and (len(addresses) > 1 or not names):
        seen = f"{_ALL_IPV4} is all addresses, and the certificate needs a name then"
        remedy = f"give {_ALL_IPV4} alone, with --api-name, or give single addresses"
        yield SettingsFinding(("api-address", "api-name"), seen, remedy)
    directory: Path | None = options.get("data_dir")
    if directory is not None and ":" in str(directory) and Service.APISERVER in services:
        kubeconfig = directory / "kubeconfig"
        seen = f"KUBECONFIG={kubeconfig} does not work, because ':' divides paths there"
        remedy = f"use 'kubectl --kubeconfig {shlex.quote(str(kubeconfig))}', or a directory without ':'"
        yield _warning(("data-dir",), seen, remedy)


def _check_tls(options: Options) -> Iterator[SettingsFinding]:
    certificate, key = options.get("grpc_tls_cert"), options.get("grpc_tls_key")
    seen = "--grpc-tls-cert and --grpc-tls-key go together"
    if (certificate is None) != (key is None) and "grpc_tls_key" in options:
        missing, given = ("key", "cert") if key is None else ("cert", "key")
        remedy = f"give --grpc-tls-{missing} as well, or neither for no TLS"
        yield SettingsFinding((f"grpc-tls-{missing}", f"grpc-tls-{given}"), seen, remedy)
    if options.get("grpc_client_ca") is not None and certificate is None:
        seen = f"{seen}, and --grpc-client-ca needs both"
        yield SettingsFinding(("grpc-client-ca", "grpc-tls-cert"), seen, "give them, or leave it out")


def _check_agent_auth(services: Services, options: Options) -> Iterator[SettingsFinding]:
    auth, keys = options.get("agent_auth"), ("agent-token-key", "agent-auth")
    if auth is None:
        return
    if auth == AgentAuth.MTLS and Service.SERVER in services and options.get("grpc_client_ca") is None:
        seen = "agents must show certificates, but no authority for them is given"
        remedy = "give --grpc-client-ca, with --grpc-tls-cert and --grpc-tls-key"
        yield SettingsFinding(("grpc-client-ca", "agent-auth"), seen, remedy)
    if auth != AgentAuth.TOKEN and options.get("agent_token_key") is not None:
        seen = f"agents prove their machine by {auth}, so no token is signed or required"
        yield _warning(keys, seen, "give --agent-auth token to use tokens")
    together = {Service.HTTP, Service.SERVER} <= services
    if auth == AgentAuth.TOKEN and options.get("agent_token_key") is None and not together:
        seen = "edge and server run apart, and one signs what the other checks"
        yield SettingsFinding(keys, seen, "give both the same file as --agent-token-key")


def _check_webhooks(options: Options) -> Iterator[SettingsFinding]:
    try:
        WebhookSettings(url=options.get("webhook_url", ""), service=options.get("webhook_service", ""))
    except ValueError as error:
        keys = tuple(key for key in ("webhook-url", "webhook-service") if options.get(key.replace("-", "_")))
        yield SettingsFinding(keys, str(error), "write where the cluster's API reaches this, or leave it out")


def _check_modes(services: Services, options: Options) -> Iterator[SettingsFinding]:
    mode, osie, namespaces = (options.get(name) for name in ("dhcp_mode", "default_osie", "namespaces"))
    if osie is not None and mode != "auto-proxy":
        seen = "--default-osie is for --dhcp-mode auto-proxy: in other modes a Hardware names the OSIE"
        yield SettingsFinding(("default-osie", "dhcp-mode"), seen, "leave it out, or change the mode")
    if namespaces and osie and osie[0] not in namespaces:
        seen = f"OSIE {osie[0]}/{osie[1]} is in a namespace that this process does not use"
        remedy = f"name one of {', '.join(namespaces)}, or add {osie[0]} to --namespaces"
        yield SettingsFinding(("default-osie", "namespaces"), seen, remedy)
    yield from _check_discovery(services, options)
    if options.get("ipv6") and mode in ("proxy", "auto-proxy"):
        seen = "DHCPv6 is not served in this mode: it has no equivalent of ProxyDHCP"
        remedy = "let your DHCPv6 server name the boot files, or use --dhcp-mode reservation"
        yield _warning(("ipv6", "dhcp-mode"), seen, remedy)
    if options.get("tftp_single_port") and Service.TFTP not in services:
        yield _warning(("tftp-single-port",), "TFTP is disabled here", "leave it out")
    if options.get("kubeconfig") is not None and options.get("manifests") is not None:
        seen = "these manifests are applied to a cluster at each start, over later changes of other users"
        yield _warning(("manifests", "kubeconfig"), seen, "leave it out if kubectl or a GitOps tool applies them")


def _check_discovery(services: Services, options: Options) -> Iterator[SettingsFinding]:
    rules, mode = options.get("discover") or (), options.get("dhcp_mode")
    if not rules:
        return
    if Service.DHCP not in services or mode != "reservation":
        why = f"--dhcp-mode {mode} assigns no addresses" if Service.DHCP in services else "DHCP is disabled here"
        seen = f"machines are admitted by DHCP with an address of a range, and {why}"
        remedy = "use --dhcp-mode reservation, or leave --discover out and create the Hardware of each machine"
        yield SettingsFinding(("discover", "dhcp-mode"), seen, remedy)
    if selector := options.get("hardware_selector"):
        seen = f"this edge serves only Hardware with {selector}, which that of an admitted machine would not have"
        yield SettingsFinding(("discover", "hardware-selector"), seen, "leave one of them out")
    namespaces = options.get("namespaces") or ()
    for rule in rules:
        if namespaces and rule.osie.namespace not in namespaces:
            seen = f"OSIE {rule.osie} of rule {rule.name} is in a namespace that this process does not use"
            remedy = f"name one of {', '.join(namespaces)}, or add {rule.osie.namespace} to --namespaces"
            yield SettingsFinding(("discover", "namespaces"), seen, remedy)
        for name in rule.lists if namespaces else ():
            if name not in (*namespaces, ALL_NAMESPACES):
                seen = f"rule {rule.name} counts lists of namespace {name}, which this process does not use"
                remedy = f"leave lists={name} out, or add {name} to --namespaces"
                yield SettingsFinding(("discover", "namespaces"), seen, remedy)
    for seen, remedy in rule_conflicts(rules):
        yield SettingsFinding(("discover",), seen, remedy)


def _check_checkpoint(services: Services, options: Options) -> Iterator[SettingsFinding]:
    secrets = options.get("checkpoint_secrets")
    if secrets and not options.get("checkpoint", True):
        seen = "Secrets are kept in the checkpoint, and there is none"
        yield SettingsFinding(("checkpoint-secrets", "checkpoint"), seen, "leave one of them out")
    if options.get("checkpoint_key") is not None and not secrets:
        seen = "the key is not used: the checkpoint has no Secrets"
        yield _warning(("checkpoint-key", "checkpoint-secrets"), seen, "give --checkpoint-secrets to keep them")
    if secrets and Service.APISERVER in services:
        seen = "the embedded API and its Secrets are on this disk already"
        yield _warning(("checkpoint-secrets",), seen, "leave it out: it is for edges of a cluster")


def _check_peers(options: Options) -> Iterator[SettingsFinding]:
    names = ("peer", "peer-group", "upstream-edge", "downstream-edges")
    given = [key for key in names if options.get(key.replace("-", "_"))]
    key, whose = "metadata-token-key", "all of them"
    seen = "edges prove by a shared key that they belong together, and this one would make its own"
    if "metadata_token_key" not in options:  # a server without an edge
        key, whose = "reports-key", "edges and servers"
        seen = "edges accept reports only from servers that share a key with them"
    if given and options.get(key.replace("-", "_")) is None:
        remedy = f"give {whose} the same file by --{key} ('openssl rand -hex 32' makes a key)"
        yield SettingsFinding((*given, key), seen, remedy)


def _check_values(options: Options) -> Iterator[SettingsFinding]:
    """Run the checks that the fields declare."""
    for each in FIELDS:
        given = options.get(each.parameter)
        if each.setting.check is None or not given:
            continue
        for value in given if each.setting.multiple else (given,):
            yield from (SettingsFinding((each.key,), message, remedy) for message, remedy in each.setting.check(value))


# --- obstacles: what this host lacks ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ThisHost:
    """This host as the checks see it: the names of its interfaces, the number of this user, and the Unix time."""

    interfaces: Callable[[], set[str]] = lambda: {each.name for each in Path("/sys/class/net").iterdir()}
    user: Callable[[], int] = os.geteuid
    now: Callable[[], float] = time.time


def obstacles(services: Services, options: Options, host: ThisHost | None = None) -> Iterator[SettingsFinding]:
    """Yield what this host lacks for a process with these services. Errors keep it from starting."""
    host = host or ThisHost()
    yield from _check_links(options, host)
    yield from _check_files(services, options)
    yield from _check_manifests(options)
    yield from _check_key_files(options)
    yield from _check_boot_programs(services, options)
    yield from _check_certificates(services, options, host)
    yield from _check_data_dir(services, options, host)


def _check_links(options: Options, host: ThisHost) -> Iterator[SettingsFinding]:
    links = host.interfaces()
    for name in dict.fromkeys(name for name, _ in options.get("interface") or ()):
        if name not in links:
            seen = f"there is no interface {name} on this host (there are: {', '.join(sorted(links))})"
            yield _warning(("interface",), seen, "machines there are served as soon as it appears; check the spelling")


_REGISTRY_CA: Final = "registry-ca"
_AWAITED: Final = frozenset({"grpc-tls-ca", "grpc-tls-cert", "grpc-tls-key", "grpc-client-ca", _REGISTRY_CA})
"""Files for agents. An edge serves machines without them, and its agents as soon as they are good."""


def _is_error(services: Services, key: str) -> bool:
    return key not in _AWAITED or not services & EDGE


def _given_files(options: Options, *contents: Holds) -> Iterator[tuple[str, Path]]:
    """Yield the files with such contents that options name, with the keys of these options."""
    for each in FIELDS:
        if each.setting.holds in contents and (file := options.get(each.parameter)) is not None:
            yield each.key, file
    if Holds.CERTIFICATES in contents:
        yield from ((_REGISTRY_CA, file) for _, file in options.get("registry_ca") or ())


def _check_files(services: Services, options: Options) -> Iterator[SettingsFinding]:
    for key, file in _given_files(options, Holds.CERTIFICATES, Holds.OTHER):
        wrong = partial(SettingsFinding, (key,), is_error=_is_error(services, key))
        try:
            with file.open("rb"):
                pass
        except FileNotFoundError:
            yield wrong(f"there is no file {file}", "put it there, or name another")
        except IsADirectoryError:
            yield wrong(f"{file} is a directory", "name the file in it")
        except OSError as error:
            user = data_directory.user_name(os.geteuid())
            yield wrong(f"{file} can't be read: {error.strerror}", f"let {user} read it, or name another")


def _check_manifests(options: Options) -> Iterator[SettingsFinding]:
    if (manifests := options.get("manifests")) is not None and not os.access(manifests, os.R_OK, effective_ids=True):
        seen = f"{manifests} can't be read" if os.path.lexists(manifests) else f"there is no directory {manifests}"
        remedy = "make or mount it, or name another: its manifests are applied as soon as it can be read"
        yield _warning(("manifests",), seen, remedy)


def _check_key_files(options: Options) -> Iterator[SettingsFinding]:
    """Yield the problems of files with keys and tokens. A service makes such a file only if no option names one."""
    unused = {
        "agent-token-key": options.get("agent_auth") != AgentAuth.TOKEN,
        "checkpoint-key": not options.get("checkpoint_secrets"),
    }
    for key, file in _given_files(options, Holds.KEYS):
        if unused.get(key):
            continue
        try:
            KeyFile(file, "the file")
        except KeyFileError as error:
            yield SettingsFinding((key,), str(error), "put a good one there, or name another file")


def _check_boot_programs(services: Services, options: Options) -> Iterator[SettingsFinding]:
    """Yield the problems of boot programs that options name, and of an extra that is not installed."""
    files, shims = dict(options.get("boot_file") or ()), options.get("shim_dir")
    if Service.HTTP in services and (files or shims is not None):
        try:
            BootBinaries(options["ipxe_dir"], shims, named=files)
        except BinariesError as error:
            keys = ("boot-file",) if files else ("shim-dir",)
            yield SettingsFinding((*keys, "ipxe-dir"), str(error), "name files and a directory that are there")
    if options.get("otlp_endpoint") and find_spec("opentelemetry") is None:
        yield SettingsFinding(("otlp-endpoint",), "OpenTelemetry is not installed", "pip install 'tinkedge[otlp]'")


def _check_certificates(services: Services, options: Options, host: ThisHost) -> Iterator[SettingsFinding]:
    """Yield certificates that end soon. The server itself reports its own certificate that has ended."""
    for key, file in _given_files(options, Holds.CERTIFICATES):
        if not os.access(file, os.R_OK, effective_ids=True):
            continue  # `_check_files` has reported it
        try:
            ((_, end),) = endings({f"--{key}": file})
        except TlsError as error:
            seen = str(error).removeprefix(f"--{key} ")
            yield SettingsFinding((key,), seen, "put a usable one there", is_error=_is_error(services, key))
            continue
        if ending := what_ends(end, host.now()):
            remedy = "put a renewed one there: agents can't connect from then on. It is read again while tinkedge runs"
            if key == "grpc-tls-ca":
                remedy = "put its successor beside it in the file, and restart the edges: agents can't connect then"
            elif key == _REGISTRY_CA:
                remedy = "put its successor beside it in the file, and restart the edges: agents can't pull images then"
            yield _warning((key,), f"{file} {ending}", remedy)


def _check_data_dir(services: Services, options: Options, host: ThisHost) -> Iterator[SettingsFinding]:
    directory: Path | None = options.get("data_dir")
    if directory is None or not services & {Service.APISERVER, Service.HTTP}:
        return
    wrong = partial(SettingsFinding, ("data-dir",))
    try:
        existing = next(each for each in (directory, *directory.absolute().parents) if each.exists())
        if existing != directory:
            if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
                command = f"install -d -m 700 {shlex.quote(str(directory))}"
                yield wrong(f"{directory} can't be made in {existing}", f"make it: '{command}'")
            return
        if not directory.is_dir():
            yield wrong(f"{directory} is not a directory", "name one, or a path where nothing is")
            return
        # A command that runs as root becomes the owner of the directory at its start.
        for problem in data_directory.problems(directory, host.user() or directory.stat().st_uid):
            if not problem.is_fixable:
                yield wrong(f"{directory} {problem.seen}", problem.remedy)
        for problem in data_directory.out_of_reach(directory):
            yield wrong(f"{directory}: {problem.seen}", problem.remedy, is_error=False)
        yield from _check_writable(directory)
    except OSError as error:
        yield wrong(f"{directory}: {error.strerror}", "run it as the user who may use it, or name another")


def _check_writable(directory: Path) -> Iterator[SettingsFinding]:
    if os.statvfs(directory).f_flag & os.ST_RDONLY:
        # A warning: machines boot from the files that are there, and tinkedge writes again when the disk allows it.
        # systemd makes file systems read-only for a unit with ProtectSystem= (systemd.exec(5)).
        unit = f"add to the unit (systemctl edit): ReadWritePaths={directory}"
        cause = unit if "NOTIFY_SOCKET" in os.environ else "check the disk"
        seen = f"the file system of {directory} is read-only"
        yield _warning(("data-dir",), seen, f"nothing can be stored until it is writable again; {cause}")
    elif not os.access(directory, os.W_OK | os.X_OK):
        message = f"{directory} can't be written by this user"
        yield SettingsFinding(("data-dir",), message, "run it as the user that owns it, or name another")
