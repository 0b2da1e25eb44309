"""Actions in containers that runc or crun runs directly; there is no engine and no daemon.

For each action, under `state_dir/run/<container>/`: an overlay of the image's root file system, the failure files, and
the bundle's `config.json`; then `runc run` in the foreground, whose output and exit code are the action's. When it has
ended, all of it is removed. Where an overlay cannot be mounted (`state_dir` on an overlay or a ramfs), the image is
copied instead.

What runc says about its own failures goes to a log file of its own, so that it cannot be taken for the action's
output, nor an action's exit code for a failure of runc.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tink.agent.images import Image, ImageStore, UnpackError, resolve
from tink.agent.model import Action, ActionError, Reason, RunResult, SettingsError
from tink.agent.output import Output
from tink.agent.runtimes.child import Signals, run_child
from tink.agent.runtimes.failure import FailureFiles, one_line
from tink.agent.runtimes.host import Host
from tink.agent.runtimes.oci.bundle import container_config, image_volumes
from tink.agent.runtimes.oci.cgroups import kill_all
from tink.agent.runtimes.oci.mounts import mount_overlay, root_is_initramfs, unmount
from tink.agent.runtimes.protocol import STOP_GRACE_SECONDS
from tink.agent.runtimes.volume import parse_volumes

log = logging.getLogger(__name__)

_KILL_ATTEMPTS = 25
_KILL_PAUSE_SECONDS = 0.2
_PID_PAUSE_SECONDS = 0.02

_HINTS = (
    (
        "no cgroup mount found",
        "this machine, or the network namespace that the agent was started in with `ip netns exec`, has no "
        "/sys/fs/cgroup; mount it, or use `nsenter --net=`",
    ),
    ("cgroups in hybrid mode not supported", "crun needs cgroup v1 or v2, not both; use --runtime runc"),
    ("pivot_root", "the root file system cannot be pivoted away from"),
)


class ContainerRuntime:
    """A `protocol.Runtime` that runs the images of `store` with `program`, the path of runc or crun."""

    def __init__(
        self,
        program: str,
        state_dir: Path,
        store: ImageStore,
        *,
        host: Host | None = None,
        grace_seconds: float = STOP_GRACE_SECONDS,
    ) -> None:
        self._program = program
        self._state_dir = state_dir
        self._store = store
        self._host = host or Host.this()
        self._grace_seconds = grace_seconds
        self._run_dir = state_dir / "run"
        self._containers = state_dir / "containers"
        self._no_pivot = root_is_initramfs(Path("/proc/mounts").read_text())

    async def prepare(self, _held: str = "") -> None:
        """Make the directories; remove the containers of an agent that was killed, which may still write the disk."""
        try:
            self._state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._store.prepare()
            self._run_dir.mkdir(mode=0o700, exist_ok=True)
            left = list(self._run_dir.iterdir())
        except OSError as error:
            message = f"state dir: {error.filename}: {error.strerror}; make room there, or give another --state-dir"
            raise SettingsError(message) from error
        for directory in left:
            log.warning("removing the container %s that an earlier agent has left", directory.name)
            await self._remove(directory)

    async def pull(self, image: str, stop: asyncio.Event) -> None:
        await self._store.pull(image, stop)

    def check(self, action: Action) -> None:
        self._config(action, self._store.get(action.image), self._run_dir / "checked")
        self._make_volumes(action)

    async def run(self, action: Action, stop: asyncio.Event) -> RunResult:
        image = self._store.get(action.image)
        name = re.sub(r"[^a-zA-Z0-9_.-]", "-", action.name)[:40]
        directory = self._run_dir / f"tinkedge-{name}-{secrets.token_hex(4)}"
        try:
            directory.mkdir(mode=0o700)
            return await self._run(action, image, directory, stop)
        except OSError as error:  # the disk is full, most likely
            message = f"action {action.name}: {error.filename or self._program}: {error.strerror or error}"
            raise ActionError(Reason.RUNTIME_ERROR, message) from error
        finally:
            if directory.exists():
                await self._remove(directory)

    async def resume(self, _action: Action, _stop: asyncio.Event) -> RunResult | None:
        """Nothing is known: runc's exit code went to the agent that has died, and `prepare` has removed the rest."""
        return None

    async def _run(self, action: Action, image: Image, directory: Path, stop: asyncio.Event) -> RunResult:
        files = FailureFiles(directory)
        files.create()
        config = self._config(action, image, directory, _copies(self._host.shared_files, directory))
        self._make_volumes(action)
        await asyncio.to_thread(_make_rootfs, image, directory)
        (directory / "config.json").write_text(json.dumps(config))
        output = Output(action.name)
        runtime_log = directory / "runtime.log"
        pid_file = directory / "pid"
        argv = self._command("--log", str(runtime_log), "--log-format", "json", "run", "--bundle", str(directory))
        argv += ["--pid-file", str(pid_file)]
        if self._no_pivot:
            argv.append("--no-pivot")
        name = directory.name
        signals = Signals(
            terminate=lambda pid: self._terminate(name, pid),
            kill=lambda pid: self._kill(name, pid),
        )
        watching = asyncio.create_task(_end_with_its_first_process(name, pid_file))
        try:
            code = await run_child(
                [*argv, name], output=output, stop=stop, signals=signals, grace_seconds=self._grace_seconds
            )
        finally:
            watching.cancel()
        if code != 0 and not stop.is_set() and (error := logged_error(runtime_log)):
            raise ActionError(Reason.RUNTIME_ERROR, f"action {action.name}: {Path(self._program).name}: {error}")
        return files.judge(code, output.tail)

    def _config(
        self, action: Action, image: Image, directory: Path, shared_files: Mapping[str, Path] | None = None
    ) -> dict[str, Any]:
        """The `config.json` of a container in `directory`. Raises ActionError."""
        return container_config(
            action,
            image.config,
            rootfs=directory / "rootfs",
            image_rootfs=image.rootfs,
            cgroup=directory.name,
            volume_dir=self._state_dir / "volumes",
            failure_files=FailureFiles(directory),
            shared_files=shared_files or {},
            host=self._host,
        )

    def _make_volumes(self, action: Action) -> None:
        for volume in parse_volumes(action.volumes):
            path = self._state_dir / "volumes" / volume.source if volume.named else Path(volume.source)
            if volume.must_exist and not path.exists():
                message = f"action {action.name}: volumes: {str(volume)!r}: this machine has no {path}"
                raise ActionError(Reason.INVALID_ACTION, message)
            try:
                if not path.exists():
                    path.mkdir(parents=True)
            except OSError as error:
                message = f"action {action.name}: volumes: {str(volume)!r}: {path}: {error.strerror}"
                raise ActionError(Reason.INVALID_ACTION, message) from error

    def _command(self, *arguments: str) -> list[str]:
        return [self._program, "--root", str(self._containers), *arguments]

    async def _terminate(self, name: str, pid: int) -> None:
        """TERM the container's first process; where there is none yet, nothing has to be given time to tidy up."""
        code, _ = await self._call("kill", name, "TERM")
        if code != 0:
            await self._kill(name, pid)

    async def _kill(self, name: str, pid: int) -> None:
        """Kill the container, also one that is just being made: again until `runc run`, process `pid`, has ended."""
        for _ in range(_KILL_ATTEMPTS):
            code, stderr = await self._call("delete", "--force", name)
            if not _is_alive(pid):
                return
            await asyncio.sleep(_KILL_PAUSE_SECONDS)
        log.warning("container %s does not end: exit code %d, %s", name, code, stderr or "no message")

    async def _remove(self, directory: Path) -> None:
        """Kill and remove the container of `directory`, and the directory."""
        # `run` has removed a container that ended by itself. Asking runc costs half a second on an emulated machine.
        if (self._containers / directory.name).exists():
            await self._call("delete", "--force", directory.name)
        await _kill_all(directory.name)
        rootfs = directory / "rootfs"
        if rootfs.is_mount():
            try:
                unmount(rootfs)
            except OSError as error:
                # Removing what is under a mount that is still there could remove somebody's files.
                log.error("container %s: cannot unmount %s: %s; it is left", directory.name, rootfs, error.strerror)
                return
        try:
            await asyncio.to_thread(shutil.rmtree, directory)
        except OSError as error:
            # The action is over, and what it did stands: it does not fail because of what it has left.
            log.error("container %s: cannot remove %s: %s", directory.name, error.filename, error.strerror)

    async def _call(self, *arguments: str) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            *self._command(*arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        _, stderr = await process.communicate()
        return process.returncode or 0, one_line(stderr.decode(errors="replace"))


def logged_error(runtime_log: Path) -> str:
    """The last error in the log of runc or crun, with a hint where one is known; "" if it has none.

    An action that leaves with an exit code of its own is no error to them.
    """
    try:
        with runtime_log.open(errors="replace") as file:
            lines = file.read(64 * 1024).splitlines()
    except FileNotFoundError:
        return ""  # it had nothing to say
    for line in reversed(lines):
        try:
            entry = json.loads(line)
            level, message = entry["level"], str(entry["msg"])
        except (ValueError, TypeError, KeyError):
            continue  # crun's or runc's own formatting slips are not the action's fault
        if level in ("error", "fatal"):
            hints = [hint for sign, hint in _HINTS if sign in message]
            return one_line(message + (f" ({hints[0]})" if hints else ""))
    return ""


def _copies(paths: Sequence[str], directory: Path) -> dict[str, Path]:
    """Copies of files of this machine in `directory`, by the paths of the originals."""
    copies = {path: directory / f"shared-{Path(path).name}" for path in paths if Path(path).is_file()}
    for path, copy in copies.items():
        copy.write_bytes(Path(path).read_bytes())
        copy.chmod(0o644)
    return copies


def _make_rootfs(image: Image, directory: Path) -> None:
    rootfs, image_rootfs = directory / "rootfs", image.rootfs
    made: Sequence[Path] = (rootfs, directory / "upper", directory / "work")
    for path in made:
        path.mkdir()
    # The container's / has the attributes of the upper directory.
    (directory / "upper").chmod(image_rootfs.stat().st_mode & 0o7777)
    try:
        mount_overlay(image_rootfs, directory / "upper", directory / "work", rootfs)
    except OSError as error:
        log.warning("no overlay for a container at %s (%s); the image is copied instead", rootfs, error.strerror)
        # cp keeps owners, hard links and devices, which shutil.copytree does not; busybox' does too.
        copied = subprocess.run(["cp", "-a", f"{image_rootfs}/.", str(rootfs)], capture_output=True, check=False)
        if copied.returncode != 0:
            stderr = one_line(copied.stderr.decode(errors="replace"))
            raise ActionError(Reason.RUNTIME_ERROR, f"copying the image to {rootfs}: {stderr}") from error
    for volume in image_volumes(image.config):
        try:
            resolve(rootfs, volume).mkdir(parents=True, exist_ok=True)
        except (OSError, UnpackError) as error:
            log.warning("the image's volume %s cannot be made: %s", volume, error)


async def _end_with_its_first_process(name: str, pid_file: Path) -> None:
    """End the container's other processes with its first one, whose id the runtime writes into `pid_file`.

    The kernel does that in a PID namespace, and runc, as engines do, without one. `crun run` (1.8) waits for the last
    of them there: an action would not be over before a daemon that it has started.
    """
    while (process := _process_in(pid_file)) is None:  # noqa: ASYNC110 - it is written by another program
        await asyncio.sleep(_PID_PAUSE_SECONDS)
    with contextlib.suppress(ProcessLookupError):  # it has ended already
        descriptor = os.pidfd_open(process)
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(descriptor, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
    await _kill_all(name)


def _process_in(pid_file: Path) -> int | None:
    try:
        return int(pid_file.read_text())
    except (FileNotFoundError, ValueError):
        return None  # not written yet


async def _kill_all(name: str) -> None:
    """End what the container has left running in the machine's PID namespace."""
    if left := await kill_all(name):
        log.error("container %s: %d of its processes do not end", name, left)


def _is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
