"""The Debian package: the environment in /usr/lib/tinkedge, units, settings and papers. deb(5), Debian Policy.

dpkg-deb alone makes it. The same sources give the same bytes: all times are that of the sources, all owners root.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime
from importlib.metadata import Distribution
from pathlib import Path

from deploy.package import papers
from deploy.package.environment import lay_out
from deploy.package.target import Target, run
from deploy.supply.licences import licence
from edge.building.packages import SUGGESTED
from edge.cli import main as commands

DEPLOY = Path(__file__).resolve().parents[1]
ROOT = DEPLOY.parent
PREFIX = "/usr/lib/tinkedge"
MAINTAINER = "The tinkedge project <tinkedge@localhost>"
_SHORT = "netboot, metadata and workflows for bare metal"
_LONG = """\
 Takes a machine with an empty disk from power-on to an installed, configured
 operating system: DHCP, TFTP, iPXE and HTTP netboot, metadata for cloud-init,
 and a workflow engine whose actions run in containers on the machine itself.
 It is the Tinkerbell v1alpha2 stack, driven with kubectl; it brings its own
 Kubernetes API, or uses a cluster's.
 .
 Nothing is started or enabled by the installation.
"""


@dataclass(frozen=True, slots=True)
class Source:
    """The inputs of a Debian package."""

    wheels: list[Path]
    """The project's own wheel and those of its dependencies."""
    version: str
    epoch: int
    """The time stamp of the sources, in seconds since 1970."""


def build(source: Source, target: Target, out: Path, compression: str = "zstd") -> Path:
    """Make the package in the directory `out` and give its path. Raises PackageError.

    `compression`: dpkg-deb(1), -Z.
    """
    version = f"{source.version}+deb{target.release}"
    out.mkdir(parents=True, exist_ok=True)
    made = out / f"tinkedge_{version}_{target.architecture}.deb"
    with tempfile.TemporaryDirectory() as work:
        root = Path(work) / "root"
        site = lay_out(root, PREFIX, source.wheels, target)
        _link(root / "usr/bin/tinkedge", "../lib/tinkedge/bin/tinkedge")
        _settings(root)
        units = [*_units(root, target)]
        _papers(root, source)
        _documents(root, source, version, target, site)
        _control(root, version, target, units)
        settle(root, source.epoch)
        environment = os.environ | {"SOURCE_DATE_EPOCH": str(source.epoch)}
        # With one thread, because the number of threads, which is that of the processors, changes the bytes.
        how = ["--root-owner-group", "--uniform-compression", f"-Z{compression}", "--threads-max=1"]
        how += ["-z12"] if compression == "zstd" else []
        run(["dpkg-deb", *how, "--build", str(root), str(made)], what="the Debian package", env=environment)
    return made


def settle(root: Path, epoch: int) -> None:
    """Modes and times of all files, whatever the umask and the clock of who builds."""
    for path in (root, *root.rglob("*")):
        if not path.is_symlink():
            executable = path.is_dir() or (path.stat().st_mode & 0o100 and _is_program(path))
            path.chmod(0o755 if executable else 0o644)
        os.utime(path, (epoch, epoch), follow_symlinks=False)


