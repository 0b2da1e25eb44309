"""How an object is named: one key, and one reference, for the whole house (Go's types.NamespacedName, and the part of
core/v1 ObjectReference that finds an object)."""

from __future__ import annotations

from typing import NamedTuple

from tink.api.v1alpha2 import Raw


class NamespacedName(NamedTuple):
    """Which object of a kind. As a string NAMESPACE/NAME; equal to the plain pair."""

    namespace: str
    """Empty for objects of the whole cluster."""
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    @classmethod
    def of(cls, obj: Raw) -> NamespacedName:
        """The key of an object that the API gave."""
        metadata = obj["metadata"]
        return cls(metadata.get("namespace", ""), metadata["name"])


class ObjectReference(NamedTuple):
    """An object of some kind, such as another one names."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"

    @property
    def key(self) -> NamespacedName:
        """Which one it is of its kind."""
        return NamespacedName(self.namespace, self.name)
