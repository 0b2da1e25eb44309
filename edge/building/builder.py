"""Builds the OSIE, disk images and action images, once, into a cache.

A recipe in `deploy/` makes each artifact. The cache records a digest of all its inputs, and the artifact is built again
only after one of them has changed. The cache is outside of the repository and safe to delete.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import sys
import time
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path

from edge.building.shell import CommandError, run

_ROOT = Path(__file__).resolve().parents[2]
"""The directory of the packages edge, proto and tink: the checkout, or site-packages."""
_BUILD_SECONDS = 900.0  # enough for a slow mirror

_RECIPE = re.compile(r"(?:osie|build-\w+\.sh): (.*)")
_DOWNLOAD = re.compile(r"dlstatus:\d+:(\d+)")  # apt's README.progress-reporting

# Places of downloaded packages below the cache.
_FETCHED = [
    f"{place}/{end}"
    for place in ("osie-build/build.*/root/var/cache/apt/archives", "work/*/root/var/cache/apt/archives", "debs")
    for end in ("*.deb", "partial/*")
]

Say = Callable[[str], None]


@dataclass(slots=True)
class _Work:
    """A running recipe: its start (monotonic seconds), its last message, and apt's progress in percent."""

    began: float
    phase: str = ""
    percent: str = ""

    def read_line(self, line: str, say: Say) -> None:
        """Process a line of the recipe: pass on its own messages, drop the output of the programs that it runs."""
        if message := _RECIPE.match(line):
            self.phase, self.percent = message[1], ""
            say(line)
        elif download := _DOWNLOAD.match(line):
            self.percent = f" {download[1]} %"


def recipes() -> Path:
    """Return the directory of the recipes: `deploy/` of the checkout, or its copy in the installed package."""
    packaged = Path(__file__).resolve().parents[1] / "_deploy"
    return packaged if packaged.is_dir() else _ROOT / "deploy"


def in_checkout() -> bool:
    """Return True if this program runs from a checkout, which has `make run`."""
    return (_ROOT / "deploy" / "setup.sh").is_file()


