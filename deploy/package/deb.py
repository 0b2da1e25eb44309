"""The Debian package: the environment in /usr/lib/tinkedge, units, settings and documents. deb(5), Debian Policy.

dpkg-deb makes the package. The environment is `PREFIX/bin/tinkedge` with all that it imports, for Debian's Python. It
is laid out like `python3 -m venv`, from wheels only, for a Python that this machine need not have. Parts that tinkedge
never loads are left out: tests, sources of compiled modules, stubs for type checkers, and the five hundred classes of
the Kubernetes client for API objects, which are most of its bytes. Byte code is compiled at the installation.

The same sources and wheels give the same bytes: all times are that of the sources, all owners root.
"""

from __future__ import annotations

import ast
import gzip
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime
from importlib.metadata import Distribution
from pathlib import Path

from deploy.package import papers
from deploy.package.target import Target, run
from deploy.supply.licences import licence
from edge.building.packages import SUGGESTED
from edge.cli import main as commands

_LEFT_OUT = (
    # kubernetes_asyncio: tinkedge uses only its kubeconfig reader and its connection.
    "kubernetes_asyncio/client/api",
    "kubernetes_asyncio/client/models",
    "kubernetes_asyncio/dynamic",
    "kubernetes_asyncio/e2e_test",
    "kubernetes_asyncio/leaderelection",
    "kubernetes_asyncio/stream",
    "kubernetes_asyncio/utils",
    "kubernetes_asyncio/watch",
    # Only for building other software.
    "google/protobuf/compiler",
    "cffi/recompiler.py",
    "uvloop/_testbase.py",
)
_SOURCES = {".pyx", ".pxd", ".pxi", ".pyi", ".c", ".h", ".hpp", ".cc", ".cpp"}
_TESTS = {"tests", "testing", "_tests"}
_INSTALLERS = {"INSTALLER", "REQUESTED", "direct_url.json"}
"""Files in which pip records the origin of a wheel."""
_CUT = ("kubernetes_asyncio",)
"""Packages whose `__init__` imports modules that were left out."""

_START = """\
#!{python} -I
import sys

from edge.cli import main

sys.argv[0] = "tinkedge"
main()
"""


def lay_out(root: Path, prefix: str, wheels: list[Path], target: Target) -> Path:
    """Create the environment in `root` + `prefix` (an absolute path of the installed system).

    Return its site-packages. Raises PackageError.
    """
    home = root / prefix.lstrip("/")
    site = home / "lib" / f"python{target.python}" / "site-packages"
    site.parent.mkdir(parents=True)
    with tempfile.TemporaryDirectory(dir=root.parent) as work:
        # Into a temporary directory: pip would write scripts for this machine's Python into `bin`.
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
        which = ["--no-deps", "--no-compile", "--only-binary=:all:", "--implementation=cp", f"--target={work}/site"]
        where = [f"--python-version={target.python}", *(f"--platform={one}" for one in target.platforms)]
        run([*pip, *which, *where, *map(str, wheels)], what="unpacking the wheels")
        shutil.rmtree(f"{work}/site/bin", ignore_errors=True)
        Path(work, "site").rename(site)
    slim(site)
    binaries = home / "bin"
    binaries.mkdir()
    (binaries / "python3").symlink_to(f"/usr/bin/python{target.python}")
    start = binaries / "tinkedge"
    start.write_text(_START.format(python=f"{prefix}/bin/python3"))
    start.chmod(0o755)
    (home / "pyvenv.cfg").write_text(
        f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {target.python}\n"
    )
    return site


def slim(site: Path) -> None:
    """Remove the parts of site-packages that tinkedge never loads."""
    for name in _LEFT_OUT:
        gone = site / name
        if gone.is_dir():
            shutil.rmtree(gone)
        else:
            gone.unlink(missing_ok=True)
    # ApiClient looks here for classes when asked to create objects from answers; tinkedge never asks for that.
    (site / "kubernetes_asyncio" / "client" / "models").mkdir()
    (site / "kubernetes_asyncio" / "client" / "models" / "__init__.py").write_text("")
    for directory in sorted(path for path in site.rglob("*") if path.is_dir() and path.name in _TESTS):
        shutil.rmtree(directory, ignore_errors=True)
    for file in [path for path in site.rglob("*") if path.is_file()]:
        installer = file.parent.name.endswith(".dist-info") and file.name in _INSTALLERS
        if installer or file.suffix in _SOURCES or file.name.endswith("_test.py"):
            file.unlink()
    for package in _CUT:
        for file in (site / package).rglob("__init__.py"):
            file.write_text(without_missing(file.read_text(), site))
    for record in site.glob("*.dist-info/RECORD"):
        record.write_text("".join(_still_there(record, site)))
    for empty in sorted((path for path in site.rglob("*") if path.is_dir()), reverse=True):
        if not any(empty.iterdir()):
            empty.rmdir()


