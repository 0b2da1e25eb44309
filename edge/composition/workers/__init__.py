"""Machines served by several processes: `--workers`.

pool          the main process: keeps workers alive, gives each its share of every port, tells them what there is
worker        one of them, as the main process sees it; feed: the objects of the API that it is told
lending       what it opens and reads for a worker; inbox: what that has seen, for the journey and the log
listening     what stands in for an HTTP site and a TFTP server, where workers are those
serve         the worker itself; borrowing: artifacts and Secrets there; shared: what workers know of each other
log_lines     its log
channel, messages   what goes between the two, and how
measures      what the kernel says of a worker
"""

from edge.composition.workers.inbox import Inbox
from edge.composition.workers.listening import WorkerSite, WorkerTftp
from edge.composition.workers.measures import cpu_seconds
from edge.composition.workers.messages import Edges, Networks
from edge.composition.workers.pool import Pool, WorkersError
from edge.composition.workers.worker import Sources

__all__ = ["Edges", "Inbox", "Networks", "Pool", "Sources", "WorkerSite", "WorkerTftp", "WorkersError", "cpu_seconds"]
