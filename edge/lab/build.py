"""What the lab needs and is not in git: the OSIE, the disk images, the action images. Built once, kept in a cache.

Each artifact is made by a recipe in `deploy/` and remembered together with a digest of everything it was made from;
it is built again only when that has changed. The cache is outside of the repository and safe to delete.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import shutil
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from edge.lab.rack import HTTP_PORT, IPV6
from edge.lab.shell import CommandError, run

_ROOT = Path(__file__).resolve().parents[2]
_BUILD_SECONDS = 900.0  # seconds; a slow mirror is slow, but not for ever

_RECIPE = re.compile(r"(?:osie|build-\w+\.sh): (.*)")
_DOWNLOAD = re.compile(r"dlstatus:\d+:(\d+)")  # apt's README.progress-reporting

# Where the recipes' apt has what it fetches, below the cache.
_FETCHED = [
    f"{place}/{end}"
    for place in ("osie-build/build.*/root/var/cache/apt/archives", "work/*/root/var/cache/apt/archives", "debs")
    for end in ("*.deb", "partial/*")
]

Say = Callable[[str], None]


@dataclass(slots=True)
class _Work:
    """What is being made: since when (monotonic seconds), what its recipe said last, and how far apt is with that."""

    began: float
    phase: str = ""
    percent: str = ""

    def hear(self, line: str, say: Say) -> None:
        """A line of the recipe: what it says itself is told, the chatter of the programs that it runs is not."""
        if said := _RECIPE.match(line):
            self.phase, self.percent = said[1], ""
            say(line)
        elif download := _DOWNLOAD.match(line):
            self.percent = f" {download[1]} %"


def recipes() -> Path:
    """The directory with the recipes: `deploy/` of the checkout, or its copy in the installed package."""
    packaged = Path(__file__).resolve().parents[1] / "_deploy"
    return packaged if packaged.is_dir() else _ROOT / "deploy"


def in_checkout() -> bool:
    """Whether this program runs from a checkout, where `make run` is, and not as it was installed."""
    return (_ROOT / "deploy" / "setup.sh").is_file()


def default_cache() -> Path:
    """Where artifacts are kept unless told otherwise (XDG Base Directory Specification)."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # "All paths set in these environment variables must be absolute"; others are to be ignored.
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "tinkedge"


@dataclass(frozen=True, slots=True)
class Artifacts:
    """The paths of what was built."""

    kernel: Path
    initrd: Path
    image: Path
    actions: Path
    actions_digest: str


