"""The resource types that this program reads and writes, and their URL paths in a Kubernetes API."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import quote

from tink.api import metal3
from tink.api.v1alpha2 import GROUP, RUFIO_GROUP, RUFIO_VERSION, VERSION


@dataclass(frozen=True, slots=True)
class ResourceType:
    """A resource type with the path of its collection (Kubernetes API concepts, "Resource URIs")."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """The value of the field `apiVersion` of its objects."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """Return the URL path of an object, or of a collection without `name` (of all namespaces without `namespace`).

        Raises ValueError for an object of a namespaced type without a namespace.
        """
        if self.namespaced and name is not None and not namespace:
            raise ValueError(f"{self.kind} {name}: an object of a namespaced type needs its namespace")
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        parts += [part for part in (name, subresource) if part is not None]
        return "/" + "/".join(map(_escaped, parts))


@lru_cache(4096)
def _escaped(part: str) -> str:
    """Return an escaped part of a path. Cached, because few parts come again and again, and escaping takes long."""
    return quote(part, safe="")


HARDWARE = ResourceType(GROUP, VERSION, "hardware", "Hardware")
OSIE = ResourceType(GROUP, VERSION, "osies", "OSIE")
TEMPLATE = ResourceType(GROUP, VERSION, "templates", "Template")
WORKFLOW = ResourceType(GROUP, VERSION, "workflows", "Workflow")
OLD_HARDWARE, OLD_TEMPLATE, OLD_WORKFLOW, WORKFLOW_RULE_SET = (
    ResourceType(GROUP, "v1alpha1", plural, kind)
    for plural, kind in (
        ("hardware", "Hardware"),
        ("templates", "Template"),
        ("workflows", "Workflow"),
        ("workflowrulesets", "WorkflowRuleSet"),
    )
)
"""The same objects in Tinkerbell's v1alpha1, where an API serves it, and a kind that v1alpha2 does not have."""
HOST_V1ALPHA1 = ResourceType(metal3.GROUP, "v1alpha1", "baremetalhosts", "BareMetalHost")
HOST_V1BETA1 = ResourceType(metal3.GROUP, "v1beta1", "baremetalhosts", "BareMetalHost")
HARDWARE_DATA = ResourceType(metal3.GROUP, "v1alpha1", "hardwaredata", "HardwareData")
MACHINE = ResourceType(RUFIO_GROUP, RUFIO_VERSION, "machines", "Machine")
"""The BMC of a machine."""
JOB = ResourceType(RUFIO_GROUP, RUFIO_VERSION, "jobs", "Job")
"""Tasks for a BMC."""
TASK = ResourceType(RUFIO_GROUP, RUFIO_VERSION, "tasks", "Task")
NAMESPACE = ResourceType("", "v1", "namespaces", "Namespace", namespaced=False)
CONFIG_MAP = ResourceType("", "v1", "configmaps", "ConfigMap")
SECRET = ResourceType("", "v1", "secrets", "Secret")
EVENT = ResourceType("", "v1", "events", "Event")
LEASE = ResourceType("coordination.k8s.io", "v1", "leases", "Lease")
CRD = ResourceType(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)
