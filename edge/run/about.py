"""The description of this process and its host on the operators' page."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from edge.doctor import is_clock_synchronised
from edge.page import About, Api, Osie
from tink.api.annotations import UKI_URL_ANNOTATION
from tink.api.v1alpha2 import Raw, as_mapping

UNKNOWN_VERSION: Final = "unknown"
_FILES: Final = (("kernel", "kernelUrl"), ("initrd", "initrdUrl"))


@dataclass(frozen=True, slots=True)
class ThisEdge:
    """Describes this process. `started` is in seconds since the epoch; `api()` describes the Kubernetes API."""

    data_dir: Path
    api: Callable[[], Api] = Api
    started: float = field(default_factory=time.time)

    def about(self) -> About:
        """Return the process and its host as they are now. A number that the kernel does not report is None."""
        free = total = synchronised = None
        with suppress(OSError):
            disk = os.statvfs(self.data_dir)
            free, total = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
        with suppress(OSError):
            synchronised = is_clock_synchronised()
        return About(
            version=_version(),
            host=socket.gethostname(),
            started=self.started,
            data_dir=str(self.data_dir),
            free_bytes=free,
            total_bytes=total,
            synchronised=synchronised,
            api=self.api(),
        )


def osies_of(objects: Iterable[Raw]) -> Iterator[Osie]:
    """Yield the OSIE objects with the URLs of their files. The objects need not be valid."""
    for raw in objects:
        metadata, spec = as_mapping(raw.get("metadata")), as_mapping(raw.get("spec"))
        files = [(kind, str(spec[name])) for kind, name in _FILES if spec.get(name)]
        if uki := str(as_mapping(metadata.get("annotations")).get(UKI_URL_ANNOTATION) or "").strip():
            files.append(("UKI", uki))
        yield Osie(f"{metadata.get('namespace', '')}/{metadata.get('name', '')}", tuple(files))


@cache
def _version() -> str:
    try:
        return version("tinkedge")
    except PackageNotFoundError:  # a checkout that is not installed
        return UNKNOWN_VERSION
