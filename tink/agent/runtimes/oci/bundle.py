"""The container of an action, described: image configuration and action in, runc's `config.json` out. Pure.

What an action gets is what Tinkerbell's actions expect of Docker with `--privileged`:

- Command: `cmd` replaces the image's Entrypoint (and drops its Cmd); `args` replace its Cmd. No shell is put between.
- Environment: the image's, the action's on top; PATH if neither has one.
- User and working directory: the image's.
- All capabilities that the agent has, all devices, the machine's /dev and /sys, nothing masked: actions write disks.
- Volumes `SRC:DST[:OPTIONS]`. An absolute SRC is a path of the OSIE, made if it is missing; a name is a directory
  under `state_dir/volumes`, empty at first, that lasts until the machine goes down. Options: ro, rw, and the kernel's
  propagation words.
- Network namespace: none named, or `host` or `/proc/1/ns/net`: the machine's network, because actions fetch images and
  there is no bridge in an OSIE. `none`: a network of its own with only loopback. Another absolute path: that namespace
  is joined. With the machine's network go copies of its /etc/resolv.conf and /etc/hosts, which the action may change.
- PID namespace: its own, or the machine's for `host` and `/proc/1/ns/pid`. Another absolute path is joined.
- No limits: none on memory, processors or open files.

Sources: OCI runtime specification 1.0 (config.md, config-linux.md); image specification, config.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tink.agent.images import UnpackError, resolve
from tink.agent.model import Action, ActionError, Reason
from tink.agent.runtimes.failure import FailureFiles
from tink.agent.runtimes.host import CAPABILITIES, Host
from tink.agent.runtimes.volume import parse_volumes

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def container_config(
    action: Action,
    image_config: Mapping[str, Any],
    *,
    rootfs: Path,
    image_rootfs: Path,
    cgroup: str,
    volume_dir: Path,
    failure_files: FailureFiles,
    shared_files: Mapping[str, Path],
    host: Host,
) -> dict[str, Any]:
    """The runtime's `config.json` for `action`. Raises ActionError with what of the action or image cannot be.

    `rootfs` is what the container gets; `image_rootfs` is only read, for the names of users. `shared_files`: by their
    path in the container, the copies of the machine's files that go with its network.
    """
    settings = _mapping(image_config.get("config"))
    capabilities = [f"CAP_{name}" for number, name in enumerate(CAPABILITIES) if host.capability_mask & (1 << number)]
    namespaces: list[dict[str, str]] = [{"type": "mount"}, {"type": "ipc"}, *_namespaces(action)]
    shares_network = not any(namespace["type"] == "network" for namespace in namespaces)
    return {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": False,
            "user": _user(str(settings.get("User") or ""), image_rootfs),
            "args": _arguments(action, settings),
            "env": _environment(action, settings),
            "cwd": _absolute(str(settings.get("WorkingDir") or "/")),
            # No ambient set: a process of another user than root has none of these, as with Docker.
            "capabilities": dict.fromkeys(("bounding", "effective", "permitted", "inheritable"), capabilities),
            "noNewPrivileges": False,
        },
        "root": {"path": str(rootfs), "readonly": False},
        "mounts": _mounts(action, volume_dir, failure_files, shared_files if shares_network else {}),
        "linux": {
            "namespaces": namespaces,
            "cgroupsPath": f"/{cgroup}",
            "resources": {"devices": [{"allow": True, "access": "rwm"}]},
            # A file system that the OSIE mounts later is seen by an action that runs for long; not the reverse.
            "rootfsPropagation": "rslave",
            "maskedPaths": [],
            "readonlyPaths": [],
        },
    }


def _arguments(action: Action, settings: Mapping[str, Any]) -> list[str]:
    entrypoint, command = _strings(settings, "Entrypoint"), _strings(settings, "Cmd")
    if action.cmd:
        entrypoint, command = [action.cmd], []
    if action.args:
        command = list(action.args)
    if not entrypoint + command:
        message = f"action {action.name}: cmd: neither the action nor the image {action.image} names a program"
        raise ActionError(Reason.INVALID_ACTION, message)
    return entrypoint + command


def _environment(action: Action, settings: Mapping[str, Any]) -> list[str]:
    pairs = (item.partition("=") for item in _strings(settings, "Env"))
    environment = {"PATH": DEFAULT_PATH, **{name: value for name, _, value in pairs}, **action.env}
    return [f"{name}={value}" for name, value in environment.items()]


def _namespaces(action: Action) -> list[dict[str, str]]:
    found = []
    # The machine's own are not joined, which may take more rights than an agent has; not leaving them does as well.
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
    action: Action, volume_dir: Path, failure_files: FailureFiles, shared_files: Mapping[str, Path]
) -> list[dict[str, Any]]:
    mounts: list[dict[str, Any]] = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        # The machine's own, with everything mounted in it: efivarfs, devpts. A new partition appears here at once.
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
    """`user[:group]`, names or numbers, as image specification's `User`; names are those of the image."""
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
            raise ActionError(
                Reason.INVALID_ACTION, f"the image runs as group {group!r}, which its /etc/group does not have"
            )
        gid = int(found[2])
    more = [] if group else [int(row[2]) for row in groups if len(row) > 3 and name in row[3].split(",")]
    # The group itself among them, as engines have it since CVE-2022-36109: a setgid program can't shed it.
    return {"uid": uid, "gid": gid, "additionalGids": list(dict.fromkeys([gid, *more]))}


def _rows(rootfs: Path, name: str, numeric_columns: int) -> list[list[str]]:
    """The rows of a passwd or group file in the image, without those whose ids are no numbers."""
    try:
        path = resolve(rootfs, name)
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
    """The directories that the image calls volumes: there, whether a layer brings them or not."""
    volumes = _mapping(_mapping(image_config.get("config")).get("Volumes"))
    return [_absolute(str(path)) for path in volumes]


def _absolute(path: str) -> str:
    return path if path.startswith("/") else f"/{path}"


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _strings(settings: Mapping[str, Any], name: str) -> list[str]:
    value = settings.get(name)
    return [str(item) for item in value] if isinstance(value, list) else []
