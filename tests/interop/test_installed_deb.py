"""The Debian package on a fresh Debian 12 with systemd: installed, started, upgraded, removed, purged.

`make deb` makes what is installed here. One host is used from the first test to the last, as its owner would.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.installed.host import ADDRESS, Host

ROOT = Path(__file__).parents[2]
HARDWARE = """
apiVersion: tinkerbell.org/v1alpha2
kind: Hardware
metadata: {name: kept}
spec:
  networkInterfaces:
    "52:54:00:00:78:01": {dhcp: {ip: 172.31.78.50, netmask: 255.255.255.0}}
"""
MADE = (
    "/etc/tinkedge*", "/etc/default/tinkedge*", "/etc/systemd/system/**/tinkedge*", "/lib/systemd/system/tinkedge*",
    "/run/tinkedge*", "/usr/bin/tinkedge*", "/usr/lib/tinkedge*", "/usr/lib/sysusers.d/tinkedge*",
    "/usr/share/**/tinkedge*", "/usr/share/**/_tinkedge", "/var/lib/tinkedge*", "/var/lib/dpkg/info/tinkedge*",
    "/var/lib/systemd/deb-systemd-helper-enabled/**/tinkedge*",
)  # fmt: skip
"""Where something of it is, or might be."""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("deb")
    command = [sys.executable, "-m", "deploy.package", "deb", "--out", str(out)]
    # As `make deb` makes it, but for how well it is compressed (dpkg-deb(1)): at its best that takes most of a minute.
    environment = os.environ | {"SOURCE_DATE_EPOCH": "1700000000", "DPKG_DEB_COMPRESSOR_LEVEL": "0"}
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT, env=environment)
    (made,) = out.glob("*.deb")
    return made


@pytest.fixture(scope="module")
def newer(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same as of a later release."""
    directory = tmp_path_factory.mktemp("newer")
    subprocess.run(["dpkg-deb", "--raw-extract", package, directory / "root"], check=True)
    control = directory / "root/DEBIAN/control"
    control.write_text(control.read_text().replace("\nVersion: ", "\nVersion: 99."))
    made = directory / "tinkedge_99.deb"
    command = ["dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", directory / "root", made]
    subprocess.run(command, check=True, capture_output=True)
    return made


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    with Host(tmp_path_factory.mktemp("host")) as host:
        yield host


def install(host: Host, package: Path) -> str:
    inside = host.path("/root") / package.name
    inside.write_bytes(package.read_bytes())
    return host.run("dpkg", "--install", f"/root/{package.name}", timeout=120)


def ready(host: Host) -> bool:
    url = f"http://{ADDRESS}:7080/readyz"
    return (
        host.run("curl", "-sf", "--max-time", "2", "-o", "/dev/null", "-w", "%{http_code}", url, check=False) == "200"
    )


def show(host: Host, name: str) -> str:
    return host.run("systemctl", "show", "--value", f"--property={name}", "tinkedge.service").strip()


@pytest.mark.timeout(300)
def test_package_from_first_installation_to_purge_leaves_nothing(host: Host, package: Path, newer: Path) -> None:
    before = {pattern: host.there(pattern) for pattern in MADE}
    accounts = host.path("/etc/passwd").read_text(), host.path("/etc/group").read_text()

    install(host, package)
    assert host.run("tinkedge", "--version").startswith("tinkedge, version ")
    assert "172.31" not in host.run("ss", "-Hlntu")
    assert "enabled" not in host.run(
        "systemctl", "list-unit-files", "--state=enabled", "--no-legend", "tinkedge*", check=False
    )
    assert host.run("systemctl", "is-active", "tinkedge", check=False).strip() == "inactive"
    # As somebody who is nobody special.
    assert "up" in host.run("setpriv", "--reuid=nobody", "--clear-groups", "tinkedge", "--help")

    host.path("/etc/default/tinkedge").write_text("TINKEDGE_INTERFACE=eth1\n")
    host.run("systemctl", "enable", "--now", "tinkedge")
    assert (show(host, "ActiveState"), show(host, "SubState")) == ("active", "running")
    host.wait(lambda: ready(host))
    host.kubectl("apply", "-f", "-", stdin=HARDWARE)
    first = show(host, "MainPID")
    assert host.run("stat", "-c", "%U %a", "/var/lib/tinkedge").strip() == "tinkedge 700"
    assert "tinkedge" in host.run("ps", "-o", "user=", "-p", first)

    install(host, newer)
    host.wait(lambda: ready(host))
    assert show(host, "MainPID") not in (first, "0"), "the old one still runs"
    assert host.kubectl("get", "hardware", "-o", "name").split() == ["hardware.tinkerbell.org/kept"]
    assert host.path("/etc/default/tinkedge").read_text() == "TINKEDGE_INTERFACE=eth1\n"

    host.run("systemctl", "stop", "tinkedge")
    assert show(host, "Result") == "success"
    host.run("systemctl", "start", "tinkedge")

    host.run("dpkg", "--remove", "tinkedge")
    assert not host.there("/usr/lib/tinkedge*"), "remove leaves no program"
    assert host.run("pgrep", "-u", "tinkedge", check=False) == ""
    assert host.there("/var/lib/tinkedge/state.db*")
    assert host.there("/etc/default/tinkedge")

    assert "/var/lib/tinkedge" in host.run("dpkg", "--purge", "tinkedge")
    assert {pattern: host.there(pattern) for pattern in MADE} == before
    assert (host.path("/etc/passwd").read_text(), host.path("/etc/group").read_text()) == accounts