class Builder:
    """Builds into `cache`; `say` is told, in one line, what takes long."""

    def __init__(self, cache: Path, say: Say, wheel: Path | None = None, arch: str = "amd64") -> None:
        """`arch`: of the machine, as Debian calls it."""
        self._arch = arch
        self._of_arch = "" if arch == "amd64" else f"-{arch}"
        self._cache = cache
        self._say = say
        self._wheel = wheel
        self._deploy = recipes()
        self._asking = asyncio.Lock()
        self._environment: dict[str, str] | None = None
        self._working: dict[str, _Work] = {}
        self._work = cache / "work"  # not /tmp, which may be a part of the memory

    def doing(self) -> str:
        """What is being made at the moment, since when, and how far it is."""
        now = time.monotonic()
        works = [
            f"{name} {now - work.began:.0f} s{work.phase and f' ({work.phase}{work.percent})'}"
            for name, work in self._working.items()
        ]
        return f"{'; '.join(works) or 'clearing up'}; {_fetched(self._cache) / 1e6:.1f} MB of packages fetched"

    async def build(self, *, full: bool, ipv6: bool = False, dual_stack: bool = False) -> Artifacts:
        """Make what is missing or out of date; with `full`, the image with cloud-init, which asks over `ipv6`, or with
        `dual_stack` over IPv4 and has an address of IPv6 as well.

        Raises CommandError.
        """
        shutil.rmtree(self._work, ignore_errors=True)  # of a lab that was killed
        self._work.mkdir(parents=True)
        # Side by side: each waits for a mirror while another one computes.
        async with contextlib.AsyncExitStack() as stack:
            # Not by the event loop: these are thousands of files, and the screen is to go on.
            stack.push_async_callback(asyncio.to_thread, shutil.rmtree, self._work, ignore_errors=True)
            stack.enter_context(_unwrapped())
            async with asyncio.TaskGroup() as group:
                making_osie = group.create_task(self._osie())
                making_image = group.create_task(
                    self._cloud(ipv6=ipv6, dual_stack=dual_stack) if full else self._tiny()
                )
                making_actions = group.create_task(self._actions())
        osie, image = making_osie.result(), making_image.result()
        actions, digest = making_actions.result()
        return Artifacts(
            kernel=osie / "kernel", initrd=osie / "initrd", image=image, actions=actions, actions_digest=digest
        )

    async def _osie(self) -> Path:
        out = self._cache / f"osie{self._of_arch}"
        requirements = self._deploy / "requirements.txt"
        sources = _files(self._deploy / "osie") | {requirements.name: requirements} | self._common()
        if self._wheel is not None:
            sources[self._wheel.name] = self._wheel
        else:
            for package in ("proto", "tink", "edge"):
                sources |= _files(_ROOT / package, "*.py")

        async def build(hear: Say) -> None:
            wheel = self._wheel or await self._make_wheel()
            environment = await self._recipe(hear)
            await run(
                [
                    *("bash", self._deploy / "osie" / "build.sh", "--wheel", wheel, "--python", sys.executable),
                    *("--requirements", requirements, "--cache", self._cache / "osie-build"),
                    *("--debs", self._cache / "debs", "--arch", self._arch, "--out", out),
                ],
                timeout=_BUILD_SECONDS,
                env=environment,
                progress=hear,
            )

        await self._once(out, _digest(sources), "OSIE", "kernel and initrd with the agent", build)
        return out

    async def _recipe(self, hear: Say) -> dict[str, str]:
        """The environment of a recipe: what its apt needs, where it works, where it finds the other one's kernel."""
        return {**await self._apt(hear), "TMPDIR": str(self._work), "KERNEL_TREES": str(self._work / "kernels")}

    async def _apt(self, hear: Say) -> dict[str, str]:
        """What the recipes' apt needs in its environment to know Debian 12 on a host that is another Debian."""
        async with self._asking:
            if self._environment is None:
                script = self._deploy / "bookworm-apt.sh"
                command: list[str | Path] = ["bash", script, self._cache / "bookworm-apt"]
                said = (await run(command, timeout=_BUILD_SECONDS, progress=hear)).strip()
                self._environment = {"APT_CONFIG": said} if said else {}
            return self._environment

    async def _make_wheel(self) -> Path:
        if not in_checkout():
            raise CommandError("the OSIE is built from the project's wheel: give it with --wheel FILE")
        out = self._cache / "wheel"
        out.mkdir(exist_ok=True)
        for old in out.glob("*.whl"):
            old.unlink()
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
        # With what is installed here, hashes and all: nothing is fetched.
        alone = ["--no-index", "--no-deps", "--no-build-isolation"]
        await run([*command, *alone, "-w", out, _ROOT], timeout=_BUILD_SECONDS)
        return next(out.glob("*.whl"))

    def _common(self) -> dict[str, Path]:
        """What the recipes have in common."""
        return {name: self._deploy / name for name in ("kernel.sh", "debian-sources.sh")}

    async def _cloud(self, *, ipv6: bool, dual_stack: bool) -> Path:
        if ipv6:
            url = f"http://{IPV6.host}:{HTTP_PORT}"
            return await self._image("build-cloud.sh", "debian-cloud-ipv6.raw.zst", "--metadata-url", url)
        if dual_stack:
            return await self._image("build-cloud.sh", "debian-cloud-dual-stack.raw.zst", "--dual-stack")
        return await self._image("build-cloud.sh", "debian-cloud.raw.zst")

    async def _tiny(self) -> Path:
        return await self._image("build-tiny.sh", "tiny.raw.gz")

    async def _image(self, recipe: str, name: str, *more: str) -> Path:
        directory = self._cache / "images"
        directory.mkdir(exist_ok=True)
        out = directory / name

        async def build(hear: Say) -> None:
            script = self._deploy / "image" / recipe
            command: list[str | Path] = ["bash", script, "--cache", self._cache / "debs", *more, out]
            await run(command, timeout=_BUILD_SECONDS, env=await self._recipe(hear), progress=hear)

        await self._once(out, _digest(_files(self._deploy / "image") | self._common()), "disk image", name, build)
        return out

    async def _actions(self) -> tuple[Path, str]:
        out = self._cache / f"actions{self._of_arch}"
        sources = _files(self._deploy / "actions")
        for shared in ("net", "registry"):
            sources |= _files(_ROOT / "tink" / shared, "*.py")
        sources |= self._common() if self._of_arch else {}
        digest = _digest(sources)

        async def build(hear: Say) -> None:
            command: list[str | Path] = ["bash", self._deploy / "actions" / "build.sh", out]
            environment = None
            if self._of_arch:
                command.append(self._arch)
                environment = await self._recipe(hear)
            await run(command, timeout=_BUILD_SECONDS, env=environment, progress=hear)

        await self._once(out, digest, "actions", "their container images", build)
        return out, digest

    async def _once(
        self, out: Path, digest: str, name: str, what: str, build: Callable[[Say], Awaitable[None]]
    ) -> None:
        stamp = out.with_name(out.name + ".made-from")
        if out.exists() and stamp.is_file() and stamp.read_text() == digest:
            return
        self._say(f"{name}: {what}")
        stamp.unlink(missing_ok=True)
        work = self._working[name] = _Work(time.monotonic())
        try:
            await build(lambda line: work.hear(line, self._say))
        finally:
            del self._working[name]
        stamp.write_text(digest)


@contextlib.contextmanager
def _unwrapped() -> Iterator[None]:
    """The first error of a TaskGroup as itself: one recipe that fails ends the others."""
    try:
        yield
    except ExceptionGroup as group:
        raise group.exceptions[0] from None


def _fetched(cache: Path) -> int:
    """Bytes of the packages that apt has fetched so far, while its directories come and go."""
    total = 0
    for pattern in _FETCHED:
        with contextlib.suppress(OSError):  # of a directory that has just been removed
            total += sum(map(_size, cache.glob(pattern)))
    return total


def _size(file: Path) -> int:
    """Its bytes, while others write and remove it."""
    try:
        return file.lstat().st_size
    except OSError:
        return 0


def _files(directory: Path, pattern: str = "*") -> dict[str, Path]:
    """What can change an artifact: the files of a recipe by their place in it, but not what is written about it."""
    found = (path for path in directory.rglob(pattern) if path.is_file() and path.suffix not in (".md", ".pyc"))
    return {str(path.relative_to(directory.parent)): path for path in found}


def _digest(sources: Mapping[str, Path]) -> str:
    total = hashlib.sha256()
    for name, path in sorted(sources.items()):
        total.update(f"{name} {oct(path.stat().st_mode)}\n".encode())
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()
