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

from tink.agent.model import AgentSettingsError
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
    "registry_ca_url": "tinkerbell_registry_ca",
    "token": "tinkerbell_token",
}
_NOTHING: Mapping[str, str] = MappingProxyType({})
_TRUE = frozenset({"1", "t", "true", "y", "yes", "on"})
_FALSE = frozenset({"", "0", "f", "false", "n", "no", "off"})


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """The agent's settings. Raises AgentSettingsError for unusable values.

    agent_id: the MAC that booted, or the Hardware's name.
    server: HOST:PORT of the workflow service.
    more_servers: servers of other edges, used if `server` is gone; then all are IPv4 addresses with ports.
    edges: other edges by HOST:PORT, which also have the files of `tls_ca_url` and `registry_ca_url`.
    insecure_registries: hosts, HOST:PORT or networks (CIDR) that need no valid certificate and may speak plain HTTP.
    plain_registries: insecure registries by HOST:PORT that are known to speak plain HTTP: the edges.
    registry_cas: files (PEM) with the authorities of registries, by HOST[:PORT].
    registry_ca_url: a URL of more of them, a JSON object by HOST[:PORT], pinned like `tls_ca_url`.
    registry_authorities: the content of both, once it is there.
    registry_config: Docker's config.json or Podman's auth.json, with credentials of several registries.
    docker_registry: the registry HOST[:PORT][/PATH] that receives the credentials; no other receives them.
    docker_host: the socket of the container engine, a path or unix:// URL, for the runtime docker; "" finds it.
    after_workflow: a command that runs when a workflow has ended and the server knows it, with
        TINKEDGE_WORKFLOW_STATE=Succeeded|Failed|Canceled in its environment.
    tls_roots: the authorities of the server's certificate with `tls`; gRPC's own if the file is missing.
    tls_ca_url: a URL of these authorities instead, with their SHA-256: http://HOST/PATH#sha256=HEX.
    tls_cert, tls_key: the certificate for servers that require one.
    token: sent with every call.
    proxies: for registries, and in the environment of actions; the agent reaches servers and edges without a proxy.
    in_osie: True if the kernel was started by an edge's script, so that the inventory may set network cards up.
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
    in_osie: bool = False

    def __post_init__(self) -> None:
        if not self.agent_id:
            raise AgentSettingsError(
                "agent id: missing; give --agent-id or boot with worker_id= on the kernel command line"
            )
        if not self.server:
            raise AgentSettingsError(
                "server: missing; give --server or boot with grpc_authority= on the kernel command line"
            )
        if self.runtime not in RUNTIMES:
            raise AgentSettingsError(f"runtime: {self.runtime!r} is none of {', '.join(RUNTIMES)}")
        if self.registry_username and not self.docker_registry:
            raise AgentSettingsError(
                "registry_username: given without docker_registry, the registry whose credentials these are"
            )
        if (self.tls_cert is None) != (self.tls_key is None):
            raise AgentSettingsError("tls_cert and tls_key: one is nothing without the other; give both")
        for name, url in (("tinkerbell_tls_ca", self.tls_ca_url), ("tinkerbell_registry_ca", self.registry_ca_url)):
            if url and not _PINNED.fullmatch(url):
                raise AgentSettingsError(f"{name}: {url!r} is not http://HOST/PATH#sha256=HEX, with 64 digits")
        if not re.fullmatch(r"[!-~]{0,4096}", self.token):
            raise AgentSettingsError("tinkerbell_token: has characters that no token has")
        # overlayfs separates its options and its lower directories with these
        if not self.state_dir.is_absolute() or set(str(self.state_dir)) & set(",:\\"):
            raise AgentSettingsError(
                f"state dir: {self.state_dir} must be absolute, without comma, colon and backslash"
            )
        object.__setattr__(self, "agent_id", normal_agent_id(self.agent_id))
        object.__setattr__(self, "server", normal_server(self.server))
        for name, argument in (("more_servers", "tinkerbell_servers"), ("edges", "tinkerbell_edges")):
            if wrong := next((each for each in getattr(self, name) if not _IPV4_AND_PORT.fullmatch(each)), ""):
                raise AgentSettingsError(f"{argument}: {wrong!r} is not like 10.0.0.2:7080")

    @property
    def target(self) -> str:
        """Return all servers for gRPC, which uses the first that answers (gRPC Name Resolution: `ipv4:`)."""
        if not self.more_servers or not _IPV4_AND_PORT.fullmatch(self.server):
            return self.server
        return f"ipv4:{','.join((self.server, *self.more_servers))}"


def from_kernel_command_line(text: str, environment: Mapping[str, str] = _NOTHING, **flags: Any) -> AgentSettings:
    """Return the settings of a kernel command line and of flags with the names of settings, which have precedence.

    Proxies are those of `text`, else those of `environment`. Raises AgentSettingsError.
    """
    kernel = kernel_arguments(text)
    given = {name: value for name, value in flags.items() if value is not None}

    def items(argument: str) -> tuple[str, ...]:
        return tuple(item for item in kernel.get(argument, "").split(",") if item)

    values: dict[str, Any] = {setting: kernel.get(argument, "") for setting, argument in _KERNEL_ARGUMENTS.items()}
    values["insecure_registries"] = items("insecure_registries")
    if "server" not in given:
        values["more_servers"] = items("tinkerbell_servers")
    # The kernel command line has Go's names, of which HookOS gives three to its agent and its container engine.
    values["proxies"] = Proxies.of(kernel) or Proxies.of(environment)
    values["edges"] = items("tinkerbell_edges")
    values["in_osie"] = "worker_id" in kernel
    # The edge that wrote the command line names its own HTTP server there.
    sign = re.match(r"http://([^/]+)/", kernel.get("tinkedge_sign", ""))
    values["plain_registries"] = (*((sign[1],) if sign else ()), *values["edges"])
    if "tls" not in given:
        tls = kernel.get("tinkerbell_tls", "").lower()
        if tls not in _TRUE | _FALSE:
            raise AgentSettingsError(f"tinkerbell_tls on the kernel command line: {tls!r} is neither true nor false")
        values["tls"] = tls in _TRUE
    if "tls_roots" not in given:
        values["tls_ca_url"] = kernel.get("tinkerbell_tls_ca", "")
    return AgentSettings(**values | given)


def kernel_arguments(text: str) -> dict[str, str]:
    """Return the arguments of a kernel command line by name.

    As in the kernel, the last one counts, and quotes keep blanks together, in name="a b" as in "name=a b".
    """
    arguments = {}
    for whole, whole_value, name, value in _KERNEL_ARGUMENT.findall(text):
        arguments[whole or name] = whole_value if whole else value.strip('"') if value.startswith('"') else value
    return arguments


def normal_agent_id(agent_id: str) -> str:
    """Return a MAC in lower case with colons (iPXE and people write it in other ways); a Hardware's name as it is."""
    mac = agent_id.lower().replace("-", ":")
    return mac if is_mac(mac) else agent_id


def normal_server(server: str) -> str:
    """Return `server` as host:port, with the port 42113 if it has none. Raises AgentSettingsError."""
    if re.fullmatch(r"\[[0-9a-fA-F:.]+\]|[^:/\s\[\]]+", server):
        return f"{server}:{DEFAULT_PORT}"
    match = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^:/\s\[\]]+):(\d{1,5})", server)
    if not match or not 0 < int(match[2]) < 65536:
        raise AgentSettingsError(f"server: {server!r} is not host:port (an IPv6 address goes in brackets)")
    return server
