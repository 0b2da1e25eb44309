"""Runs actions as containers with runc or crun."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import logging
import os
import re
import secrets
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tink.agent.images import ImageStore, UnpackedImage, UnpackError, path_in_root
from tink.agent.model import ActionError, AgentSettingsError, Reason, RenderedAction, RunResult
from tink.agent.output import Output
from tink.agent.runtimes.process import Signals, run_child
from tink.agent.runtimes.runtime import (
    CAPABILITIES,
    STOP_GRACE_SECONDS,
    ContainerHost,
    FailureFiles,
    one_line,
    parse_volumes,
)

log = logging.getLogger(__name__)

# --- Mounts ---
#
# mount(2) and umount2(2): the root file system of a container, as an overlay over the image's.
#
# Called directly, because the OSIE need not have a mount program that knows overlayfs (busybox' does not pass every
# option on). Source: mount(2), umount(2), Documentation/filesystems/overlayfs.rst.


_MNT_DETACH = 2  # linux/fs.h
_libc = ctypes.CDLL(None, use_errno=True)


def mount_overlay(lower: Path, upper: Path, work: Path, target: Path) -> None:
    """Mount `lower` at `target`, writable, with changes going to `upper`. Raises OSError.

    `upper` and `work` must be empty directories of one file system, which may be neither an overlay nor a ramfs. No
    path may contain a comma, a colon or a backslash (`settings` checks that).
    """
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    if _libc.mount(b"overlay", os.fsencode(target), b"overlay", 0, options.encode()) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(target))


def unmount(target: Path) -> None:
    """Unmount `target`, now if possible, else as soon as it is unused (MNT_DETACH). Raises OSError."""
    if _libc.umount2(os.fsencode(target), 0) == 0 or _libc.umount2(os.fsencode(target), _MNT_DETACH) == 0:
        return
    number = ctypes.get_errno()
    raise OSError(number, os.strerror(number), str(target))


def root_is_initramfs(mounts: str) -> bool:
    """Return True if / is the initramfs, which pivot_root(2) rejects. `mounts` is the text of /proc/mounts."""
    rows = [line.split(" ") for line in mounts.splitlines()]
    kinds = [row[2] for row in rows if len(row) > 2 and row[1] == "/"]  # the last file system mounted on / counts
    return bool(kinds) and kinds[-1] in ("rootfs", "ramfs")


# --- Control groups ---
#
# Kills the processes of a container by its control group, which no process leaves by accident.
#
# A container in the machine's PID namespace ends with its first process. Its other processes survive, because the
# runtime does not look for them: crun 1.8 does not. Works with cgroup v1, v2 and a mixture. Source:
# Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/cgroups.rst (cgroup.procs).


MOUNTED = Path("/sys/fs/cgroup")

_ATTEMPTS = 100
_PAUSE_SECONDS = 0.02


async def kill_all(group: str, mounted: Path = MOUNTED) -> int:
    """Kill the processes of the control group `group` (its path in each hierarchy) until none is left, and remove it.

    Return the number of processes that still exist after two seconds.
    """
    try:
        below = mounted.iterdir()  # noqa: ASYNC240 - sysfs is in memory, as are proc and the pid file below
        hierarchies = [mounted, *(each for each in below if each.is_dir() and not each.is_symlink())]
    except OSError:
        return 0  # no control groups here
    # The directories of the group and of the groups within it, which come last.
    found = [Path(directory) for hierarchy in hierarchies for directory, _, _ in os.walk(hierarchy / group)]
    left = _processes(found)
    for _ in range(_ATTEMPTS):
        if not left:
            break
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        await asyncio.sleep(_PAUSE_SECONDS)
        left = _processes(found)
    for directory in reversed(found):
        with contextlib.suppress(OSError):  # busy for a moment: an empty group costs nothing
            directory.rmdir()
    return len(left)


def _processes(directories: list[Path]) -> set[int]:
    found: set[int] = set()
    for directory in directories:
        with contextlib.suppress(OSError):
            found |= {int(number) for number in (directory / "cgroup.procs").read_text().split()}
    return found - {0, os.getpid()}  # 0: a process of a PID namespace that is invisible here


# --- OCI bundles ---
#
# Converts an action and its image's configuration to runc's `config.json`. Pure.
#
# Tinkerbell's actions expect a container of Docker with `--privileged`:
#
# - Command: `cmd` replaces the image's Entrypoint (and drops its Cmd); `args` replace its Cmd. No shell is put between.
# - Environment: the image's, the action's on top; PATH if neither has one.
# - User and working directory: the image's.
# - All capabilities that the agent has, all devices, the machine's /dev and /sys, nothing masked: actions write disks.
# - Volumes `SRC:DST[:OPTIONS]`. An absolute SRC is a path of the OSIE, made if it is missing; a name is a directory
#   under `state_dir/volumes`, empty at first, that lasts until the machine goes down. Options: ro, rw, and the
#   kernel's propagation words.
# - Network namespace: none named, or `host` or `/proc/1/ns/net`: the machine's network, because actions fetch images
#   and there is no bridge in an OSIE. `none`: a network of its own with only loopback. Another absolute path: that
#   namespace is joined. With the machine's network go copies of its /etc/resolv.conf and /etc/hosts, which the action
#   may change.
# - PID namespace: its own, or the machine's for `host` and `/proc/1/ns/pid`. Another absolute path is joined.
# - No limits: none on memory, processors or open files.
#
# Sources: OCI runtime specification 1.0 (config.md, config-linux.md); image specification, config.md.


DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def container_config(
    action: RenderedAction,
    image: UnpackedImage,
    directory: Path,
    *,
    volume_dir: Path,
    shared_files: Mapping[str, Path],
    host: ContainerHost,
) -> dict[str, Any]:
    """Return the runtime's `config.json` for `action` in `directory`, whose name is that of the container.

    `shared_files`: copies of the machine's files that belong to its network, by their path in the container. The
    image's root is only read, for the names of users. Raises ActionError for an invalid action or image.
    """
    settings = _mapping(image.config.get("config"))
    environment = {"PATH": DEFAULT_PATH}
    environment |= {name: value for name, _, value in (item.partition("=") for item in _strings(settings, "Env"))}
    environment |= action.env
    capabilities = [f"CAP_{name}" for number, name in enumerate(CAPABILITIES) if host.capability_mask & (1 << number)]
    namespaces: list[dict[str, str]] = [{"type": "mount"}, {"type": "ipc"}, *_namespaces(action)]
    shares_network = not any(namespace["type"] == "network" for namespace in namespaces)
    return {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": False,
            "user": _user(str(settings.get("User") or ""), image.rootfs),
            "args": _arguments(action, settings),
            "env": [f"{name}={value}" for name, value in environment.items()],
            "cwd": _absolute(str(settings.get("WorkingDir") or "/")),
            # No ambient set: processes of other users than root have no capabilities, as with Docker.
            "capabilities": dict.fromkeys(("bounding", "effective", "permitted", "inheritable"), capabilities),
            "noNewPrivileges": False,
        },
        "root": {"path": str(directory / "rootfs"), "readonly": False},
        "mounts": _mounts(action, volume_dir, FailureFiles(directory), shared_files if shares_network else {}),
        "linux": {
            "namespaces": namespaces,
            "cgroupsPath": f"/{directory.name}",
            "resources": {"devices": [{"allow": True, "access": "rwm"}]},
            # A running action sees file systems that the OSIE mounts later; the OSIE does not see those of the action.
            "rootfsPropagation": "rslave",
            "maskedPaths": [],
            "readonlyPaths": [],
        },
    }


def _arguments(action: RenderedAction, settings: Mapping[str, Any]) -> list[str]:
    entrypoint, command = _strings(settings, "Entrypoint"), _strings(settings, "Cmd")
    if action.cmd:
        entrypoint, command = [action.cmd], []
    if action.args:
        command = list(action.args)
    if not entrypoint + command:
        message = f"action {action.name}: cmd: neither the action nor the image {action.image} names a program"
        raise ActionError(Reason.INVALID_ACTION, message)
    return entrypoint + command


def _namespaces(action: RenderedAction) -> list[dict[str, str]]:
    found = []
    # A container without a namespace of its own stays in the machine's. Joining that may need more rights.
    if action.pid_namespace in ("", "private"):
        found.append({"type": "pid"})
    elif action.pid_namespace.startswith("/") and action.pid_namespace != "/proc/1/ns/pid":
        found.append({"type": "pid", "path": action.pid_namespace})
    elif action.pid_namespace not in ("host", "/proc/1/ns/pid"):
        message = f'PID namespace: {action.pid_namespace!r} is neither "host", "private" nor a path'
        raise ActionError(Reason.INVALID_ACTION, f"action {action.name}: {message}")
    if action.network_namespace == "none":
        found.append({"type": "network"})
    elif action.network_namespace.startswith("/") and action.network_namespace != "/proc/1/ns/net":
        found.append({"type": "network", "path": action.network_namespace})
    elif action.network_namespace not in ("", "host", "/proc/1/ns/net"):
        message = f'networkNamespace: {action.network_namespace!r} is neither "host", "none" nor a path'
        raise ActionError(Reason.INVALID_ACTION, f"action {action.name}: {message}")
    return found


def _mounts(
    action: RenderedAction, volume_dir: Path, failure_files: FailureFiles, shared_files: Mapping[str, Path]
) -> list[dict[str, Any]]:
    mounts: list[dict[str, Any]] = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        # The machine's own, with its mounts: efivarfs, devpts. A new partition appears here at once.
        {"destination": "/dev", "type": "none", "source": "/dev", "options": ["rbind"]},
        {"destination": "/sys", "type": "none", "source": "/sys", "options": ["rbind"]},
    ]
    mounts += [_bind(str(copy), path) for path, copy in shared_files.items()]
    for volume in parse_volumes(action.volumes):
        source = str(volume_dir / volume.source) if volume.named else volume.source
        mounts.append(_bind(source, volume.target, *volume.options))
    # Last, so that no volume hides them.
    mounts.append(_bind(str(failure_files.reason), "/tinkerbell/failure-reason"))
    mounts.append(_bind(str(failure_files.message), "/tinkerbell/failure-message"))
    return mounts


def _bind(source: str, target: str, *options: str) -> dict[str, Any]:
    return {"destination": target, "type": "none", "source": source, "options": ["rbind", *options]}


def _user(text: str, rootfs: Path) -> dict[str, Any]:
    """Return the process's user for the image's `User`: `user[:group]`, names (of the image) or numbers."""
    user, _, group = text.partition(":")
    uid, gid, name = 0, 0, user or "root"
    entry = next((row for row in _rows(rootfs, "etc/passwd", 4) if row[0] == user or row[2] == user), None)
    if user.isdecimal():
        uid = int(user)
    elif user and entry is None and user != "root":
        raise ActionError(Reason.INVALID_ACTION, f"the image runs as user {user!r}, whom its /etc/passwd does not have")
    if entry is not None:
        uid, gid, name = int(entry[2]), int(entry[3]), entry[0]
    groups = _rows(rootfs, "etc/group", 3)
    if group.isdecimal():
        gid = int(group)
    elif group:
        found = next((row for row in groups if row[0] == group), None)
        if found is None:
            message = f"the image runs as group {group!r}, which its /etc/group does not have"
            raise ActionError(Reason.INVALID_ACTION, message)
        gid = int(found[2])
    more = [] if group else [int(row[2]) for row in groups if len(row) > 3 and name in row[3].split(",")]
    # The group itself among them, as engines have it since CVE-2022-36109: a setgid program can't shed it.
    return {"uid": uid, "gid": gid, "additionalGids": list(dict.fromkeys([gid, *more]))}


def _rows(rootfs: Path, name: str, numeric_columns: int) -> list[list[str]]:
    """Return the rows of a passwd or group file in the image, without rows whose ids are not numbers."""
    try:
        path = path_in_root(rootfs, name)
        if not path.is_file():
            return []
        with path.open(errors="replace") as file:
            lines = file.read(1024 * 1024).splitlines()
    except (OSError, UnpackError):
        return []
    rows = [line.split(":") for line in lines]
    return [
        row for row in rows if len(row) >= numeric_columns and all(cell.isdecimal() for cell in row[2:numeric_columns])
    ]


def image_volumes(image_config: Mapping[str, Any]) -> list[str]:
    """Return the directories that the image declares as volumes; no layer need contain them."""
    volumes = _mapping(_mapping(image_config.get("config")).get("Volumes"))
    return [_absolute(str(path)) for path in volumes]


def _absolute(path: str) -> str:
    return path if path.startswith("/") else f"/{path}"


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _strings(settings: Mapping[str, Any], name: str) -> list[str]:
    value = settings.get(name)
    return [str(item) for item in value] if isinstance(value, list) else []


# --- Runtime ---
#
# Actions in containers that runc or crun runs directly; there is no engine and no daemon.
#
# For each action, under `state_dir/run/<container>/`: an overlay of the image's root file system, the failure files,
# and the bundle's `config.json`; then `runc run` in the foreground, whose output and exit code are the action's. When
# it has ended, all of it is removed. Where an overlay cannot be mounted (`state_dir` on an overlay or a ramfs), the
# image is copied instead.
#
# What runc says about its own failures goes to a log file of its own, so that it cannot be taken for the action's
# output, nor an action's exit code for a failure of runc.


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
        host: ContainerHost | None = None,
        grace_seconds: float = STOP_GRACE_SECONDS,
    ) -> None:
        self._program = program
        self._state_dir = state_dir
        self._store = store
        self._host = host or ContainerHost.this()
        self._grace_seconds = grace_seconds
        self._run_dir = state_dir / "run"
        self._containers = state_dir / "containers"
        self._no_pivot = root_is_initramfs(Path("/proc/mounts").read_text())

    async def prepare(self, _held: str = "") -> None:
        """Make the directories; remove the containers of a killed agent, which may still write to the disk."""
        try:
            self._state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._store.prepare()
            self._run_dir.mkdir(mode=0o700, exist_ok=True)
            left = list(self._run_dir.iterdir())
        except OSError as error:
            message = f"state dir: {error.filename}: {error.strerror}; make room there, or give another --state-dir"
            raise AgentSettingsError(message) from error
        for directory in left:
            log.warning("removing the container %s that an earlier agent has left", directory.name)
            await self._remove(directory)

    async def pull(self, image: str, stop: asyncio.Event) -> None:
        await self._store.pull(image, stop)

    def check(self, action: RenderedAction) -> None:
        self._config(action, self._store.get(action.image), self._run_dir / "checked", {})
        self._make_volumes(action)

    async def run(self, action: RenderedAction, stop: asyncio.Event) -> RunResult:
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

    async def resume(self, _action: RenderedAction, _stop: asyncio.Event) -> RunResult | None:
        """Return None: the dead agent had runc's exit code, and `prepare` has removed the container."""
        return None

    async def _run(
        self, action: RenderedAction, image: UnpackedImage, directory: Path, stop: asyncio.Event
    ) -> RunResult:
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
        argv += ["--pid-file", str(pid_file), *(["--no-pivot"] if self._no_pivot else [])]
        name = directory.name

        async def terminate(pid: int) -> None:
            # A container without a process yet needs no time to end.
            code, _ = await self._call("kill", name, "TERM")
            if code != 0:
                await self._kill(name, pid)

        signals = Signals(terminate, lambda pid: self._kill(name, pid))
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
        self, action: RenderedAction, image: UnpackedImage, directory: Path, shared_files: Mapping[str, Path]
    ) -> dict[str, Any]:
        volume_dir = self._state_dir / "volumes"
        return container_config(
            action, image, directory, volume_dir=volume_dir, shared_files=shared_files, host=self._host
        )

    def _make_volumes(self, action: RenderedAction) -> None:
        for volume in parse_volumes(action.volumes):
            path = self._state_dir / "volumes" / volume.source if volume.named else Path(volume.source)
            where = f"action {action.name}: volumes: {str(volume)!r}"
            try:
                if volume.must_exist and not path.exists():
                    raise ActionError(Reason.INVALID_ACTION, f"{where}: this machine has no {path}")
                if not path.exists():
                    path.mkdir(parents=True)
            except OSError as error:
                raise ActionError(Reason.INVALID_ACTION, f"{where}: {path}: {error.strerror}") from error

    def _command(self, *arguments: str) -> list[str]:
        return [self._program, "--root", str(self._containers), *arguments]

    async def _kill(self, name: str, pid: int) -> None:
        """Kill the container, repeatedly until `runc run`, process `pid`, has ended: it may be creating one."""
        for _ in range(_KILL_ATTEMPTS):
            code, stderr = await self._call("delete", "--force", name)
            if not Path(f"/proc/{pid}").exists():  # noqa: ASYNC240
                return
            await asyncio.sleep(_KILL_PAUSE_SECONDS)
        log.warning("container %s does not end: exit code %d, %s", name, code, stderr or "no message")

    async def _remove(self, directory: Path) -> None:
        """Kill and remove the container of `directory`, and the directory."""
        # `run` removes containers that end by themselves. A call of runc takes half a second on an emulated machine.
        if (self._containers / directory.name).exists():
            await self._call("delete", "--force", directory.name)
        await _kill_all(directory.name)
        rootfs = directory / "rootfs"
        if rootfs.is_mount():
            try:
                unmount(rootfs)
            except OSError as error:
                # The mount may still be there, and removing the tree below it could delete a user's files.
                log.error("container %s: cannot unmount %s: %s; it is left", directory.name, rootfs, error.strerror)
                return
        try:
            await asyncio.to_thread(shutil.rmtree, directory)
        except OSError as error:
            # The action is over and does not fail because of files that it left.
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
    """Return the last error in the log of runc or crun, with a hint if one is known; empty if there is no error.

    They do not log an action's exit code as an error.
    """
    try:
        with runtime_log.open(errors="replace") as file:
            lines = file.read(64 * 1024).splitlines()
    except FileNotFoundError:
        return ""
    for line in reversed(lines):
        try:
            entry = json.loads(line)
            level, message = entry["level"], str(entry["msg"])
        except (ValueError, TypeError, KeyError):
            continue  # crun and runc sometimes write invalid lines
        if level in ("error", "fatal"):
            hints = [hint for sign, hint in _HINTS if sign in message]
            return one_line(message + (f" ({hints[0]})" if hints else ""))
    return ""


