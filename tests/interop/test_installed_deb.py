"""The Debian package on a fresh Debian 12 with systemd: installed, started, upgraded, removed, purged; and from a
bundle, on an empty Debian without a route.

`make deb` makes what is installed here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.interop.installed.empty import MAC, Bundle, agent, emptied, fetch, machine
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


@pytest.mark.timeout(300)
def test_empty_debian_without_a_route_gets_from_one_signed_file_to_its_first_success(
    package: Path, tmp_path: Path
) -> None:
    """docs/airgap.md, with the commands that `tinkedge bundle create` prints."""
    with Host(tmp_path / "host") as host:
        bundle = Bundle(tmp_path, package, emptied(host))
        install, load = bundle.commands
        assert "default" not in host.run("ip", "route")
        here = host.path("/root")
        for name in ("site.bundle", "site.pgp"):
            shutil.copy(bundle.directory / name, here)

        def typed(commands: str, *, fails: str = "") -> str:
            ended = f"cd /root && rm -rf new\n{commands}"
            said = host.run("sh", "-c", ended, check=not fails, timeout=180)
            assert fails in said, said
            return said

        refuses(typed, here, install)
        assert not host.there("/usr/bin/python3*") + host.there("/usr/bin/tinkedge"), "nothing of it has run"

        said = typed(install)
        assert 'Good signature from "site"' in said
        assert host.run("tinkedge", "--version").startswith("tinkedge, version ")
        typed(load)
        assert host.run("stat", "-c", "%U %a", "/var/lib/tinkedge/images/index.json").strip() == "tinkedge 600"
        settings = "TINKEDGE_INTERFACE=eth1\nTINKEDGE_MANIFESTS=/var/lib/tinkedge/manifests\n"
        host.path("/etc/default/tinkedge").write_text(settings)
        host.run("systemctl", "enable", "--now", "tinkedge")

        with machine(host) as where:
            url = f"/ipxe/script/{MAC}/auto.ipxe"
            host.wait(lambda: b"kernel http" in fetch(where, url))
            line = next(line for line in fetch(where, url).decode().splitlines() if line.startswith("kernel http"))
            kernel = fetch(where, "/osie/lab/kernel")
            assert kernel == (bundle.directory / "parts/osie/kernel").read_bytes()
            booted = agent(where, tmp_path, line.partition(" && ")[0].partition("kernel ")[2])
            get = ("/usr/local/bin/kubectl", "--kubeconfig=/var/lib/tinkedge/kubeconfig", "get", "workflow", "first")
            try:
                host.wait(lambda: '"state": "Succeeded"' in host.run(*get, "-o", "json", check=False))
            finally:
                booted.end()
                print(booted.err)


def refuses(typed: Callable[..., str], here: Path, install: str) -> None:
    """A bundle that was changed on its way, in each way that the commands at the site have to find."""
    good, whole = here / "site.bundle", (here / "site.bundle").read_bytes()
    good.write_bytes(whole.replace(b"#!/bin/sh\n# Install what", b"#!/bin/sh\n#_Install what", 1))
    typed(install, fails="install.sh: FAILED")
    good.write_bytes(whole.replace(b"  install.sh\n", b"  INSTALL.sh\n", 1))
    typed(install, fails="BAD signature")
    good.write_bytes(whole[: len(whole) // 2])
    typed(install, fails="Unexpected EOF")
    good.write_bytes(whole)
    (here / "debian").mkdir()
    (here / "debian/evil.deb").write_bytes(b"evil")
    typed(f"tar -rf site.bundle debian/evil.deb && {install}", fails="install: not in SHA256SUMS: debian/evil.deb")
    good.write_bytes(whole)
