"""Patches (RFC 7386) of the CustomResourceDefinition of BareMetalHost: served versions and storage version.

Pure. Such a patch replaces a list whole, so patches of `versions` carry the resourceVersion that they were made from.
"""

from __future__ import annotations

from dataclasses import dataclass

from tink.api.metal3 import GROUP, HOST_VERSIONS
from tink.api.v1alpha2 import Raw

NAME = f"baremetalhosts.{GROUP}"
HARDWARE_DATA_NAME = f"hardwaredata.{GROUP}"

OLD, NEW = HOST_VERSIONS


@dataclass(frozen=True, slots=True)
class Definition:
    """The versions of a CustomResourceDefinition.

    `stored` are the versions in which objects may be stored: status.storedVersions.
    """

    raw: Raw
    versions: frozenset[str]
    served: frozenset[str]
    storage: str
    stored: tuple[str, ...]
    by_webhook: bool

    @classmethod
    def of(cls, raw: Raw) -> Definition:
        """Return the versions of a definition from the API."""
        versions = raw["spec"]["versions"]
        return cls(
            raw,
            frozenset(version["name"] for version in versions),
            frozenset(version["name"] for version in versions if version["served"]),
            next(version["name"] for version in versions if version["storage"]),
            tuple(raw.get("status", {}).get("storedVersions") or ()),
            (raw["spec"].get("conversion") or {}).get("strategy") == "Webhook",
        )

    def with_storage(self, name: str) -> Raw:
        """Return the patch that stores objects as `name` from now on."""
        return self._with_versions([{**each, "storage": each["name"] == name} for each in self.raw["spec"]["versions"]])

    def without_served(self, name: str) -> Raw:
        """Return the patch that stops serving `name`."""
        versions = self.raw["spec"]["versions"]
        return self._with_versions([{**each, "served": each["served"] and each["name"] != name} for each in versions])

    def with_stored(self, name: str) -> Raw:
        """Return the patch of the status that says that every object is stored as `name`."""
        return {"metadata": self._version(), "status": {"storedVersions": [name]}}

    def _with_versions(self, versions: list[Raw]) -> Raw:
        return {"metadata": self._version(), "spec": {"versions": versions}}

    def _version(self) -> Raw:
        return {"resourceVersion": self.raw["metadata"]["resourceVersion"]}
