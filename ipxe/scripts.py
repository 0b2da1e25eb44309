"""The iPXE script of a machine, rendered from its Hardware: the files to load, and the kernel to start.

`edge.machines.scripts` calls `Scripts.compile` once per change of a Hardware and per address of the edge; HTTP and TFTP
serve the text. The templates are in `ipxe/templates`. Any writer of Hardware objects controls the inserted values, so
each value is checked against iPXE's grammar (src/core/exec.c): a line break, or one of the words `&&`, `||`, `;`,
`#...`, would end the command around it, and a backslash at the end of a line would add the next line to it
(src/image/script.c). `${...}` is allowed, because iPXE expands it after splitting the words, and it is useful.

Scripts work with iPXE from 2019 (Debian 12) on, and use only commands and options of that time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum, auto
from ipaddress import IPv4Address
from urllib.parse import quote

from jinja2 import PackageLoader, StrictUndefined
from jinja2.sandbox import SandboxedEnvironment

from ipxe.parameters import (
    MAX_CHARACTERS,
    ParametersError,
    agent_id,
    check_quotes,
    filled_in,
    is_hookos,
    kernel_words,
    known_of,
    plain_words,
)
from tink.api.annotations import AGENT_ID_ANNOTATION, KERNEL_PARAMETERS_ANNOTATION
from tink.api.v1alpha2 import DHCP, Hardware
from tink.errors import TinkedgeError
from tink.printable import printable

# COMMAND_LINE_SIZE of Linux on x86 and arm64 (arch/x86/include/asm/setup.h), less the final NUL.
MAX_COMMAND_LINE = 2047

CA_PATH = "/agent/ca.pem"
REGISTRIES_PATH = "/agent/registries.json"
"""HTTP path of the registries' certificates for agents."""

TOKEN_SETTING = "tinkerbell-token"  # noqa: S105 - the name of a setting
"""The iPXE setting that has the agent's token."""

METADATA_SETTING = "tinkerbell-metadata-token"
"""The iPXE setting that has the token of the machine's metadata."""

SIGN_PATH = "/sign"
"""HTTP path at which a machine reports that iPXE starts the kernel, and that the OSIE is up."""

SIGN_PARAMETER = "tinkedge_sign"
"""The kernel parameter with the URL that the OSIE requests when it has its address."""

# Maximum length of a token on the command line.
_TOKEN_BYTES = 80

MAX_INLINE_BYTES = 1 << 20
"""Bytes of an inline script."""

# Maximum length of a line for the screen. iPXE splits a line into words on its small stack (src/core/exec.c).
MAX_SHOWN = 400


class ScriptError(TinkedgeError, ValueError):
    """There is no script for this machine. The message names the Hardware or OSIE, the field and what to do."""


class Dialect(Enum):
    """The program that reads a script, and so its language."""

    IPXE = auto()
    GRUB = auto()
    EXTLINUX = auto()  # `pxelinux.cfg/...`, as U-Boot reads it
    U_BOOT = auto()  # commands of U-Boot's shell
    PI_CONFIG = auto()  # `config.txt` of a Raspberry Pi
    PI_COMMAND_LINE = auto()  # and its `cmdline.txt`


class LogsTo(Enum):
    """The machines that send their log lines to the edge."""

    NOBODY = auto()
    HOOKOS = auto()  # those whose kernel gets HookOS' own words
    ALL = auto()


@dataclass(frozen=True, slots=True)
class BootSettings:
    """The settings of all machines' scripts.

    `http_port` is that of this edge's HTTP server, on each of its addresses. `grpc_authority` is the `address:port` of
    the workflow server, for the agent; empty: `grpc_port` of the address that the machine reached. A download is tried
    `attempts` times, `retry_seconds` apart. An error stays on the screen for `screen_seconds`.

    `tls_ca` are the certificates (PEM) by which an agent trusts its server; empty: those in its OSIE. This edge's HTTP
    serves them at CA_PATH. `registry_authorities` is the document (JSON) by which an agent trusts registries, at
    REGISTRIES_PATH; empty: there is none. `token(mac)` creates the token of a machine's agent; None: agents need none.
    `metadata_token(mac)` creates the token in the URL of its metadata; None: machines get no such URL. `own_registry()`
    returns True if this edge's HTTP serves images; the agent then uses plain HTTP for them, as with
    `insecure_registries`.
    """

    http_port: int = 7080
    grpc_port: int = 42113
    grpc_authority: str = ""
    tinkerbell_tls: bool = False
    tls_ca: bytes = b""
    registry_authorities: bytes = b""
    token: Callable[[str], str] | None = field(default=None, compare=False)
    metadata_token: Callable[[str], str] | None = field(default=None, compare=False)
    insecure_registries: tuple[str, ...] = ()
    own_registry: Callable[[], bool] = field(default=lambda: False, compare=False)
    kernel_parameters: tuple[str, ...] = ()
    """Words for every kernel's command line, before those of the OSIE and of the Hardware; `kernel_words` makes them.
    `{{.MAC}}` and its like are filled in for each machine (`ipxe.parameters`)."""
    logs: LogsTo = LogsTo.NOBODY
    consoles: tuple[str, ...] = ("tty0", "ttyS0,115200")
    attempts: int = 5
    retry_seconds: int = 2
    screen_seconds: int = 10


