"""What runs actions: `protocol` says what each runtime can be asked, `choice` which one it is.

`oci` runs containers with runc or crun, `docker` with a container engine, `process` without any. They share `child` (a
program, to its end), `failure` (how an action says why it failed), `volume` and `host`.
"""

from __future__ import annotations

from tink.agent.runtimes.choice import make_runtime
from tink.agent.runtimes.process import run_child
from tink.agent.runtimes.runtime import Runtime

__all__ = ["Runtime", "make_runtime", "run_child"]
