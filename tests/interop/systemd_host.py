"""systemd itself, as PID 1 of namespaces of its own: this host's files with an overlay, a network, a journal.

What this kernel's host may not do (raise limits) is taken back by drop-ins.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Self

from tests.waiting import wait_until

REPOSITORY = Path(__file__).resolve().parents[2]
UNITS = REPOSITORY / "deploy" / "systemd"

_INIT = r"""
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs "$W"
mkdir "$W/up" "$W/work" "$W/root"
mount -t overlay overlay -o lowerdir=/,upperdir="$W/up",workdir="$W/work" "$W/root"
cd "$W/root"
mount -t proc proc proc; mount -t sysfs sysfs sys; mount --rbind /dev dev
mount -t tmpfs tmpfs run; mount -t tmpfs tmpfs tmp
if [ -d /sys/fs/cgroup/systemd ]; then
  mount -t tmpfs tmpfs sys/fs/cgroup; mkdir sys/fs/cgroup/systemd sys/fs/cgroup/unified
  mount -t cgroup -o none,name=systemd cgroup sys/fs/cgroup/systemd
  mount -t cgroup2 cgroup2 sys/fs/cgroup/unified
else
  mount -t cgroup2 cgroup2 sys/fs/cgroup
fi
rm -rf etc/systemd/system/*.wants var/log/journal etc/tinkedge var/lib/tinkedge
for unit in systemd-udevd.service systemd-udev-trigger.service systemd-udevd-control.socket \
  systemd-udevd-kernel.socket systemd-modules-load.service kmod-static-nodes.service systemd-remount-fs.service \
  apparmor.service systemd-sysctl.service \
  dev-hugepages.mount dev-mqueue.mount sys-kernel-debug.mount sys-kernel-tracing.mount sys-kernel-config.mount \
  sys-fs-fuse-connections.mount proc-sys-fs-binfmt_misc.automount network-online.target; do
  ln -sf /dev/null etc/systemd/system/$unit
done
cp "$UNITS"/*.service etc/systemd/system/
cp "$UNITS/tinkedge.sysusers" usr/lib/sysusers.d/tinkedge.conf
for unit in "$UNITS"/*.service; do
  mkdir "etc/systemd/system/${unit##*/}.d"
  printf '[Service]\nLimitNOFILE=%s\nOOMScoreAdjust=%s\n' "$(ulimit -Hn)" "$(cat /proc/self/oom_score_adj)" \
    >"etc/systemd/system/${unit##*/}.d/host.conf"
done
mkdir -p etc/systemd/journald.conf.d
printf "[Journal]\nReadKMsg=no\nStorage=volatile\n" >etc/systemd/journald.conf.d/test.conf
mkdir -p etc/tinkedge usr/bin
rm -f usr/bin/tinkedge
# Wherever they are, for a user whose homes are hidden.
mkdir -p opt/test/python opt/test/packages opt/test/project
mount --bind "$PREFIX" opt/test/python
mount --bind "$PACKAGES" opt/test/packages
mount --bind "$PROJECT" opt/test/project
mount -o remount,bind,ro opt/test/project
cat >usr/bin/tinkedge <<'END'
#!/bin/sh
export PYTHONPATH=/opt/test/project:/opt/test/packages LD_LIBRARY_PATH=/opt/test/python/lib PYTHONDONTWRITEBYTECODE=1
exec /opt/test/python/bin/python3 -m edge.cli "$@"
END
chmod 755 usr/bin/tinkedge
ip link set lo up
# No chroot: within one, nobody gets a user namespace, which the units want.
pivot_root . mnt
cd /
umount -l /mnt
exec env -i container=test PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
  /lib/systemd/systemd --system --unit=basic.target --log-target=journal --show-status=no
"""


_PYTHON = {
    "PREFIX": sys.base_prefix,
    "PACKAGES": sysconfig.get_path("purelib"),
    "PROJECT": str(REPOSITORY),
}


def _removed(cgroup: Path) -> bool:
    """Whether it is gone: it can be once its last process is."""
    with contextlib.suppress(OSError):
        cgroup.rmdir()
    return not cgroup.exists()


class SystemdHost:
    """Started with `with`. Commands run in it; `network` gives it an interface."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._cgroups: list[Path] = []
        self._init = 0
        self._log = (directory / "init.log").open("wb")

    def __enter__(self) -> Self:
        name = f"tinkedge-{os.getpid()}-{secrets.token_hex(3)}"
        tops = [Path("/sys/fs/cgroup/systemd"), Path("/sys/fs/cgroup/unified")]
        for top in [top for top in tops if top.is_dir()] or [Path("/sys/fs/cgroup")]:
            (top / name).mkdir()
            self._cgroups.append(top / name)
        enter = "".join(f"echo $$ >{each}/cgroup.procs; " for each in self._cgroups)
        flags = "--pid --fork --kill-child --mount --uts --ipc --net --cgroup"
        root = self._directory / "systemd"
        root.mkdir()
        self._outer = subprocess.Popen(
            ["bash", "-c", f'{enter} exec unshare {flags} bash -c "$INIT"'],
            env={**os.environ, "INIT": _INIT, "W": str(root), "UNITS": str(UNITS), **_PYTHON},
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        try:
            wait_until(self._started, lambda: (self._directory / "init.log").read_text(), within=60, every=0.2)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._init:
            os.kill(self._init, signal.SIGKILL)
        self._outer.kill()
        self._outer.wait()
        self._log.close()
        for cgroup in self._cgroups:
            for inner in [*sorted((each for each in cgroup.rglob("*") if each.is_dir()), reverse=True), cgroup]:
                wait_until(lambda inner=inner: _removed(inner))

    def run(self, *command: str | Path, check: bool = True, timeout: float = 90) -> str:
        """What a command there prints."""
        done = subprocess.run(
            ["nsenter", f"--target={self._init}", "--all", "--root", "--wd", *map(str, command)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout, check=False,
        )  # fmt: skip
        assert not check or done.returncode == 0, f"{command}: {done.stdout}\n{self.journal()}"
        return done.stdout

    def write(self, path: str, text: str) -> None:
        """A file there."""
        self.run("sh", "-c", f"cat >{path} <<'END'\n{text}\nEND")

    def show(self, unit: str, name: str) -> str:
        """A property of a unit."""
        return self.run("systemctl", "show", unit, f"--property={name}", "--value").strip()

    def journal(self, *options: str) -> str:
        """Its lines."""
        return self.run("journalctl", "--no-pager", "-q", *options, check=False)

    def _started(self) -> bool:
        children = Path(f"/proc/{self._outer.pid}/task/{self._outer.pid}/children").read_text().split()
        if not children:
            assert self._outer.poll() is None, (self._directory / "init.log").read_text()
            return False
        self._init = int(children[0])
        if b"systemd" not in Path(f"/proc/{self._init}/cmdline").read_bytes().split(b"\0")[0]:
            return False
        return self.run("systemctl", "is-system-running", check=False).strip() in ("running", "degraded")
