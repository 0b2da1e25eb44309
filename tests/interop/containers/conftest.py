"""Fixtures for tests of containers: images, and machines that run actions with runc, crun, Docker and Podman."""

import asyncio
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.interop.containers.engines import run, start_docker, start_podman
from tests.waiting import until
from tink.agent.images.registry import Registries
from tink.agent.images.store import ImageStore
from tink.agent.model import RenderedAction
from tink.agent.runtimes.docker import DockerRuntime
from tink.agent.runtimes.oci import ContainerRuntime

ROOT = Path(__file__).parents[3]
ACTIONS = ROOT / "deploy" / "actions"
AGENT = "52:54:00:00:00:01"
PASSWD = "root:x:0:0::/:/bin/sh\nwriter:x:1234:1235::/home/writer:/bin/sh\n"
GROUP = "root:x:0:\nwriter:x:1235:\ndisk:x:6:writer\n"
IMAGES = {
    "plain": (),
    "entry": ("--config.entrypoint", "/bin/echo", "--config.entrypoint", "entry", "--config.cmd", "image's"),
    "writer": ("--config.user", "writer", "--config.workingdir", "/not/there", "--config.volume", "/data/deep"),
    "ghost": ("--config.user", "ghost"),
}
# crun where it does not see a mixture of cgroup versions, which it refuses.
CRUN = """#!/bin/sh
exec unshare -m sh -c 'umount /sys/fs/cgroup/unified 2>/dev/null; exec crun "$@"' sh "$@"
"""


@pytest.fixture(scope="session")
def actions(tmp_path_factory):
    """The example actions of deploy/actions, built: a directory with an image layout of each. Not to be changed."""
    shared = tmp_path_factory.getbasetemp()
    shared = shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared
    with (shared / "actions.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of several workers, one builds
        if not (shared / "actions.built").exists():
            run(ACTIONS / "build.sh", shared / "actions")
            (shared / "actions.built").touch()
    return shared / "actions"


@pytest.fixture(scope="session")
def docker(tmp_path_factory):
    """Debian's dockerd. Tests take their containers away; images and volumes have names of their own."""
    engine = start_docker(tmp_path_factory.mktemp("docker"))
    yield engine
    engine.end()


@pytest.fixture(scope="session")
def podman():
    """Debian's podman, which takes no directory for what runs whose name is longer than 50 characters."""
    with tempfile.TemporaryDirectory(prefix="podman-") as directory:
        engine = start_podman(Path(directory))
        yield engine
        engine.end()


@pytest.fixture(scope="session")
def registry(actions, docker_registry, tmp_path_factory):
    """host:port of a docker-registry that holds the example actions, and busybox in each configuration of `IMAGES`."""
    run(ACTIONS / "push.sh", actions, docker_registry)
    directory = tmp_path_factory.mktemp("images")
    layout = directory / "inspect"
    shutil.copytree(actions / "inspect", layout)
    (directory / "etc").mkdir()
    (directory / "etc" / "passwd").write_text(PASSWD)
    (directory / "etc" / "group").write_text(GROUP)
    run("umoci", "insert", "--image", f"{layout}:1", directory / "etc", "/etc")
    cleared = [
        "--clear",
        "config.entrypoint",
        "--clear",
        "config.cmd",
        "--config.env",
        "A=image",
        "--config.env",
        "B=b",
    ]
    run("umoci", "config", "--image", f"{layout}:1", "--tag", "plain", *cleared)
    for name, settings in IMAGES.items():
        if settings:
            run("umoci", "config", "--image", f"{layout}:plain", "--tag", name, *settings)
        copy = ("skopeo", "copy", "--quiet", "--insecure-policy", "--dest-tls-verify=false")
        run(*copy, f"oci:{layout}:{name}", f"docker://{docker_registry}/alike/{name}:1")
    return docker_registry


def runtime_at(place, program="runc", *, agent=AGENT, registries=None, **settings):
    """A runtime: of the engine with this socket, or with this state directory."""
    registries = registries or Registries()
    if str(place).endswith(".sock"):
        return DockerRuntime(f"unix://{place}", agent, registries, **settings)
    return ContainerRuntime(shutil.which(program), Path(place), ImageStore(Path(place), registries), **settings)


def shell(registry, script, image="plain", **more):
    """An action of a shell script."""
    fields = {"id": "a", "args": ("-c", script), **more}
    return RenderedAction(name="act", image=f"{registry}/alike/{image}:1", cmd="/bin/sh", **fields)


class Machine:
    """Runs actions with the engine, or with runc or another program whose state is in `place`."""

    def __init__(self, registry, engine=None, place=None, program="runc"):
        self.registry, self.engine = registry, engine
        self.place, self.program = engine.socket if engine else place, program
        self.runtime = self.another(grace_seconds=0.3)

    def another(self, **settings):
        """Another runtime, as of an agent that is started again."""
        return runtime_at(self.place, self.program, **settings)

    async def action(self, action, stop=None):
        stop = stop or asyncio.Event()
        await self.runtime.pull(action.image, stop)
        return await self.runtime.run(action, stop)

    async def sh(self, script, stop=None, **more):
        return await self.action(shell(self.registry, script, **more), stop)

    async def kill_agent(self, script, directory):
        """Begin an action in an agent of its own, which is killed when `up` is in its HOST; the action."""
        action = shell(self.registry, script, id="died", volumes=(f"{directory}:/host",))
        program = "import sys; from tests.interop.containers import conftest; conftest.begin(*sys.argv[1:])"
        argv = [sys.executable, "-c", program, self.place, self.registry, directory, script]
        agent = subprocess.Popen([str(item) for item in argv], cwd=ROOT)
        await until((directory / "up").exists, "the action does not begin")
        agent.kill()
        agent.wait()
        return action

    async def leftovers(self):
        """Return leftovers of ended actions: containers and anonymous volumes, or directories, mounts and states."""
        if self.engine:
            anonymous = [name for name in await self.engine.volumes() if len(name) == 64]
            return await self.engine.containers() + anonymous
        mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
        places = [self.place / "run", self.place / "containers"]
        left = [found for place in places if place.exists() for found in place.iterdir()]
        return left + [mount for mount in mounts if mount.startswith(str(self.place))]


def begin(place, registry, directory, script):
    """Run an action, to be killed meanwhile."""

    async def main():
        runtime = runtime_at(place)
        action = shell(registry, script, id="died", volumes=(f"{directory}:/host",))
        await runtime.prepare()
        await runtime.pull(action.image, asyncio.Event())
        await runtime.run(action, asyncio.Event())

    asyncio.run(main())


@pytest.fixture
def which():
    """Return the name of the runtime that runs the actions."""
    return "runc"


@pytest.fixture(scope="session")
def machines():
    """Return the prepared machines by runtime: images are unpacked once, and requests to Podman are slow."""
    return {}


@pytest.fixture
async def machine(request, which, machines, registry, tmp_path_factory):
    """After the test, it has nothing left."""
    if which not in machines:
        if which in ("docker", "podman"):
            made = Machine(registry, request.getfixturevalue(which))
        else:
            directory = tmp_path_factory.mktemp("state")
            (directory / "crun").write_text(CRUN)
            (directory / "crun").chmod(0o755)
            program = str(directory / "crun") if which == "crun" else which
            made = Machine(registry, place=directory / "state", program=program)
        await made.runtime.prepare()
        machines[which] = made
    yield machines[which]
    assert await machines[which].leftovers() == []
