"""The controllers that one machine needs: garbage collection, and the end of namespaces, definitions and Events."""

from tink.kubeapi.apiserver.controllers.garbage_collector import GarbageCollector
from tink.kubeapi.apiserver.controllers.lifecycle import Lifecycle

__all__ = ["GarbageCollector", "Lifecycle"]
