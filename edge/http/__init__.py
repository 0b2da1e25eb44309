"""HTTP: what machines ask for in the course of a boot (`app`), and what operators do (`admin`)."""

from edge.http.admin import AdminApp, admin_runner
from edge.http.app import MachineApp, machine_runner
from edge.http.metadata import MetadataSettings

__all__ = ["AdminApp", "MachineApp", "MetadataSettings", "admin_runner", "machine_runner"]
