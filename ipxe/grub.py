"""The script of a machine that boots by GRUB: a `grub.cfg`, made of the same facts as the iPXE script.

A distribution's shim runs only what that distribution has signed, its GRUB and, by that, its kernels: so a machine with
Secure Boot needs nothing of ours on its firmware, and its OSIE a kernel of that distribution. Debian's GRUB for the
network asks for `grub/grub.cfg` at its server and for nothing by MAC, so the file is told by the caller's address; by
TFTP, or by HTTP after UEFI HTTP Boot. GRUB 2.06 (Debian 12) has no HTTP: there the kernel comes by TFTP, and a fetch by
HTTP fails at once, which is why that is what is tried first.

What goes in is checked as for iPXE, and stands in single quotes, within which GRUB knows no special character (GRUB
manual, section "Quoting"). Settings of iPXE (`${mac}`) have no meaning here and are refused, but for the tokens.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from ipxe.binaries import BootPath
from ipxe.scripts import (
    MAX_SHOWN,
    METADATA_SETTING,
    SIGN_PATH,
    TOKEN_SETTING,
    Origin,
    Plan,
    Script,
    ScriptError,
    Scripts,
)
from tink.api.v1alpha2 import Hardware
from tink.printable import printable

CONFIG = "grub.cfg"
"""The name that GRUB asks for, in its directory `grub`."""
WHY = "why.cfg"
"""Why kernel or initrd did not come, in that directory."""


_OURS = re.compile(r"grub\.cfg(?:-01-([0-9a-f]{2}(?:-[0-9a-f]{2}){5}))?|why\.cfg")


def machine_of(name: str) -> str | None:
    """Whose script a file of GRUB's directory is: a MAC, or empty for whoever asks; None if it is none of ours."""
    found = _OURS.fullmatch(name)
    return (found[1] or "").replace("-", ":") if found is not None else None


@dataclass(frozen=True, slots=True)
class _Source:
    """Where kernel and initrd are, the kernel's words, and what is asked for right before it starts: all quoted."""

    kernel: str
    initrd: str
    words: str
    sign: str


class GrubScripts:
    """Renders the scripts of GRUB, with the settings and the facts of `scripts`."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts

    def compile(self, mac: str, hardware: Hardware, origin: Origin, osie_parameters: str = "") -> Script:
        """The script for the interface `mac` of `hardware`, as `Scripts.compile`. Raises ScriptError."""
        name = f"{hardware.metadata.namespace}/{hardware.metadata.name}"
        ipxe = hardware.spec.ipxe
        if ipxe is not None and (ipxe.inline or ipxe.url):
            field = "inline" if ipxe.inline else "url"
            raise ScriptError(
                f"Hardware {name}: spec.ipxe.{field} is for iPXE, and this machine boots by GRUB: remove it, or "
                "have it boot by iPXE"
            )
        plan = replace(self._scripts.plan(mac, hardware, origin, osie_parameters), path=BootPath.GRUB)
        osie = hardware.spec.osie.name if hardware.spec.osie is not None else ""
        if not osie:
            raise ScriptError(f"Hardware {name}: spec.osie.name is not set: name the OSIE that the machine is to boot")
        return self._boot(self._scripts.fitting(plan, hardware), name, (hardware.metadata.namespace, osie))

    def words(self, mac: str, hardware: Hardware, origin: Origin, osie_parameters: str = "") -> str:
        """The words of the kernel's command line that this script would give it, for an OSIE that was started without:
        `to_send` puts the tokens in. Raises ScriptError.
        """
        plan = replace(self._scripts.plan(mac, hardware, origin, osie_parameters), path=BootPath.GRUB)
        plan = self._scripts.fitting(plan, hardware)
        return " ".join(_words(self._scripts.command_lines(self._scripts.plans(plan))[0]))

    def unregistered(self, mac: str, osie: tuple[str, str], origin: Origin, osie_parameters: str = "") -> Script:
        """The script of a machine that no Hardware describes, as `Scripts.unregistered`. Raises ScriptError."""
        plan = self._scripts.plan_of_unregistered(mac, osie, origin, osie_parameters)
        return self._boot(replace(plan, path=BootPath.GRUB), plan.who, osie)

    def to_send(self, mac: str, script: Script) -> str:
        """The text of a script for the registered machine `mac` as it is now: with the tokens that it needs."""
        return self.with_tokens(mac, script.text)

    def with_tokens(self, mac: str, text: str) -> str:
        """A text with the tokens of `mac` as it is now."""
        for setting, token in self._scripts.tokens().items():
            text = text.replace(f"${{{setting}}}", token(mac))
        return text

    def reason(self, mac: str, reason: str) -> str:
        """A script that shows why `mac` is not booted, line by line, and goes on to the next boot device."""
        lines = [f"tinkedge does not boot {mac} from the network:", *reason.splitlines()]
        return self._render("reason", lines=[quoted(_shown(line)) for line in lines])

    def _boot(self, plan: Plan, who: str, osie: tuple[str, str]) -> Script:
        full_name = "/".join(osie)
        plans = self._scripts.plans(plan)
        lines = self._scripts.command_lines(plans)
        sources = [
            source
            for each, line in zip(plans, lines, strict=True)
            for source in self._sources(each, osie[1], _words(line))
        ]
        text = self._render(
            "boot",
            title=quoted(_shown(f"tinkedge: {who} ({plan.mac}) boots OSIE {full_name}")),
            sources=sources,
            whys=[quoted(f"{device}/grub/{WHY}") for device in self._devices(plan)],
        )
        return Script(text=text, what=f"OSIE {full_name}", osie=osie, logs=plan.logs)

    def _devices(self, plan: Plan) -> list[str]:
        """By HTTP, and where GRUB has come by TFTP, by that: it need not know HTTP."""
        devices = [f"(http,{self._scripts.authority(plan.origin)})"]
        return [*devices, f"(tftp,{plan.origin.host})"] if plan.origin.tftp else devices

    def _sources(self, plan: Plan, osie: str, words: list[str]) -> list[_Source]:
        line = " ".join(map(quoted, words))
        sources = []
        for device in self._devices(plan):
            kernel, initrd = (quoted(f"{device}/osie/{osie}/{part}") for part in ("kernel", "initrd"))
            sign = quoted(f"{device}{SIGN_PATH}/starting") if device.startswith("(http,") else ""
            sources.append(_Source(kernel, initrd, line, sign))
        return sources

    def _render(self, name: str, **values: object) -> str:
        return self._scripts.environment.get_template(f"{name}.grub.j2").render(values)


def quoted(text: str) -> str:
    """One word of a GRUB script, whatever is in it."""
    return "'" + text.replace("'", "'\\''") + "'"


def _words(line: str) -> list[str]:
    """The words of a kernel's command line. Raises ScriptError where one means something to iPXE only."""
    tokens = tuple(f"${{{setting}}}" for setting in (TOKEN_SETTING, METADATA_SETTING))
    words = line.split(" ")
    for word in words:
        rest = word
        for token in tokens:
            rest = rest.replace(token, "")
        if "${" in rest:
            raise ScriptError(
                f"the kernel parameter {word} has a setting of iPXE in it, and this machine boots by GRUB: write "
                "{{.MAC}} and its like instead, which work with both"
            )
    return words


def _shown(text: str) -> str:
    return printable(text[:MAX_SHOWN], " ")