def default_cache() -> Path:
    """Return the default directory for artifacts (XDG Base Directory Specification)."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # "All paths set in these environment variables must be absolute", and others must be ignored.
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "tinkedge"


@dataclass(frozen=True, slots=True)
class Artifacts:
    """The paths of the built artifacts."""

    kernel: Path
    initrd: Path
    image: Path
    actions: Path
    actions_digest: str


class Part(StrEnum):
    """A kind of artifact."""

    OSIE = "osie"
    ACTIONS = "actions"
    IMAGE = "image"


@contextlib.contextmanager
def locked(cache: Path) -> Iterator[None]:
    """Lock a cache, whose work directory, images and logs belong to one process.

    Raises CommandError if another process uses it.
    """
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            message = f"another tinkedge lab or prepare uses {cache}; wait for it, or give this one its own --cache-dir"
            raise CommandError(message) from None
        yield


@dataclass(frozen=True, slots=True)
class _Recipe:
    """How to build one artifact: `prepare()` in a thread, then the shell script `command`, which writes `out`.

    name, what: for the screen.
    digest: of all inputs.
    """

    name: str
    what: str
    out: Path
    digest: str
    command: Sequence[str | Path]
    prepare: Callable[[], None] = lambda: None
    needs_apt: bool = True


class Builder:
    """Builds artifacts into `cache`. `say` gets a line for each recipe that runs."""

    def __init__(
        self,
        cache: Path,
        say: Say,
        wheel: Path | None = None,
        arch: str = "amd64",
        kernel: str = "",
        *,
        again: bool = False,
    ) -> None:
        """Create a builder.

        `arch` is the machine's, as Debian calls it; `kernel` a Debian package (empty: the recipes' default). `wheel`
        has the agent (None: this installation's own). `again` builds everything, even if it is up to date.
        """
        self._arch = arch
        self._of_arch = "" if arch == "amd64" else f"-{arch}"
        self._kernel = kernel
        self._of_kernel = f"-{kernel}" if kernel else ""
        self._again = again
        self._cache = cache
        self._say = say
        self._wheel = wheel
        self._deploy = recipes()
        self._asking = asyncio.Lock()
        self._environment: dict[str, str] | None = None
        self._working: dict[str, _Work] = {}
        self._work = cache / "work"  # not /tmp, which may be in memory

    def doing(self) -> str:
        """Return the running recipes with their seconds and progress, for the screen."""
        now = time.monotonic()
        works = [
            f"{name} {now - work.began:.0f} s{work.phase and f' ({work.phase}{work.percent})'}"
            for name, work in self._working.items()
        ]
        return f"{'; '.join(works) or 'clearing up'}; {_fetched(self._cache) / 1e6:.1f} MB of packages fetched"

    async def build(self, *, full: bool, metadata_url: str = "", dual_stack: bool = False) -> Artifacts:
        """Build the lab's artifacts that are missing or out of date. Raises CommandError.

        With `full` the disk image is the one with cloud-init, which asks at `metadata_url` (empty: the recipe's
        default). With `dual_stack` it has an IPv6 address beside IPv4.
        """
        if not full:
            image = self._image("build-tiny.sh", "tiny.raw.gz")
        elif metadata_url:
            image = self._image("build-cloud.sh", "debian-cloud-ipv6.raw.zst", "--metadata-url", metadata_url)
        elif dual_stack:
            image = self._image("build-cloud.sh", "debian-cloud-dual-stack.raw.zst", "--dual-stack")
        else:
            image = self._image("build-cloud.sh", "debian-cloud.raw.zst")
        osie, actions = self._osie(), self._actions()
        await self._build_all([osie, image, actions])
        return Artifacts(osie.out / "kernel", osie.out / "initrd", image.out, actions.out, actions.digest)

    async def build_parts(self, parts: Collection[Part]) -> dict[Part, Path]:
        """Build parts for real machines that are missing or out of date. Raises CommandError.

        The results are the directory with kernel and initrd, the directory with an image layout for each action, and
        the disk image.
        """
        recipes = {part: self._recipe(part) for part in parts}
        await self._build_all(recipes.values())
        return {part: recipe.out for part, recipe in recipes.items()}

    def outdated(self, parts: Collection[Part]) -> set[Part]:
        """Return the parts for real machines that `build_parts` would build."""
        return {part for part in parts if not self._is_current(self._recipe(part))}

    async def _build_all(self, recipes: Iterable[_Recipe]) -> None:
        """Run recipes concurrently: one waits for a mirror while another one computes."""
        shutil.rmtree(self._work, ignore_errors=True)  # left by a process that was killed
        self._work.mkdir(parents=True)
        try:
            async with asyncio.TaskGroup() as group:
                for recipe in recipes:
                    group.create_task(self._build(recipe))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None  # a failing recipe ends the others
        finally:
            # In a thread: it removes thousands of files, and the screen must go on.
            await asyncio.to_thread(shutil.rmtree, self._work, ignore_errors=True)

    async def _build(self, recipe: _Recipe) -> None:
        if self._is_current(recipe):
            return
        self._say(f"{recipe.name}: {recipe.what}")
        stamp = _stamp(recipe.out)
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stamp.unlink(missing_ok=True)
        work = self._working[recipe.name] = _Work(time.monotonic())

        def progress(line: str) -> None:
            work.read_line(line, self._say)

        try:
            await asyncio.to_thread(recipe.prepare)
            environment = None
            if recipe.needs_apt:
                own = {"TMPDIR": str(self._work), "KERNEL_TREES": str(self._work / "kernels")}
                environment = {**await self._apt(progress), **own}
            await run(["bash", *recipe.command], timeout=_BUILD_SECONDS, env=environment, progress=progress)
        finally:
            del self._working[recipe.name]
        stamp.write_text(recipe.digest)

    def _is_current(self, recipe: _Recipe) -> bool:
        stamp = _stamp(recipe.out)
        return not self._again and recipe.out.exists() and stamp.is_file() and stamp.read_text() == recipe.digest

    async def _apt(self, progress: Say) -> dict[str, str]:
        """Return the environment by which apt finds Debian 12 on a host of another Debian."""
        async with self._asking:
            if self._environment is None:
                command: list[str | Path] = ["bash", self._deploy / "bookworm-apt.sh", self._cache / "bookworm-apt"]
                config = (await run(command, timeout=_BUILD_SECONDS, progress=progress)).strip()
                self._environment = {"APT_CONFIG": config} if config else {}
            return self._environment

    # --- the recipes ----------------------------------------------------------------------------------------------

    def _recipe(self, part: Part) -> _Recipe:
        """Return the recipe of a part for real machines."""
        if part is Part.OSIE:
            return self._osie()
        if part is Part.ACTIONS:
            return self._actions()
        kernel = ["--kernel", self._kernel] if self._kernel else []
        return self._image("build-cloud.sh", f"debian-server{self._of_kernel}.raw.zst", "--server", *kernel)

    def _osie(self) -> _Recipe:
        requirements = self._deploy / "requirements.txt"
        sources = _files(self._deploy / "osie") | {requirements.name: requirements} | self._common()
        sources |= {self._wheel.name: self._wheel} if self._wheel is not None else _program_files()
        out, bases = self._cache / f"osie{self._of_arch}{self._of_kernel}", self._cache / "osie-build"

        def prepare() -> None:
            if self._wheel is None:
                _write_program(self._work)
            for base in bases.glob(f"base-{self._arch}-*") if self._again else ():
                shutil.rmtree(base)

        command: list[str | Path] = [
            *(self._deploy / "osie" / "build.sh", "--wheel", self._wheel or self._work / _wheel_name()),
            *("--python", sys.executable, "--requirements", requirements, "--cache", bases),
            *("--debs", self._cache / "debs", "--arch", self._arch),
            *(("--kernel", self._kernel) if self._kernel else ()),
            *("--out", out),
        ]
        return _Recipe("OSIE", "kernel and initrd with the agent", out, _digest(sources), command, prepare)

    def _image(self, script: str, name: str, *options: str) -> _Recipe:
        out, digest = self._cache / "images" / name, _digest(_files(self._deploy / "image") | self._common())
        command: list[str | Path] = [self._deploy / "image" / script, "--cache", self._cache / "debs", *options, out]
        return _Recipe("disk image", name, out, digest, command)

    def _actions(self) -> _Recipe:
        sources = _files(self._deploy / "actions")
        for shared in ("net", "registry"):
            sources |= _files(_ROOT / "tink" / shared, "*.py")
        sources |= self._common() if self._of_arch else {}
        out = self._cache / f"actions{self._of_arch}"
        command: list[str | Path] = [self._deploy / "actions" / "build.sh", out, self._arch]
        # For this host's own architecture the recipe needs no mirror.
        needs_apt = bool(self._of_arch)
        return _Recipe("actions", "their container images", out, _digest(sources), command, needs_apt=needs_apt)

    def _common(self) -> dict[str, Path]:
        """Return the files that all recipes use."""
        return {name: self._deploy / name for name in ("kernel.sh", "debian-sources.sh")}


def _stamp(out: Path) -> Path:
    """Return the file that records the inputs of `out`."""
    return out.with_name(out.name + ".made-from")


def _fetched(cache: Path) -> int:
    """Return the bytes of packages downloaded so far, while apt creates and removes its directories."""
    total = 0
    for pattern in _FETCHED:
        with contextlib.suppress(OSError):  # of a directory that has just been removed
            for file in cache.glob(pattern):
                with contextlib.suppress(OSError):
                    total += file.lstat().st_size
    return total


def _files(directory: Path, pattern: str = "*") -> dict[str, Path]:
    """Return the inputs of a recipe by their place in it, without its documentation."""
    found = (path for path in directory.rglob(pattern) if path.is_file() and path.suffix not in (".md", ".pyc"))
    return {str(path.relative_to(directory.parent)): path for path in found}


def _digest(sources: Mapping[str, Path]) -> str:
    total = hashlib.sha256()
    for name, path in sorted(sources.items()):
        total.update(f"{name} {oct(path.stat().st_mode)}\n".encode())
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


_PACKAGES = ("edge", "hegel", "ipxe", "proto", "tink")
_ZIP_TIME = (1980, 1, 1, 0, 0, 0)
"""The earliest time that a zip archive can hold."""


def _program_files() -> dict[str, Path]:
    """Return the files of the program by their path below _ROOT: Python alone, without the recipes."""
    found = (path for name in _PACKAGES for path in (_ROOT / name).rglob("*") if path.is_file())
    named = {str(path.relative_to(_ROOT)): path for path in found if path.suffix != ".pyc"}
    return {name: path for name, path in named.items() if not name.startswith("edge/_deploy/")}


def _wheel_name() -> str:
    return f"tinkedge-{version('tinkedge')}-py3-none-any.whl"


def _write_program(directory: Path) -> None:
    """Write this program as a zip archive into `directory`. Raises OSError.

    The archive has the form of a wheel (PEP 427). It is made from the running files, without checkout or pip, so the
    OSIE's agent has the edge's version. The same files give the same bytes.
    """
    release = version("tinkedge")
    out = directory / _wheel_name()
    # `tinkedge --version` reads this.
    metadata = f"Metadata-Version: 2.1\nName: tinkedge\nVersion: {release}\n"
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in sorted(_program_files().items()):
            archive.writestr(zipfile.ZipInfo(name, _ZIP_TIME), path.read_bytes(), zipfile.ZIP_DEFLATED)
        archive.writestr(zipfile.ZipInfo(f"tinkedge-{release}.dist-info/METADATA", _ZIP_TIME), metadata)
