"""The script of each machine (`MachineScripts`), and the files of its OSIE (`OsieFiles`), for HTTP and TFTP alike.

    policy -> the Hardware's script, or that of the default OSIE -> does the OSIE exist -> text, and the journey
           -> otherwise a script that shows the reason and continues with the next boot device

`ipxe.scripts` renders a script when a machine first requests it after a change of its Hardware, for each address of
this edge that the request comes to. Scripts are stored for a while, because the machines of a rack boot together, and
retry. An agent's token is added to each response, and never stored.

An OSIE object has the URLs of kernel and initrd. Annotations may have the URL of both in one file (a unified kernel
image, UKI) and the SHA-256 of the files. `OsieFiles` reads the object and passes the URL to `edge.artifacts.cache`,
which fetches and checks the file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

from pydantic import ValidationError

from edge.artifacts.artifact import Artifact
from edge.artifacts.checksum import normalized
from edge.journey.events import Note, NoteTaker, Outcome, Recorder, Step, Value
from edge.machines.inventory import Inventory, Machine
from edge.machines.policy import NetbootPolicy
from ipxe.direct import DirectScripts
from ipxe.grub import GrubScripts
from ipxe.medium import AREA_BYTES
from ipxe.raspberry_pi import PiCommandLines, PiConfigs
from ipxe.scripts import Dialect, EdgeOrigin, MediumKind, Script, ScriptError, Scripts
from ipxe.uboot import ExtlinuxScripts, UBootScripts
from tink.api.annotations import (
    INITRD_SHA256_ANNOTATION,
    KERNEL_PARAMETERS_ANNOTATION,
    KERNEL_SHA256_ANNOTATION,
    UKI_SHA256_ANNOTATION,
    UKI_URL_ANNOTATION,
)
from tink.api.v1alpha2 import OSIE, Raw, as_mapping
from tink.errors import TinkedgeError
from tink.limits import Newest

OsieLookup = Callable[[str, str], Raw | None]
"""`osie(namespace, name)` returns the OSIE object, or None."""

UKI = "uki"
UKI_FILE = "uki.efi"
"""The last part of a UKI's URL. UEFI HTTP Boot recognises the type of a file by its name."""

_PARTS = {
    "kernel": ("kernelUrl", KERNEL_SHA256_ANNOTATION),
    "initrd": ("initrdUrl", INITRD_SHA256_ANNOTATION),
    UKI: (f"metadata.annotations[{UKI_URL_ANNOTATION}]", UKI_SHA256_ANNOTATION),
}


class NoArtifactError(TinkedgeError):
    """An OSIE has no such file; the message names the object and the field, and says why."""


@dataclass(frozen=True, slots=True)
class Located:
    """The URL of a file of an OSIE.

    `full_name` is `namespace/name` of the OSIE and `field` the field of its spec that gave the URL, for messages.
    `sha256`: 64 hexadecimal digits in lower case, or empty where the OSIE demands no checksum.
    """

    url: str
    sha256: str
    full_name: str
    field: str


class Artifacts(Protocol):
    """`edge.artifacts.ArtifactCache`, or one of another process."""

    async def open(self, url: str, *, sha256: str = "") -> Artifact:
        """Open an artifact, and fetch it if necessary. Raises ArtifactError."""


class OsieFiles:
    """The kernels, initrds and UKIs of OSIEs."""

    def __init__(self, osie: OsieLookup, cache: Artifacts) -> None:
        self._osie = osie
        self._cache = cache

    def locate(self, namespace: str, name: str, part: str) -> Located:
        """Return the location of the `part` ("kernel", "initrd" or UKI) of an OSIE. Raises NoArtifactError."""
        if not name.isprintable():  # it comes from a URL or a TFTP name, and errors go to screens
            raise NoArtifactError("no OSIE has a name with characters that can't be shown")
        full_name = f"{namespace}/{name}"
        raw = self._osie(namespace, name)
        if raw is None:
            raise NoArtifactError(f"OSIE {full_name} does not exist")
        try:
            osie = OSIE.model_validate(raw)
        except ValidationError as error:
            problem = error.errors()[0]
            where = ".".join(map(str, problem["loc"]))
            raise NoArtifactError(f"OSIE {full_name}: {where}: {problem['msg']}") from error
        field, annotation = _PARTS[part]
        try:
            sha256 = normalized(osie.metadata.annotations.get(annotation, ""))
        except ValueError as error:
            raise NoArtifactError(f"OSIE {full_name}: metadata.annotations[{annotation}]: {error}") from error
        url = osie.spec.kernel_url if part == "kernel" else osie.spec.initrd_url
        if part == UKI:
            url = osie.metadata.annotations.get(UKI_URL_ANNOTATION, "").strip()
            if not url:
                raise NoArtifactError(f"OSIE {full_name} has no UKI: {field} is not set")
        return Located(url, sha256, full_name, field)

    async def open(self, located: Located) -> Artifact:
        """Open the file like `ArtifactCache.open`. Raises ArtifactError."""
        return await self._cache.open(located.url, sha256=located.sha256)


