"""The environment that Debian's Python runs tinkedge in: `PREFIX/bin/tinkedge` and all that it imports.

It is laid out as `python3 -m venv` would, from wheels alone, for a Python that this machine need not have. What
tinkedge never loads is left out: tests, sources of compiled modules, stubs for type checkers, and of Kubernetes' client
the five hundred classes of the API's objects, which are most of its bytes; tinkedge reads objects as they are. The same
wheels give the same bytes. Byte code is made where it is installed, by that Python.
"""

from __future__ import annotations

import ast
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from deploy.package.target import Target, run

_LEFT_OUT = (
    # kubernetes_asyncio: tinkedge uses its reading of kubeconfigs and its connection, no more.
    "kubernetes_asyncio/client/api",
    "kubernetes_asyncio/client/models",
    "kubernetes_asyncio/dynamic",
    "kubernetes_asyncio/e2e_test",
    "kubernetes_asyncio/leaderelection",
    "kubernetes_asyncio/stream",
    "kubernetes_asyncio/utils",
    "kubernetes_asyncio/watch",
    # What only builds other things.
    "google/protobuf/compiler",
    "cffi/recompiler.py",
    "uvloop/_testbase.py",
)
_SOURCES = {".pyx", ".pxd", ".pxi", ".pyi", ".c", ".h", ".hpp", ".cc", ".cpp"}
_TESTS = {"tests", "testing", "_tests"}
_INSTALLERS = {"INSTALLER", "REQUESTED", "direct_url.json"}
"""Files in which pip records where a wheel came from."""
_CUT = ("kubernetes_asyncio",)
"""Packages whose `__init__` imports what was left out."""

_START = """\
#!{python} -I
import sys

from edge.cli import main

sys.argv[0] = "tinkedge"
main()
"""


def lay_out(root: Path, prefix: str, wheels: list[Path], target: Target) -> Path:
    """Make the environment in `root` + `prefix` (an absolute path of the installed system); gives its site-packages.

    Raises PackageError.
    """
    home = root / prefix.lstrip("/")
    site = home / "lib" / f"python{target.python}" / "site-packages"
    site.parent.mkdir(parents=True)
    with tempfile.TemporaryDirectory(dir=root.parent) as work:
        # Into a directory that is not what it will be: what pip writes into `bin` would have this machine's Python.
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
    """Leave out of site-packages what tinkedge never loads."""
    for name in _LEFT_OUT:
        gone = site / name
        if gone.is_dir():
            shutil.rmtree(gone)
        else:
            gone.unlink(missing_ok=True)
    # ApiClient looks for its classes here when it is asked to make objects of answers; tinkedge asks for none.
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
    """The lines of a RECORD (Recording installed projects, PyPA) whose files are there as they came."""
    for line in record.read_text().splitlines(keepends=True):
        name = line.rsplit(",", 2)[0].strip('"')
        cut = name.partition("/")[0] in _CUT and name.endswith("__init__.py")
        if (site / name).exists():
            yield f"{name},,\n" if cut else line


def without_missing(text: str, site: Path) -> str:
    """A module without its imports at the top level of modules that are not in `site`, and without their names in
    `__all__`."""
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
    """Return True if a module is in `site`, or belongs to no package there (then the standard library has it)."""
    parts = module.split(".")
    if not (site / parts[0]).exists():
        return True
    path = site.joinpath(*parts)
    python = (path.with_suffix(".py"), path / "__init__.py")
    return any(one.exists() for one in python) or any(path.parent.glob(f"{path.name}.*.so"))
