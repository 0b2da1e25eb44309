"""What every controller is made of, as in controller-runtime.

A `Controller` takes keys from its `workqueue` and has them reconciled; `fairness` has namespaces take turns. Of several
replicas the one works that `leaderelection` chose. An `EventRecorder` says what is worth an Event.
"""

from tink.kube.runtime.controller import DONE, Controller, Result, controller_log
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
)
from tink.kube.runtime.workqueue import WorkQueue
from tink.limits.fairness import FairSemaphore

__all__ = [
    "DONE",
    "Controller",
    "Event",
    "EventRecorder",
    "FairSemaphore",
    "LeaderElectionConfig",
    "LeaderElector",
    "LeadershipLostError",
    "Pod",
    "Result",
    "WorkQueue",
    "controller_log",
    "own_pod",
    "pod_namespace",
    "run_as_leader",
    "steady",
    "while_leading",
]
