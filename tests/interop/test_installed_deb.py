"""The life of an installation from the Debian package, on hosts with systemd: installed, rebooted, backed up, restored
on another host, upgraded and removed, with a machine that is installed in between. docs/transcript.md has the output.

    TINKEDGE_RECORD=1 pytest tests/interop/test_installed_deb.py    # writes docs/transcript.md

`make deb` builds the package. There is no release before the first one, so the test upgrades this package with a lower
version. tests/unit/upgrades checks against the recorded state and messages of older releases.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.interop.installed import manifests
from tests.interop.installed.empty import MAC, Bundle, emptied
from tests.interop.installed.host import ADDRESS, ROOT, Host
from tests.interop.installed.machine import Machine
from tests.interop.installed.package import package_of_this_run
from tests.interop.installed.transcript import Transcript, blocks, commands

DOCS = ROOT / "docs"
PAGE = DOCS / "transcript.md"
PREFACE = """\
From a fresh Debian to the last trace removed, as an operator types it: installed, a machine provisioned, the host
rebooted, backed up, restored on another host, upgraded, purged. `tests/interop/test_installed_deb.py` types these lines
on Debian 12 with systemd and compares them with this page; the answers are those of one run. The machine is a network
namespace: what its firmware asks for is asked by a DHCP client and curl, and the agent is the real one. Machines with
real firmware and disks are in `tests/boot`, and `make run` shows one.

The hosts `first` and `second` have 172.31.78.1/24 on `eth1`, where the machine is."""
UPGRADED = """\
No release is older than the first one, so what is upgraded is the same package with a lower version. What older
releases have stored and said is recorded in `tests/unit/upgrades`. The fourth Workflow's action runs all the while."""
MADE = (
    "/etc/tinkedge*", "/etc/default/tinkedge*", "/etc/systemd/system/**/tinkedge*", "/lib/systemd/system/tinkedge*",
    "/run/tinkedge*", "/usr/bin/tinkedge*", "/usr/lib/tinkedge*", "/usr/lib/sysusers.d/tinkedge*",
    "/usr/share/**/tinkedge*", "/usr/share/**/_tinkedge", "/var/lib/tinkedge*", "/var/lib/dpkg/info/tinkedge*",
    "/var/lib/systemd/deb-systemd-helper-enabled/**/tinkedge*",
)  # fmt: skip
"""Where something of it is, or might be."""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return package_of_this_run(tmp_path_factory)


