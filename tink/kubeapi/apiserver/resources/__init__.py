"""What is served: the registry of resources, Kubernetes' own among them (`builtin`), and what definitions describe.

`builtin`, `definitions` and `webhook_configurations` are imported by name, all else comes through this door.
"""

from tink.kubeapi.apiserver.resources.registry import VERBS, Registry, Resource, Rules
from tink.kubeapi.apiserver.resources.retired import advice, retired
from tink.kubeapi.apiserver.resources.scale_paths import ScalePaths

__all__ = ["VERBS", "Registry", "Resource", "Rules", "ScalePaths", "advice", "retired"]
