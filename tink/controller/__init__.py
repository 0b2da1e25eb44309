"""The controller: prepares Workflows, watches over those that run, cancels and releases those that are deleted.

`reconcile` decides (pure), `controller` reads from informers and writes to the API. Which object is looked at when, and
by which replica, is up to `tink.kube.runtime`. `upstream` detects a Tinkerbell on the same API.
"""

from tink.controller.controller import WorkflowController
from tink.controller.reconcile import unusable
from tink.controller.settings import ControllerSettings
from tink.controller.upstream import Conflict, UpstreamWatch, find_conflicts, followed_definitions

__all__ = [
    "Conflict",
    "ControllerSettings",
    "UpstreamWatch",
    "WorkflowController",
    "find_conflicts",
    "followed_definitions",
    "unusable",
]
