"""Receives the log lines of booting machines by syslog, and stores them for each machine.

server     UDP port 514
receiver   identifies the machine, limits its rate, reports its lines
files      the file of each machine
message    parses a datagram
"""

from edge.syslog.files import LogFiles
from edge.syslog.receiver import MachineLogs, syslog_metrics
from edge.syslog.server import SYSLOG_PORT, SyslogServer, SyslogServerError

__all__ = ["SYSLOG_PORT", "LogFiles", "MachineLogs", "SyslogServer", "SyslogServerError", "syslog_metrics"]
