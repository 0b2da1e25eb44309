"""What is always there in an object of a built-in resource, even if nobody sets it.

Kubernetes keeps built-in objects in Go structs, in which a struct that is not behind a pointer always exists. Setting a
field in it does not make the struct appear, so nobody comes to own the struct itself (k8s.io/api; seen on a real
server). For custom resources there is no such thing.
"""

from __future__ import annotations

from collections.abc import Mapping

from tink.kubeapi.schema import Raw

_BLANK: Mapping[tuple[str, str], Raw] = {
    ("", "ConfigMap"): {},
    ("", "Event"): {
        "eventTime": None,
        "firstTimestamp": None,
        "involvedObject": {},
        "lastTimestamp": None,
        "reportingComponent": "",
        "reportingInstance": "",
        "source": {},
    },
    ("", "Namespace"): {"spec": {}, "status": {}},
    ("", "Secret"): {},
    ("admissionregistration.k8s.io", "MutatingWebhookConfiguration"): {},
    ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration"): {},
    ("apiextensions.k8s.io", "CustomResourceDefinition"): {
        "spec": {"names": {}},
        "status": {"acceptedNames": {}, "conditions": None, "storedVersions": None},
    },
    ("coordination.k8s.io", "Lease"): {"spec": {}},
    ("events.k8s.io", "Event"): {
        "deprecatedFirstTimestamp": None,
        "deprecatedLastTimestamp": None,
        "deprecatedSource": {},
        "eventTime": None,
        "regarding": {},
    },
}


def blank_of(group: str, kind: str) -> Raw | None:
    """Give what is always there in objects of a built-in resource; None for custom resources."""
    return _BLANK.get((group, kind))
