"""The Debian packages that the recipes run, and their installation on request."""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from edge.building.builder import Part
from edge.building.shell import CommandError, run

_OSIE = ("busybox-static", "cpio", "kmod", "mmdebstrap", "squashfs-tools")
_ACTIONS = ("busybox-static", "libzstd1", "python3", "umoci")
_IMAGE = (
    *("busybox-static", "cpio", "dosfstools", "e2fsprogs", "gdisk", "mmdebstrap", "mtools"),
    *("syslinux", "syslinux-common", "systemd-boot-efi", "zstd"),
)
_PIP = "python3-pip"
_KEYRING = "debian-archive-keyring"
_INSTALL_SECONDS = 1800.0
_LOCKED = "Could not get lock"
_LOCK_SECONDS = 2.0
_LOCK_ATTEMPTS = 150
"""Attempts to get the lock of the package lists, _LOCK_SECONDS apart: five minutes."""

SUGGESTED = tuple(sorted({*_OSIE, *_ACTIONS, *_IMAGE, _KEYRING, _PIP} - {"python3", "libzstd1", "e2fsprogs"}))
"""Packages that the Debian package of tinkedge suggests, for `tinkedge prepare`."""


@dataclass(frozen=True, slots=True)
class PackageHost:
    """The properties of this host that decide which packages are needed."""

    arch: str
    """Debian's name of its processor."""
    python: tuple[int, int]
    """The version of the Python that runs this program."""
    has_pip: bool
    """True if that Python, or Debian's, has pip."""
    knows_suite: bool
    """True if this is Debian 12, which the recipes install: then its apt knows the packages."""

    @classmethod
    def here(cls) -> PackageHost:
        """Look at this host. Raises CommandError if it is no Debian."""
        if shutil.which("dpkg") is None or shutil.which("apt-get") is None:
            raise CommandError("the recipes need apt and dpkg: run this on Debian 12 or 13, or on a system made of it")
        arch = subprocess.run(
            ["dpkg", "--print-architecture"], capture_output=True, text=True, check=True
        ).stdout.strip()
        release = Path("/etc/os-release")
        knows = release.is_file() and "VERSION_CODENAME=bookworm" in release.read_text()
        has_pip = importlib.util.find_spec("pip") is not None or installed({_PIP}) == {_PIP}
        return cls(arch, sys.version_info[:2], has_pip, knows)


def needed(parts: Collection[Part], arches: Iterable[str], host: PackageHost) -> set[str]:
    """Return the names of the packages that the recipes of these parts run for machines of these architectures."""
    foreign = any(arch != host.arch for arch in arches)
    found: set[str] = set()
    if Part.OSIE in parts:
        found |= {*_OSIE}
        # Libraries that are installed here go into an OSIE for this Python and processor alone; others come by pip.
        if (foreign or host.python != (3, 11)) and not host.has_pip:
            found.add(_PIP)
    if Part.ACTIONS in parts:
        found |= {*_ACTIONS, *(("mmdebstrap",) if foreign else ())}
    if Part.IMAGE in parts:
        found |= {*_IMAGE}
    return found | ({_KEYRING} if not host.knows_suite else set())


def installed(names: Collection[str]) -> set[str]:
    """Return those of the packages that dpkg has installed."""
    command = ["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n", *sorted(names)]
    # Ends with 1 if it does not know one of them.
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return {line.split()[0] for line in said.splitlines() if line.endswith(" installed")}


def command(names: Iterable[str]) -> str:
    """Return the command that installs the packages, for people."""
    return f"apt-get install --no-install-recommends {' '.join(sorted(names))}"


async def install(
    names: Collection[str], progress: Callable[[str], None], pause: Callable[[float], Awaitable[object]] = asyncio.sleep
) -> None:
    """Install packages, with the package lists of today and without a question. Raises CommandError.

    Waits while another apt has the package lists, such as apt-daily after a boot. `pause` waits for so many seconds.
    """
    environment = {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    for words in _commands(names):
        for attempts_left in range(_LOCK_ATTEMPTS, -1, -1):
            try:
                await run(words, timeout=_INSTALL_SECONDS, env=environment, progress=progress)
                break
            except CommandError as error:
                # DPkg::Lock::Timeout is for the lock of the installed packages alone (apt.conf(5)).
                if _LOCKED not in str(error) or not attempts_left:
                    raise
                progress("waiting for another apt, which has the package lists")
                await pause(_LOCK_SECONDS)


def _commands(names: Collection[str]) -> Iterator[Sequence[str]]:
    apt = ("apt-get", "-q", "-y", "-o", "DPkg::Lock::Timeout=300", "-o", "APT::Status-Fd=2")
    yield (*apt, "update")
    yield (*apt, "install", "--no-install-recommends", *sorted(names))


async def download_bytes(names: Collection[str]) -> int:
    """Return how many bytes apt would download for the packages and what they need; 0 if it can't tell."""
    words = ["apt-get", "install", "--no-install-recommends", "--print-uris"]
    try:
        said = await run([*words, "-y", "-qq", *sorted(names)], timeout=60, env={"LC_ALL": "C"})
    except CommandError:
        return 0
    # 'URL' FILE SIZE HASH
    return sum(int(line.split()[2]) for line in said.splitlines() if line.startswith("'") and len(line.split()) >= 3)
