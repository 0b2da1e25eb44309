"""What is served: the registry of resources, Kubernetes' own among them (`builtin`), and what definitions describe.

`definitions` and `webhook_configurations` are resources with rules of their own; they are imported by name.
"""

from tink.apiserver.resources.registry import VERBS, Registry, Resource

__all__ = ["VERBS", "Registry", "Resource"]
