"""HTTP: what machines ask for in the course of a boot (`app`), and what operators do (`admin`)."""

from edge.http.admin import AdminApp, admin_runner
from edge.http.app import MachineApp, machine_runner
from edge.http.metadata import MetadataSettings
from edge.http.transport.connections import Runner, has_ended

__all__ = [
    "AdminApp",
    "MachineApp",
    "MetadataSettings",
    "Runner",
    "admin_runner",
    "has_ended",
    "machine_runner",
]
