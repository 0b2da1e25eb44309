"""The iPXE script of a machine, rendered from its Hardware: what iPXE is told to fetch and to start.

`Scripts.compile` is asked once for each change of a Hardware; `edge.http` serves the text. The templates stand in
`ipxe/templates`. What goes into them was written by whoever may write Hardware objects, so each value is checked
against iPXE's own grammar (src/core/exec.c): a line break, or one of the words `&&`, `||`, `;`, `#...`, would end the
command that it stands in. `${...}` is left alone, for that is expanded after the words are split, and is useful.

Works with iPXE from 2019 (Debian 12) on: only commands and options of that time are used. `initrd --name initrd` and
the kernel parameter `initrd=initrd` are a pair; without it, Linux started through UEFI does not find its initrd.

iPXE shows no more of an HTTP error than its status. So a script whose fetch has failed for good asks for its own URL
with `?failed`, and gets the reason as a script that shows it.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from jinja2 import PackageLoader, StrictUndefined
from jinja2.sandbox import SandboxedEnvironment

from tink.api.v1alpha2 import Hardware

MAX_COMMAND_LINE = 2047
"""Bytes of a kernel command line that Linux reads (COMMAND_LINE_SIZE on x86 and arm64, less the final NUL)."""

MAX_INLINE = 1 << 20
"""Bytes of an inline script."""


class ScriptError(ValueError):
    """There is no script for this Hardware. The message names the Hardware, the field and what to do."""


@dataclass(frozen=True, slots=True)
class BootSettings:
    """What every machine is told.

    `http_url` is where machines reach this edge's HTTP server, as `http://10.0.0.1:7080`; `grpc_authority` is the
    `address:port` of the workflow server, for the agent. A fetch is tried `attempts` times, `retry_seconds` apart. What
    went wrong stays on the screen for `screen_seconds`.
    """

    http_url: str
    grpc_authority: str
    tinkerbell_tls: bool = False
    insecure_registries: tuple[str, ...] = ()
    consoles: tuple[str, ...] = ("tty0", "ttyS0,115200")
    attempts: int = 5
    retry_seconds: int = 2
    screen_seconds: int = 10


@dataclass(frozen=True, slots=True)
class Script:
    """`text` for iPXE; `what` it does, in words for the journey; `osie` is the name of the OSIE it boots, if any."""

    text: str
    what: str
    osie: str | None = None


class Scripts:
    """Renders scripts with one set of settings."""

    def __init__(self, settings: BootSettings) -> None:
        self._settings = settings
        environment = SandboxedEnvironment(
            loader=PackageLoader("ipxe"),
            undefined=StrictUndefined,
            autoescape=False,  # iPXE scripts are no HTML; values are checked below
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
            newline_sequence="\n",
        )
        environment.globals.update(
            attempts=settings.attempts, retry_seconds=settings.retry_seconds, screen_seconds=settings.screen_seconds
        )
        self._environment = environment

    def compile(self, mac: str, hardware: Hardware) -> Script:
        """The script for the interface `mac` of `hardware`. Raises ScriptError."""
        ipxe = hardware.spec.ipxe
        if ipxe is not None and ipxe.inline and ipxe.url:
            raise _error(hardware, "spec.ipxe", "has both inline and url: remove one")
        if ipxe is not None and ipxe.inline:
            return self._inline(mac, hardware, ipxe.inline)
        if ipxe is not None and ipxe.url:
            return self._chain(mac, hardware, ipxe.url)
        return self._boot(mac, hardware)

    def reason(self, mac: str, reason: str) -> str:
        """A script that shows why `mac` is not booted, and goes on to the next boot device."""
        return self._render("reason", mac=mac, reason=_for_screen(reason))

    def _boot(self, mac: str, hardware: Hardware) -> Script:
        osie = hardware.spec.osie.name if hardware.spec.osie is not None else ""
        if not osie:
            raise _error(hardware, "spec.osie.name", "is not set: name the OSIE that the machine is to boot")
        base = f"{self._settings.http_url}/osie/{quote(osie, safe='')}"
        text = self._render(
            "boot",
            mac=mac,
            hardware=_full_name(hardware),
            osie=_for_screen(f"{hardware.metadata.namespace}/{osie}"),
            kernel_url=f"{base}/kernel",
            initrd_url=f"{base}/initrd",
            why_url=f"{self._settings.http_url}/ipxe/script/{mac}/auto.ipxe?failed",
            parameters=self._parameters(mac, hardware),
        )
        return Script(text=text, what=f"OSIE {hardware.metadata.namespace}/{osie}", osie=osie)

    def _parameters(self, mac: str, hardware: Hardware) -> str:
        """The kernel's command line in the order that Tinkerbell's operators know; the last of equal names wins."""
        settings = self._settings
        words = [f"worker_id={mac}", f"hw_addr={mac}", f"grpc_authority={settings.grpc_authority}"]
        words.append(f"tinkerbell_tls={str(settings.tinkerbell_tls).lower()}")
        if settings.insecure_registries:
            words.append(f"insecure_registries={','.join(settings.insecure_registries)}")
        words.append("initrd=initrd")
        words += [f"console={console}" for console in settings.consoles]
        for number, parameter in enumerate(hardware.spec.kernel_params or []):
            words += _words(hardware, f"spec.kernelParams[{number}]", parameter)
        line = " ".join(words)
        if len(line.encode()) > MAX_COMMAND_LINE:
            raise _error(
                hardware,
                "spec.kernelParams",
                f"makes a kernel command line of {len(line.encode())} bytes, of which Linux reads {MAX_COMMAND_LINE}",
            )
        return line

    def _chain(self, mac: str, hardware: Hardware, url: str) -> Script:
        words = _words(hardware, "spec.ipxe.url", url)
        if words != [url]:
            raise _error(hardware, "spec.ipxe.url", "has spaces in it: write them as %20")
        text = self._render("chain", mac=mac, hardware=_full_name(hardware), url=url)
        return Script(text=text, what="spec.ipxe.url")

    def _inline(self, mac: str, hardware: Hardware, inline: str) -> Script:
        if "\0" in inline or len(inline.encode()) > MAX_INLINE:
            raise _error(hardware, "spec.ipxe.inline", f"has a NUL character or is longer than {MAX_INLINE} bytes")
        script = inline.replace("\r\n", "\n").rstrip("\n")
        return Script(
            text=self._render("inline", mac=mac, hardware=_full_name(hardware), script=script), what="spec.ipxe.inline"
        )

    def _render(self, name: str, **values: str) -> str:
        return self._environment.get_template(f"{name}.ipxe.j2").render(values)


def _words(hardware: Hardware, field: str, value: str) -> list[str]:
    """`value` split as iPXE will split it. Raises ScriptError where iPXE would read more than plain words."""
    if not value.isprintable():
        raise _error(hardware, field, "has a line break or another control character in it")
    words = value.split()
    for word in words:
        if word in ("&&", "||", ";") or word.startswith("#"):
            raise _error(hardware, field, f"has the word {word}, which ends a command in iPXE")
    return words


def _for_screen(text: str) -> str:
    """`text` as words of an `echo`: shown, never obeyed."""
    plain = "".join(character if character.isprintable() else " " for character in text).replace("${", "$ {")
    return " ".join(f"'{word}'" if word in ("&&", "||", ";") or word[0] in "#-" else word for word in plain.split())


def _full_name(hardware: Hardware) -> str:
    return _for_screen(f"{hardware.metadata.namespace}/{hardware.metadata.name}")


def _error(hardware: Hardware, field: str, problem: str) -> ScriptError:
    return ScriptError(f"Hardware {hardware.metadata.namespace}/{hardware.metadata.name}: {field} {problem}")