def _still_there(record: Path, site: Path) -> Iterator[str]:
    """Yield the lines of a RECORD (Recording installed projects, PyPA) whose files are unchanged."""
    for line in record.read_text().splitlines(keepends=True):
        name = line.rsplit(",", 2)[0].strip('"')
        cut = name.partition("/")[0] in _CUT and name.endswith("__init__.py")
        if (site / name).exists():
            yield f"{name},,\n" if cut else line


def without_missing(text: str, site: Path) -> str:
    """Return a module without top-level imports of modules missing in `site`, and without their names in `__all__`."""
    gone: set[str] = set()
    lines = text.splitlines(keepends=True)
    for node in ast.parse(text).body:
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            missing = not _there(node.module, site)
        elif isinstance(node, ast.Import):
            missing = not all(_there(one.name, site) for one in node.names)
        else:
            continue
        if missing and node.end_lineno is not None:
            gone |= {one.asname or one.name for one in node.names}
            lines[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)
    left = "".join(lines)
    for node in ast.parse(left).body:
        if not isinstance(node, ast.Assign) or node.end_lineno is None:
            continue
        if any(isinstance(to, ast.Name) and to.id == "__all__" for to in node.targets):
            names = [name for name in ast.literal_eval(node.value) if name not in gone]
            lines = left.splitlines(keepends=True)
            lines[node.lineno - 1 : node.end_lineno] = [f"__all__ = {names!r}\n"]
            left = "".join(lines)
            break
    return left


def _there(module: str, site: Path) -> bool:
    """Return True if a module is in `site`, or is the standard library's."""
    parts = module.split(".")
    if not (site / parts[0]).exists():
        return True
    path = site.joinpath(*parts)
    python = (path.with_suffix(".py"), path / "__init__.py")
    return any(one.exists() for one in python) or any(path.parent.glob(f"{path.name}.*.so"))


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
    """The sources of a package."""

    wheels: list[Path]
    """The wheels of the project and of all its requirements."""
    version: str
    epoch: int
    """The time stamp of the sources, in seconds since 1970."""


def build(source: Source, target: Target, out: Path, compression: str = "zstd") -> Path:
    """Make the package in the directory `out`; return its path. Raises PackageError.

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
        # One thread: the number of threads, by default that of processors, changes the bytes.
        how = ["--root-owner-group", "--uniform-compression", f"-Z{compression}", "--threads-max=1"]
        how += ["-z12"] if compression == "zstd" else []
        run(["dpkg-deb", *how, "--build", str(root), str(made)], what="the Debian package", env=environment)
    return made


def settle(root: Path, epoch: int) -> None:
    """Set modes and times of all files, independent of the builder's umask and clock."""
    for path in (root, *root.rglob("*")):
        if not path.is_symlink():
            executable = path.is_dir() or (path.stat().st_mode & 0o100 and _is_program(path))
            path.chmod(0o755 if executable else 0o644)
        os.utime(path, (epoch, epoch), follow_symlinks=False)


def _is_program(path: Path) -> bool:
    """Return True if the kernel could run a file; some wheels have modules with that mode."""
    with path.open("rb") as file:
        return file.read(4).startswith((b"#!", b"\x7fELF"))


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def _link(path: Path, target: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def _units(root: Path, target: Target) -> Iterator[str]:
    # Packages, too, use the names before and after /lib became a link (Debian 13).
    units = root / ("lib" if target.release < 13 else "usr/lib") / "systemd/system"
    for unit in sorted(each for kind in ("service", "timer") for each in (DEPLOY / "systemd").glob(f"*.{kind}")):
        _copy(unit, units / unit.name)
        yield unit.name
    _copy(DEPLOY / "systemd" / "tinkedge.sysusers", root / "usr/lib/sysusers.d/tinkedge.conf")


def _settings(root: Path) -> None:
    """Add the settings that postinst copies into /etc at the first installation.

    These are not conffiles (Policy, 10.7.3): a release with a new option would make dpkg ask at each upgrade, and fail
    without a terminal.
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
    """Return the copyright file (Debian's copyright format 1.0), with the place of each licence."""
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
        "Recommends: ipxe, ca-certificates\n"
        f"Suggests: {', '.join(SUGGESTED)}, ipmitool, python3-scapy, qemu-system-x86\n"
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
