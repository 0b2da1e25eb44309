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
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import ClassVar, Final

MAX_STEPS: Final = 10_000
"""Maximum number of commands of one script, against loops that never sleep."""
MAX_DEPTH: Final = 8
"""Maximum depth of chained scripts."""

_SETTING = re.compile(r"\$\{([^{}$]*)\}")
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
    said: str = ""


@dataclass(slots=True)
class _Images:
    kernel: str = ""
    command_line: str = ""
    initrds: list[str] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)

    def clear(self) -> None:
        self.kernel = self.command_line = ""
        self.initrds.clear()
        self.texts.clear()


class _Ended(Exception):  # noqa: N818 - no error
    def __init__(self, found: Exit) -> None:
        super().__init__()
        self.found = found


_Steps = Generator[Wanted, Answer, bool]


class Interpreter:
    """Runs a script and the scripts that it chains to. `settings` are iPXE's, without scope and type."""

    def __init__(self, text: str, settings: dict[str, str], *, depth: int = 0) -> None:
        self.settings = settings
        self._lines = _lines(text)
        self._labels = {line[1:].strip(): number for number, line in enumerate(self._lines) if line.startswith(":")}
        self._at = 0
        self._steps = 0
        self._depth = depth
        self._images = _Images()
        self._said = ""

    def run(self) -> Generator[Wanted, Answer, Exit]:
        """Run the script; yields commands for the caller."""
        try:
            while self._at < len(self._lines):
                line = self._lines[self._at]
                self._at += 1
                if line.startswith(("#", ":")) or not line:
                    continue
                if not (yield from self._line(line)):
                    return Exit(status=1, said=self._said or line)
        except _Ended as ended:
            return ended.found
        return Exit(said=self._said)

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
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise _Ended(Exit(status=1, said=f"the script has run {MAX_STEPS} commands"))
        name, *arguments = words
        given = _positional(arguments)
        if (plain := self._plain.get(name)) is not None:
            return plain(self, given)
        if (steps := self._steps_of.get(name)) is not None:
            return (yield from steps(self, given, words))
        self._said = f"{name}: command not found"
        return False

    # --- commands without an action of the caller ---

    def _echo(self, arguments: list[str]) -> bool:
        self._said = " ".join(arguments) or self._said
        return True

    def _set(self, arguments: list[str]) -> bool:
        if not arguments:
            return False
        name = arguments[0].partition(":")[0]
        self.settings[name.rpartition("/")[2]] = " ".join(arguments[1:])
        return True

    def _clear(self, arguments: list[str]) -> bool:
        return self.settings.pop(arguments[0].rpartition("/")[2], None) is not None if arguments else False

    def _inc(self, arguments: list[str]) -> bool:
        try:
            name = arguments[0].partition(":")[0]
            step = int(arguments[1], 0) if len(arguments) > 1 else 1
            self.settings[name] = str(int(self.settings.get(name) or "0", 0) + step)
        except (IndexError, ValueError):
            return False
        return True

    def _isset(self, arguments: list[str]) -> bool:
        return bool(arguments and arguments[0])

    def _iseq(self, arguments: list[str]) -> bool:
        return len(arguments) == 2 and arguments[0] == arguments[1]

    def _goto(self, arguments: list[str]) -> bool:
        if not arguments or arguments[0] not in self._labels:
            return False
        self._at = self._labels[arguments[0]]
        return True

    def _exit(self, arguments: list[str]) -> bool:
        status = int(arguments[0]) if arguments and arguments[0].isdecimal() else 0
        raise _Ended(Exit(status=status, said=self._said))

    def _nothing(self, _arguments: list[str]) -> bool:
        return True

    def _imgfree(self, arguments: list[str]) -> bool:
        if not arguments:
            self._images.clear()
        for name in arguments:
            self._images.texts.pop(name, None)
        return True

    # --- commands with an action of the caller ---

    def _sleep(self, arguments: list[str], _words: list[str]) -> _Steps:
        try:
            seconds = float(arguments[0])
        except (IndexError, ValueError):
            return False
        yield Sleep(max(seconds, 0.0))
        return True

    def _ifconf(self, _arguments: list[str], _words: list[str]) -> _Steps:
        return (yield ConfigureNetwork()) is True

    def _kernel(self, arguments: list[str], _words: list[str]) -> _Steps:
        if not arguments or (yield Fetch(arguments[0], "kernel")) is None:
            return False
        self._images.kernel = arguments[0]
        self._images.command_line = " ".join(arguments[1:])
        return True

    def _initrd(self, arguments: list[str], _words: list[str]) -> _Steps:
        if not arguments or (yield Fetch(arguments[0], "initrd")) is None:
            return False
        self._images.initrds.append(arguments[0])
        return True

    def _imgfetch(self, arguments: list[str], words: list[str]) -> _Steps:
        if not arguments:
            return False
        text = yield Fetch(arguments[0], "text")
        if not isinstance(text, str):
            return False
        self._images.texts[_name_of(words) or arguments[0].rpartition("/")[2]] = text
        return True

    def _imgexec(self, arguments: list[str], _words: list[str]) -> _Steps:
        text = self._images.texts.get(arguments[0]) if arguments else None
        return False if text is None else (yield from self._begin(text, replaces=False))

    def _chain(self, arguments: list[str], words: list[str]) -> _Steps:
        text = (yield Fetch(arguments[0], "text")) if arguments else None
        return (yield from self._begin(text, replaces="--replace" in words)) if isinstance(text, str) else False

    def _begin(self, text: str, *, replaces: bool) -> _Steps:
        if self._depth >= MAX_DEPTH or not text.startswith("#!"):
            self._said = "not a script" if self._depth < MAX_DEPTH else "scripts that begin one another"
            return False
        found = yield from Interpreter(text, self.settings, depth=self._depth + 1).run()
        self._said = found.said or self._said
        if replaces or found.booted is not None:
            raise _Ended(found)
        return found.status == 0

    def _boot(self, arguments: list[str], words: list[str]) -> _Steps:
        if arguments:
            return (yield from self._chain(arguments, words))
        if not self._images.kernel:
            return False
        boot = KernelStart(self._images.kernel, self._images.command_line, tuple(self._images.initrds))
        yield boot
        raise _Ended(Exit(booted=boot))

    _plain: ClassVar[dict[str, Callable[[Interpreter, list[str]], bool]]] = {
        "echo": _echo,
        "set": _set,
        "clear": _clear,
        "inc": _inc,
        "isset": _isset,
        "iseq": _iseq,
        "goto": _goto,
        "exit": _exit,
        "prompt": _nothing,
        "ifopen": _nothing,
        "ifclose": _nothing,
        "imgselect": _nothing,
        "imgfree": _imgfree,
    }
    _steps_of: ClassVar[dict[str, Callable[[Interpreter, list[str], list[str]], _Steps]]] = {
        "sleep": _sleep,
        "ifconf": _ifconf,
        "dhcp": _ifconf,
        "kernel": _kernel,
        "initrd": _initrd,
        "module": _initrd,
        "imgfetch": _imgfetch,
        "imgexec": _imgexec,
        "chain": _chain,
        "boot": _boot,
    }


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.replace("\\\n", "").splitlines()]


def _positional(arguments: list[str]) -> list[str]:
    """Return the arguments after iPXE's options."""
    at = 0
    while at < len(arguments) and arguments[at].startswith("-"):
        at += 2 if arguments[at] in _WITH_VALUE else 1
    return arguments[at:]


def _name_of(words: list[str]) -> str:
    for option in ("--name", "-n"):
        if option in words[:-1]:
            return words[words.index(option) + 1]
    return ""
