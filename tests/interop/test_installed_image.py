"""The container image, run by podman as an unprivileged user with the capabilities that docs/installing.md names."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from edge.building.builder import default_cache
from tests.interop.installed import manifests
from tests.interop.installed.machine import Machine
from tests.interop.installed.package import package_of_this_run
from tests.interop.rack import ADDRESS, IN_EDGE, Kubectl, Namespaces, clean_environment
from tests.waiting import wait_until

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
MIB = 1 << 20
# What podman needs where root may not raise limits, and no bridge of its own is wanted.
_SETTINGS = """\
[containers]
default_ulimits = ["nofile=20000:20000", "nproc=32768:32768"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
"""


class Rack(Namespaces):
    """A network that the containers are in, too."""

    def plug(self, namespace: str, mac: str) -> None:
        self.namespaces[namespace] = namespace
        self.card(namespace, "eth0", mac, "rack0")


class Podman:
    """podman with images and containers of its own."""

    def __init__(self, rack: Rack, directory: Path) -> None:
        (directory / "containers.conf").write_text(_SETTINGS)
        self.rack = rack
        self._run = TemporaryDirectory(prefix="podman-")  # its path may have 50 characters
        self._command = ["podman", f"--root={directory}/images", f"--runroot={self._run.name}"]
        self._env = clean_environment() | {"CONTAINERS_CONF": f"{directory}/containers.conf"}

    def end(self) -> None:
        self._run.cleanup()

    def __call__(self, *words: str | Path, check: bool = True) -> str:
        # Not `ip netns exec`: that hides the cgroups.
        inside = ["nsenter", f"--net=/run/netns/{self.rack.namespaces[IN_EDGE]}"]
        command = [*inside, *self._command, *map(str, words)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False, env=self._env)
        assert not check or ran.returncode == 0, ran.stderr
        return ran.stdout


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made of the package that other tests install, on a Debian that is kept while its recipe is the same."""
    out = tmp_path_factory.mktemp("image")
    recipe = hashlib.sha256((ROOT / "deploy/container/root.sh").read_bytes()).hexdigest()[:16]
    kept = default_cache() / f"image-base-{recipe}.tar"
    command = [sys.executable, "-m", "deploy.package", "image", "--deb", str(package_of_this_run(tmp_path_factory))]
    command += ["--base", str(kept), "--level", "1", "--out", str(out)]
    environment = os.environ | {"SOURCE_DATE_EPOCH": "1700000000"}
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT, env=environment)
    return out


@pytest.fixture
def podman(made: Path, tmp_path: Path) -> Iterator[Podman]:
    with Rack(tmp_path) as rack:
        rack.network("rack0", {})
        podman = Podman(rack, tmp_path)
        podman("load", "--quiet", "--input", *made.glob("*.oci.tar"))
        yield podman
        podman("rm", "--all", "--force", "--time=5", "--volumes", check=False)
        podman("rmi", "--all", "--force", check=False)
        podman.end()


def test_image_installs_a_machine_as_a_user_with_three_capabilities(podman: Podman, made: Path, tmp_path: Path) -> None:
    (image,) = made.glob("*.oci.tar")
    assert image.stat().st_size < 150 * MIB
    assert '"pkg:deb/debian/python3-minimal@' in next(made.glob("*.cdx.json")).read_text()
    name = podman("images", "--format={{.ID}}").strip()
    assert podman("run", "--rm", "--network=none", name, "--version").startswith("tinkedge, version ")
    assert podman("run", "--rm", "--network=none", "--entrypoint=/usr/bin/id", name, "-un").strip() == "tinkedge"

    rights = ["--cap-drop=all", "--cap-add=NET_BIND_SERVICE,NET_RAW,NET_ADMIN", "--read-only", "--network=host"]
    state = ["--volume=state:/var/lib/tinkedge"]
    podman("run", "--detach", "--name=up", *rights, *state, name, "up", "--interface", "rack0")
    asked = ["nsenter", f"--net=/run/netns/{podman.rack.namespaces[IN_EDGE]}", "curl", "-sf"]
    ready = [*asked, f"http://{ADDRESS}:7080/readyz"]
    wait_until(
        lambda: subprocess.run(ready, capture_output=True, check=False).returncode == 0,
        lambda: podman("logs", "up", check=False),
        every=0.3,
    )
    place = Path(podman("volume", "inspect", "--format={{.Mountpoint}}", "state").strip())
    osie = place / "osie"
    osie.mkdir()
    for name in ("kernel", "initrd"):
        (osie / name).write_text(name)
    for path in (osie, *osie.iterdir()):
        os.chown(path, place.stat().st_uid, place.stat().st_gid)
    kubectl = Kubectl(podman.rack, place / "kubeconfig")
    kubectl.apply(manifests.machine("172.31.77.50") + manifests.workflow("first"))
    with Machine(tmp_path / "machine", manifests.MAC) as machine:
        machine.on(podman.rack)
        done = ("get", "workflow", "first", "-o", "jsonpath={.status.state}")
        wait_until(lambda: kubectl(*done) == "Succeeded", lambda: podman("logs", "up", check=False), every=0.3)

    podman("stop", "--time=10", "up")
    assert podman("inspect", "--format={{.State.ExitCode}}", "up").strip() == "0"
