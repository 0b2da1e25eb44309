"""What docstrings, comments and papers name is there: modules, files, headings, and names in backticks.

A reference outlives what it refers to, because only people read it. Texts are lexed and nothing is imported, so that
the whole repository takes a second.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.unit.test_papers import anchors

ROOT = Path(__file__).resolve().parents[2]
TOP = "edge|hegel|ipxe|proto|tink|tests|deploy"

# What others have, and no line of code here.
ELSEWHERE = {
    "INSECURE_NO_TARFILE_CHECKSUM_VERIFICATION",  # of Tinkerbell's archive2disk
    "MIRROR_HOST",  # an example
    "UPDATE_RESOLV_CONF",  # of Tinkerbell's cexec
    "IPAddressPool",  # MetalLB's
    "L2Advertisement",
    "PRIORITY",  # a field of systemd's journal
    "TINKEDGE_DHCP_MODE",  # click makes it of the option
    "_SYSTEMD_UNIT",  # a field of systemd's journal
    "__word__",
    "authorizer",
    "boot_script_dhcp",  # U-Boot's environment
    "distro_bootcmd",
    "localcmd",
    "zImage",  # an image of Linux
    "cloudinit/sources/helpers/ec2.py",
    "config-linux.md",  # of the OCI's runtime-spec
    "config.md",
    "edge.disable",  # values of the chart
    "edge.hostNetwork",
    "edge.interfaces",
    "edge.podAnnotations",
    "doc/langdef.md",  # of cel-spec
    "healthCheckNodePort",  # of a Service
    "ipxe.binary",  # fields of a Hardware's
    "ipxe.inline",
    "ipxe.url",
    "ipxe.efi",  # files of Debian's package ipxe, and in them
    "ipxe.iso",
    "ipxe.krn",
    "ipxe/shim",  # a repository
    "ipxeboot.tar.gz",
    "metaDataName",
    "net.core.rmem_max",
    "net.ipv4.neigh.default.gc_thresh3",
    "networkDataName",
    "poweroff",
    "sig-api-machinery/strategic-merge-patch.md",
    "ssh_pwauth",
    "svc_enable",  # kube-vip's
    "sys.getswitchinterval",
    "tink/controller/internal/workflow",  # in tinkerbell/tinkerbell
    "tink/controller/internal/workflow/reconciler.go",
    "udev_replace_chars",
    "userDataName",
    "vip_arp",  # kube-vip's
}

_NOT_BEFORE = r"(?<![\w./:@${}<*-])"
_TEXT = re.compile(
    r'"""(?:[^"\\]|\\.|"(?!""))*"""' r"|'''.*?'''" r'|"(?:[^"\\\n]|\\.)*"' r"|'(?:[^'\\\n]|\\.)*'" r"|#[^\n]*",
    re.DOTALL,
)
_WORD = re.compile(r"[A-Za-z_]\w*")
_QUOTED = re.compile(r"`([A-Za-z_][\w.]*)(?:\(\))?`")
_DOTTED = re.compile(rf"{_NOT_BEFORE}((?:{TOP})(?:\.[A-Za-z_]\w*)+)")
_PATH = re.compile(rf"{_NOT_BEFORE}((?:{TOP}|docs)/[\w./-]*\w)(?![\w*<{{$-])")
_FILE = re.compile(rf"{_NOT_BEFORE}((?:\w[\w./-]*)?\w\.(?:py|md|sh|toml))\b(?![\w/(])")
_HEADING_OF = re.compile(rf"{_NOT_BEFORE}(docs/[\w-]+\.md)#([\w-]+)")
# A word of a path that stands for any: tests/unit/ROOM.
_PLACEHOLDER = re.compile(r"[A-Z]{2,}$")


@dataclass
class Repository:
    """Names there are, and texts that refer to them: path -> text, and path -> [(line, docstring or comment)]."""

    names: set[str] = field(default_factory=set)
    files: dict[str, str] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)
    prose: dict[str, list[tuple[int, str]]] = field(default_factory=dict)

    def add(self, path: str, text: str) -> None:
        self.files[path] = text
        self.folders.update(str(parent) for parent in Path(path).parents)
        self.names.update(_WORD.findall(path))
        if path.endswith(".md"):
            self.prose[path] = [(1, text)]
        elif path.endswith(".py"):
            code, self.prose[path] = _apart(text)
            self.names.update(_WORD.findall(code))
        elif not path.endswith((".json", ".jsonl")) and not (path.startswith("tests/") and path.endswith(".txt")):
            self.names.update(_WORD.findall(text))

    def lost(self) -> list[str]:
        """References that lead nowhere: "path:line: reference"."""
        found = []
        for path, texts in self.prose.items():
            for first, text in texts:
                for at, name in self._lost_in(text):
                    if name not in ELSEWHERE:
                        found.append(f"{path}:{first + text.count(chr(10), 0, at)}: {name}")
        for path, text in self.files.items():
            # Messages lead to papers, too, and so do scripts.
            for match in _HEADING_OF.finditer(text):
                if match[1] not in self.files or match[2] not in anchors(self.files[match[1]]):
                    found.append(f"{path}:{1 + text.count(chr(10), 0, match.start())}: {match[0]}")
        return sorted(set(found))

    def _lost_in(self, text: str) -> Iterator[tuple[int, str]]:
        for match in _QUOTED.finditer(text):
            if not self.names.issuperset(_WORD.findall(match[1])):
                yield match.start(), match[1]
        for match in _DOTTED.finditer(text):
            if not self._is_module_or_in_one(match[1].split(".")):
                yield match.start(), match[1]
        for match in _PATH.finditer(text):
            if not (self._is_path(match[1]) or _PLACEHOLDER.search(match[1])):
                yield match.start(), match[1]
        for match in _FILE.finditer(text):
            if not (match[1] in self.files or any(path.endswith("/" + match[1].lstrip("./")) for path in self.files)):
                yield match.start(), match[1]

    def _is_path(self, path: str) -> bool:
        return path in self.files or path in self.folders or f"{path}.py" in self.files

    def _is_module_or_in_one(self, parts: list[str]) -> bool:
        for known in range(len(parts), 0, -1):
            path = "/".join(parts[:known])
            module = self.files.get(f"{path}.py") or self.files.get(f"{path}/__init__.py")
            if known == len(parts) and self._is_path(path):
                return True
            if module is not None:
                return re.search(rf"\b{parts[known]}\b", module) is not None
        return False


def _apart(source: str) -> tuple[str, list[tuple[int, str]]]:
    """Python code, and its docstrings and comments, each with the number of its first line."""
    code, prose, end = [], [], 0
    for match in _TEXT.finditer(source):
        text, start = match[0], match.start()
        alone = not source[source.rfind("\n", 0, start) + 1 : start].strip()
        if text[0] == "#" or (alone and text.startswith('"""')):
            prose.append((1 + source.count("\n", 0, start), text))
            code.append(source[end:start])
            end = match.end()
    return "".join([*code, source[end:]]), prose


def here() -> Repository:
    repository = Repository()
    folders = [ROOT / each for each in (*TOP.split("|"), "docs", ".ci")]
    for path in [*ROOT.glob("*"), *(path for folder in folders for path in folder.rglob("*"))]:
        if path.is_file() and path.suffix not in {".pyc", ".pyi", ".so"} and path != Path(__file__):
            repository.add(str(path.relative_to(ROOT)), path.read_text(errors="replace"))
    return repository


def test_what_is_referred_to_is_in_the_repository():
    lost = here().lost()
    assert not lost, "\n".join(lost)


@pytest.mark.parametrize(
    "text",
    [
        "# As tink.clock.moved says.",
        "# As `tink.clock.Moved` says.",
        "# As tink.moved has it.",
        "# As in `moved`.",
        "# As `Clock.moved()` does.",
        "# See DESIGN.md.",
        "# See moved.py.",
        "# See tink/moved.",
        "# See docs/papers.md#moved.",
        '"""See `tink/moved/`."""',
        'error = "see docs/papers.md#moved"',
    ],
)
def test_reference_to_what_has_moved_is_found(text):
    repository = Repository()
    repository.add("tink/clock.py", "class Clock: ...")
    repository.add("docs/papers.md", "# There\n\n`Clock` in `tink/clock.py`, tink.clock.Clock, tink/clock; tink/ROOM.")
    repository.add("tink/story.py", f"x = 1\n{text}\n")
    assert [each.split()[0] for each in repository.lost()] == ["tink/story.py:2:"]
