"""The next boot does not start units of the packages for tests and the lab; units enabled before stay enabled.

deploy/setup/packages.sh runs in a mount namespace of its own, over an /etc of its own, with an apt-get that enables
units as packages do.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
APT = """#!/bin/sh
# Enables a unit without systemd, and one as a package without systemd's unit does.
case "$*" in
  *update)
    if [ -n "$LOCKED" ] && [ ! -e "$HOME/asked-twice" ]; then
      [ ! -e "$HOME/asked-once" ] || touch "$HOME/asked-twice"
      touch "$HOME/asked-once"
      echo "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 1 (apt-get)" >&2
      exit 100
    fi ;;
  *install*-y*)
    ln -s /lib/systemd/system/new.service /etc/systemd/system/multi-user.target.wants/new.service
    ln -s ../init.d/relay /etc/rc3.d/S01relay
    grep -q 'disable \\*' /run/systemd/system-preset/00-tinkedge-setup.preset && echo asked >"$HOME/asked"
    [ -z "$KILLED" ] || kill -9 $PPID ;;
esac
"""
SCRIPT = """
set -euo pipefail
mount -t tmpfs none /etc/systemd
mount --bind "$HOME/rc" /etc/rc3.d
mount -t tmpfs none /run/systemd
mkdir -p /etc/systemd/system/multi-user.target.wants
ln -s /lib/systemd/system/ours.service /etc/systemd/system/multi-user.target.wants/ours.service
ln -s ../init.d/own /etc/rc3.d/S02own
cd "$CHECKOUT"
declare -A sets=([lab]="no-such-package")
die() { echo "$*" >&2; exit 1; }
. deploy/setup/undo.sh
. deploy/setup/progress.sh
. deploy/setup/packages.sh
variables=$(declare -p sets cache links remembered policy undo)
(export KILLED; exec bash -c "$(declare -f); $variables; install_packages lab") || true
[ -z "$KILLED" ] || KILLED='' install_packages lab
find /etc/systemd /etc/rc3.d /run/systemd -type l -o -type f -name '*.preset'
"""


def enabled_after(directory: Path, *, killed: bool = False, locked: bool = False) -> set[str]:
    """The links that start something at boot, by name, after an installation."""
    programs = directory / "bin"
    programs.mkdir()
    (directory / "rc").mkdir()
    scripts = {"apt-get": APT, "update-rc.d": "#!/bin/sh\nexit 1\n", "dpkg-query": "#!/bin/sh\nexit 0\n"}
    for name, text in scripts.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    bash = shutil.which("bash")
    assert bash is not None
    environment = {
        "HOME": str(directory),
        "CHECKOUT": str(ROOT),
        "KILLED": "1" if killed else "",
        "LOCKED": "1" if locked else "",
        "PATH": f"{programs}:/usr/sbin:/usr/bin:/sbin:/bin",
    }
    done = subprocess.run(
        ["unshare", "--mount", bash, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (directory / "asked").exists(), "packages are told beforehand not to enable anything"
    return {Path(line).name for line in done.stdout.split()}


def test_service_of_a_new_package_is_not_started_by_the_next_boot(tmp_path: Path) -> None:
    assert enabled_after(tmp_path) == {"ours.service", "S02own"}


def test_next_installation_repairs_one_that_was_killed(tmp_path: Path) -> None:
    assert not {"new.service", "S01relay"} & enabled_after(tmp_path, killed=True)


def test_set_up_waits_for_the_package_lists_while_another_apt_has_them(tmp_path: Path) -> None:
    assert enabled_after(tmp_path, locked=True) == {"ours.service", "S02own"}
    assert (tmp_path / "asked-twice").exists()
