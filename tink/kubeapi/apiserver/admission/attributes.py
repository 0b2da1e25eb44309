"""What admission is told about a write (k8s.io/apiserver, pkg/admission)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from tink.kubeapi.apiserver.access import ADMIN, Caller
from tink.kubeapi.apiserver.resources import Resource
from tink.kubeapi.schema import Raw


@dataclass(slots=True)
class Attributes:
    """One write. `object` is the new state in the version of the request, None for DELETE; `old` the state before.

    `options` is the CreateOptions, UpdateOptions, PatchOptions or DeleteOptions object of the request. `mutate` may
    replace `object`; both may append to `warnings`, which the client receives. `labels` are those of the namespace,
    read when they are first needed. `releases` are called when the write is settled (`AdmissionPlugin`).
    """

    operation: Literal["CREATE", "UPDATE", "DELETE"]
    resource: Resource
    namespace: str
    name: str
    subresource: str
    object: Raw | None
    old: Raw | None
    options: Raw
    dry_run: bool
    warnings: list[str] = field(default_factory=list)
    labels: Mapping[str, str] | None = None
    caller: Caller = ADMIN
    releases: list[Callable[[], None]] = field(default_factory=list)

    def settled(self) -> None:
        """Release the reservations of plugins for this write: it has been stored, or it has failed."""
        while self.releases:
            self.releases.pop()()
