"""Applies the definitions of the embedded API, and the operator's --manifests as `kubectl apply -f DIR` does.

One file or object that can't be applied keeps no other from being applied, and no machine from being served. It is
named in the log and in /readyz, and tried again: after a pause, when its file changes, and on SIGHUP.

    nothing is refused, no file is new    -> the directory is not looked at before SIGHUP
    something is refused                  -> files that are new or have changed are applied; the rest is tried again
    a file has changed a moment ago       -> the same: it may be half written
"""

from __future__ import annotations

import asyncio
import logging
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prometheus_client.core import Metric

from tink.api.v1alpha2 import API_VERSION, Raw
from tink.files import rereading
from tink.kube.cache import Informer
from tink.kube.client import KubeClient, UnreachableError
from tink.kube.manifests import DEFAULT_NAMESPACE, ManifestError, apply, manifest_files, read, resource_type
from tink.kube.resources import CRD, ResourceType
from tink.limits import Backoff
from tink.metrics.families import gauge
from tink.printable import printable

log = logging.getLogger(__name__)

_APPLIED_SECONDS: Final = 30.0  # time limit for the informers to receive the applied objects
LOOK_SECONDS: Final = 5.0  # interval at which the files are checked while an object is refused or a file is young
YOUNG_SECONDS: Final = 10.0  # age below which a file may be incomplete
MAX_PAUSE_SECONDS: Final = 300.0
_UNANSWERED: Final = 3
_OWN: Final = Path("tinkedge")  # the name of the program's own definitions in messages
MAX_LINES: Final = 20


@dataclass(slots=True)
class _Object:
    """An object that is not applied. `refusal` is the reason, empty before the first try."""

    obj: Raw
    refusal: str = ""


@dataclass(slots=True)
class _File:
    """A file as it was read. `stamp` changes with the file; None if it could not be read."""

    stamp: tuple[int, ...] | None
    written: float
    faults: list[str]
    waiting: list[_Object]

    @property
    def problems(self) -> list[str]:
        return [*self.faults, *(each.refusal for each in self.waiting if each.refusal)]


