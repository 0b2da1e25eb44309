"""The agent's settings and their sources.

In the OSIE they come from the kernel command line, which the edge's iPXE script wrote (names as in Tinkerbell's Hook:
`worker_id`, `grpc_authority`, `docker_registry`, ...). Flags of `tinkedge agent` have precedence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tink.agent.model import SettingsError
from tink.mac import is_mac
from tink.net.proxies import NONE, Proxies

DEFAULT_PORT = 42113
DEFAULT_STATE_DIR = Path("/run/tinkedge")
DEFAULT_TLS_ROOTS = Path("/etc/ssl/certs/ca-certificates.crt")
RUNTIMES = ("runc", "crun", "docker", "process")

_PINNED = re.compile(r"https?://[!-~]+#sha256=[0-9a-fA-F]{64}")
_IPV4_AND_PORT = re.compile(r"(\d{1,3}\.){3}\d{1,3}:\d{1,5}", re.ASCII)
_KERNEL_ARGUMENT = re.compile(r'"([^\s="]+)=([^"]*)(?:"|$)|([^\s="]+)(?:=("[^"]*"|\S*))?')
_KERNEL_ARGUMENTS = {
    "agent_id": "worker_id",
    "server": "grpc_authority",
    "docker_registry": "docker_registry",
    "registry_username": "registry_username",
    "registry_password": "registry_password",
    "token": "tinkerbell_token",
}
_NOTHING: Mapping[str, str] = MappingProxyType({})
_TRUE = frozenset({"1", "t", "true", "y", "yes", "on"})
_FALSE = frozenset({"", "0", "f", "false", "n", "no", "off"})


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """The agent's settings. Raises SettingsError for unusable values.

    `agent_id`: the MAC that booted, or the Hardware's name. `server`: host:port of the workflow service.
    `insecure_registries`: hosts, host:port or networks (CIDR) whose certificates are not looked at, and that may speak
    plain HTTP. `plain_registries`: those of them, by host:port, that are known to speak plain HTTP: the edges.
    `registry_cas`: files (PEM) with the authorities of registries, by host[:port]. `registry_ca_url`: a URL with such
    certificates for several registries, a JSON object by host[:port], pinned as `tls_ca_url`. `registry_authorities`:
    what both have, once it is there.
    `registry_config`: Docker's config.json or Podman's auth.json, with credentials of several registries.
    `docker_registry`: the registry, host[:port][/path], that the credentials belong to; no other ever sees them.
    `docker_host`: the socket of the container engine, a path or unix:// URL, for the runtime docker; "" finds it.
    `after_workflow`: a command run when a workflow has ended and the server knows it, with
    TINKEDGE_WORKFLOW_STATE=Succeeded|Failed|Canceled in its environment.
    `tls_roots`: the certificates that sign the server's, when `tls`; gRPC's own when the file is missing. `tls_ca_url`
    says instead where they are and what the SHA-256 of that is: `http://HOST/PATH#sha256=HEX`. `tls_cert` and `tls_key`
    are what the agent shows a server that asks for certificates. `token`: what it shows with every call.
    `more_servers` are those of other edges, where the agent goes on if `server` is gone: IPv4 addresses with ports, as
    `server` must be then. `edges` are where else, by host[:port], the files of the two URLs are.
    `proxies` are for registries, and for actions, which get them in their environment; the agent asks servers and edges
    without any.
    """

    agent_id: str
    server: str
    runtime: str = "runc"
    state_dir: Path = DEFAULT_STATE_DIR
    insecure_registries: tuple[str, ...] = ()
    plain_registries: tuple[str, ...] = ()
    registry_cas: tuple[tuple[str, Path], ...] = ()
    registry_ca_url: str = ""
    registry_authorities: Mapping[str, str] = field(default_factory=dict)
    registry_config: Path | None = None
    docker_registry: str = ""
    registry_username: str = ""
    registry_password: str = field(default="", repr=False)
    tls: bool = False
    tls_roots: Path = DEFAULT_TLS_ROOTS
    tls_ca_url: str = ""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    token: str = field(default="", repr=False)
    after_workflow: tuple[str, ...] = ()
    docker_host: str = ""
    more_servers: tuple[str, ...] = ()
    edges: tuple[str, ...] = ()
    proxies: Proxies = NONE

    def __post_init__(self) -> None:
        if not self.agent_id:
            raise SettingsError("agent id: missing; give --agent-id or boot with worker_id= on the kernel command line")
        if not self.server:
            raise SettingsError(
                "server: missing; give --server or boot with grpc_authority= on the kernel command line"
            )
        if self.runtime not in RUNTIMES:
            raise SettingsError(f"runtime: {self.runtime!r} is none of {', '.join(RUNTIMES)}")
        if self.registry_username and not self.docker_registry:
            raise SettingsError(
                "registry_username: given without docker_registry, the registry whose credentials these are"
            )
        if (self.tls_cert is None) != (self.tls_key is None):
            raise SettingsError("tls_cert and tls_key: one is nothing without the other; give both")
        for name, url in (("tinkerbell_tls_ca", self.tls_ca_url), ("tinkerbell_registry_ca", self.registry_ca_url)):
            if url and not _PINNED.fullmatch(url):
                raise SettingsError(f"{name}: {url!r} is not http://HOST/PATH#sha256=HEX, with 64 digits")
        if not re.fullmatch(r"[!-~]{0,4096}", self.token):
            raise SettingsError("tinkerbell_token: has characters that no token has")
        # overlayfs separates its options and its lower directories with these
        if not self.state_dir.is_absolute() or set(str(self.state_dir)) & set(",:\\"):
            raise SettingsError(f"state dir: {self.state_dir} must be absolute, without comma, colon and backslash")
        object.__setattr__(self, "agent_id", normal_agent_id(self.agent_id))
        object.__setattr__(self, "server", normal_server(self.server))
        for name, argument in (("more_servers", "tinkerbell_servers"), ("edges", "tinkerbell_edges")):
            if wrong := next((each for each in getattr(self, name) if not _IPV4_AND_PORT.fullmatch(each)), ""):
                raise SettingsError(f"{argument}: {wrong!r} is not like 10.0.0.2:7080")

    @property
    def target(self) -> str:
        """All servers for gRPC, which takes the first that is there (gRPC Name Resolution: `ipv4:`)."""
        if not self.more_servers or not _IPV4_AND_PORT.fullmatch(self.server):
            return self.server
        return f"ipv4:{','.join((self.server, *self.more_servers))}"


def from_kernel_command_line(text: str, environment: Mapping[str, str] = _NOTHING, **flags: Any) -> AgentSettings:
    """Settings from `text` (what /proc/cmdline holds; "" for none) and flags, which have the names of the settings; a
    flag that is not None wins.

    Proxies are those of `text`, else those of `environment`. Raises SettingsError.
    """
    kernel = kernel_arguments(text)
    given = {name: value for name, value in flags.items() if value is not None}
    said: dict[str, Any] = {setting: kernel.get(argument, "") for setting, argument in _KERNEL_ARGUMENTS.items()}
    said["insecure_registries"] = tuple(item for item in kernel.get("insecure_registries", "").split(",") if item)
    if "server" not in given:
        said["more_servers"] = tuple(item for item in kernel.get("tinkerbell_servers", "").split(",") if item)
    # The kernel command line has Go's names, of which HookOS gives three to its agent and its container engine.
    said["proxies"] = Proxies.of(kernel) or Proxies.of(environment)
    said["edges"] = tuple(item for item in kernel.get("tinkerbell_edges", "").split(",") if item)
    # The edge that wrote the command line names its own HTTP server there.
    sign = re.match(r"http://([^/]+)/", kernel.get("tinkedge_sign", ""))
    said["plain_registries"] = (*((sign[1],) if sign else ()), *said["edges"])
    if "tls" not in given:
        said["tls"] = _boolean(kernel, "tinkerbell_tls")
    if "tls_roots" not in given:
        said["tls_ca_url"] = kernel.get("tinkerbell_tls_ca", "")
    said["registry_ca_url"] = kernel.get("tinkerbell_registry_ca", "")
    return AgentSettings(**said | given)


def kernel_arguments(text: str) -> dict[str, str]:
    """`name=value` pairs of a kernel command line.

    As in the kernel, the last wins, and quotes keep blanks together, in name="a b" as in "name=a b".
    """
    arguments = {}
    for whole, whole_value, name, value in _KERNEL_ARGUMENT.findall(text):
        arguments[whole or name] = whole_value if whole else value.strip('"') if value.startswith('"') else value
    return arguments


def normal_agent_id(agent_id: str) -> str:
    """A MAC in lower case with colons (iPXE and people write it in other ways); a Hardware's name as it is."""
    mac = agent_id.lower().replace("-", ":")
    return mac if is_mac(mac) else agent_id


def normal_server(server: str) -> str:
    """`server` as host:port, with the port 42113 when it names none. Raises SettingsError."""
    if re.fullmatch(r"\[[0-9a-fA-F:.]+\]|[^:/\s\[\]]+", server):
        return f"{server}:{DEFAULT_PORT}"
    match = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^:/\s\[\]]+):(\d{1,5})", server)
    if not match or not 0 < int(match[2]) < 65536:
        raise SettingsError(f"server: {server!r} is not host:port (an IPv6 address goes in brackets)")
    return server


def _boolean(kernel: Mapping[str, str], name: str) -> bool:
    value = kernel.get(name, "").lower()
    if value not in _TRUE | _FALSE:
        raise SettingsError(f"{name} on the kernel command line: {value!r} is neither true nor false")
    return value in _TRUE
