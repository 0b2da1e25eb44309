"""What booting machines log over the network: received, told from what strangers send, kept for each machine."""

from edge.syslog.files import LogFiles
from edge.syslog.metrics import syslog_metrics
from edge.syslog.receiver import MachineLogs
from edge.syslog.server import SYSLOG_PORT, SyslogServer, SyslogServerError

__all__ = ["SYSLOG_PORT", "LogFiles", "MachineLogs", "SyslogServer", "SyslogServerError", "syslog_metrics"]
