"""The wheels of `make wheels`, on a fresh Debian 12 with systemd.

With deploy/install.sh: install, start, install a machine, upgrade, install another machine, remove; and refuse a file
whose hash differs. With pip: install, start, install a machine, remove.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.installed.host import ADDRESS, Host
from tests.interop.installed.machine import assert_machine_is_installed

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """With what `make wheels` makes, and the script, in /root."""
    wheels = tmp_path_factory.mktemp("made") / "wheels"
    command = [sys.executable, "-m", "deploy.package", "wheels", "--out", str(wheels)]
    environment = os.environ | {"SOURCE_DATE_EPOCH": "1700000000"}
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT, env=environment)
    with Host(tmp_path_factory.mktemp("host")) as host:
        shutil.copytree(wheels, host.path("/root/wheels"))
        shutil.copy(ROOT / "deploy/install.sh", host.path("/root"))
        yield host


def test_script_installs_what_serves_machines_upgrades_and_removes(host: Host, tmp_path: Path) -> None:
    install = ("bash", "/root/install.sh")
    ours = ("/opt/*", "/usr/local/**/*tinkedge*")
    assert host.there("/opt/*") == []

    # A file that is not the one that was tried is not run, and nothing is left of the attempt.
    (wheel,) = host.path("/root/wheels").glob("click-*.whl")
    right = wheel.read_bytes()
    wheel.write_bytes(right + b"\0")
    output = host.run(*install, "--wheels", "/root/wheels", check=False)
    assert "DO NOT MATCH THE HASHES" in output
    assert "nothing was changed" in output
    assert [name for pattern in ours for name in host.there(pattern)] == []
    wheel.write_bytes(right)

    assert "systemctl enable --now tinkedge" in host.run(*install, "--wheels", "/root/wheels", timeout=180)
    assert host.run("/usr/local/bin/tinkedge", "--version").startswith("tinkedge, version ")
    assert host.there("/opt/tinkedge/lib/python3.*/site-packages/pip*") == [], "nothing is there that only installs"
    assert host.there("/usr/local/share/man/man1/tinkedge-up.1")
    assert host.there("/usr/local/share/bash-completion/completions/tinkedge")
    assert host.run("systemctl", "is-enabled", "tinkedge", check=False).strip() == "disabled"

    host.path("/etc/default/tinkedge").write_text("TINKEDGE_INTERFACE=eth1\n")
    host.run("systemctl", "enable", "--now", "tinkedge")
    url = f"http://{ADDRESS}:7080/readyz"
    host.wait(lambda: host.run("curl", "-sf", "-o", "/dev/null", "-w", "%{http_code}", url, check=False) == "200")

    assert_machine_is_installed(host, tmp_path / "machine", "first")

    assert "upgraded" in host.run(*install, "--wheels", "/root/wheels", timeout=180)
    assert host.path("/etc/default/tinkedge").read_text() == "TINKEDGE_INTERFACE=eth1\n"
    host.run("systemctl", "restart", "tinkedge")
    assert_machine_is_installed(host, tmp_path / "again", "second")
    assert host.kubectl("get", "wf", "first", "-o", "jsonpath={.status.state}") == "Succeeded", "state is kept"

    assert "State is left" in host.run(*install, "--uninstall")
    assert [name for pattern in ours for name in host.there(pattern)] == []
    assert host.run("pgrep", "-u", "tinkedge", check=False) == ""
    assert host.there("/var/lib/tinkedge/kubeconfig")


def test_pip_installs_what_serves_machines(host: Host, tmp_path: Path) -> None:
    """`make test-fresh` tests the same with pipx, which gets its packages from an index."""
    # Debian's own, from where it is: to copy it into the environment takes longer than the installation.
    host.run("sh", "-c", "ln -s /usr/share/python-wheels/pip-*.whl /root/pip.whl")
    pip = ("env", "PYTHONPATH=/root/pip.whl", "/opt/own/bin/python", "-m", "pip")
    host.run("rm", "-rf", "/var/lib/tinkedge")
    host.run("useradd", "--system", "tinkedge", check=False)  # the owner of what the test lays down
    host.run("python3", "-m", "venv", "--without-pip", "/opt/own")
    install = ("install", "-q", "--no-compile", "--no-index", "--find-links", "/root/wheels", "tinkedge")
    host.run(*pip, *install, timeout=180)
    up = host.start("/opt/own/bin/tinkedge", "up", "--interface", "eth1", "--data-dir", "/var/lib/tinkedge")
    host.wait(lambda: host.answers("/readyz"))
    assert_machine_is_installed(host, tmp_path / "machine", "first")
    host.run("pkill", "-TERM", "-f", "/opt/own/bin/tinkedge up")
    assert up.status(30) == 0, up.err
    host.run(*pip, "uninstall", "-q", "--yes", "tinkedge")
    assert host.there("/opt/own/bin/tinkedge*") == []
