"""What a definition leaves out and is filled in when it is written."""

from __future__ import annotations

from tink.schema.values import Raw


def fill_in(new: Raw) -> None:
    """Fill in what a definition leaves out, in place (k8s.io/apiextensions-apiserver, apiextensions/v1/defaults.go)."""
    spec = new.setdefault("spec", {})
    names = spec.setdefault("names", {})
    if not names.get("singular") and names.get("kind"):
        names["singular"] = names["kind"].lower()
    if not names.get("listKind") and names.get("kind"):
        names["listKind"] = names["kind"] + "List"
    spec.setdefault("conversion", {"strategy": "None"})
    service = ((spec["conversion"].get("webhook") or {}).get("clientConfig") or {}).get("service")
    if service is not None:
        service.setdefault("port", 443)
    if not spec.get("preserveUnknownFields"):
        spec.pop("preserveUnknownFields", None)
