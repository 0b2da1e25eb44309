"""The wheels that a Debian runs: those of deploy/requirements.txt that the project needs there, and its own.

pip fetches them and compares every file with its hashes; they are kept by what was asked for.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name

from deploy.package.target import PackageError, Target, run
from deploy.supply.packages import Installed, Locked, Project

EXTRAS = ("docker", "otlp")
"""The extras that packages include: small, and used only by `tinkedge agent --runtime docker` and `--otlp-endpoint`."""


def needed(project: Project, locked: Mapping[NormalizedName, Locked], here: Installed, target: Target) -> list[Locked]:
    """Return the locked packages that the project needs on `target`, by name.

    The metadata of the packages installed here give the dependencies.

    Raises PackageError for one that is not locked.
    """
    environment = target.markers()

    def wanted(requirement: Requirement, extras: Iterable[str]) -> bool:
        marker = requirement.marker
        return marker is None or any(marker.evaluate({**environment, "extra": extra}) for extra in ("", *extras))

    first = (*project.needs, *(one for extra in EXTRAS for one in project.extras[extra]))
    waiting = [(canonicalize_name(one.name), frozenset(one.extras)) for one in first if wanted(one, ())]
    done: set[tuple[NormalizedName, frozenset[str]]] = set()
    while waiting:
        name, extras = entry = waiting.pop()
        if entry in done:
            continue
        done.add(entry)
        if name not in locked:
            raise PackageError(f"deploy/requirements.txt: {name} is not in it; run `make lock`")
        if name not in here:
            # Needed on the target but not installed on the building Python: its own dependencies are unknown here.
            continue
        more = [Requirement(line) for line in here[name].requires or ()]
        waiting += [(canonicalize_name(one.name), frozenset(one.extras)) for one in more if wanted(one, extras)]
    names = sorted({name for name, _ in done})
    return [locked[name] for name in names if wanted(locked[name].requirement, ())]


def requirements(packages: Iterable[Locked]) -> str:
    """A requirements file of these, with their hashes, without markers."""
    return "".join(
        f"{one.requirement.name}=={one.version} {' '.join(f'--hash={digest}' for digest in one.hashes)}\n"
        for one in packages
    )


def fetch(packages: list[Locked], target: Target, cache: Path) -> Path:
    """A directory with the wheels of these for `target`, and nothing else. Raises PackageError."""
    text = requirements(packages)
    kept = cache / "wheels" / hashlib.sha256(f"{target} {text}".encode()).hexdigest()[:16]
    if kept.is_dir():
        return kept
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as work:
        wanted = Path(work) / "requirements.txt"
        wanted.write_text(text)
        made = Path(work) / "wheels"
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        which = ["--require-hashes", "--no-deps", "--only-binary=:all:", "--implementation=cp"]
        where = [f"--python-version={target.python}", *(f"--platform={one}" for one in target.platforms)]
        command = [*pip, *which, *where, f"--dest={made}", f"--requirement={wanted}"]
        run(command, what=f"fetching the Python packages for Debian {target.release}")
        try:
            made.replace(kept)
        except OSError:
            if not kept.is_dir():  # if it is there now, another process has built the same meanwhile
                raise
    return kept


def build(source: Path, out: Path, epoch: int) -> Path:
    """The project's own wheel, in `out`; the same sources give the same bytes. Raises PackageError."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out) as work:
        pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
        alone = ["--no-index", "--no-deps", "--no-build-isolation", f"--wheel-dir={work}"]
        run([*pip, *alone, str(source)], what="the project's wheel", env=os.environ | {"SOURCE_DATE_EPOCH": str(epoch)})
        (wheel,) = Path(work).glob("*.whl")
        made = out / wheel.name
        shutil.move(wheel, made)
    return made
