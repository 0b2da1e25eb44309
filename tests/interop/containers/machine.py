"""A machine that runs actions with runc."""

import asyncio
import shutil
from pathlib import Path

from tink.agent.images.registry import Registries
from tink.agent.images.store import ImageStore
from tink.agent.model import Action
from tink.agent.runtimes.oci.runc import ContainerRuntime


class Machine:
    """A runtime with its state, and one action of a shell script."""

    def __init__(self, state_dir, registry, program="runc", **more):
        self.state_dir = state_dir
        self.registry = registry
        self.runtime = ContainerRuntime(
            shutil.which(program), state_dir, ImageStore(state_dir, Registries()), grace_seconds=0.3, **more
        )

    async def action(self, action, stop=None):
        stop = stop or asyncio.Event()
        await self.runtime.pull(action.image, stop)
        return await self.runtime.run(action, stop)

    def shell(self, script, image="inspect", **more):
        image = f"{self.registry}/actions/{image}:1"
        return Action("a", "act", image, cmd="/bin/sh", args=("-c", script), **more)

    async def sh(self, script, **more):
        return await self.action(self.shell(script, **more))

    def leftovers(self):
        """What an ended action has left: its directory, mounts, container states."""
        mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
        containers = self.state_dir / "containers"
        return (
            list((self.state_dir / "run").iterdir()),
            [mount for mount in mounts if mount.startswith(str(self.state_dir))],
            list(containers.iterdir()) if containers.exists() else [],
        )