def _copies(paths: Sequence[str], directory: Path) -> dict[str, Path]:
    """Copy files of this machine to `directory`, and return the copies by the paths of the originals."""
    copies = {path: directory / f"shared-{Path(path).name}" for path in paths if Path(path).is_file()}
    for path, copy in copies.items():
        copy.write_bytes(Path(path).read_bytes())
        copy.chmod(0o644)
    return copies


def _make_rootfs(image: UnpackedImage, directory: Path) -> None:
    image_rootfs = image.rootfs
    rootfs, upper, work = made = directory / "rootfs", directory / "upper", directory / "work"
    for path in made:
        path.mkdir()
    upper.chmod(image_rootfs.stat().st_mode & 0o7777)  # the container's / has the attributes of the upper directory
    try:
        mount_overlay(image_rootfs, upper, work, rootfs)
    except OSError as error:
        log.warning("no overlay for a container at %s (%s); the image is copied instead", rootfs, error.strerror)
        # cp keeps owners, hard links and devices, which shutil.copytree does not; busybox' does too.
        copied = subprocess.run(["cp", "-a", f"{image_rootfs}/.", str(rootfs)], capture_output=True, check=False)
        if copied.returncode != 0:
            stderr = one_line(copied.stderr.decode(errors="replace"))
            raise ActionError(Reason.RUNTIME_ERROR, f"copying the image to {rootfs}: {stderr}") from error
    for volume in image_volumes(image.config):
        try:
            path_in_root(rootfs, volume).mkdir(parents=True, exist_ok=True)
        except (OSError, UnpackError) as error:
            log.warning("the image's volume %s cannot be made: %s", volume, error)


async def _end_with_its_first_process(name: str, pid_file: Path) -> None:
    """Kill the container's other processes after its first one, whose id the runtime writes to `pid_file`."""
    # The kernel does that in a PID namespace, and runc and engines do it without one. `crun run` (1.8) waits for the
    # last process instead: an action would not end before a daemon that it started.
    process = 0
    while not process:
        try:
            process = int(pid_file.read_text())  # noqa: ASYNC240
        except (FileNotFoundError, ValueError):  # not written yet
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


async def _kill_all(name: str) -> None:
    """Kill the processes that the container left in the machine's PID namespace."""
    if left := await kill_all(name):
        log.error("container %s: %d of its processes do not end", name, left)
