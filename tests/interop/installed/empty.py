"""An empty Debian without a route, and what it gets a bundle of."""

from __future__ import annotations

import hashlib
import secrets
import shutil
import subprocess
from pathlib import Path

from edge.building.builder import default_cache
from tests.interop.installed.host import ADDRESS, Host
from tests.interop.rack import TINKEDGE, clean_environment

ROOT = Path(__file__).parents[3]
MAC, IP = "52:54:00:00:78:01", "172.31.78.50"
OBJECTS = f"""
apiVersion: tinkerbell.org/v1alpha2
kind: Hardware
metadata: {{name: first}}
spec:
  osie: {{name: lab}}
  networkInterfaces:
    "{MAC}": {{dhcp: {{ip: {IP}, netmask: 255.255.255.0}}}}
---
apiVersion: tinkerbell.org/v1alpha2
kind: Template
metadata: {{name: look}}
spec:
  actions:
    - {{name: disks, image: "{ADDRESS}:7080/actions/inspect:1"}}
    - name: disk-image
      image: "{ADDRESS}:7080/actions/inspect:1"
      cmd: /bin/sh
      args: [-c, "wget -q -O - http://{ADDRESS}:7080/files/disk.raw | sha256sum | grep -q ^{{{{ .Params.digest }}}}"]
---
apiVersion: tinkerbell.org/v1alpha2
kind: Workflow
metadata: {{name: first}}
spec:
  hardwareRef: {{name: first}}
  templateRef: {{name: look}}
  templateParams: {{digest: DIGEST}}
"""
_BEYOND_MINIMAL = ("python3", "python3.1?", "libpython3.1?-minimal", "openssl", "ca-certificates", "ipxe", "curl")


def emptied(host: Host) -> list[Path]:
    """Take away what a minimal Debian has not; the packages that brought it."""
    host.path("/etc/dpkg/dpkg.cfg.d/test").write_text("force-unsafe-io\n")  # this disk need not survive a power cut
    names = "${Package}_${Version}_${Architecture}\n"
    before = set(host.run("dpkg-query", "-W", "-f", names).split())
    host.run("apt-get", "-y", "-q", "purge", "--auto-remove", *_BEYOND_MINIMAL)
    gone = sorted(before - set(host.run("dpkg-query", "-W", "-f", names).split()))
    assert not host.there("/usr/bin/python3*")
    kept = default_cache() / "debs"
    return [kept / f"{name.replace(':', '%3a')}.deb" for name in gone if not name.startswith("curl_")]


class Bundle:
    """A bundle made by the real command; `output` is what the command printed."""

    def __init__(self, directory: Path, package: Path, needed: list[Path], osie: Path | None = None) -> None:
        """`osie` has a kernel and an initrd; without one they are bytes that no machine can start."""
        self.directory = directory
        self.tinkedge("bundle", "key", "site")
        self._parts()
        self.osie = osie or directory / "parts/osie"
        options = [f"--package={path}" for path in needed]
        kubectl = shutil.which("kubectl")
        self.output = self.tinkedge(
            *("bundle", "create", "--key", "site.key", "-o", "site.bundle", "--deb", str(package), *options),
            *("--kubectl", str(kubectl), "--osie", f"lab={self.osie}", "--file", "parts/disk.raw"),
            *("--objects", "parts/objects", "--image", "actions/inspect:1=oci:actions/inspect:1", "--cache", "cache"),
        )

    def _parts(self) -> None:
        parts = self.directory / "parts"
        for name in ("osie", "objects"):
            (parts / name).mkdir(parents=True)
        for name in ("osie/kernel", "osie/initrd", "disk.raw"):
            (parts / name).write_bytes(secrets.token_bytes(1 << 20))
        digest = hashlib.sha256((parts / "disk.raw").read_bytes()).hexdigest()
        (parts / "objects/first.yaml").write_text(OBJECTS.replace("DIGEST", digest))
        build = ["bash", str(ROOT / "deploy/actions/build.sh"), str(self.directory / "actions")]
        subprocess.run(build, check=True, capture_output=True)

    def tinkedge(self, *words: str) -> str:
        ran = subprocess.run(
            [*TINKEDGE, *words],
            cwd=self.directory,
            capture_output=True,
            text=True,
            env=clean_environment() | {"PYTHONPATH": str(ROOT)},
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    @property
    def commands(self) -> tuple[str, str]:
        """The commands to type at the site: to install, and to load."""
        lines = [line.strip() for line in self.output.splitlines() if line.startswith("  ")]
        begin = next(number for number, line in enumerate(lines) if line.startswith("mkdir"))
        return "\n".join(lines[begin:-1]), lines[-1]