@dataclass(eq=False)
class ManifestApplier:
    """Applies manifests. Retries a manifest if the API rejects it.

    `path` is a file or directory of manifests, or None. `clock` gives Unix seconds. `refusal()` says why the disk of
    the embedded API can't store anything now; empty if it can.
    """

    client: KubeClient
    refusal: Callable[[], str]
    path: Path | None = None
    clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        self._files: dict[Path, _File] = {}
        self._fault = ""
        self.own: list[Raw] = []  # definitions of this release that the disk could not store
        self._own_problems: list[str] = []
        self._logged: frozenset[str] = frozenset()
        self._asked = asyncio.Event()
        rereading.register(self)

    @property
    def problems(self) -> list[str]:
        """Return a line for each object or file that is not applied, with the reason."""
        faults = [*filter(None, [self._fault]), *self._own_problems]
        return [*faults, *(each for file in self._files.values() for each in file.problems)]

    @property
    def note(self) -> str:
        """The number of problems and the first file, for /readyz; empty if everything is applied."""
        # /readyz may be open to more people than the log, and what an API refuses is quoted there.
        faulty = (str(at) for at, file in self._files.items() if file.problems)
        where = str(self.path) if self._fault else next(faulty, "")
        count = len(self.problems)
        return f"{count} of --manifests not applied, and tried again: {printable(where)}, see the log" if count else ""

    def metrics(self) -> Iterator[Metric]:
        """Yield the number of problems."""
        yield gauge(
            "tinkedge_manifests_refused", "Objects or files of --manifests that are not applied.", [],
            {(): float(len(self.problems))},
        )  # fmt: skip

    def reread(self) -> bool:
        """Request that all files are read and refused objects are retried soon. The log reports the result."""
        self._asked.set()
        return True

    async def apply_own(self, definitions: list[Raw], optional: list[Raw]) -> None:
        """Apply the program's own definitions. If the disk rejects one, it waits (`own`). Raises ManifestError.

        The start goes on without `optional` ones, whatever rejects them: they wait, and are reported.
        """
        self.own = []
        for each in (*definitions, *optional):
            try:
                await apply(self.client, [(_OWN, each)])
            except ManifestError as error:
                if not self.refusal():
                    if each not in optional:
                        raise
                    self._own_problems.append(str(error))
                self.own.append(each)
                log.debug("not applied: %s", error)
        self._log()
        if len(self.own) > len(self._own_problems):  # the store has logged why
            log.info("%d definitions of this release are applied when the state can be written", len(self.own))

    async def apply_own_later(self) -> None:
        """Apply the definitions that wait, as soon as the disk can be written; return when none is left."""
        while self.own:
            await asyncio.sleep(LOOK_SECONDS)
            if self.refusal():
                continue
            waiting, self.own, self._own_problems = self.own, [], []
            for each in waiting:
                try:
                    await apply(self.client, [(_OWN, each)])
                except ManifestError as error:
                    self.own.append(each)
                    self._own_problems.append(str(error))
            self._log()
        log.info("the definitions of this release are applied")

    async def apply_definitions(self) -> None:
        """Read the files, and apply the definitions of kinds in them."""
        self._look()
        await self._apply(lambda obj: resource_type(obj) is CRD)

    async def apply_and_wait(self, informers: Mapping[ResourceType, Informer]) -> None:
        """Apply everything that is not applied, and wait until the informers have it."""
        applied = await self._apply()
        self._log()
        with suppress(TimeoutError):
            async with asyncio.timeout(_APPLIED_SECONDS):
                for obj in applied:
                    place = obj["metadata"].get("namespace") or DEFAULT_NAMESPACE, obj["metadata"]["name"]
                    # Informers follow v1alpha2, also of an object that was written in v1alpha1.
                    followed = resource_type({**obj, "apiVersion": API_VERSION}) or resource_type(obj) or CRD
                    informer = informers.get(followed)
                    if informer is not None and not informer.covers({"metadata": {"namespace": place[0]}}):
                        text = "%s %s/%s is applied, but not followed: --namespaces or --hardware-selector leave it out"
                        log.warning(text, obj["kind"], *place)
                        continue
                    while informer is not None and informer.get(*place) is None:  # noqa: ASYNC110 - for milliseconds
                        await asyncio.sleep(0.01)

    async def run(self) -> None:
        """Retry refused objects with growing pauses, and whenever `reread` requests it, until cancelled."""
        loop = asyncio.get_running_loop()
        backoff = Backoff(LOOK_SECONDS, MAX_PAUSE_SECONDS)
        due = loop.time() + backoff.next()
        while True:
            with suppress(TimeoutError):
                is_young = any(abs(self.clock() - file.written) < YOUNG_SECONDS for file in self._files.values())
                async with asyncio.timeout(LOOK_SECONDS if self.problems or is_young else None):
                    await self._asked.wait()
            is_asked = self._asked.is_set()
            self._asked.clear()
            if await asyncio.to_thread(self._look) or is_asked:
                backoff.reset()
                due = loop.time()
            if loop.time() >= due:
                await self._apply()
                due = loop.time() + backoff.next()
            self._log()

    def _look(self) -> bool:
        """Read the files that are new or have changed; return whether there were any. Blocks."""
        if self.path is None:
            return False
        try:
            paths = manifest_files(self.path)
            self._fault = ""
        except ManifestError as error:
            self._fault = str(error)
            return False
        found, is_changed = {}, False
        for path in paths:
            stamp, written = _stamp(path)
            file = self._files.get(path)
            if file is None or file.stamp != stamp or stamp is None:
                usable, faults = read(path)
                if any(isinstance(each.__cause__, OSError) for each in faults):
                    stamp = None  # read it again: a disk that fails changes no time stamp
                is_changed = is_changed or bool(usable)
                file = _File(stamp, written, [str(each) for each in faults], [_Object(each) for each in usable])
            found[path] = file
        self._files = found
        return is_changed

    async def _apply(self, is_wanted: Callable[[Raw], bool] = lambda _: True) -> list[Raw]:
        """Try to apply all waiting objects. Return the applied ones."""
        applied: list[Raw] = []
        known, unanswered = -1, 0
        # Once more after others were applied: a refused object may need one of them.
        while len(applied) > known:
            known = len(applied)
            for path, file in self._files.items():
                left = []
                for each in file.waiting:
                    if not is_wanted(each.obj) or unanswered >= _UNANSWERED:
                        left.append(each)
                        continue
                    try:
                        await apply(self.client, [(path, each.obj)])
                    except ManifestError as error:
                        each.refusal = str(error)
                        unanswered = unanswered + 1 if isinstance(error.__cause__, UnreachableError) else 0
                        left.append(each)
                    else:
                        unanswered = 0
                        applied.append(each.obj)
                file.waiting = left
        return applied

    def _log(self) -> None:
        """Log new problems, and the end of all problems."""
        problems = list(dict.fromkeys(self.problems))
        new = [each for each in problems if each not in self._logged]
        for each in new[:MAX_LINES]:
            log.error("not applied, and tried again: %s", printable(each))
        if len(new) > MAX_LINES:
            log.error("not applied, and tried again: %d more objects or files", len(new) - MAX_LINES)
        if self._logged and not problems:
            log.info("%s: nothing is refused any more", self.path)
        self._logged = frozenset(problems)


def _stamp(path: Path) -> tuple[tuple[int, ...] | None, float]:
    """Return a stamp that changes with the file, and the time of its last change. A pipe has a constant stamp."""
    try:
        found = path.stat()
    except OSError:
        return None, 0.0
    if not stat.S_ISREG(found.st_mode):
        return (found.st_rdev,), 0.0
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns), found.st_mtime
