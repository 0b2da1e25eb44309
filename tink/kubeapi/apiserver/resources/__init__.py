"""What is served: the registry of resources, Kubernetes' own among them (`builtin`), and what definitions describe.

`builtin`, `definitions` and `webhook_configurations` are imported by name, all else comes through this door.
"""

from tink.kubeapi.apiserver.resources.registry import VERBS, Registry, Resource, Rules, ScalePaths, advice, retired

__all__ = ["VERBS", "Registry", "Resource", "Rules", "ScalePaths", "advice", "retired"]