@dataclass(frozen=True, slots=True)
class EdgeOrigin:
    """The edge that a machine has reached, by its `address`, and the way.

    `tftp` is for an iPXE without HTTP. `static`: the machine has no DHCP and uses the address of its Hardware, and its
    OSIE must do the same (`Scripts.medium`). `others` are edges with the same files, for a failure of this one, each
    with its HTTP port and the port of the gRPC server beside it (0: there is none). The ports of this edge itself are
    in the settings.
    """

    address: str
    tftp: bool = False
    static: bool = False
    http_port: int = 0
    grpc_port: int = 0
    others: tuple[EdgeOrigin, ...] = ()

    @property
    def is_ipv6(self) -> bool:
        """Return True if the machine is reached over IPv6."""
        return ":" in self.address

    @property
    def host(self) -> str:
        """Return the address in the notation of URLs (RFC 3986 section 3.2.2)."""
        return f"[{self.address}]" if self.is_ipv6 else self.address


@dataclass(frozen=True, slots=True)
class Script:
    """A script.

    what: its effect, for the journey.
    osie: namespace and name of the OSIE that it boots; None if the Hardware has its own script.
    logs: the machine sends its log lines to this edge.
    """

    text: str
    what: str
    osie: tuple[str, str] | None = None
    logs: bool = False
    vlan: str = ""
    """The VLAN in which iPXE first gets a lease; empty: none."""


@dataclass(frozen=True, slots=True)
class ScriptPlan:
    """The facts for a script, from a Hardware, or from the edge's default OSIE for a machine without."""

    mac: str
    who: str
    origin: EdgeOrigin
    vlan: str = ""
    parameters: list[str] = field(default_factory=list)
    registered: bool = True
    osie: tuple[str, str] = ("", "")
    """The namespace and name of the OSIE to boot; no name: the Hardware names none."""
    worker_id: str = ""
    """The agent's id; empty: the MAC."""
    logs: bool = False
    """The machine sends its log lines to this edge."""
    dialect: Dialect = Dialect.IPXE
    """The program that loads the kernel."""


class MediumKind(StrEnum):
    """The value of `?medium=` in script requests of machines that booted from a medium."""

    BOOT = "boot"
    """The machine gets its address by DHCP."""
    STATIC = "static"
    """The machine has the Hardware's address."""


