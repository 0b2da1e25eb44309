"""The first machine as an operator adds it: `tinkedge image import`, `tinkedge examples NAME`, `kubectl apply`.

The image is then fetched in the machine's namespace."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.rack import ADDRESS, IN_EDGE, TINKEDGE, Kubectl, Namespaces, Process
from tests.waiting import wait_until

EXAMPLES = Path(__file__).resolve().parents[2] / "deploy" / "examples"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*/*.yaml") if path.stem == path.parent.name)
MAC = "52:54:00:12:34:57"
IP = "172.31.77.57"
IN_MACHINE = "machine"
MIB = 1 << 20


class Site(Namespaces):
    """`tinkedge up`, with kubectl, and a machine that has its address."""

    def build(self) -> None:
        self.network("rack0", {IN_MACHINE: MAC})
        self.address(IN_MACHINE, f"{IP}/24")
        self.data_dir = self.directory / "data"
        self.settings = self.directory / "tinkedge.yaml"
        self.settings.write_text(f"interface: rack0\ndata-dir: {self.data_dir}\n")
        self.ready(self.tinkedge(IN_EDGE, "up", "--config", self.settings))
        self.kubectl = Kubectl(self, self.data_dir / "kubeconfig")

    def type(self, *words: str | Path) -> Process:
        """A command of the operator on the edge's host."""
        process = self.run(IN_EDGE, *TINKEDGE, *words, "--config", self.settings)
        assert process.popen.returncode == 0, process.err
        return process


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with Site(tmp_path_factory.mktemp("site")) as site:
        yield site


def cloud_image(directory: Path) -> Path:
    """A qcow2 image as distributions publish it: GPT, root filesystem in partition 1, compressed clusters."""
    raw, image = directory / "cloud.raw", directory / "cloud-amd64.img"
    with raw.open("wb") as file:
        file.truncate(64 * MIB)
    parts = ["-n", "15:2048:+8M", "-t", "15:ef00", "-n", "1:0:0", "-t", "1:8300"]
    run("sgdisk", *parts, raw)
    run("mkfs.ext4", "-q", "-F", "-L", "rootfs", "-E", f"offset={9 * MIB}", raw, "40M")
    run("qemu-img", "convert", "-c", "-O", "qcow2", raw, image)
    return image


def run(*words: str | Path) -> None:
    environment = {"PATH": "/usr/sbin:/sbin:/usr/bin:/bin"}
    subprocess.run(list(map(str, words)), check=True, capture_output=True, env=environment)


def test_imported_image_is_served_to_a_machine_that_an_example_adds(site: Site) -> None:
    image = cloud_image(site.directory)
    sums = site.directory / "SHA256SUMS"
    digest = hashlib.sha256(image.read_bytes()).hexdigest()
    sums.write_text(f"{digest} *{image.name}\n")
    imported = site.type("image", "import", image, "--sha256", sums).out
    url = f"http://{ADDRESS}:7080/files/{image.name}"
    assert (f"    image: {url}\n" in imported, '    partition: "1"\n' in imported) == (True, True)
    assert "ext4" in imported

    got = site.directory / "got"
    assert "403" in site.curl(IN_MACHINE, url, "-o", "/dev/null", "-w", "%{http_code}")
    key = site.directory / "id.pub"
    key.write_text(f"ssh-ed25519 {'A' * 68} me@laptop\n")
    machine = ["--mac", MAC, "--ip", IP, "--gateway", "172.31.77.254", "--disk", "/dev/vda", "--name", "web7"]
    chosen = ["--image", image.name, "--sha256", digest, "--partition", "1", "--ssh-key", key]
    printed = site.type("examples", "debian", *machine, *chosen)
    assert printed.err == f"The edge is {ADDRESS}, this host's address on rack0; --edge gives another.\n" + (
        "Right for this machine?\n  --netmask  255.255.255.0  of that network\n"
    )
    site.kubectl.apply(printed.out)
    site.run(IN_MACHINE, "curl", "-sf", "--retry", "20", "--retry-all-errors", "--retry-delay", "1", "-o", got, url)
    assert got.read_bytes() == image.read_bytes()

    rendered = ("get", "workflow", "install-web7", "-o", "jsonpath={.status.actions[0].rendered.env}")
    wait_until(lambda: site.kubectl(*rendered) != "", every=0.5)
    environment = json.loads(site.kubectl(*rendered))
    assert environment == {"IMG_URL": url, "IMG_SHA256": digest, "DEST_DISK": "/dev/vda", "COMPRESSED": "false"}


@pytest.mark.parametrize("name", NAMES)
def test_unchanged_example_is_accepted_with_warnings_about_its_placeholders_only(name: str, site: Site) -> None:
    applied = site.kubectl.run("apply", "-f", EXAMPLES / name)
    assert applied.popen.returncode == 0, applied.err
    # The documentation network is not the edge's; Template and OSIE follow in the file; files and Secrets are missing.
    expected = re.compile(
        r"Warning: .*( is in 192[.]0[.]2[.]0/24, and the edge |there is no (OSIE|Template|Secret) \S+ yet|"
        r"spec[.](kernel|initrd)Url: file:///var/lib/tinkedge/osie/)"
    )
    assert [line for line in applied.err.splitlines() if not expected.match(line)] == []
    assert f"hardware.tinkerbell.org/{name}-1 created" in applied.out
    again = site.directory / f"{name}.yaml"
    again.write_text(site.type("examples", name, "--edge", "192.0.2.1", "--data-dir", "/var/lib/tinkedge").out)
    unchanged = site.kubectl("apply", "-f", again).splitlines()
    assert [line for line in unchanged if not line.endswith(" unchanged")] == []
