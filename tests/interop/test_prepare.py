"""`tinkedge prepare` for real: built from Debian's packages, and then served by an edge that was running before.

The kernel is that for virtual machines, and the disk image is left out: tests/boot has the recipes' results booted.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge.building.builder import default_cache
from tests.interop.rack import ADDRESS, IN_EDGE, Kubectl, Namespaces, clean_environment, manifest
from tests.interop.rack import TINKEDGE as PROGRAM
from tests.waiting import wait_until

pytestmark = pytest.mark.long

MAC, IP = "52:54:00:00:79:01", "172.31.77.50"
IN_MACHINE = "machine"
CACHE = default_cache() / "prepare"
"""Its own, because a lab may use the other one meanwhile."""
PARTS = ("--only", "osie", "--only", "actions", "--kernel", "linux-image-cloud-amd64", "--cache-dir", CACHE)
NOBODY = 65534
INSECURE = f"insecure_registries={ADDRESS}:7080"


@pytest.fixture(scope="module")
def data_dir_of_nobody() -> Iterator[Path]:
    """A data directory of another user than root, who reaches it."""
    directory = Path(tempfile.mkdtemp(prefix="tinkedge-prepare-"))
    os.chown(directory, NOBODY, NOBODY)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def built(data_dir_of_nobody: Path) -> str:
    """Return the output of the first run, with no API."""
    debs = CACHE / "debs"
    debs.mkdir(parents=True, exist_ok=True)
    for kernel in (default_cache() / "debs").glob("linux-image-*-cloud-*.deb"):  # which a lab has fetched
        shutil.copy(kernel, debs)
    command = [*PROGRAM, "prepare", *map(str, PARTS), "--data-dir", str(data_dir_of_nobody)]
    ran = subprocess.run(command, capture_output=True, text=True, env=clean_environment(), check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_results_belong_to_the_owner_of_the_data_directory_and_the_osie_waits_for_the_api(
    built: str, data_dir_of_nobody: Path
) -> None:
    assert f"OSIE tinkedge: {data_dir_of_nobody}/osie/tinkedge written" in built
    assert "actions image2disk, inspect, reboot, wipe, writefile" in built
    assert f"not applied, because {data_dir_of_nobody}/kubeconfig is not there yet" in built
    found = [path for path in data_dir_of_nobody.rglob("*") if path.lstat().st_uid != NOBODY]
    assert found == []
    assert {path.name for path in (data_dir_of_nobody / "osie/tinkedge").iterdir()} == {"kernel", "initrd", "osie.yaml"}


def test_folder_of_root_in_the_directory_of_another_user_is_named_with_the_remedy(built: str) -> None:
    with tempfile.TemporaryDirectory(prefix="tinkedge-prepare-") as name:
        data = Path(name)
        (data / "osie").mkdir(mode=0o700)
        os.chown(data, NOBODY, NOBODY)
        command = [*PROGRAM, "prepare", *map(str, PARTS), "--data-dir", name]
        ran = subprocess.run(command, capture_output=True, text=True, env=clean_environment(), check=False)
    assert ran.returncode == 1
    assert (
        f"Permission denied: the owner of {data} can't use {data}/osie: chown -R --reference={data} {data}/osie"
        in ran.stderr
    )


class Site(Namespaces):
    """An edge that was started before anything was prepared, and a registered machine."""

    def build(self) -> None:
        self.data = self.directory / "data"
        self.network("rack0", {IN_MACHINE: MAC})
        self.address(IN_MACHINE, f"{IP}/24")
        self.kubectl = Kubectl(self, self.data / "kubeconfig")
        self.ready(self.tinkedge(IN_EDGE, "up", "--data-dir", self.data, "--interface", "rack0", "--disable", "dhcp"))
        spec = {
            "osie": {"name": "tinkedge"},
            "networkInterfaces": {MAC: {"dhcp": {"ip": IP, "netmask": "255.255.255.0"}}},
        }
        self.kubectl.apply(manifest("Hardware", "machine", spec))
        self.kubectl.apply(manifest("OSIE", "tinkedge", {"kernelUrl": "http://h/k", "initrdUrl": "http://h/i"}))
        wait_until(lambda: "worker_id=" in self.script(), self.script)

    def script(self) -> str:
        return self.curl(IN_MACHINE, f"http://{ADDRESS}:7080/ipxe/script/{MAC}/auto.ipxe")

    def prepare(self) -> str:
        """All is built, so that nothing is fetched: there is no route."""
        ran = self.run(
            IN_EDGE, *PROGRAM, "prepare", *PARTS, "--data-dir", self.data, "--kubeconfig", self.data / "kubeconfig"
        )
        assert ran.popen.returncode == 0, ran.out + ran.err
        return ran.out


@pytest.fixture(scope="module")
def site(built: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with Site(tmp_path_factory.mktemp("site")) as site:
        yield site


def test_edge_that_runs_serves_what_is_prepared_at_once(site: Site) -> None:
    assert INSECURE not in site.script(), "it has no images yet"
    output = site.prepare()
    assert "OSIE default/tinkedge changed" in output
    spec = json.loads(site.kubectl("get", "osie", "tinkedge", "-o", "json"))["spec"]
    assert spec["kernelUrl"] == f"file://{site.data}/osie/tinkedge/kernel"
    assert INSECURE in site.script(), "agents learn of the images without a restart"
    kernel = site.run(IN_MACHINE, "sh", "-c", f"curl -sf {kernel_url(site)} | sha256sum").out.split()[0]
    expected = subprocess.run(
        ["sha256sum", site.data / "osie/tinkedge/kernel"], capture_output=True, text=True, check=True
    )
    assert kernel == expected.stdout.split()[0]


def kernel_url(site: Site) -> str:
    """Where the machine's script loads its kernel from."""
    return next(word for word in site.script().split() if word.startswith("http://") and word.endswith("/kernel"))


def test_registry_client_pulls_each_action_from_the_edge(site: Site, tmp_path: Path) -> None:
    site.prepare()
    for name in ("inspect", "image2disk", "writefile", "reboot", "wipe"):
        source = f"docker://{ADDRESS}:7080/actions/{name}:1"
        copy = (
            "skopeo",
            "--insecure-policy",
            "copy",
            "--quiet",
            "--src-tls-verify=false",
            source,
            f"dir:{tmp_path}/{name}",
        )
        ran = site.run(IN_MACHINE, *copy)
        assert ran.popen.returncode == 0, ran.err
        config = json.loads((tmp_path / name / "manifest.json").read_text())["config"]["digest"].partition(":")[2]
        assert json.loads((tmp_path / name / config).read_text())["config"]["Entrypoint"] == [f"/bin/{name}"]


def test_second_run_changes_nothing(site: Site) -> None:
    site.prepare()
    before = {
        path: path.stat().st_mtime_ns for path in site.data.rglob("*") if path.parts[-2] in ("tinkedge", "sha256")
    }
    version = site.kubectl("get", "osie", "tinkedge", "-o", "jsonpath={.metadata.resourceVersion}")
    output = site.prepare()
    assert "OSIE, actions: up to date in" in output
    assert output.count("is up to date") == 3, output
    assert "to download" not in output
    after = {path: path.stat().st_mtime_ns for path in site.data.rglob("*") if path.parts[-2] in ("tinkedge", "sha256")}
    assert after == before
    assert site.kubectl("get", "osie", "tinkedge", "-o", "jsonpath={.metadata.resourceVersion}") == version
