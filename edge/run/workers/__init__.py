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

from edge.run.workers.channel import Channel, pair
from edge.run.workers.inbox import Inbox, say
from edge.run.workers.listening import WorkerSite, WorkerTftp
from edge.run.workers.log_lines import LogLines
from edge.run.workers.measures import cpu_seconds, resident_bytes
from edge.run.workers.messages import (
    Activity,
    Edges,
    Failed,
    KeptAway,
    LogLine,
    Message,
    Networks,
    Ping,
    Pong,
    Reread,
    ServerState,
    Up,
)
from edge.run.workers.pool import Pool, WorkersError
from edge.run.workers.worker import Sources, how_ended, start_process

__all__ = [
    "Activity",
    "Channel",
    "Edges",
    "Failed",
    "Inbox",
    "KeptAway",
    "LogLine",
    "LogLines",
    "Message",
    "Networks",
    "Ping",
    "Pong",
    "Pool",
    "Reread",
    "ServerState",
    "Sources",
    "Up",
    "WorkerSite",
    "WorkerTftp",
    "WorkersError",
    "cpu_seconds",
    "how_ended",
    "pair",
    "resident_bytes",
    "say",
    "start_process",
]
