"""Runs actions. `runtime` defines the interface and what all runtimes share, `choice` selects a runtime.

`oci` runs containers with runc or crun, `docker` with a container engine, `process` runs plain processes.
"""

from __future__ import annotations

from tink.agent.runtimes.choice import make_runtime
from tink.agent.runtimes.process import run_child
from tink.agent.runtimes.runtime import Runtime

__all__ = ["Runtime", "make_runtime", "run_child"]
