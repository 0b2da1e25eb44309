"""A page that shows what an operator types on hosts, and what they answer: docs/transcript.md is one."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

from tests.interop.installed.host import Host
from tests.waiting import wait_until

_FOR_SCRIPTS = "WARNING: apt does not have a stable CLI interface. Use with caution in scripts."
"""apt's warning if its output is not a terminal."""


class Transcript:
    """Commands run where they are typed. `page` is what they came to."""

    def __init__(self, title: str, preface: str) -> None:
        self._parts = [f"# {title}", preface]
        self._hidden: list[tuple[str, str]] = []

    @property
    def page(self) -> str:
        text = "\n\n".join(self._parts) + "\n"
        text = text.replace("```\n\n```console\n", "")  # what follows at once is of the same block
        for real, shown in self._hidden:
            text = text.replace(real, shown)
        return text

    def hide(self, real: str, shown: str) -> None:
        """Show `shown` on the page in place of `real`, a detail of the test."""
        self._hidden.append((real, shown))

    def chapter(self, title: str, text: str = "") -> None:
        self._parts += [f"## {title}", *([text] if text else [])]

    def happens(self, text: str) -> None:
        self._parts.append(text)

    def type(self, host: Host, line: str, *, check: bool = True, timeout: float = 120) -> str:
        """A line of shell, as root; what it answers. Unless `check`, whatever its status."""
        answer = host.run("bash", "-c", line, check=check, timeout=timeout)
        self.typed(host, line, answer)
        return answer

    @contextlib.contextmanager
    def beside(self, host: Host, line: str, until: str) -> Iterator[None]:
        """Type a line in another terminal; the page gets its output up to the text `until`."""
        process = host.start("bash", "-c", f"exec {line}")
        yield
        wait_until(lambda: until in process.out, lambda: process.out + process.err)
        host.run("pkill", "-f", f"{line}$")
        process.status()
        self.typed(host, line, process.out)

    def typed(self, host: Host, line: str, answer: str = "") -> None:
        """Note what was typed there by other means."""
        # Of a line that was written over again and again, what is left.
        ended = [each.rstrip().rpartition("\r")[2] for each in answer.split("\n")]
        lines = [each for each in ended if each and each != _FOR_SCRIPTS]
        self._parts.append("\n".join(["```console", f"root@{host.name}:~# {line}", *lines, "```"]))


def commands(page: str) -> list[str]:
    """Return the command lines on a page, with their prompts: `root@HOST:~# LINE`."""
    return re.findall(r"^root@\S+:~# .*$", page, re.MULTILINE)


def blocks(page: Path, heading: str) -> list[str]:
    """Return the lines of the indented blocks below a heading of a document, without comments."""
    section = page.read_text().partition(f"\n{heading}\n")[2]
    section = re.split(r"^#{1,3} ", section, maxsplit=1, flags=re.MULTILINE)[0]
    lines = re.findall(r"^    (\S.*)$", section, re.MULTILINE)
    return [text for line in lines if (text := re.sub(r"(^|\s+)# .*", "", line).strip())]
