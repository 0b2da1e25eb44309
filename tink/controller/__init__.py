"""The controller: prepares Workflows, watches over those that run, cancels and releases those that are deleted.

`reconcile` decides (pure), `ages` says how old timestamps are, `controller` reads from informers and writes to the API.
Which object is looked at when, and by which replica, is up to `tink.kube.runtime`; `events` says what is worth an
Event.
"""

from tink.controller.controller import WorkflowController
from tink.controller.reconcile import unusable
from tink.controller.settings import ControllerSettings

__all__ = ["ControllerSettings", "WorkflowController", "unusable"]
