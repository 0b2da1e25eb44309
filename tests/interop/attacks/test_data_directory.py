"""A data directory that others can look into, and disks that are full, read-only or too small for a backup that is a
decompression bomb: `tinkedge up` and `tinkedge restore` as operators run them.

setpriv makes an unprivileged local user. The disks are small tmpfs, in the mount namespace of the tests.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
import pwd
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.interop.rack import ADDRESS, IN_EDGE, TINKEDGE, Kubectl, Namespaces, Process
from tests.waiting import wait_until

EXAMPLES = Path(__file__).resolve().parents[3] / "deploy" / "examples"
MACHINE = "52:54:00:12:34:56"
IN_MACHINE = "machine"
SECRET = "correct horse battery staple"
SECRET_STORED = base64.b64encode(SECRET.encode())
KERNEL = os.urandom(300_000)
ZEROS = 600 << 20


class Rack(Namespaces):
    def build(self) -> None:
        self.network("rack0", {IN_MACHINE: MACHINE})
        self.address(IN_MACHINE, "172.31.77.50/24")

    where = ("--interface", "rack0", "--allow-upstream", ADDRESS)

    def up(self, data_dir: Path, *options: str | Path) -> Process:
        return self.tinkedge(IN_EDGE, "up", *self.where, "--data-dir", data_dir, *options)

    def fetch(self, path: str) -> bytes:
        """Fetch a path from the edge as the machine."""
        body = self.directory / "body"
        body.unlink(missing_ok=True)
        curl = self.run(IN_MACHINE, "curl", "-sf", "--max-time", "10", "-o", body, f"http://{ADDRESS}:7080/{path}")
        assert curl.popen.returncode == 0, (path, curl.err)
        return body.read_bytes()


@pytest.fixture
def rack(tmp_path: Path) -> Iterator[Rack]:
    with Rack(tmp_path) as made:
        yield made


# --- who may look into it ------------------------------------------------------------------------------------------


def as_nobody(*command: str | Path) -> subprocess.CompletedProcess[bytes]:
    user = pwd.getpwnam("nobody")
    become = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
    return subprocess.run([*become, *map(str, command)], capture_output=True, check=False)


@pytest.fixture
def public(rack: Rack) -> Iterator[Path]:
    """A directory that everybody on this host can look into, as `mkdir` makes it; pytest's own are closed."""
    place = Path("/srv") / f"tinkedge-test-{os.getpid()}"
    place.mkdir(mode=0o755)
    place.chmod(0o755)
    yield place
    subprocess.run(["rm", "-rf", place], check=True)


def test_secrets_in_a_directory_that_was_made_beforehand_are_read_by_no_local_user(rack: Rack, public: Path) -> None:
    data_dir = public / "data"
    (data_dir / "osie").mkdir(parents=True)  # as README's step 2 has it
    for directory in (data_dir, data_dir / "osie"):
        directory.chmod(0o755)
    process = rack.up(data_dir)
    rack.ready(process)
    kubectl = Kubectl(rack, data_dir / "kubeconfig")
    kubectl("create", "secret", "generic", "bmc", f"--from-literal=password={SECRET}")
    kubectl("apply", "-f", EXAMPLES)
    assert "other users of this host can look into it (mode 0755); it is closed now" in process.err
    every = [path for path in data_dir.rglob("*") if path.is_file()]
    assert {"state.db", "state.db-wal", "state.db-shm", "token"} <= {path.name for path in every}
    assert [path for path in every if as_nobody("cat", path).returncode == 0] == []
    assert as_nobody("ls", data_dir).returncode != 0
    beyond = {path.name for path in data_dir.rglob("*") if path.stat().st_mode & 0o077}
    assert beyond == {"osie", "ca.crt"}
    # And were it open: each file for itself.
    data_dir.chmod(0o755)
    assert {path.name for path in every if as_nobody("cat", path).returncode == 0} <= {"ca.crt"}
    assert process.terminate() == 0
    # As an earlier release left it.
    (data_dir / "state.db").chmod(0o644)
    assert SECRET_STORED in as_nobody("cat", data_dir / "state.db").stdout
    again = rack.up(data_dir)
    rack.ready(again)
    assert "state.db in it can be read by others" in again.err
    assert as_nobody("ls", data_dir).returncode != 0
    assert (data_dir / "state.db").stat().st_mode & 0o777 == 0o600
    assert again.terminate() == 0


# --- disks that refuse ---------------------------------------------------------------------------------------------


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", place], check=True)
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


def fill(disk: Path) -> None:
    with (disk / "filler").open("wb", buffering=0) as filler:
        try:
            while filler.write(bytes(4096)):
                pass
        except OSError:
            return


def read_only(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)


