"""Which writes a webhook is asked about: rules and label selectors, compiled once per configuration.

The rules are those of k8s.io/apiserver, pkg/admission/plugin/webhook/predicates; the selectors are LabelSelector
objects (k8s.io/apimachinery, pkg/apis/meta/v1). Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tink.kubeapi.apiserver.requests import Labels, Match, requirement
from tink.kubeapi.apiserver.resources import Resource

_EXEMPT = frozenset(
    f"{kind}{part}"
    for kind in ("Validating", "Mutating")
    for part in ("WebhookConfiguration", "AdmissionPolicy", "AdmissionPolicyBinding")
)


def exempt(resource: Resource) -> bool:
    """Whether webhooks are never asked: they could lock out the very configuration that is wrong."""
    return resource.group == "admissionregistration.k8s.io" and resource.kind in _EXEMPT


def is_namespaces(resource: Resource) -> bool:
    """Whether the resource is that of namespaces, which are in themselves and yet of cluster scope."""
    return not resource.group and resource.plural == "namespaces"


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: each set holds what is matched, or `*`. `resources` are (resource, subresource)."""

    operations: frozenset[str]
    groups: frozenset[str]
    versions: frozenset[str]
    resources: frozenset[tuple[str, str]]
    scope: str

    @staticmethod
    def of(rule: Mapping[str, Any]) -> Rule:
        """Compile a RuleWithOperations."""
        split = (item.partition("/") for item in rule.get("resources") or ())
        return Rule(
            frozenset(rule.get("operations") or ()),
            frozenset(rule.get("apiGroups") or ()),
            frozenset(rule.get("apiVersions") or ()),
            frozenset((resource, subresource) for resource, _, subresource in split),
            rule.get("scope") or "*",
        )

    def asks(self, operation: str, resource: Resource, subresource: str) -> bool:
        """Whether the rule is about this operation on this resource, in this version."""
        if resource.version not in self.versions and "*" not in self.versions:
            return False
        if operation not in self.operations and "*" not in self.operations:
            return False
        if resource.group not in self.groups and "*" not in self.groups:
            return False
        if self.scope != "*" and (self.scope == "Namespaced") != resource.namespaced:
            return False
        pairs = self.resources
        return (
            (resource.plural, subresource) in pairs
            or ("*", subresource) in pairs
            or (resource.plural, "*") in pairs
            or ("*", "*") in pairs
        )


def compile_selector(selector: Mapping[str, Any] | None) -> Match | None:
    """Compile a LabelSelector; None when it selects everything."""
    selector = selector or {}
    tests = [requirement(key, "In", [value]) for key, value in (selector.get("matchLabels") or {}).items()]
    tests += [
        requirement(item.get("key", ""), item.get("operator", ""), item.get("values") or ())
        for item in selector.get("matchExpressions") or ()
    ]
    if not tests:
        return None
    return tests[0] if len(tests) == 1 else lambda labels: all(holds(labels) for holds in tests)


def labels_of(obj: Mapping[str, Any] | None) -> Labels | None:
    """Give the labels of an object, None when there is no object. Labels that are none are no labels."""
    if obj is None:
        return None
    fields = obj.get("metadata")
    found = fields.get("labels") if isinstance(fields, Mapping) else None
    return found if isinstance(found, Mapping) else {}