class Scripts:
    """Renders scripts with one set of settings."""

    def __init__(self, settings: BootSettings) -> None:
        self._settings = settings
        environment = SandboxedEnvironment(
            loader=PackageLoader("ipxe"),
            undefined=StrictUndefined,
            autoescape=False,  # iPXE scripts are not HTML; values are checked below
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
            newline_sequence="\n",
        )
        environment.globals.update(
            attempts=settings.attempts, retry_seconds=settings.retry_seconds, screen_seconds=settings.screen_seconds
        )
        self.environment = environment

    def trust(self, tls_ca: bytes, registry_authorities: bytes) -> None:
        """Replace the authorities that agents trust (BootSettings), for scripts rendered from now on."""
        self._settings = replace(self._settings, tls_ca=tls_ca, registry_authorities=registry_authorities)

    def own_registry(self) -> bool:
        """Return True if scripts name this edge as a registry now."""
        return self._settings.own_registry()

    def compile(self, mac: str, hardware: Hardware, origin: EdgeOrigin, osie_parameters: str = "") -> Script:
        """Return the script for the interface `mac` of `hardware`. Raises ScriptError.

        `osie_parameters` are the kernel parameters in its OSIE's annotation.
        """
        ipxe = hardware.spec.ipxe
        if ipxe is not None and ipxe.inline and ipxe.url:
            raise field_error(hardware, "spec.ipxe", "has both inline and url: remove one")
        plan = self.plan(mac, hardware, origin, osie_parameters)
        if ipxe is not None and ipxe.inline:
            return self._inline(plan, hardware, ipxe.inline)
        if ipxe is not None and ipxe.url:
            return self._chain(plan, hardware, ipxe.url)
        return self._boot(self.bootable(plan, hardware))

    def to_send(self, mac: str, script: Script) -> str:
        """Return the text of a script for the registered machine `mac`, with its current tokens."""
        tokens = self.tokens()
        if not tokens:
            return script.text
        # The kernel's command line and the operators' own scripts use these settings. A token is created for each
        # request and never stored with the compiled script.
        first, end_of_line, rest = script.text.partition("\n")
        lines = "".join(f"set {setting} {token(mac)}\n" for setting, token in tokens.items())
        return f"{first}{end_of_line}{lines}{rest}"

    def bootable(self, plan: ScriptPlan, hardware: Hardware) -> ScriptPlan:
        """Check that a plan has an OSIE, and fit its command line (`fitting`). Raises ScriptError."""
        if not plan.osie[1]:
            raise field_error(hardware, "spec.osie.name", "is not set: name the OSIE that the machine is to boot")
        return self.fitting(plan, hardware)

    def fitting(self, plan: ScriptPlan, hardware: Hardware) -> ScriptPlan:
        """Return a plan whose command line a kernel can read, if need be without the other edges.

        Raises ScriptError.
        """
        for each in (plan, replace(plan, origin=replace(plan.origin, others=()))):
            # The line has the name of a setting in place of a token, which iPXE inserts.
            length = max(len(line.encode()) for _, line in self.boots(each)) + _TOKEN_BYTES * len(self.tokens())
            if length <= MAX_COMMAND_LINE:
                return each
        problem = f"makes a kernel command line of {length} bytes, of which Linux reads {MAX_COMMAND_LINE}"
        raise field_error(hardware, "spec.kernelParams", problem)

    def unregistered(self, mac: str, osie: tuple[str, str], origin: EdgeOrigin, osie_parameters: str = "") -> Script:
        """Return the script of a machine without Hardware: it boots `osie`, a namespace and a name.

        Raises ScriptError.
        """
        return self._boot(self.plan_of_unregistered(mac, osie, origin, osie_parameters))

    def reason(self, mac: str, reason: str) -> str:
        """Return a script that shows why `mac` is not booted, line by line, and continues with the next boot device."""
        lines = [shown for line in reason.splitlines() if (shown := _for_screen(line))]
        return self._render("reason", mac=mac, lines=lines)

    def autoexec(self, mac: str, origin: EdgeOrigin) -> str:
        """Return the script that iPXE runs first: it loads the script of `mac` with the present lease."""
        # iPXE since 2022 requests autoexec.ipxe from the server that it was loaded from (usr/autoboot.c).
        # An iPXE without one of the two protocols fails at once with it, and takes the other.
        urls = []
        for each in (origin, *origin.others):
            ways = [self.script_url(mac, each), f"tftp://{each.host}/{mac}/auto.ipxe"]
            urls += ways[::-1] if origin.tftp else ways
        return self._render("autoexec", mac=mac, urls=urls, ipv6=origin.is_ipv6)

    def medium(self, mac: str, hardware: Hardware | None, origin: EdgeOrigin, kind: MediumKind) -> str:
        """Return the script on a boot medium: directly to the script of the interface `mac` of `hardware` at the edge.

        `hardware` is None for a machine without Hardware. Raises ScriptError.
        """
        # A BMC requests an image in parts, so the script must be the same each time: it has no token and no time, and
        # changes only with the Hardware's interface or an address of the edge.
        interface = hardware.spec.network_interfaces.get(mac) if hardware is not None else None
        dhcp = (interface.dhcp if interface is not None else None) or DHCP()
        name = f"{hardware.metadata.namespace}/{hardware.metadata.name}" if hardware is not None else ""
        if kind is MediumKind.STATIC and hardware is None:
            raise ScriptError(f"{mac} has no Hardware, and so no address for a medium without DHCP")
        field = f"Hardware {name}: spec.networkInterfaces[{mac}].dhcp"
        settings = _settings(field, dhcp) if kind is MediumKind.STATIC else []
        urls = [f"{self.script_url(mac, each)}?medium={kind}" for each in (origin, *origin.others)]
        who = printable(name or "no Hardware", ascii_only=True)
        values = {"mac": mac, "hardware": who, "vlan": dhcp.vlan_id or "", "settings": settings, "urls": urls}
        return self.environment.get_template("medium.ipxe.j2").render(values)

    def script_url(self, mac: str, origin: EdgeOrigin) -> str:
        """Return the URL of `mac`'s script over HTTP."""
        return f"{self._http(origin)}/ipxe/script/{mac}/auto.ipxe"

    def _http(self, origin: EdgeOrigin) -> str:
        return f"http://{self.authority(origin)}"

    def authority(self, origin: EdgeOrigin) -> str:
        """Return the address and port of an edge's HTTP."""
        return f"{origin.host}:{origin.http_port or self._settings.http_port}"

    # --- the kinds of script --------------------------------------------------------------------------------------

    def tokens(self) -> dict[str, Callable[[str], str]]:
        """Return the functions that create tokens, by iPXE setting."""
        made = {TOKEN_SETTING: self._settings.token, METADATA_SETTING: self._settings.metadata_token}
        return {setting: token for setting, token in made.items() if token is not None}

    def plan_of_unregistered(
        self, mac: str, osie: tuple[str, str], origin: EdgeOrigin, osie_parameters: str
    ) -> ScriptPlan:
        """Return the facts for the script of a machine without Hardware. Raises ScriptError."""
        words = self._shared_words(osie, osie_parameters, known_of(mac, None, mac, origin.address))
        return ScriptPlan(mac, "a machine without a Hardware", origin, parameters=words, registered=False, osie=osie)

    def plan(self, mac: str, hardware: Hardware, origin: EdgeOrigin, osie_parameters: str) -> ScriptPlan:
        """Return the facts for the script of the interface `mac` of `hardware`. Raises ScriptError."""
        interface = hardware.spec.network_interfaces.get(mac)
        vlan = interface.dhcp.vlan_id if interface is not None and interface.dhcp is not None else None
        worker_id = _worker_id(hardware)
        osie = (hardware.metadata.namespace, hardware.spec.osie.name if hardware.spec.osie is not None else "")
        known = known_of(mac, hardware, worker_id or mac, origin.address)
        parameters = self._shared_words(osie, osie_parameters, known)
        parameters += _kernel_params(hardware)
        # HookOS and our OSIE take their address from `ipam=` and send no DHCP then.
        if origin.static and not any(word.startswith("ipam=") for word in parameters):
            parameters.insert(0, _ipam(hardware, known))
        full_name = _for_screen(f"{hardware.metadata.namespace}/{hardware.metadata.name}")
        logs = self._settings.logs is LogsTo.ALL or (self._settings.logs is LogsTo.HOOKOS and is_hookos(parameters))
        return ScriptPlan(mac, full_name, origin, vlan or "", parameters, osie=osie, worker_id=worker_id, logs=logs)

    def _shared_words(self, osie: tuple[str, str], osie_parameters: str, known: dict[str, str | None]) -> list[str]:
        """Return the kernel parameters of the site and of the OSIE for a machine. Raises ScriptError."""
        of_osie = f"OSIE {'/'.join(osie)}: metadata.annotations[{KERNEL_PARAMETERS_ANNOTATION}]"
        words: list[str] = []
        where = "--kernel-parameters"
        try:
            words += filled_in(self._settings.kernel_parameters, known)
            where = of_osie
            if len(osie_parameters) > MAX_CHARACTERS:
                raise ParametersError(f"has more than {MAX_CHARACTERS} characters, which no kernel reads")
            words += filled_in(kernel_words(osie_parameters), known)
        except ValueError as error:
            raise ScriptError(f"{where} {error}") from error
        return words

    def _boot(self, plan: ScriptPlan) -> Script:
        origin, mac, name = plan.origin, plan.mac, "/".join(plan.osie)
        kernels, initrds = [], []
        for each, line in self.boots(plan):
            root = f"tftp://{each.origin.host}/{mac}" if origin.tftp else self._http(each.origin)
            base = f"{root}/osie/{quote(plan.osie[1], safe='')}"
            kernels.append((f"{base}/kernel", line))
            initrds.append(f"{base}/initrd")
        sign_url = "" if origin.tftp else f"{self._http(origin)}{SIGN_PATH}"
        # iPXE shows only the number of an error. So a script whose download has failed for good requests the reason
        # at `why_url`, which is a script that shows it. If that fails, too, the edge is gone, and the script asks DHCP
        # once for another one.
        text = self._render_for(
            "boot",
            plan,
            osie=_for_screen(name),
            kernels=[" ".join(kernel) for kernel in kernels],
            initrds=initrds,
            kernel_url=kernels[0][0],
            initrd_url=initrds[0],
            why_url=f"tftp://{origin.host}/{mac}/why.ipxe" if origin.tftp else f"{self.script_url(mac, origin)}?failed",
            sign_url=sign_url and f"{sign_url}/starting",
            failed_url=sign_url and f"{sign_url}/failed",
        )
        return Script(text, f"OSIE {name}", plan.osie, logs=plan.logs, vlan=plan.vlan)

    def boots(self, plan: ScriptPlan) -> list[tuple[ScriptPlan, str]]:
        """Return the plan and the kernel's command line for each edge that the machine may boot from.

        A line names that edge's own gRPC server first. An edge without one gets the line of the first edge.
        """
        first, settings = self.command_line(plan), self._settings
        here = replace(plan.origin, grpc_port=plan.origin.grpc_port or settings.grpc_port, others=())
        found = [(plan, first)]
        for other in plan.origin.others:
            # A machine that goes on at another edge may come back to this one.
            rest = tuple(each for each in plan.origin.others if each != other)
            there = replace(other, tftp=here.tftp, static=here.static, others=(here, *rest))
            at_other = replace(plan, origin=there)
            has_server = other.grpc_port or settings.grpc_authority
            found.append((at_other, self.command_line(at_other) if has_server else first))
        return found

    def command_line(self, plan: ScriptPlan) -> str:
        """Return the kernel's command line, in the order known from Tinkerbell; the last of equal names wins."""
        settings, origin = self._settings, plan.origin
        servers = [f"{origin.host}:{origin.grpc_port or settings.grpc_port}"]
        servers += [f"{other.host}:{other.grpc_port}" for other in origin.others if other.grpc_port]
        authority = settings.grpc_authority or servers[0]
        words = [f"grpc_authority={authority}", f"tinkerbell_tls={str(settings.tinkerbell_tls).lower()}"]
        # Never first: HookOS looks for it behind a space.
        words += [f"vlan_id={plan.vlan}"] if plan.vlan else []
        if len(servers) > 1 and not settings.grpc_authority:
            words.append(f"tinkerbell_servers={','.join(servers[1:])}")
        if plan.logs:
            words.append(f"syslog_host={origin.address}")
        pinned = (
            ("tinkerbell_registry_ca", REGISTRIES_PATH, settings.registry_authorities),
            ("tinkerbell_tls_ca", CA_PATH, settings.tls_ca),
        )
        # The agent trusts a document only by the hash on its command line, because plain HTTP carries it.
        for name, path, content in pinned:
            if content:
                words.append(f"{name}={self._http(origin)}{path}#sha256={hashlib.sha256(content).hexdigest()}")
        if origin.others and (settings.tls_ca or settings.registry_authorities):
            words.append(f"tinkerbell_edges={','.join(map(self.authority, origin.others))}")
        words += [f"worker_id={plan.worker_id or plan.mac}", f"hw_addr={plan.mac}"]
        if settings.token is not None and plan.registered:
            words.append(f"tinkerbell_token=${{{TOKEN_SETTING}}}")
        if settings.metadata_token is not None and plan.registered:
            words.append(f"tinkerbell_metadata={self._http(origin)}/machine/${{{METADATA_SETTING}}}")
        registries = list(settings.insecure_registries)
        if settings.own_registry():
            registries.append(self.authority(origin))
        if registries:
            words.append(f"insecure_registries={','.join(registries)}")
        words.append(f"{SIGN_PARAMETER}={self._http(origin)}{SIGN_PATH}/up")
        # The pair of `initrd --name initrd` in the script: Linux's EFI stub loads only the file of this name.
        if plan.dialect is Dialect.IPXE:
            words.append("initrd=initrd")
        words += [f"console={console}" for console in settings.consoles]
        return " ".join([*words, *plan.parameters])

    def _chain(self, plan: ScriptPlan, hardware: Hardware, url: str) -> Script:
        with _named(hardware, "spec.ipxe.url"):
            words = plain_words(url)
        if words != [url]:
            raise field_error(hardware, "spec.ipxe.url", "has spaces in it: write them as %20")
        # iPXE joins a line that ends with a backslash with the next one (src/image/script.c).
        if url.endswith("\\"):
            raise field_error(
                hardware, "spec.ipxe.url", "ends with a backslash, which adds a line in iPXE: write it as %5C"
            )
        return Script(text=self._render_for("chain", plan, url=url), what="spec.ipxe.url")

    def _inline(self, plan: ScriptPlan, hardware: Hardware, inline: str) -> Script:
        if "\0" in inline or len(inline.encode()) > MAX_INLINE_BYTES:
            problem = f"has a NUL character or is longer than {MAX_INLINE_BYTES} bytes"
            raise field_error(hardware, "spec.ipxe.inline", problem)
        script = inline.replace("\r\n", "\n").rstrip("\n")
        return Script(text=self._render_for("inline", plan, script=script), what="spec.ipxe.inline")

    def _render_for(self, name: str, plan: ScriptPlan, **values: str | list[str]) -> str:
        # A Hardware with a VLAN means a trunk on the network card. Its script creates the tagged interface, gets a
        # lease there and continues there. It does so once: iPXE's setting `vlan-ready` stays set for later scripts.
        ipv6 = plan.origin.is_ipv6
        return self._render(name, mac=plan.mac, hardware=plan.who, vlan=plan.vlan, ipv6=ipv6, **values)

    def _render(self, name: str, **values: str | list[str] | bool) -> str:
        return self.environment.get_template(f"{name}.ipxe.j2").render(values)


