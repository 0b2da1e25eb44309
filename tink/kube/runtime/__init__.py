"""The parts of a controller, as in controller-runtime.

A `Controller` takes keys from its `WorkQueue` and reconciles them. `leaderelection` selects the replica that works.
An `EventRecorder` writes Kubernetes Events.
"""

from tink.kube.runtime.controller import DONE, Controller, Result, WorkQueue, controller_log
from tink.kube.runtime.events import Event, EventRecorder
from tink.kube.runtime.leaderelection import (
    LeaderElectionConfig,
    LeaderElector,
    LeadershipLostError,
    Pod,
    own_pod,
    pod_namespace,
    run_as_leader,
    steady,
    while_leading,
)  # fmt: skip

__all__ = [
    "DONE", "Controller", "Event", "EventRecorder", "LeaderElectionConfig", "LeaderElector", "LeadershipLostError",
    "Pod", "Result", "WorkQueue", "controller_log", "own_pod", "pod_namespace", "run_as_leader", "steady",
    "while_leading",
]  # fmt: skip
