"""Copy distributions that are installed beside this Python, if the OSIE can run them: nothing is downloaded then.

    python installed.py REQUIREMENTS MACHINE INTO

REQUIREMENTS is a requirements file with exact versions, MACHINE the kernel's name of the OSIE's processor, INTO the
OSIE's directory of Python packages. Exits with 3, and copies nothing, if a distribution is missing, has another
version, or is made for another Python, processor or newer C library than the OSIE has. The reason is printed.

The installed files were checked against their hashes when they were installed. Standard library only: this runs by the
Python of a checkout, of the Debian package, or of any other installation.
"""

from __future__ import annotations

import platform
import re
import shutil
import sys
from email.parser import HeaderParser
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

_PYTHON = (3, 11)
_NEWEST_GLIBC_MINOR = 28
"""The C library that build.sh's wheels need (manylinux_2_28). Debian 12 has 2.36."""
_PIN = re.compile(r"^([a-z0-9][a-z0-9._-]*)==([^\s;\\]+)", re.MULTILINE)
_UNFIT = 3


class UnfitError(Exception):
    """The OSIE can't run what is installed here; the message says why."""


def installed(name: str, version: str, machine: str) -> Distribution:
    """Return the installed distribution. Raises UnfitError if it is not exactly what the OSIE needs."""
    try:
        found = distribution(name)
    except PackageNotFoundError:
        raise UnfitError(f"{name} is not installed") from None
    if found.version != version:
        raise UnfitError(f"{name} {found.version} is installed, not {version}")
    tags = HeaderParser().parsestr(found.read_text("WHEEL") or "").get_all("Tag", [])
    if not any(runs_in_osie(tag, machine) for tag in tags):
        raise UnfitError(f"{name} is installed for {', '.join(tags) or 'an unknown platform'}")
    return found


def runs_in_osie(tag: str, machine: str) -> bool:
    """Return whether a wheel with this tag (PEP 425) runs in an OSIE for this processor."""
    python, abi, where = tag.split("-")
    # The stable ABI of an older Python 3 is that of 3.11, too (PEP 384): protobuf has cp310-abi3.
    stable = re.fullmatch(r"cp3(\d+)", python) if abi == "abi3" else None
    if abi not in ("cp311", "none") and not (stable and int(stable[1]) <= _PYTHON[1]):
        return False
    if where == "any":
        return abi == "none"
    if where in (f"manylinux2014_{machine}", f"manylinux1_{machine}", f"manylinux2010_{machine}"):
        return True
    found = re.fullmatch(rf"manylinux_2_(\d+)_{machine}", where)
    return found is not None and int(found[1]) <= _NEWEST_GLIBC_MINOR


def copy(found: Distribution, into: Path) -> None:
    """Copy the files that RECORD lists, without byte code and without programs outside of site-packages."""
    for file in found.files or []:
        if ".." in file.parts or "__pycache__" in file.parts:
            continue
        target = into / file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(str(file.locate()), target)


def main(requirements: Path, machine: str, into: Path) -> None:
    """Check all distributions of the file, then copy them. Raises UnfitError."""
    if sys.version_info[:2] != _PYTHON or platform.machine() != machine:
        here = f"Python {sys.version_info[0]}.{sys.version_info[1]} on {platform.machine()}"
        raise UnfitError(f"the OSIE has Python 3.11 on {machine}, and this is {here}")
    pins = _PIN.findall(requirements.read_text())
    if not pins:
        raise UnfitError(f"{requirements} pins nothing")
    for one in [installed(name, version, machine) for name, version in pins]:
        copy(one, into)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
    except UnfitError as error:
        sys.stdout.write(f"{error}\n")
        sys.exit(_UNFIT)