_KINDS = {MediumKind.BOOT: "with a lease", MediumKind.STATIC: "with the address of its Hardware"}

MAX_KEPT = 4096
"""Maximum number of machines whose scripts are stored, with about 3 kB each."""


@dataclass(frozen=True, slots=True)
class _Compiled:
    """A script, or the problem of the Hardware or OSIE that prevents it."""

    script: Script | None
    problem: str = ""
    made_of: tuple[str, bool] = ("", False)
    """The kernel parameters of the OSIE, and whether this edge had images. A change recompiles the script."""


@dataclass(eq=False)
class MachineScripts:
    """The scripts by machine and address of this edge.

    default_osie: namespace and name of the OSIE for machines without a Hardware, if they may netboot.
    others: `others(address, mac)` returns the other edges for a machine that has reached this one at `address`.
    take: records each script that is sent; None: `record` does.
    """

    inventory: Inventory
    policy: NetbootPolicy
    osie: OsieLookup
    scripts: Scripts
    record: Recorder
    default_osie: tuple[str, str] | None = None
    others: Callable[[str, str], tuple[EdgeOrigin, ...]] = lambda _address, _mac: ()
    take: NoteTaker | None = None

    def __post_init__(self) -> None:
        direct: tuple[type[DirectScripts], ...]
        direct = (GrubScripts, ExtlinuxScripts, UBootScripts, PiConfigs, PiCommandLines)
        self._direct = {each.dialect: each(self.scripts) for each in direct}
        self._compiled: Newest[str, dict[tuple[EdgeOrigin, Dialect], _Compiled]] = Newest(MAX_KEPT)
        self.logs_wanted = False
        """True if a script has had a machine send its log lines here."""

    def script(
        self,
        mac: str,
        origin: EdgeOrigin,
        *,
        client: str,
        dialect: Dialect = Dialect.IPXE,
        medium: MediumKind | None = None,
        recorded: bool = True,
    ) -> str:
        """Return the script of the machine `mac`, or one that shows why there is none.

        client: the name of the machine's boot program, for people.
        dialect: the language of the boot program.
        medium: the kind of boot medium that the program was started from, if any.
        recorded: record the request on the journey; False for HEAD, which sends nothing.
        """
        record: Recorder = self.record if recorded else _nowhere
        machine = self.inventory.by_mac(mac)
        decision = self.policy.decide(machine)
        if not decision.allowed:
            return self._reason(record, mac, Outcome.REFUSED, decision.reason, client, dialect)
        origin = self._with_others(origin, mac)
        osie = self._osie_of(machine)
        raw = self.osie(*osie) if osie is not None else None
        parameters = _parameters(raw)
        if machine is None:
            compiled = self._default(mac, origin, parameters, dialect)
        else:
            compiled = self._compile(machine, origin, parameters, dialect)
        script = compiled.script
        if script is None:
            outcome = Outcome.REFUSED if machine is None else Outcome.FAILED
            return self._reason(record, mac, outcome, compiled.problem, client, dialect)
        if script.osie is not None and raw is None:
            who = f"Hardware {machine.name}" if machine is not None else "--default-osie"
            reason = f"OSIE {'/'.join(script.osie)}, which {who} names, does not exist"
            return self._reason(record, mac, Outcome.FAILED, reason, client, dialect)
        self.logs_wanted = self.logs_wanted or script.logs
        if recorded:
            note = _sent(script.what, script.osie, script.vlan, medium, client)
            if self.take is not None:
                self.take(mac, note)
            else:
                self.record(mac, note.step, note.outcome, note.message, **note.detail)
        return script.text if machine is None else self._of(dialect).to_send(mac, script)

    def why(self, mac: str, reason: str, dialect: Dialect = Dialect.IPXE) -> str:
        """Return a script that shows `reason`; the caller has recorded it already."""
        return self._of(dialect).reason(mac, reason)

    def not_started(self, mac: str) -> str:
        """Record that GRUB could not start its kernel and initrd, and return the text to show."""
        reason = (
            "GRUB did not start the files that it received: its error message is above.\n"
            "If Secure Boot is on, the kernel of the OSIE must be signed with a key that the shim trusts: use a kernel "
            "of the shim's distribution."
        )
        self.record(mac, Step.BOOT, Outcome.FAILED, reason.replace("\n", " ").replace("is above", "is on its screen"))
        return self.why(mac, reason, Dialect.GRUB)

    def _of(self, dialect: Dialect) -> Scripts | DirectScripts:
        return self._direct.get(dialect, self.scripts)

    def parameters(self, machine: Machine, origin: EdgeOrigin) -> str:
        """Return the kernel parameters of a machine for a UKI, whose command line is fixed. Raises ScriptError."""
        osie = self._osie_of(machine)
        raw = self.osie(*osie) if osie is not None else None
        whole = self._with_others(origin, machine.mac)
        scripts = self._direct[Dialect.GRUB]
        words = scripts.words(machine.mac, machine.hardware, whole, _parameters(raw))
        return scripts.with_tokens(machine.mac, words)

    def medium(self, mac: str, origin: EdgeOrigin, kind: MediumKind) -> str:
        """Return the script on the machine's boot medium, which leads to `script`. Raises ScriptError."""
        machine = self.inventory.by_mac(mac)
        hardware = machine.hardware if machine is not None else None
        text = self.scripts.medium(mac, hardware, whole := self._with_others(origin, mac), kind)
        if len(text.encode()) > AREA_BYTES and whole.others:
            text = self.scripts.medium(mac, hardware, origin, kind)
        return text

    def autoexec(self, mac: str, origin: EdgeOrigin) -> str:
        """Return the script that a newly loaded iPXE runs first, which leads to `script`."""
        return self.scripts.autoexec(mac, self._with_others(origin, mac))

    def peers_changed(self) -> None:
        """Drop all scripts, because they name the other edges, which have changed."""
        self._compiled.clear()

    def _with_others(self, origin: EdgeOrigin, mac: str) -> EdgeOrigin:
        others = self.others(origin.address, mac)
        return replace(origin, others=others) if others else origin

    def _reason(self, record: Recorder, mac: str, outcome: Outcome, reason: str, client: str, dialect: Dialect) -> str:
        first, _, _ = reason.partition("\n")
        record(mac, Step.SCRIPT, outcome, f"no boot: {first}", client=client, reason=first)
        return self.why(mac, reason, dialect)

    def _osie_of(self, machine: Machine | None) -> tuple[str, str] | None:
        """Return namespace and name of the machine's OSIE, or None."""
        if machine is None:
            return self.default_osie
        named = machine.hardware.spec.osie
        return (machine.namespace, named.name) if named is not None and named.name else None

    def _compile(self, machine: Machine, origin: EdgeOrigin, osie_parameters: str, dialect: Dialect) -> _Compiled:
        of_machine = self._compiled.setdefault(machine.mac, {})
        compiled = of_machine.get((origin, dialect))
        # As soon as the edge has images, its scripts name it as a registry.
        made_of = (osie_parameters, self.scripts.own_registry())
        if compiled is None or compiled.made_of != made_of:
            try:
                script = self._of(dialect).compile(machine.mac, machine.hardware, origin, osie_parameters)
                compiled = _Compiled(script, made_of=made_of)
            except ScriptError as error:
                compiled = _Compiled(None, str(error), made_of)
            of_machine[origin, dialect] = compiled
        return compiled

    def _default(self, mac: str, origin: EdgeOrigin, osie_parameters: str, dialect: Dialect) -> _Compiled:
        """Compile the script for unregistered machines, if such machines may netboot."""
        if self.default_osie is not None:
            try:
                return _Compiled(self._of(dialect).unregistered(mac, self.default_osie, origin, osie_parameters))
            except ScriptError as error:
                return _Compiled(None, str(error))
        return _Compiled(
            None,
            f"{mac} is seen, not registered, and there is no --default-osie for such machines.\n"
            f"Apply a Hardware with {mac} under spec.networkInterfaces:\n"
            f"'tinkedge watch {mac}' on the edge's host shows one to copy.",
        )

    def trust(self, tls_ca: bytes, registry_authorities: bytes) -> None:
        """Replace the certificates and registries that agents trust, in all scripts from now on."""
        self.scripts.trust(tls_ca, registry_authorities)
        self._compiled.clear()

    def machine_changed(self, mac: str) -> None:
        """Drop a machine's scripts; the inventory calls it after each change."""
        self._compiled.pop(mac, None)


@lru_cache(maxsize=1024)
def _sent(what: str, osie: tuple[str, str] | None, vlan: str, medium: MediumKind | None, client: str) -> Note:
    """Return the note "script sent", which all machines with the same script share."""
    by = "" if medium is None else f" to its boot medium, {_KINDS[medium]}"
    facts: dict[str, Value] = {"client": client}
    facts |= {"boots": "osie", "osie": "/".join(osie)} if osie is not None else {"boots": "own"}
    facts |= {"vlan": vlan} if vlan else {}
    facts |= {} if medium is None else {"medium": medium.value}
    return Note(Step.SCRIPT, Outcome.OK, f"script sent{by}: {what}", facts)


def _parameters(osie: Raw | None) -> str:
    """Return the kernel parameters of an OSIE's annotation."""
    annotations = as_mapping(as_mapping((osie or {}).get("metadata")).get("annotations"))
    given = annotations.get(KERNEL_PARAMETERS_ANNOTATION)
    return given if isinstance(given, str) else ""


def _nowhere(*_about: object, **_detail: object) -> None:
    """A recorder that drops the event."""
