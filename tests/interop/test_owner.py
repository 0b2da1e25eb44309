"""Whom the data directory belongs to: the package's user, whatever root does there, with real users and a real service.

    edge's namespace: cap0 172.31.77.1 --- bridge --- eth0 172.31.77.50, a machine with a Hardware

The host of these tests has a user tinkedge and a /var/lib of its own: both are mounted in a mount namespace. `service`
starts what the units start, as that user with their capabilities.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.rack import ADDRESS, IN_EDGE, TINKEDGE, Process
from tests.interop.test_capabilities import ALL, ROOT, Rack, assert_serves, identity

USER = 53999
"""The number of the user tinkedge, which this machine has not."""
DATA = Path("/var/lib/tinkedge")
SERVES = ("up", "--interface", "cap0", "--public-ip", ADDRESS)


class Host(Rack):
    """The two namespaces, and a root of their own as far as users and /var/lib go."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.home.chmod(0o755)
        self.lib = self.home / "lib"
        self.lib.mkdir(mode=0o755)
        for file, line in (
            ("passwd", f"tinkedge:x:{USER}:{USER}::{DATA}:/bin/sh\n"),
            ("group", f"tinkedge:x:{USER}:\n"),
        ):
            (self.home / file).write_text(Path("/etc", file).read_text() + line)
        self._setting = [
            self.way,
            f"mount --bind '{self.lib}' /var/lib",
            *(f"mount --bind '{self.home / file}' '/etc/{file}'" for file in ("passwd", "group")),
            f"cd '{ROOT}'",
        ]

    @property
    def data(self) -> Path:
        """/var/lib/tinkedge of that host, as seen from here."""
        return self.lib / "tinkedge"

    def begin(self, *command: str | Path) -> Process:
        """Start a command of root there."""
        return self.start(IN_EDGE, "sh", "-c", "\n".join(["set -e", *self._setting, 'exec "$@"']), "sh", *command)

    def root(self, *words: str | Path, status: int = 0) -> Process:
        """Run a command of root to its end."""
        process = self.begin(*words)
        assert process.status() == status, process.out + process.err
        return process

    def as_root(self, *words: str | Path) -> Process:
        """`tinkedge up` as root, with the package's data directory."""
        return self.begin(*TINKEDGE, *SERVES, *words)

    def service(self) -> Process:
        listed = ",".join(("-all", *(f"+{name}" for name in ALL)))
        given = [f"--{kind}={listed}" for kind in ("inh-caps", "ambient-caps", "bounding-set")]
        user = ["--reuid", str(USER), "--regid", str(USER), "--clear-groups", "--no-new-privs"]
        return self.begin("setpriv", *user, *given, *TINKEDGE, *SERVES)

    def owners(self) -> set[int]:
        return {path.lstat().st_uid for path in (self.data, *self.data.rglob("*"))}


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with Host(tmp_path) as made:
        yield made


def package(host: Host) -> None:
    """The data directory as postinst makes it."""
    host.data.mkdir(mode=0o700)
    os.chown(host.data, USER, USER)


def children(process: Process) -> list[int]:
    listed = Path(f"/proc/{process.popen.pid}/task/{process.popen.pid}/children")
    return [int(word) for word in listed.read_text().split()]


def assert_serves_once(host: Host, process: Process) -> None:
    """It serves, and ends when it is asked to."""
    host.ready(process)
    assert process.terminate() == 0
    assert "Traceback" not in process.err


def test_root_and_the_service_take_turns_in_the_directory_of_the_package(host: Host) -> None:
    package(host)
    for _ in range(2):
        assert_serves_once(host, host.service())
        process = host.as_root()
        host.ready(process)
        assert identity(process) == ({str(USER)}, set(ALL))
        assert f"the data directory {DATA} belongs to user tinkedge: this process runs as that user" in process.err
        assert (started := children(process)), "the gRPC server"
        assert {Path(f"/proc/{each}").stat().st_uid for each in started} == {USER}
        assert_serves(host, host.data)
        assert process.terminate() == 0
        assert host.owners() == {USER}
        assert "CAP_" not in process.err.replace("CAP_NET_BIND_SERVICE, CAP_NET_ADMIN, CAP_NET_RAW", "")


