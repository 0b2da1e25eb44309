"""Process 1 of the OSIE, as process 1 of a PID namespace, in which reboot(2) ends that namespace and nothing else.

Needs root. Source of how it ends: pid_namespaces(7), "reboot(2)". Its drivers are loaded in a mount namespace with
devices and a modprobe of the test.
"""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

FILES = Path(__file__).parents[2] / "deploy" / "osie" / "files"
SCRIPT = FILES / "process-one"


@pytest.mark.parametrize(
    ("asked", "name", "ended"),
    [("TERM", "reboot", "SIGHUP"), ("USR2", "poweroff", "SIGINT"), ("USR1", "halt", "SIGINT")],
)
def test_action_that_asks_process_1_for_a_restart_as_busybox_reboot_does_gets_it(
    asked: str, name: str, ended: str, tmp_path: Path
) -> None:
    """The last action of the playground's templates is `reboot` in alpine: a signal to process 1, and success."""
    agent = tmp_path / "tinkedge"
    agent.write_text(f"#!/bin/sh\n[ $PPID = 1 ] && kill -{asked} 1\nsleep 60\n")
    agent.chmod(0o755)
    shell = f'say() {{ echo "osie: $*"; }}; PATH={tmp_path}:$PATH; . {SCRIPT}'
    done = subprocess.run(
        ["unshare", "--pid", "--fork", "--kill-child", "busybox", "sh", "-c", shell],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"osie: {name}, requested by an action" in done.stdout, done.stderr
    # unshare ends as the process that it has started.
    assert (done.returncode, done.stderr) == (-signal.Signals[ended], "")


def test_driver_of_a_device_is_loaded_once_and_that_of_a_later_device_at_the_next_look(tmp_path: Path) -> None:
    """A driver such as powernow_k8 prints a line on the console each time that it refuses its device."""
    devices, programs, loaded = tmp_path / "devices", tmp_path / "bin", tmp_path / "loaded"
    for name, alias in {"cpu0": "cpu:amd", "cpu1": "cpu:amd", "disk": "scsi:t-0x00"}.items():
        (devices / name).mkdir(parents=True)
        (devices / name / "modalias").write_text(f"{alias}\n")
    programs.mkdir()
    modprobe = programs / "modprobe"
    modprobe.write_text(f'#!/bin/sh\necho "$@" >>{loaded}\n')
    modprobe.chmod(0o755)
    # Without xargs: that of busybox may run busybox's modprobe.
    for applet in ("cat", "find", "sort", "touch", "uniq"):
        (programs / applet).symlink_to("/bin/busybox")
    _, begin, rest = (FILES / "osie-init").read_text().partition("load_drivers() {")
    function = f"{begin}{rest.partition('}' + chr(10) * 2)[0]}}}"
    later = f"mkdir {devices}/usb; echo usb:v1 >{devices}/usb/modalias; rm -r {devices}/disk"
    mounts = f"mount -t tmpfs tmpfs /run; mount --bind {devices} /sys/devices; PATH={programs}:$PATH"
    shell = f"{mounts}\n{function}\nload_drivers; load_drivers; {later}; load_drivers; load_drivers"
    done = subprocess.run(["unshare", "--mount", "sh", "-c", shell], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert loaded.read_text().splitlines() == ["-a -b -q cpu:amd scsi:t-0x00", "-a -b -q usb:v1"]