@pytest.mark.parametrize(("refuse", "end"), [(fill, Process.terminate), (read_only, lambda up: up.popen.kill())])
def test_up_starts_on_a_disk_that_refuses_machines_boot_and_it_writes_again_by_itself(
    rack: Rack, disk: Path, refuse: Callable[[Path], None], end: Callable[[Process], object]
) -> None:
    data_dir = disk / "data"
    upstream = rack.directory / "upstream"
    (upstream / "osie").mkdir(parents=True)
    for name in ("kernel", "initrd"):
        (upstream / "osie" / name).write_bytes(KERNEL)
    web = ["busybox", "httpd", "-f", "-p", f"{ADDRESS}:8080", "-h", upstream]
    server = rack.start(IN_EDGE, *web)
    first = rack.up(data_dir, "--manifests", EXAMPLES)
    rack.ready(first)
    script = rack.fetch(f"ipxe/script/{MACHINE}/auto.ipxe")
    kernel = next(word for word in script.decode().split() if word.endswith("/kernel")).partition(":7080/")[2]
    wait_until(lambda: rack.fetch(kernel) == KERNEL)
    wait_until(lambda: len(list((data_dir / "artifacts").glob("*.json"))) >= 1)
    end(first)
    first.status()
    server.end()
    refuse(disk)

    second = rack.up(data_dir, "--manifests", EXAMPLES)
    rack.ready(second)
    why = "the disk is full" if refuse is fill else "the disk is read-only"
    assert "it can only be read: " in second.err
    assert why in second.err
    assert rack.fetch(f"ipxe/script/{MACHINE}/auto.ipxe") == script
    assert rack.fetch(kernel) == KERNEL
    assert rack.fetch("latest/user-data").startswith(b"#cloud-config")
    lease = rack.run(IN_MACHINE, "busybox", "udhcpc", "-f", "-n", "-q", "-t", "3", "-s", "/bin/true", "-i", "eth0")
    assert "172.31.77.50" in lease.err
    kubectl = Kubectl(rack, data_dir / "kubeconfig")
    assert "lab-machine" in kubectl("get", "hardware", "-o", "name")
    refused = kubectl.run("create", "configmap", "new")
    assert refused.popen.returncode == 1
    assert "the state can only be read now: " in refused.err
    assert why in refused.err
    assert "Traceback" not in second.err
    doctor = rack.run(IN_EDGE, *TINKEDGE, "doctor", "--no-lab", "--interface", "rack0", "--data-dir", data_dir)
    assert f"data directory's disk: {why}" in doctor.out

    # `ip netns exec` has given it a mount of its own.
    inside = ["nsenter", "-t", str(second.popen.pid), "-m"]
    subprocess.run([*inside, "mount", "-o", "remount,rw,size=40m", disk], check=True)
    tries: list[Process] = []

    def created() -> bool:
        tries.append(kubectl.run("create", "configmap", "new"))
        return tries[-1].popen.returncode == 0

    wait_until(created, lambda: tries[-1].err + second.err, every=0.3)
    wait_until(lambda: "writes are possible again" in second.err, lambda: second.err)
    assert second.terminate() == 0
    assert "Traceback" not in second.err


def _bomb(path: Path) -> None:
    """Write a backup of 600 MB of zeros, with a matching manifest."""
    digest = hashlib.sha256()
    for _ in range(ZEROS >> 20):
        digest.update(bytes(1 << 20))
    files = [{"name": "files/zeros", "size": ZEROS, "sha256": digest.hexdigest()}]
    head = {"format": 1, "tinkedge": "0", "created": "2026-11-23T12:00:00Z", "layout": 1, "version": 1, "objects": {}}
    text = json.dumps(head | {"files": files}).encode()
    with gzip.open(path, "wb", compresslevel=9) as file:
        for name, size in (("manifest.json", len(text)), ("files/zeros", ZEROS)):
            info = tarfile.TarInfo(name)
            info.size = size
            file.write(info.tobuf(tarfile.GNU_FORMAT))
            if name == "manifest.json":
                file.write(text + bytes(-size % tarfile.BLOCKSIZE))
        for _ in range(ZEROS >> 20):
            file.write(bytes(1 << 20))
        file.write(bytes(2 * tarfile.BLOCKSIZE))


def test_backup_of_600_kb_that_becomes_600_mb_writes_nothing_to_a_disk_without_room(disk: Path, tmp_path: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=96m", disk], check=True)
    bomb = tmp_path / "bomb.tgz"
    _bomb(bomb)
    assert bomb.stat().st_size < 1 << 20
    before = os.statvfs(disk).f_bavail
    command = [*TINKEDGE, "restore", str(bomb), "--data-dir", str(disk / "data")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "696 MB are needed there to restore, and 101 MB are free" in done.stderr
    assert not (disk / "data").exists()
    assert os.statvfs(disk).f_bavail == before