@contextmanager
def _named(hardware: Hardware, field: str) -> Iterator[None]:
    """Turn a ValueError into a ScriptError that names the Hardware and its field."""
    try:
        yield
    except ValueError as error:
        raise field_error(hardware, field, str(error)) from error


def _worker_id(hardware: Hardware) -> str:
    """Return the agent id in a Hardware's annotation; empty if it has none. Raises ScriptError."""
    given = hardware.metadata.annotations.get(AGENT_ID_ANNOTATION, "").strip()
    if given:
        with _named(hardware, f"metadata.annotations[{AGENT_ID_ANNOTATION}]"):
            agent_id(given)
    return given


def _ipam(hardware: Hardware, known: dict[str, str | None]) -> str:
    """Return the kernel parameter for an OSIE without DHCP. Raises ScriptError."""
    try:
        return filled_in(["ipam={{.Ipam}}"], known)[0]
    except ParametersError as error:
        raise field_error(hardware, "spec.networkInterfaces", f"has no address to do without DHCP: {error}") from error


def _kernel_params(hardware: Hardware) -> list[str]:
    """Return the kernel parameters of a Hardware; one may begin in one list item and end in the next.

    Raises ScriptError.
    """
    given = hardware.spec.kernel_params or []
    words: list[str] = []
    for number, parameter in enumerate(given):
        with _named(hardware, f"spec.kernelParams[{number}]"):
            words += plain_words(parameter)
    with _named(hardware, "spec.kernelParams"):
        check_quotes(" ".join(given))
    return words


