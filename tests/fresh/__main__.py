"""The commands of the README on a fresh Debian, as a new user runs them: `make test-fresh`.

    python -m tests.fresh [--suite bookworm]... [--terminal] [--keep DIR] [--commit COMMIT] [COMMAND...]
    python -m tests.fresh test|ci

Creates a root file system of each Debian (mmdebstrap), clones the committed files into it, and runs the command there,
by default `make run`. The command must succeed, and must not be silent for more than five seconds. Without --keep, the
test also checks that this Debian has all packages of the set-up, that the next boot starts nothing, that
`make clean-all` leaves nothing, and that the wheel of `make run` works after an installation by pipx (`pipx.sh`).
`test_bundle.py` is a site without a route.

`test` is `make test` on Debian 12, and `ci` is `.ci/run`: each must succeed in time, with two idle processors.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.fresh.silence import Run, listen

REPOSITORY = Path(__file__).resolve().parents[2]
SUITES = ("bookworm", "trixie")
BAR_SECONDS = 5.0
"""The longest silence allowed: after more, a user wonders whether the command hangs."""

TIMED = {"test": (["make", "test"], 600.0), "ci": ([".ci/run"], 2400.0)}
"""Commands and how many seconds each may take, from a fresh Debian on."""

# The README's requirements, and packages that apt and pip need to reach their servers.
_INCLUDE = "git,make,python3,ca-certificates,debian-archive-keyring"
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")


def make_root(suite: str, directory: Path) -> None:
    """Create a minimal Debian in `directory` from the mirrors of this host's apt. Raises CalledProcessError."""
    command = ["bash", str(Path(__file__).parent / "root.sh"), suite, str(directory), _INCLUDE]
    subprocess.run(command, check=True)
    # A host with its own certificate authority needs it to reach the package index.
    shutil.copyfile(_CERTIFICATES, directory / _CERTIFICATES.relative_to("/"))
    shutil.copyfile("/etc/resolv.conf", directory / "etc/resolv.conf")


def clone(commit: str, into: Path) -> None:
    """Clone the committed files, without untracked or changed files of this checkout."""
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(REPOSITORY), str(into)], check=True)
    subprocess.run(["git", "-C", str(into), "checkout", "--quiet", "--detach", commit], check=True)


def inside(root: Path, command: list[str]) -> list[str]:
    """Return a command that runs `command` in `root`, in PID and mount namespaces that end with it."""
    settings = [
        f"{name}={value}" for name, value in os.environ.items() if name.startswith("PIP_") and "FIND" not in name
    ]
    script = (
        # Programs there may create mount namespaces, for which / must be a mount.
        'mount --bind "$0" "$0" && cd "$0" && mount --rbind /dev dev && mount -t proc proc proc && '
        "mount --rbind /sys sys && mount -t tmpfs tmpfs run && mount -t tmpfs tmpfs tmp && "
        "pivot_root . mnt && umount -l /mnt && "
        f"exec chroot . /usr/bin/env -i {shlex.join(settings)} HOME=/root TERM=linux LANG=C.UTF-8 "
        'PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin sh -c "cd /root/tinkedge && exec $1"'
    )
    namespaces = ["unshare", "--mount", "--propagation=private", "--pid", "--fork", "--kill-child"]
    return [*namespaces, "sh", "-c", script, str(root), shlex.join(command)]


# Installed packages, and the services of the next boot. Links that begin with K disable a service.
_STATE = "dpkg-query -W -f '${Package}\\n'; find /etc/systemd /etc/rc?.d -type l ! -name 'K*'"


def state(root: Path) -> set[str]:
    """Return the installed packages and enabled services."""
    shown = subprocess.run(inside(root, ["sh", "-c", _STATE]), check=True, capture_output=True, text=True)
    return set(shown.stdout.split())


def aftermath(suite: str, root: Path, before: set[str]) -> list[str]:
    """Return the problems with files and packages that the command has left."""
    wrong = [f"{suite}: enabled: {name}" for name in sorted(state(root) - before) if name.startswith("/")]
    for command in (["deploy/setup.sh", "names"], ["make", "clean-all", "CONFIRM=1"]):
        done = subprocess.run(inside(root, command), capture_output=True, text=True, check=False)
        if done.returncode:
            wrong.append(f"{suite}: {shlex.join(command)}: {done.stderr[-1000:]}")
    wrong += [f"{suite}: left by clean-all: {name}" for name in sorted(state(root) - before)]
    left = [path for path in ("root/.cache/tinkedge", "root/tinkedge/.venv") if (root / path).exists()]
    return wrong + [f"{suite}: left by clean-all: {path}" for path in left]


def take_along(root: Path) -> bool:
    """Copy the wheel and kubectl of `make run`, which `make clean-all` removes. Return True if both exist."""
    kept = root / "root" / "kept"
    kept.mkdir()
    files = [*root.glob("root/.cache/tinkedge/wheel/*.whl"), *root.glob("root/tinkedge/.venv/bin/kubectl")]
    for file in files:
        shutil.copy(file, kept)
    return len(files) == 2


def with_pipx(suite: str, root: Path) -> list[str]:
    """Return the problems with an installation by pipx."""
    command = ["sh", "tests/fresh/pipx.sh", "/root/kept"]
    both = subprocess.STDOUT
    done = subprocess.run(inside(root, command), stdout=subprocess.PIPE, stderr=both, text=True, check=False)
    _show(done.stdout)
    return [f"{suite}: {shlex.join(command)}: status {done.returncode}"] if done.returncode else []


def judge(suite: str, run: Run, limit: float | None) -> list[str]:
    """Print the duration. Return the problems: a run over the limit, or without a limit, its silences."""
    print(
        f"\n{suite}: status {run.status}, {run.seconds:.0f} s on the clock, "
        f"{run.processor_seconds:.0f} s of processors; longest silences:",
        *run.listener.longest(6),
        sep="\n  ",
        flush=True,
    )
    wrong = [f"{suite}: the command ended with status {run.status}"] if run.status else []
    if limit is not None:
        return wrong + ([f"{suite}: more than {limit:.0f} s"] if run.seconds > limit else [])
    return wrong + [f"{suite}: {one}" for one in run.listener.longest(3) if one.seconds > BAR_SECONDS]


def main() -> int:
    """Run the command on each Debian and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.fresh", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--suite", action="append", choices=SUITES, help="This Debian; all without one.")
    parser.add_argument("--terminal", action="store_true", help="The command has a terminal.")
    parser.add_argument("--commit", default="HEAD", help="What is cloned.")
    parser.add_argument("--keep", type=Path, help="Make the roots in this directory, and leave them there.")
    parser.add_argument("command", nargs="*", default=["make", "run"])
    options = parser.parse_args()
    wrong: list[str] = []
    command, limit = TIMED.get(" ".join(options.command), (options.command, None))
    with tempfile.TemporaryDirectory(prefix="tinkedge-fresh.") as temporary:
        for suite in options.suite or SUITES[: 1 if limit else None]:
            root = (options.keep or Path(temporary)) / suite
            if not root.exists():
                make_root(suite, root)
                clone(options.commit, root / "root" / "tinkedge")
            before = state(root)
            print(f"{suite}: {shlex.join(command)}", flush=True)
            wrong += judge(suite, listen(inside(root, command), _show, terminal=options.terminal), limit)
            if not options.keep:
                has_wheel = take_along(root)
                wrong += aftermath(suite, root, before)
                wrong += with_pipx(suite, root) if has_wheel else []
    for line in wrong:
        print(f"FAILED: {line}", file=sys.stderr)
    return 1 if wrong else 0


def _show(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
