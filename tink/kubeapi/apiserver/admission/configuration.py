"""Webhook configurations, compiled: what is known of each webhook before any write happens.

A MutatingWebhookConfiguration or ValidatingWebhookConfiguration is compiled when it is stored (`webhooks` is told of
each change); a write then only runs the predicates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tink.kubeapi.apiserver.admission.matching import Rule, compile_selector
from tink.kubeapi.apiserver.admission.review import VERSIONS
from tink.kubeapi.apiserver.requests import Match
from tink.kubeapi.apiserver.resources import Resource
from tink.kubeapi.schema import ClientConfig, Conditions


@dataclass(frozen=True, slots=True, eq=False)
class Hook:
    """One webhook. Selectors and conditions are None when they select everything."""

    name: str
    mutating: bool
    rules: tuple[Rule, ...]
    equivalent: bool
    """Whether it is also asked about other versions of the resources in its rules."""
    namespaces: Match | None
    objects: Match | None
    conditions: Conditions | None
    fails: bool
    """Whether a call that fails refuses the write."""
    timeout_s: int
    dry_runs: bool
    """Whether it may be asked about a dry run."""
    again: bool
    """Whether it is asked again when a later webhook has changed the object."""
    client: ClientConfig
    version: str
    """The version of AdmissionReview that it is sent, empty when it knows none of ours."""

    def target(
        self, operation: str, resource: Resource, subresource: str, versions: Callable[[Resource], Sequence[Resource]]
    ) -> Resource | None:
        """The resource, in the version in which this webhook wants to see it; None when no rule is about it.

        `versions` gives all versions of a resource that are served, under all its names.
        """
        if any(rule.asks(operation, resource, subresource) for rule in self.rules):
            return resource
        if not self.equivalent:
            return None
        others = versions(resource)
        candidates = (other for rule in self.rules for other in others if rule.asks(operation, other, subresource))
        return next(candidates, None)


def compile_hooks(configuration: Mapping[str, Any]) -> tuple[Hook, ...]:
    """Compile a stored configuration: its webhooks in their order."""
    mutating = configuration.get("kind") == "MutatingWebhookConfiguration"
    return tuple(_hook(item, mutating=mutating) for item in configuration.get("webhooks") or ())


def _hook(item: Mapping[str, Any], *, mutating: bool) -> Hook:
    spoken = [version for version in item.get("admissionReviewVersions") or () if version in VERSIONS]
    return Hook(
        name=item.get("name", ""),
        mutating=mutating,
        rules=tuple(Rule.of(rule) for rule in item.get("rules") or ()),
        equivalent=item.get("matchPolicy", "Equivalent") == "Equivalent",
        namespaces=compile_selector(item.get("namespaceSelector")),
        objects=compile_selector(item.get("objectSelector")),
        conditions=Conditions.of(item.get("matchConditions") or ()),
        fails=item.get("failurePolicy", "Fail") != "Ignore",
        timeout_s=item.get("timeoutSeconds") or 10,
        dry_runs=item.get("sideEffects") in ("None", "NoneOnDryRun"),
        again=item.get("reinvocationPolicy") == "IfNeeded",
        client=ClientConfig.of(item.get("clientConfig") or {}),
        version=spoken[0] if spoken else "",
    )
