"""Diagnosis: the checks of `tinkedge doctor`, its probe of the network, and the capture of `tinkedge watch --capture`.

`doctor` lists the checks in their order. The other modules have one subject each and yield findings (`findings`).

    capture (scapy) -> frames -> lines for a terminal
    dhcp_servers (scapy), tftp (tftpy), inbound (bpf(2)): the network, asked as a machine would

scapy and tftpy are the extra `diagnose` (`extra`). No service imports them.
"""

from edge.doctor.capture import CapturedLine, Listening, Timed, in_order
from edge.doctor.data_directory import check_backups, check_data_directory
from edge.doctor.discovery import check_discovery
from edge.doctor.doctor import ExaminedServices, check_serving, probe
from edge.doctor.extra import DiagnoseError
from edge.doctor.findings import Finding, Severity, note, passed, problem, warning
from edge.doctor.host import is_clock_synchronised
from edge.doctor.lab import check_lab, kubectl_path
from edge.doctor.ports import PORTS, Port
from edge.doctor.services import (
    check_api_addresses,
    check_api_users,
    check_certificates,
    check_osies,
    check_running_edge,
    check_upstream_edge,
)
from edge.doctor.tinkerbell import check_tinkerbell

__all__ = [
    "PORTS",
    "CapturedLine",
    "DiagnoseError",
    "ExaminedServices",
    "Finding",
    "Listening",
    "Port",
    "Severity",
    "Timed",
    "check_api_addresses",
    "check_api_users",
    "check_backups",
    "check_certificates",
    "check_data_directory",
    "check_discovery",
    "check_lab",
    "check_osies",
    "check_running_edge",
    "check_serving",
    "check_tinkerbell",
    "check_upstream_edge",
    "in_order",
    "is_clock_synchronised",
    "kubectl_path",
    "note",
    "passed",
    "probe",
    "problem",
    "warning",
]
