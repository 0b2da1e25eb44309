"""HTTP: what machines ask for in the course of a boot (`app`), and what operators do (`admin`)."""

from edge.http.admin import AdminApp, admin_runner
from edge.http.app import HttpServices, MachineApp, machine_runner
from edge.http.connections import Runner, has_ended
from edge.http.metadata import MetadataSettings

__all__ = [
    "AdminApp",
    "HttpServices",
    "MachineApp",
    "MetadataSettings",
    "Runner",
    "admin_runner",
    "has_ended",
    "machine_runner",
]
