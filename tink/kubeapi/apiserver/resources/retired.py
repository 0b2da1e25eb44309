"""Versions that are known and not served: their objects exist in files, and here is what to do about them.

Discovery names them with no verbs at all, and behind the versions that are served. So controllers and tools pass them
by, as they do all that they can't list, but kubectl knows the kind, asks, and shows the answer. Without that it says
"no matches for kind", and not a word of what would help. A definition that serves such a version takes its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tink.kubeapi.apiserver.resources.registry import Registry, Resource
from tink.kubeapi.schema import compile_schema


def _of(group: str, version: str, kinds: Mapping[str, str]) -> list[Resource]:
    return [
        Resource(group, version, plural, kind, {}, compile_schema({}), singular=kind.lower(), verbs=(), virtual=True)
        for plural, kind in kinds.items()
    ]


_RETIRED: Final[Sequence[Resource]] = _of(
    "tinkerbell.org", "v1alpha1", {"hardware": "Hardware", "templates": "Template", "workflows": "Workflow"}
)


def retired(registry: Registry) -> list[Resource]:
    """What is known and not served, of groups that are served otherwise."""
    served = {(one.group, one.version) for one in registry.all()}
    groups = {group for group, _ in served}
    return [one for one in _RETIRED if one.group in groups and (one.group, one.version) not in served]


def advice(group: str, version: str, plural: str) -> str:
    """What to do about objects of a version that is not served; empty: it is not known."""
    known = any((one.group, one.version, one.plural) == (group, version, plural) for one in _RETIRED)
    if not known:
        return ""
    return (
        f"{plural} of {group}/{version} are not served here: make today's of them with `tinkedge convert -f FILE --out "
        "FILE` (docs/migrating.md)"
    )
