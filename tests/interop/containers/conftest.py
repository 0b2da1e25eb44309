"""What the tests of containers share: the example actions, built once, and a machine that runs them with runc."""

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

import pytest

from tests.interop.containers.engines import run, start_docker, start_podman
from tests.interop.containers.machine import Machine

ACTIONS = Path(__file__).parents[3] / "deploy" / "actions"


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


@pytest.fixture(scope="module")
def registry(actions, docker_registry, tmp_path_factory):
    """host:port of a docker-registry that holds the example actions and a few of the test's own."""
    directory = tmp_path_factory.mktemp("images")
    run(ACTIONS / "push.sh", actions, docker_registry)
    user = directory / "user"
    shutil.copytree(actions / "inspect", user)
    (directory / "etc").mkdir()
    (directory / "etc" / "passwd").write_text("root:x:0:0::/:/bin/sh\nwriter:x:1234:1235::/:/bin/sh\n")
    (directory / "etc" / "group").write_text("root:x:0:\nwriter:x:1235:\ndisk:x:6:writer\n")
    run("umoci", "insert", "--image", f"{user}:1", directory / "etc", "/etc")
    run("umoci", "config", "--image", f"{user}:1", "--config.user", "writer", "--config.workingdir", "/tmp")
    run(
        "skopeo", "copy", "--quiet", "--insecure-policy", "--dest-tls-verify=false",
        f"oci:{user}:1", f"docker://{docker_registry}/actions/user:1",
    )  # fmt: skip
    return docker_registry


@pytest.fixture(scope="module")
def state_dir(tmp_path_factory):
    """One for all tests, so that each image is unpacked once."""
    return tmp_path_factory.mktemp("state")


@pytest.fixture
async def machine(state_dir, registry):
    machine = Machine(state_dir, registry)
    await machine.runtime.prepare()
    yield machine
    assert machine.leftovers() == ([], [], [])
