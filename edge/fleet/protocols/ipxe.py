"""An interpreter of iPXE's script language, as much as netboot scripts use. Pure.

The grammar is iPXE's own (src/core/exec.c): a line is split into words at blanks; `&&`, `||` and `;` control what runs
next; `${...}` are filled in afterwards, from the innermost. A failing command ends the script, unless `||` follows.
Unknown commands fail, as in an iPXE built without them.

    script = Interpreter(text, {"mac": "52:54:00:12:34:56"}).run()
    wanted = next(script)
    while True: wanted = script.send(answer)      # until StopIteration, whose value is the Exit

The caller answers a Fetch with the file's text, or None. It answers ConfigureNetwork with True if there is a lease, and
stores the lease's settings in `settings`. It answers Sleep with None.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from dataclasses import dataclass
from typing import Final

MAX_STEPS: Final = 10_000
"""Maximum number of commands of one script, against loops that never sleep."""
MAX_DEPTH: Final = 8
"""Maximum depth of chained scripts."""

_SETTING = re.compile(r"\$\{([^{}$]*)\}")
_NUMBER = re.compile(r"\d+(\.\d*)?")
_SEPARATORS: Final = ("&&", "||", ";")
_WITH_VALUE: Final = frozenset({"--name", "-n", "--timeout", "-t", "--configurator", "-c", "--tag", "--priority"})


@dataclass(frozen=True, slots=True)
class Fetch:
    """A command to fetch a URL. `what`: `kernel`, `initrd`, or `text`, whose content is the answer."""

    url: str
    what: str


@dataclass(frozen=True, slots=True)
class Sleep:
    """A command to wait."""

    seconds: float


@dataclass(frozen=True, slots=True)
class ConfigureNetwork:
    """A command to get a lease."""


@dataclass(frozen=True, slots=True)
class KernelStart:
    """A command to start the kernel."""

    kernel: str
    command_line: str
    initrds: tuple[str, ...]


Wanted = Fetch | Sleep | ConfigureNetwork | KernelStart
Answer = str | bool | None


@dataclass(frozen=True, slots=True)
class Exit:
    """The end of a script: the started kernel, or the last line on the screen with the status."""

    booted: KernelStart | None = None
    status: int = 0
    shown: str = ""


class _Ended(Exception):  # noqa: N818 - no error
    def __init__(self, found: Exit) -> None:
        super().__init__()
        self.found = found


_Steps = Generator[Wanted, Answer, bool]


class Interpreter:
    """Runs a script and the scripts that it chains to. `settings` are iPXE's, without scope and type."""

    def __init__(self, text: str, settings: dict[str, str], *, depth: int = 0) -> None:
        self.settings = settings
        self._lines = [line.strip() for line in text.replace("\\\n", "").splitlines()]
        self._labels = {line[1:].strip(): number for number, line in enumerate(self._lines) if line.startswith(":")}
        self._at = 0
        self._steps = 0
        self._depth = depth
        self._kernel = self._command_line = ""
        self._initrds: list[str] = []
        self._texts: dict[str, str] = {}
        """Fetched images that are neither kernel nor initrd, by name."""
        self._shown = ""
        """The last line on the screen."""

    def run(self) -> Generator[Wanted, Answer, Exit]:
        """Run the script; yields commands for the caller."""
        try:
            while self._at < len(self._lines):
                line = self._lines[self._at]
                self._at += 1
                if line.startswith(("#", ":")) or not line:
                    continue
                if not (yield from self._line(line)):
                    return Exit(status=1, shown=self._shown or line)
        except _Ended as ended:
            return ended.found
        return Exit(shown=self._shown)

    def _line(self, line: str) -> _Steps:
        words = line.split()
        good, runs, begin = True, True, 0
        for end in (*(at for at, word in enumerate(words) if word in _SEPARATORS), len(words)):
            if runs:
                command = [self._expanded(word) for word in words[begin:end]]
                good = (yield from self._command(command)) if command else True
            if end < len(words):
                runs = {"&&": good, "||": not good, ";": True}[words[end]]
            begin = end + 1
        return good

    def _expanded(self, text: str) -> str:
        for _ in range(32):
            text, found = _SETTING.subn(lambda match: self._setting(match[1]), text)
            if not found:
                break
        return text

    def _setting(self, name: str) -> str:
        name, _, kind = name.partition(":")
        value = self.settings.get(name.rpartition("/")[2] if name.startswith("net") else name, "")
        return value.replace(" ", "%20") if kind == "uristring" else value

    def _command(self, words: list[str]) -> _Steps:
        """Execute one command; return True if it succeeds."""
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise _Ended(Exit(status=1, shown=f"the script has run {MAX_STEPS} commands"))
        name, arguments = words[0], _positional(words[1:])
        match name, arguments:
            case "sleep", [seconds, *_] if _NUMBER.fullmatch(seconds):
                yield Sleep(float(seconds))
                return True
            case "ifconf" | "dhcp", _:
                return (yield ConfigureNetwork()) is True
            case "kernel" | "initrd" | "module", [url, *words_of_kernel]:
                kind = "kernel" if name == "kernel" else "initrd"
                if (yield Fetch(url, kind)) is None:
                    return False
                if kind == "kernel":
                    self._kernel, self._command_line = url, " ".join(words_of_kernel)
                else:
                    self._initrds.append(url)
                return True
            case "imgfetch", [url, *_]:
                text = yield Fetch(url, "text")
                if isinstance(text, str):
                    named = [words[at + 1] for at, word in enumerate(words[:-1]) if word in ("--name", "-n")]
                    self._texts[named[0] if named else url.rpartition("/")[2]] = text
                return isinstance(text, str)
            case "imgexec", [image, *_] if image in self._texts:
                return (yield from self._begin(self._texts[image], replaces=False))
            case "chain" | "boot", [url, *_]:
                text = yield Fetch(url, "text")
                return (yield from self._begin(text, replaces="--replace" in words)) if isinstance(text, str) else False
            case "boot", [] if self._kernel:
                boot = KernelStart(self._kernel, self._command_line, tuple(self._initrds))
                yield boot
                raise _Ended(Exit(booted=boot))
        return self._local(name, arguments)

    def _local(self, name: str, arguments: list[str]) -> bool:
        """Execute a command that needs nothing of the caller; return True if it succeeds."""
        match name, arguments:
            case "prompt" | "ifopen" | "ifclose" | "imgselect", _:
                return True
            case "echo", _:
                self._shown = " ".join(arguments) or self._shown
                return True
            case "set", [setting, *values]:
                self.settings[setting.partition(":")[0].rpartition("/")[2]] = " ".join(values)
                return True
            case "clear", [setting, *_]:
                return self.settings.pop(setting.rpartition("/")[2], None) is not None
            case "inc", [setting, *step]:
                setting = setting.partition(":")[0]
                try:
                    value = int(self.settings.get(setting) or "0", 0) + int(step[0] if step else "1", 0)
                except ValueError:
                    return False
                self.settings[setting] = str(value)
                return True
            case "isset", _:
                return bool(arguments and arguments[0])
            case "iseq", _:
                return len(arguments) == 2 and arguments[0] == arguments[1]
            case "goto", [label, *_] if label in self._labels:
                self._at = self._labels[label]
                return True
            case "exit", _:
                status = int(arguments[0]) if arguments and arguments[0].isdecimal() else 0
                raise _Ended(Exit(status=status, shown=self._shown))
            case "imgfree", _:
                if not arguments:
                    self._kernel = self._command_line = ""
                    self._initrds.clear()
                    self._texts.clear()
                for image in arguments:
                    self._texts.pop(image, None)
                return True
            case "sleep" | "kernel" | "initrd" | "module" | "imgfetch" | "imgexec" | "chain" | "boot", _:
                return False  # `_command` has found no valid arguments
            case "set" | "clear" | "inc" | "goto", _:
                return False
        self._shown = f"{name}: command not found"
        return False

    def _begin(self, text: str, *, replaces: bool) -> _Steps:
        if self._depth >= MAX_DEPTH or not text.startswith("#!"):
            self._shown = "not a script" if self._depth < MAX_DEPTH else "scripts that begin one another"
            return False
        found = yield from Interpreter(text, self.settings, depth=self._depth + 1).run()
        self._shown = found.shown or self._shown
        if replaces or found.booted is not None:
            raise _Ended(found)
        return found.status == 0


def _positional(arguments: list[str]) -> list[str]:
    """Return the arguments after iPXE's options."""
    at = 0
    while at < len(arguments) and arguments[at].startswith("-"):
        at += 2 if arguments[at] in _WITH_VALUE else 1
    return arguments[at:]
