"""Keys and references of Kubernetes objects: Go's types.NamespacedName, and the part of core/v1 ObjectReference that
identifies an object."""

from __future__ import annotations

from typing import NamedTuple

from tink.api.v1alpha2 import Raw


class NamespacedName(NamedTuple):
    """The key of an object of one kind. As a string it is NAMESPACE/NAME; it equals the plain tuple."""

    namespace: str
    """Empty for a cluster-scoped object."""
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    @classmethod
    def of(cls, obj: Raw) -> NamespacedName:
        """Return the key of an object of the API."""
        metadata = obj["metadata"]
        return cls(metadata.get("namespace", ""), metadata["name"])


class ObjectReference(NamedTuple):
    """A reference to an object of any kind, as other objects have it."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"

    @property
    def key(self) -> NamespacedName:
        """The key of the object."""
        return NamespacedName(self.namespace, self.name)


def merge_patch(before: Raw, after: Raw) -> Raw:
    """Return the JSON merge patch (RFC 7396) that replaces `before` with `after`, also in mappings of mappings.

    Parts that both have alike are in the patch, too: it has the same effect on an object that has changed since.
    """
    patch: Raw = dict.fromkeys(before.keys() - after.keys())
    for key, value in after.items():
        old = before.get(key)
        patch[key] = merge_patch(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return patch
