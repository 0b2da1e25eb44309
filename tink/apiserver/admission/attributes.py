"""What admission is told about a write, and what it may do: the border between the verbs and webhooks.

The verbs make one `Attributes` for each try of a write and hand it to an `Admission`, first to `mutate`, then, when
schema and rules have found nothing wrong, to `validate` (k8s.io/apiserver, pkg/admission).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from tink.apiserver.access import ADMIN, Caller
from tink.apiserver.resources import Resource
from tink.schema import Raw


@dataclass(slots=True)
class Attributes:
    """One write. `object` is the new state in the version of the request, None for DELETE; `old` the state before.

    `options` is the CreateOptions, UpdateOptions, PatchOptions or DeleteOptions object of the request. `mutate` may put
    another object in the place of `object`; both may append to `warnings`, which the client sees. `labels` are those of
    the namespace, once they were needed.
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


class Admission(Protocol):
    """Whoever has a say in writes besides schema and rules. Both raise StatusError to refuse."""

    async def mutate(self, attributes: Attributes) -> None:
        """Change `attributes.object`, or refuse."""

    async def validate(self, attributes: Attributes) -> None:
        """Refuse, or do nothing."""


class AdmitAll:
    """Admission where nothing is configured."""

    async def mutate(self, attributes: Attributes) -> None:
        """Leave the object as it is."""

    async def validate(self, attributes: Attributes) -> None:
        """Refuse nothing."""
