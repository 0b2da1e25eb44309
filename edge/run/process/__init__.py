"""The life of a process that serves.

service_manager   messages to systemd: readiness, status, watchdog
reload            SIGHUP
health            probes and metrics over HTTP
memory            the memory that the process may use, and that of an edge with very many machines
"""

from edge.run.process.health import HealthServer, OperatorAddresses
from edge.run.process.memory import default_server_memory, read_up, settle
from edge.run.process.reload import Reload, Step
from edge.run.process.service_manager import Notifier, Watchdog, extend_start, report, status_line

__all__ = [
    "HealthServer",
    "Notifier",
    "OperatorAddresses",
    "Reload",
    "Step",
    "Watchdog",
    "default_server_memory",
    "extend_start",
    "read_up",
    "report",
    "settle",
    "status_line",
]
