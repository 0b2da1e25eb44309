"""Containers without an engine: described (`bundle`), run with runc or crun (`runc`), with `mounts` and `cgroups`.

Format: OCI runtime specification 1.0.
"""

from __future__ import annotations

from tink.agent.runtimes.oci.runc import ContainerRuntime

__all__ = ["ContainerRuntime"]
