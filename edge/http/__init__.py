"""HTTP: what machines ask for in the course of a boot (`app`), and what operators do (`admin`)."""

from edge.http.admin import AdminApp, admin_runner
from edge.http.app import MAX_REFUSALS, MAX_SAID, SAY_AGAIN_SECONDS, HttpServices, MachineApp, Memory, machine_runner
from edge.http.connections import Runner, has_ended
from edge.http.metadata import MetadataSettings

__all__ = [
    "MAX_REFUSALS",
    "MAX_SAID",
    "SAY_AGAIN_SECONDS",
    "AdminApp",
    "HttpServices",
    "MachineApp",
    "Memory",
    "MetadataSettings",
    "Runner",
    "admin_runner",
    "has_ended",
    "machine_runner",
]