def _for_screen(text: str) -> str:
    """Return `text` as words of an `echo`, which iPXE shows and does not run."""
    words = printable(text[:MAX_SHOWN], " ").replace("${", "$ {").split()
    # Words that end a command, begin a comment or an option, or join two lines (src/core/exec.c, src/image/script.c).
    special = {word for word in words if word in ("&&", "||", ";") or word[0] in "#-" or word[-1] == "\\"}
    return " ".join(f"'{word}'" if word in special else word for word in words)


def field_error(hardware: Hardware, field: str, problem: str) -> ScriptError:
    """Return the error of a Hardware's field."""
    return ScriptError(f"Hardware {hardware.metadata.namespace}/{hardware.metadata.name}: {field} {problem}")


def _settings(field: str, dhcp: DHCP) -> list[tuple[str, str]]:
    """Return iPXE's settings for a reservation. Raises ScriptError."""
    if not dhcp.ip or not dhcp.netmask:
        raise ScriptError(f"{field} needs ip and netmask, for a medium that does without DHCP")
    given = {
        "ip": dhcp.ip,
        "netmask": dhcp.netmask,
        "gateway": dhcp.gateway,
        "dns": next(filter(_is_ipv4, dhcp.nameservers or ()), None),  # iPXE uses one
    }
    return [(name, value) for name, value in given.items() if value]


def _is_ipv4(text: str) -> bool:
    try:
        IPv4Address(text)
    except ValueError:
        return False
    return True
