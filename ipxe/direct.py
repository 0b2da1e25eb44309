"""The common part of the scripts of GRUB, U-Boot and Raspberry Pi firmware, which load a kernel without iPXE.

The modules are `ipxe.grub`, `ipxe.uboot` and `ipxe.raspberry_pi`. All use the facts of the iPXE script (`Scripts.plan`)
and its error messages. `spec.ipxe` and settings of iPXE (`${mac}`) have no meaning here and are refused, except for the
tokens, which are filled in when a script is sent.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import ClassVar

from ipxe.scripts import (
    MAX_SHOWN,
    METADATA_SETTING,
    TOKEN_SETTING,
    Dialect,
    EdgeOrigin,
    Script,
    ScriptError,
    ScriptPlan,
    Scripts,
    field_error,
)
from tink.api.v1alpha2 import Hardware
from tink.printable import printable


class DirectScripts(ABC):
    """Renders the scripts of one such program."""

    program: ClassVar[str]
    """The program's name, for people."""
    dialect: ClassVar[Dialect]
    forbidden: ClassVar[str] = ""
    """Characters that are special to the program, so no word of the kernel's command line may have them."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts

    def compile(self, mac: str, hardware: Hardware, origin: EdgeOrigin, osie_parameters: str = "") -> Script:
        """Return the script for the interface `mac` of `hardware`, as `Scripts.compile`. Raises ScriptError."""
        ipxe = hardware.spec.ipxe
        if ipxe is not None and (ipxe.inline or ipxe.url):
            problem = f"is for iPXE, and this machine boots by {self.program}: remove it, or have it boot by iPXE"
            raise field_error(hardware, f"spec.ipxe.{'inline' if ipxe.inline else 'url'}", problem)
        plan = replace(self._scripts.plan(mac, hardware, origin, osie_parameters), dialect=self.dialect)
        return self._boot(self._scripts.bootable(plan, hardware))

    def words(self, mac: str, hardware: Hardware, origin: EdgeOrigin, osie_parameters: str = "") -> str:
        """Return the kernel's command line as this script has it, for an OSIE that was started without the script.

        `with_tokens` fills in the tokens. Raises ScriptError.
        """
        plan = replace(self._scripts.plan(mac, hardware, origin, osie_parameters), dialect=self.dialect)
        return " ".join(self._words(self._scripts.command_line(self._scripts.fitting(plan, hardware))))

    def unregistered(self, mac: str, osie: tuple[str, str], origin: EdgeOrigin, osie_parameters: str = "") -> Script:
        """Return the script of a machine without Hardware, as `Scripts.unregistered`. Raises ScriptError."""
        plan = self._scripts.plan_of_unregistered(mac, osie, origin, osie_parameters)
        return self._boot(replace(plan, dialect=self.dialect))

    def to_send(self, mac: str, script: Script) -> str:
        """Return the text of a script for the registered machine `mac`, with its current tokens."""
        return self.with_tokens(mac, script.text)

    def with_tokens(self, mac: str, text: str) -> str:
        """Return a text with the current tokens of `mac`."""
        for setting, token in self._scripts.tokens().items():
            text = text.replace(f"${{{setting}}}", token(mac))
        return text

    @abstractmethod
    def reason(self, mac: str, reason: str) -> str:
        """Return a script that shows why `mac` is not booted, and continues with the next boot device."""

    def _boot(self, plan: ScriptPlan) -> Script:
        osie = "/".join(plan.osie)
        text = self._text(plan, shown(f"tinkedge: {plan.who} ({plan.mac}) boots OSIE {osie}"))
        return Script(text=text, what=f"OSIE {osie}", osie=plan.osie, logs=plan.logs)

    @abstractmethod
    def _text(self, plan: ScriptPlan, title: str) -> str:
        """Return the script; `title` is one line for the screen."""

    def _words(self, line: str) -> list[str]:
        """Return the words of a command line. Raises ScriptError if one is special to the program."""
        tokens = tuple(f"${{{setting}}}" for setting in (TOKEN_SETTING, METADATA_SETTING))
        words = line.split(" ")
        for word in words:
            rest = word
            for token in tokens:
                rest = rest.replace(token, "")
            if "${" in rest:
                raise ScriptError(
                    f"the kernel parameter {word} has a setting of iPXE in it, and this machine boots by "
                    f"{self.program}: write {{{{.MAC}}}} and its like instead, which work with both"
                )
            found = next((character for character in self.forbidden if character in rest), None)
            if found is not None:
                raise ScriptError(
                    f"the kernel parameter {word} has the character {found} in it, which means something else to "
                    f"{self.program}, by which this machine boots"
                )
        return words

    def _render(self, template: str, **values: object) -> str:
        return self._scripts.environment.get_template(template).render(values)


def reason_lines(mac: str, reason: str) -> list[str]:
    """Return the lines for the screen of a machine that must not boot from the network."""
    return [shown(line) for line in (f"tinkedge does not boot {mac} from the network:", *reason.splitlines())]


def shown(text: str) -> str:
    """Return `text` for a screen: one line, without control characters."""
    return printable(text[:MAX_SHOWN], " ")