@pytest.fixture(scope="module")
def older(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same as of a release before, which has another option."""
    directory = tmp_path_factory.mktemp("older")
    subprocess.run(["dpkg-deb", "--raw-extract", package, directory / "root"], check=True)
    control = directory / "root/DEBIAN/control"
    head, _, rest = control.read_text().partition("\nVersion: ")
    version, _, rest = rest.partition("+")
    control.write_text(f"{head}\nVersion: {version}~before+{rest}")
    with (directory / "root/usr/share/tinkedge/tinkedge.yaml").open("a") as settings:
        settings.write("\n# Gone since. For: up.\n#gone: 1\n")
    made = directory / package.name.replace(version, f"{version}~before")
    command = ["dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", directory / "root", made]
    subprocess.run(command, check=True, capture_output=True)
    return made


@pytest.fixture
def transcript() -> Iterator[Transcript]:
    made = Transcript("A transcript", PREFACE)
    yield made
    print(made.page)


class Life:
    """The steps of the installation's life. Each host's own files are in `trace` before the installation."""

    def __init__(self, transcript: Transcript, machine: Machine) -> None:
        self.transcript, self.machine = transcript, machine
        self._before: dict[str, object] = {}

    def copy(self, host: Host, package: Path) -> None:
        """Bring a package to a host, as its newest."""
        dist = host.path("/root/dist")
        shutil.rmtree(dist, ignore_errors=True)
        dist.mkdir()
        shutil.copy(package, dist)

    def install(self, host: Host, package: Path) -> None:
        self._before = self.trace(host)
        self.copy(host, package)
        self.transcript.type(host, "apt install ./dist/tinkedge_*.deb")

    def trace(self, host: Host) -> dict[str, object]:
        """All that an installation may leave on a host."""
        accounts = {name: host.path(name).read_text() for name in ("/etc/passwd", "/etc/group")}
        return {pattern: host.there(pattern) for pattern in MADE} | accounts

    def configure(self, host: Host) -> None:
        self.transcript.type(host, "echo 'interface: eth1' >>/etc/tinkedge/tinkedge.yaml")
        self.transcript.type(host, "tinkedge doctor", check=False)

    def start(self, host: Host) -> None:
        self.transcript.type(host, "systemctl enable --now tinkedge")
        self.transcript.type(host, "export KUBECONFIG=/var/lib/tinkedge/kubeconfig")

    def apply(self, host: Host, name: str, text: str) -> None:
        host.path(f"/root/{name}.yaml").write_text(text)
        self.transcript.type(host, f"kubectl apply -f {name}.yaml")

    def switch_on(self, host: Host) -> None:
        steps = "\n".join(f"- {step}" for step in self.machine.on(host))
        self.transcript.happens(f"The machine is switched on:\n\n{steps}")

    def succeeded(self, host: Host, workflow: str) -> None:
        done = "--for=jsonpath={.status.state}=Succeeded"
        self.transcript.type(host, f"kubectl wait {done} workflow/{workflow} --timeout=60s")
        self.transcript.type(host, "kubectl get workflows")
        self.machine.off()

    def assert_gone(self, host: Host) -> None:
        assert self.trace(host) == self._before
        assert host.run("pgrep", "-u", "tinkedge", check=False).startswith("pgrep: invalid user name")
        assert ADDRESS not in host.run("ss", "-Hlntu")


def first_host(life: Life, host: Host, older: Path) -> Path:
    """Use the first host until it is purged; return the copy of its backup."""
    transcript = life.transcript
    transcript.chapter("Installed", "The package was made with `make deb`, and copied to the host.")
    life.install(host, older)
    assert "disabled" in transcript.type(host, "systemctl is-enabled tinkedge", check=False)
    assert ADDRESS not in host.run("ss", "-Hlntu"), "nothing is started by the installation"
    # As an unprivileged user.
    assert "up" in host.run("setpriv", "--reuid=nobody", "--clear-groups", "tinkedge", "--help")
    life.configure(host)
    life.start(host)
    assert "active (running)" in transcript.type(host, "systemctl status tinkedge --no-pager --lines=0")
    assert transcript.type(host, f"curl -sf http://{ADDRESS}:7080/readyz").strip() == "ok"
    assert host.run("stat", "-c", "%U %a", "/var/lib/tinkedge").strip() == "tinkedge 700"

    transcript.chapter("A machine", "Its OSIE, kernel and initrd, is served from this host's disk.")
    files = host.path("/root/osie")
    files.mkdir()
    for name in ("kernel", "initrd"):
        (files / name).write_text(name * 1000)
    transcript.type(host, "install -d -o tinkedge -g tinkedge -m 0700 /var/lib/tinkedge/osie")
    transcript.type(host, "install -o tinkedge -g tinkedge -m 0600 -t /var/lib/tinkedge/osie osie/kernel osie/initrd")
    host.path("/root/machine.yaml").write_text(manifests.machine())
    host.path("/root/one.yaml").write_text(manifests.workflow("one"))
    transcript.type(host, "cat machine.yaml one.yaml")
    transcript.type(host, "kubectl apply -f machine.yaml -f one.yaml")
    with transcript.beside(host, "tinkedge watch machine", until="workflow default/one: Succeeded"):
        life.switch_on(host)
        life.succeeded(host, "one")
        transcript.happens("What that was, shows in another terminal:")

    transcript.chapter("The host is rebooted")
    transcript.typed(host, "systemctl reboot")
    host.reboot()
    assert transcript.type(host, "systemctl is-active tinkedge").strip() == "active"
    life.apply(host, "two", manifests.workflow("two"))
    life.switch_on(host)
    life.succeeded(host, "two")

    transcript.chapter("Backup", "The machine is off, so the third Workflow has not begun when the backup is made.")
    life.apply(host, "three", manifests.workflow("three"))
    host.wait(lambda: host.kubectl("get", "wf", "three", "-o", "jsonpath={.status.state}") == "Pending")
    transcript.type(host, "systemctl enable --now tinkedge-backup.timer")
    transcript.type(host, "systemctl start tinkedge-backup    # not only tonight")
    assert "tinkedge-20" in transcript.type(host, "ls /var/lib/tinkedge-backups")
    transcript.type(host, "install -d -m 700 /backup")
    transcript.type(host, "tinkedge backup --with-osie /backup/tinkedge-$(date +%F).tgz")
    (backup,) = host.there("/backup/*")
    away = life.machine.directory / Path(backup).name
    shutil.copy(host.path(backup), away)
    return away


def second_host(life: Life, host: Host, older: Path, newer: Path, backup: Path) -> None:
    """Restore the backup on the second host, use it, and purge the package."""
    transcript = life.transcript
    transcript.chapter("Another host", "The first one is gone. The second has its address, and gets the backup.")
    life.install(host, older)
    host.path("/backup").mkdir(mode=0o700)
    shutil.copy(backup, host.path("/backup"))
    held = transcript.type(host, "tinkedge restore /backup/tinkedge-*.tgz")
    assert "1 Workflows that are held" in held
    assert "default/three (Pending)" in held
    life.configure(host)
    life.start(host)
    transcript.type(host, "kubectl get hardware,workflows")
    transcript.happens("The third Workflow may have run after the backup; it has not, so:")
    transcript.type(host, "kubectl annotate workflow three tinkerbell.org/hold-")
    life.switch_on(host)
    life.succeeded(host, "three")

    transcript.chapter("Upgraded, while a machine is being installed", UPGRADED)
    runs, go = life.machine.directory / "runs", life.machine.directory / "go"
    life.apply(host, "four", manifests.workflow("four", f"echo run >>{runs}; until test -e {go}; do sleep 0.1; done"))
    life.switch_on(host)
    host.wait(runs.exists)
    transcript.type(host, "tinkedge backup /backup/before-upgrade.tgz")
    life.copy(host, newer)
    before = host.show("tinkedge", "MainPID")
    transcript.type(host, "apt install ./dist/tinkedge_*.deb")
    assert host.show("tinkedge", "MainPID") not in (before, "0"), "the old one still runs"
    assert "~before" not in transcript.type(host, "dpkg-query --show tinkedge")
    assert "PROBLEM" not in transcript.type(host, "tinkedge doctor", check=False)
    settings = host.path("/etc/tinkedge/tinkedge.yaml").read_text()
    assert settings.endswith("#gone: 1\ninterface: eth1\n"), "settings stay as they are"
    assert "Running" in transcript.type(host, "kubectl get workflow four")
    go.touch()
    transcript.happens("The machine is done:")
    life.succeeded(host, "four")
    assert runs.read_text() == "run\n", "no action runs twice"

    transcript.chapter("Removed")
    transcript.type(host, "apt remove -y tinkedge")
    assert not host.there("/usr/lib/tinkedge*"), "remove leaves no program"
    assert host.run("pgrep", "-u", "tinkedge", check=False) == ""
    assert "state.db" in transcript.type(host, "ls /var/lib/tinkedge /etc/tinkedge /etc/default/tinkedge")
    comes_back(host)
    backups = "/var/lib/tinkedge-backups"
    assert f"backups are left in {backups}, for root alone" in transcript.type(host, "apt purge -y tinkedge")
    assert set(host.run("find", backups, "-printf", "%U %m\\n").split("\n")) == {"0 700", "0 600", ""}
    host.run("rm", "-r", backups)
    transcript.happens("Nothing of it is left but the backups.")
    life.assert_gone(host)


def comes_back(host: Host) -> None:
    """Install the package again after Debian's upgrade removed it because of its Python (docs/upgrading.md)."""
    host.run("bash", "-c", "apt-get install -y ./dist/tinkedge_*.deb")
    assert host.run("systemctl", "is-enabled", "tinkedge").strip() == "enabled"
    assert host.show("tinkedge", "ActiveState") == "inactive"
    host.run("systemctl", "start", "tinkedge", "tinkedge-backup")
    assert host.kubectl("get", "wf", "four", "-o", "jsonpath={.status.state}") == "Succeeded"
    host.run("apt-get", "remove", "-y", "tinkedge")


def test_package_from_first_installation_to_purge(
    package: Path, older: Path, tmp_path: Path, transcript: Transcript
) -> None:
    machine = Machine(tmp_path / "machine", manifests.MAC)
    transcript.hide(str(machine.directory), "/run/machine")
    life = Life(transcript, machine)
    with machine:
        with Host(tmp_path / "first") as host:
            backup = first_host(life, host, older)
        with Host(tmp_path / "second") as host:
            second_host(life, host, older, package, backup)
    if os.environ.get("TINKEDGE_RECORD"):
        PAGE.write_text(transcript.page)
    assert commands(transcript.page) == commands(PAGE.read_text()), "what docs/transcript.md says is typed"


@pytest.mark.parametrize(
    ("page", "heading"),
    [
        ("installing.md", "## Debian package"),
        ("operating.md", "## Backup and upgrade"),
        ("upgrading.md", "## One host"),
    ],
)
def test_transcript_has_the_commands_of_the_documents(page: str, heading: str) -> None:
    done = {line.partition("# ")[2].replace(" -y ", " ") for line in commands(PAGE.read_text())}
    elsewhere = {"make deb", "editor /etc/tinkedge/tinkedge.yaml"}
    documented = set(blocks(DOCS / page, heading)) - elsewhere
    assert documented, f"{page}: {heading} has no commands"
    assert documented <= done


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
            output = host.run("sh", "-c", ended, check=not fails, timeout=180)
            assert fails in output, output
            return output

        refuses(typed, here, install)
        assert not host.there("/usr/bin/python3*") + host.there("/usr/bin/tinkedge"), "nothing of it has run"

        output = typed(install)
        assert 'Good signature from "site"' in output
        assert host.run("tinkedge", "--version").startswith("tinkedge, version ")
        typed(load)
        assert host.run("stat", "-c", "%U %a", "/var/lib/tinkedge/images/index.json").strip() == "tinkedge 600"
        settings = "TINKEDGE_INTERFACE=eth1\nTINKEDGE_MANIFESTS=/var/lib/tinkedge/manifests\n"
        host.path("/etc/default/tinkedge").write_text(settings)
        host.run("systemctl", "enable", "--now", "tinkedge")

        with Machine(tmp_path / "machine", MAC, runtime="runc") as machine:
            host.wait(lambda: '"kind": "Hardware"' in host.run(*get("hardware"), check=False))
            machine.on(host)
            kernel = machine.fetch(f"http://{ADDRESS}:7080/osie/lab/kernel")
            assert kernel == (bundle.osie / "kernel").read_bytes()
            host.wait(lambda: '"state": "Succeeded"' in host.run(*get("workflow"), check=False))


def get(kind: str) -> tuple[str, ...]:
    """The first one of the bundle, by its kubectl."""
    program = ("/usr/local/bin/kubectl", "--kubeconfig=/var/lib/tinkedge/kubeconfig")
    return (*program, "get", kind, "first", "-o", "json")


def refuses(typed: Callable[..., str], here: Path, install: str) -> None:
    """A bundle that was changed on its way, in each way that the commands at the site have to find."""
    good, whole = here / "site.bundle", (here / "site.bundle").read_bytes()
    good.write_bytes(whole.replace(b"#!/bin/sh\n# Install the", b"#!/bin/sh\n#_Install the", 1))
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