def _is_program(path: Path) -> bool:
    """Return True if the kernel can run the file. Some wheels have modules with an executable mode."""
    with path.open("rb") as file:
        return file.read(4).startswith((b"#!", b"\x7fELF"))


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def _link(path: Path, target: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def _units(root: Path, target: Target) -> Iterator[str]:
    # The names of before and after /lib became a link for packages, too (Debian 13).
    units = root / ("lib" if target.release < 13 else "usr/lib") / "systemd/system"
    for unit in sorted(each for kind in ("service", "timer") for each in (DEPLOY / "systemd").glob(f"*.{kind}")):
        _copy(unit, units / unit.name)
        yield unit.name
    _copy(DEPLOY / "systemd" / "tinkedge.sysusers", root / "usr/lib/sysusers.d/tinkedge.conf")


def _settings(root: Path) -> None:
    """Add the files that postinst copies to /etc at the first installation.

    They are not conffiles (Debian Policy 10.7.3): dpkg would ask about each new option at an upgrade, and fail without
    a terminal.
    """
    for name in ("tinkedge.default", "tinkedge.yaml"):
        _copy(DEPLOY / "systemd" / name, root / "usr/share/tinkedge" / name)


def _papers(root: Path, source: Source) -> None:
    papers.write(root, papers.manual(commands, source.epoch, source.version), compressed=True)
    papers.write(root, papers.completions(commands))


def _documents(root: Path, source: Source, version: str, target: Target, site: Path) -> None:
    documents = root / "usr/share/doc/tinkedge"
    for document in [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"]:
        _copy(document, documents / document.name)
    changes = f"tinkedge ({version}) {target.suite}; urgency=medium\n\n  * See CHANGELOG.md.gz beside this file.\n\n"
    date = format_datetime(datetime.fromtimestamp(source.epoch, UTC))
    _compress(f"{changes} -- {MAINTAINER}  {date}\n", documents / "changelog.gz")
    _compress((ROOT / "CHANGELOG.md").read_text(), documents / "CHANGELOG.md.gz")
    (documents / "copyright").write_text(_copyright(site))
    overrides = root / "usr/share/lintian/overrides/tinkedge"
    _copy(DEPLOY / "deb" / "lintian-overrides", overrides)


def _compress(text: str, path: Path) -> None:
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def _copyright(site: Path) -> str:
    """Machine-readable (Debian's copyright format 1.0): whose what is, and where its licence is."""
    place = f"{PREFIX}/{site.relative_to(site.parents[2])}"
    parts = [
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/",
        "Upstream-Name: tinkedge\n",
        "Files: *\nCopyright: the tinkedge project\nLicense: Apache-2.0\n",
    ]
    for information in sorted(site.glob("*.dist-info")):
        package = Distribution.at(information)
        if package.name != "tinkedge":
            files = f"{place.lstrip('/')}/{information.name}/*"
            parts.append(f"Files: {files}\nCopyright: the authors of {package.name}\nLicense: {licence(package)}\n")
    parts.append("License: Apache-2.0\n On Debian systems its text is in /usr/share/common-licenses/Apache-2.0.\n")
    parts.append(f"Comment: the licences of the packages in {place}\n are in the folders named *.dist-info there.\n")
    return "\n".join(parts)


def _control(root: Path, version: str, target: Target, units: list[str]) -> None:
    control = root / "DEBIAN"
    sizes = (path.stat().st_size for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    installed = sum(-(-size // 1024) for size in sizes)
    control.mkdir()
    (control / "control").write_text(
        f"Package: tinkedge\nVersion: {version}\nArchitecture: {target.architecture}\n"
        f"Maintainer: {MAINTAINER}\nInstalled-Size: {installed}\nSection: admin\nPriority: optional\n"
        f"Depends: python3 (>= {target.python}), python3 (<< {target.next_python}), libc6 (>= 2.28), libstdc++6,"
        " systemd | systemd-standalone-sysusers | systemd-sysusers, passwd\n"
        f"Recommends: ipxe, ca-certificates\nSuggests: {', '.join(SUGGESTED)}, python3-scapy, qemu-system-x86\n"
        f"Description: {_SHORT}\n{_LONG}"
    )
    for name in ("postinst", "prerm", "postrm"):
        script = control / name
        script.write_text((DEPLOY / "deb" / name).read_text().replace("@UNITS@", " ".join(units)))
        script.chmod(0o755)
    sums = [
        f"{hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()}  {path.relative_to(root)}\n"
        for path in sorted(root.rglob("*"))
        if path.is_file() and not path.is_symlink() and control not in path.parents
    ]
    (control / "md5sums").write_text("".join(sums))
