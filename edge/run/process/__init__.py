"""The life of a process that serves: what it tells the service manager, and how it is told to read files again.

`notify` speaks sd_notify(3)'s protocol, `watchdog` says that the process lives while it does, `status` is the line that
`systemctl status` shows, `reload` is what SIGHUP does, `health` answers probes, `heap` settles the memory of very many
machines.
"""

from edge.run.process.health import HealthError, HealthServer, OperatorAddresses
from edge.run.process.heap import read_up, settle
from edge.run.process.notify import Notifier
from edge.run.process.reload import Reload, Step
from edge.run.process.status import report, status_line
from edge.run.process.watchdog import Watchdog, starting

__all__ = [
    "HealthError",
    "HealthServer",
    "Notifier",
    "OperatorAddresses",
    "Reload",
    "Step",
    "Watchdog",
    "read_up",
    "report",
    "settle",
    "starting",
    "status_line",
]
