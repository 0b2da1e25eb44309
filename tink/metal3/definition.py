"""What the CustomResourceDefinition of BareMetalHost says of versions: which are served, which is stored, who converts.

Pure: definitions in, patches (RFC 7386) out. A list is replaced whole by such a patch, so patches of `versions` carry
the resourceVersion that they were made of.
"""

from __future__ import annotations

from dataclasses import dataclass

from tink.api.metal3 import GROUP, HOST_VERSIONS
from tink.api.v1alpha2 import Raw
from tink.webhooks import Address

NAME = f"baremetalhosts.{GROUP}"
HARDWARE_DATA_NAME = f"hardwaredata.{GROUP}"

OLD, NEW = HOST_VERSIONS


@dataclass(frozen=True, slots=True)
class Definition:
    """`stored` are the versions that objects may be stored in: status.storedVersions."""

    raw: Raw
    versions: frozenset[str]
    served: frozenset[str]
    storage: str
    stored: tuple[str, ...]
    by_webhook: bool

    @classmethod
    def of(cls, raw: Raw) -> Definition:
        """As the API gives it."""
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
        """The patch that has objects stored as `name` from now on."""
        return self._with_versions([{**each, "storage": each["name"] == name} for each in self.raw["spec"]["versions"]])

    def without_served(self, name: str) -> Raw:
        """The patch that stops serving `name`."""
        versions = self.raw["spec"]["versions"]
        return self._with_versions([{**each, "served": each["served"] and each["name"] != name} for each in versions])

    def with_stored(self, name: str) -> Raw:
        """The patch of the status that says that every object is stored as `name`."""
        return {"metadata": self._version(), "status": {"storedVersions": [name]}}

    def _with_versions(self, versions: list[Raw]) -> Raw:
        return {"metadata": self._version(), "spec": {"versions": versions}}

    def _version(self) -> Raw:
        return {"resourceVersion": self.raw["metadata"]["resourceVersion"]}


def conversion(address: Address, bundle: bytes) -> Raw:
    """`spec.conversion` with a webhook at `address`."""
    webhook = {"clientConfig": address.client_config(bundle), "conversionReviewVersions": ["v1"]}
    return {"strategy": "Webhook", "webhook": webhook}


def conversion_patch(wanted: Raw) -> Raw:
    """The patch that makes `wanted` the `spec.conversion`, also of one with the other kind of address."""
    webhook = wanted["webhook"]
    config = {"url": None, "service": None, **webhook["clientConfig"]}
    return {"spec": {"conversion": {**wanted, "webhook": {**webhook, "clientConfig": config}}}}


def updated(found: Raw, wanted: Raw) -> Raw:
    """The patch that brings a definition up to date, but for which versions are served and stored: that is decided
    already. Versions that are not in `wanted` stay as they are.
    """
    now = {version["name"]: version for version in found["spec"]["versions"]}
    kept = {name: {key: version[key] for key in ("served", "storage")} for name, version in now.items()}
    new = {"served": True, "storage": False}
    versions = [{**version, **kept.get(version["name"], new)} for version in wanted["spec"]["versions"]]
    versions += [version for name, version in now.items() if name not in {each["name"] for each in versions}]
    metadata = {"resourceVersion": found["metadata"]["resourceVersion"]}
    spec = {key: value for key, value in wanted["spec"].items() if key != "conversion"}
    return {"metadata": metadata, "spec": {**spec, "versions": versions}}