def test_missing_directory_of_the_package_is_made_for_its_user_by_up_and_by_restore(host: Host) -> None:
    assert_serves_once(host, host.as_root())
    assert host.owners() == {USER}
    backup = host.home / "site.tgz"
    host.root(*TINKEDGE, "backup", backup)
    assert (backup.stat().st_uid, backup.stat().st_mode & 0o777) == (0, 0o600)
    host.root(*TINKEDGE, "kubeconfig", "--user", "alice", "--role", "view", "--out", host.home / "alice")
    assert (host.home / "alice").stat().st_uid == 0
    assert host.owners() == {USER}
    shutil.rmtree(host.data)
    assert "belongs to root" not in host.root(*TINKEDGE, "restore", backup).out
    assert host.owners() == {USER}
    assert_serves_once(host, host.service())


def test_directory_of_root_is_given_to_the_service_by_the_command_that_it_names_and_stays_its(host: Host) -> None:
    host.data.mkdir(mode=0o700)
    assert_serves_once(host, host.as_root())
    assert host.owners() == {0}
    refused = host.service()
    assert refused.status() != 0
    assert f"is for user root alone: as root: 'chown -R tinkedge: {DATA}'" in refused.err
    host.data.chmod(0o755)
    refused = host.service()
    assert refused.status() != 0
    assert f"belongs to user root, who could replace all that is in it: as root: 'chown -R tinkedge: {DATA}'" in (
        refused.err
    )
    host.data.chmod(0o700)
    doctor = host.begin(*TINKEDGE, "doctor", "--interface", "cap0", "--no-lab")
    doctor.status()
    assert f"for the service, as root: 'chown -R tinkedge: {DATA}'" in doctor.out
    host.root("chown", "-R", "tinkedge:", DATA)
    for process in (host.service, host.as_root, host.service):
        assert_serves_once(host, process())
    assert host.owners() == {USER}


def test_restore_to_another_missing_directory_names_the_command_for_the_service(host: Host) -> None:
    assert_serves_once(host, host.as_root())
    backup, target = host.home / "site.tgz", host.home / "srv" / "tinkedge"
    host.root(*TINKEDGE, "backup", backup)
    restored = host.root(*TINKEDGE, "restore", backup, "--data-dir", target)
    assert (
        f"it belongs to root: for the service, which runs as user tinkedge: 'chown -R tinkedge: {target}'"
        in restored.out
    )


@pytest.mark.parametrize("may", [True, False], ids=["setuid", "no setuid"])
def test_root_of_a_container_becomes_the_owner_where_it_may_and_says_so_where_not(host: Host, may: bool) -> None:
    package(host)
    names = ",".join(("-all", *(f"+{name}" for name in (*ALL, *(("setuid", "setgid") if may else ())))))
    process = host.begin("setpriv", f"--bounding-set={names}", *TINKEDGE, *SERVES)
    if may:
        host.ready(process)
        uids, capabilities = identity(process)
        assert (uids, capabilities & {"setuid", "setgid"}) == ({str(USER)}, set())
        assert process.terminate() == 0
        return
    assert process.status() != 0
    assert f"{DATA}: belongs to user tinkedge, and this process may not become that user" in process.err
    assert "Traceback" not in process.err


def test_folders_that_root_made_are_named_with_the_command_by_service_and_doctor(host: Host) -> None:
    package(host)
    host.root("install", "-d", "-m", "700", DATA, DATA / "osie", DATA / "images")
    for path in ("osie/kernel", "images/index.json"):
        (host.data / path).write_text("{}")
    command = f"'chown -R tinkedge: {DATA}/osie; chown -R tinkedge: {DATA}/images'"
    process = host.service()
    host.ready(process)
    assert f"{DATA}: user tinkedge can't read osie, images in it: as root: {command}" in process.err
    doctor = host.begin(*TINKEDGE, "doctor", "--interface", "cap0", "--no-lab")
    assert doctor.status() == 1
    assert "user tinkedge can't read osie, images in it" in doctor.out
    assert f"-> as root: {command}" in doctor.out
    host.root("chown", "-R", "tinkedge:", DATA / "osie", DATA / "images")
    doctor = host.begin(*TINKEDGE, "doctor", "--interface", "cap0", "--no-lab")
    doctor.status()
    assert "can't read" not in doctor.out
    assert process.terminate() == 0
