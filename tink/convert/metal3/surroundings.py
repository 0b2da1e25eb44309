"""What is known of a host outside of itself: what inspection found, and the Secrets that its spec refers to.

A Secret of another namespace is never read: whoever may write a host would read it in the Hardware. Of user-data it is
looked only under which key it stands.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

import orjson

from tink.api.v1alpha2 import Raw, as_mapping
from tink.convert import constraints
from tink.convert.documents import Lookup
from tink.convert.fields import Fields, join
from tink.convert.findings import Findings
from tink.convert.metal3 import network_data
from tink.kube.objects import NamespacedName

USER_DATA, NETWORK_DATA, META_DATA = "userData", "networkData", "metaData"
DETAILS_ANNOTATION = "inspect.metal3.io/hardwaredetails"
"""On a host: what inspection would find, as somebody has written it."""

_FALLBACK_KEY = "value"
"""Where Secrets have what is not under its own name: so Cluster API's bootstrap providers write them."""
_DETAILS = "HardwareData.spec.hardware"


def secrets_to_read(host: Raw, namespace: str) -> dict[NamespacedName, str]:
    """The Secrets whose content a conversion of `host` needs, each with the field that names it.

    Never that of user-data.
    """
    spec = as_mapping(host.get("spec"))
    names = {f"spec.{key}": as_mapping(spec.get(key)) for key in (NETWORK_DATA, META_DATA)}
    if spec.get(NETWORK_DATA) is None:
        names["spec.preprovisioningNetworkDataName"] = {"name": spec.get("preprovisioningNetworkDataName")}
    found: dict[NamespacedName, str] = {}
    for path, each in names.items():
        name = each.get("name")
        if isinstance(name, str) and name and each.get("namespace") in (None, "", namespace):
            found.setdefault(NamespacedName(namespace, name), path)
    return found


class Surroundings:
    """Of one host. `details` are HardwareDetails ({} if nobody has looked), `details_path` is where they stand."""

    def __init__(self, obj: Raw, spec: Fields, findings: Findings, lookup: Lookup, namespace: str) -> None:
        self._obj = obj
        self._spec = spec
        self._findings = findings
        self._lookup = lookup
        self._namespace = namespace
        self.details, self.details_path = self._find_details()

    def secret_name(self, key: str) -> str:
        """The Secret that a field of `spec` refers to; empty if to none that may be read."""
        reference = self._spec.fields(key)
        name, namespace = reference.text("name") or "", reference.text("namespace") or ""
        reference.rest()
        if name and namespace not in ("", self._namespace):
            self._findings.dropped(
                reference.at("namespace"),
                f"a host's Secrets are in its own namespace, {self._namespace}: copy Secret {name} to there",
            )
            return ""
        if name and (refusal := constraints.object_name(name)):
            self._findings.dropped(reference.at("name"), refusal)
            return ""
        return name

    def document(self, key: str) -> Any:
        """What the Secret of a field holds, as YAML or JSON; None if there is nothing to be had."""
        name = self.secret_name(key)
        if key == NETWORK_DATA and as_mapping(self._obj.get("spec")).get(NETWORK_DATA) is None:
            name = self._spec.text("preprovisioningNetworkDataName") or ""
            if name and (refusal := constraints.object_name(name)):
                self._findings.dropped("spec.preprovisioningNetworkDataName", refusal)
                return None
        if not name:
            return None
        content = self._content(key, name)
        if content is None:
            return None
        try:
            return network_data.parsed(content.decode())
        except ValueError as error:
            why = "is not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
            self._findings.dropped(f"spec.{key}", f"Secret {self._namespace}/{name} {why}")
            return None

    def key_of(self, key: str, name: str) -> str:
        """Under which key a Secret that may not be read further has what `key` is for; empty if that is not known."""
        secret = self._lookup("Secret", self._namespace, name)
        if secret is None:
            return ""
        held = {**as_mapping(secret.get("data")), **as_mapping(secret.get("stringData"))}
        for place in (key, _FALLBACK_KEY):
            if held.get(place) is not None:
                return place
        self._findings.changed(f"spec.{key}", f"Secret {name} has no key {key} or {_FALLBACK_KEY}: add it")
        return ""

    def _content(self, key: str, name: str) -> bytes | None:
        """What a Secret holds under `key`, or under the key that stands for any."""
        secret = self._lookup("Secret", self._namespace, name)
        path = f"spec.{key}"
        if secret is None:
            self._findings.dropped(path, f"Secret {self._namespace}/{name} is not there: add it")
            return None
        for place in (key, _FALLBACK_KEY):
            try:
                content = _value(secret, place)
            except (ValueError, TypeError):
                self._findings.dropped(path, f"Secret {self._namespace}/{name}: the value of {place} is not base64")
                return None
            if content is not None:
                return content
        self._findings.dropped(path, f"Secret {self._namespace}/{name} has no key {key} or {_FALLBACK_KEY}: add it")
        return None

    def _find_details(self) -> tuple[Raw, str]:
        """What inspection found, and where that stands: HardwareData, the status, or what somebody wrote by hand."""
        found = as_mapping(
            self._lookup("HardwareData", self._namespace, str(as_mapping(self._obj.get("metadata")).get("name")))
        )
        if details := as_mapping(as_mapping(found.get("spec")).get("hardware")):
            return details, _DETAILS
        if details := as_mapping(as_mapping(self._obj.get("status")).get("hardware")):
            return details, "status.hardware"
        by_hand = as_mapping(as_mapping(self._obj.get("metadata")).get("annotations")).get(DETAILS_ANNOTATION)
        if isinstance(by_hand, str):
            try:
                return as_mapping(orjson.loads(by_hand)), join("metadata.annotations", DETAILS_ANNOTATION)
            except orjson.JSONDecodeError as error:
                self._findings.dropped(join("metadata.annotations", DETAILS_ANNOTATION), f"is not JSON: {error}")
        return {}, _DETAILS


def _value(secret: Raw, key: str) -> bytes | None:
    """The value of a key of a Secret, as the API gives it or as people write it. Raises ValueError, TypeError."""
    written = as_mapping(secret.get("stringData")).get(key)
    if isinstance(written, str):
        return written.encode(errors="replace")
    value = as_mapping(secret.get("data")).get(key)
    if value is None:
        return None
    try:
        return base64.b64decode("".join(value.split()), validate=True)
    except (binascii.Error, AttributeError) as error:
        raise ValueError(key) from error
