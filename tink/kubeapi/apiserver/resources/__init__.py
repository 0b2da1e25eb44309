"""The served resources: the registry, Kubernetes' built-in resources, and those that definitions describe.

`builtin`, `definitions` and `webhook_configurations` are imported by name, the registry through this package.
"""

from tink.kubeapi.apiserver.resources.registry import (
    VERBS,
    Registry,
    Resource,
    Rules,
    ScalePaths,
    builtin_resource,
    retired_resources,
    retirement_advice,
)

__all__ = [
    "VERBS",
    "Registry",
    "Resource",
    "Rules",
    "ScalePaths",
    "builtin_resource",
    "retired_resources",
    "retirement_advice",
]
