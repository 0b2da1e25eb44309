"""The container of an action, described: an action in, the body of `POST /containers/create` out. Pure.

An action gets here what `oci.bundle` gives it, so that a Workflow runs alike with and without an engine, and what
Tinkerbell's own agents give it: it is privileged, because actions write disks.

- Command: `cmd` replaces the image's Entrypoint (and drops its Cmd); `args` replace its Cmd. No shell is put between.
- The machine's /dev, not the copy that an engine makes when the container starts: partitions of a disk that the action
  has just written appear in it.
- Volumes: paths of the machine that the engine runs on, or volumes of the engine by name. One that names a file is a
  mount, which the engine refuses if there is none; for a bind it would make a directory.
- Network namespace: none named, or `host` or `/proc/1/ns/net`: the machine's. `none`: only loopback. `bridge`: the
  engine's bridge. PID namespace: its own unless `host` or `/proc/1/ns/pid`. Engines do not join namespaces by path.
- The log that the engine keeps for the agent is small: in an OSIE it is in memory.
- Labels: whose container it is, to find it again (`protocol.Runtime.resume`).

Sources: Docker Engine API 1.41, ContainerCreate; Podman 4.3's compatible API.
"""

from __future__ import annotations

import io
import tarfile
from typing import Any

from tink.agent.images import parse
from tink.agent.model import Action, ActionError, Reason
from tink.agent.runtimes.failure import MESSAGE_LIMIT_BYTES
from tink.agent.runtimes.host import CAPABILITIES
from tink.agent.runtimes.volume import parse_volumes

LABEL_AGENT = "tinkedge.agent"
LABEL_ACTION = "tinkedge.action"
FAILURE_FILES = ("failure-reason", "failure-message")
"""In /tinkerbell."""

_LOG_LIMIT = "4m"
_ENGINE_CAPABILITIES = 38
"""Capabilities that every engine in use knows by name; a newer one than AUDIT_READ (37) in CapDrop is an error."""


def image_name(image: str) -> str:
    """`image` in full, so that no engine fills in a registry of its own. Raises ActionError."""
    reference = parse(image)
    separator = "@" if reference.digest else ":"
    return f"{reference.host}/{reference.path}{separator}{reference.version}"


def container_request(action: Action, agent_id: str, capability_mask: int | None = None) -> dict[str, Any]:
    """The body that creates the container of `action`. Raises ActionError with what of the action cannot be.

    `capability_mask`: None asks for a privileged container; a mask of capabilities asks for all that make one
    privileged, but only with those. An engine that lacks a capability itself can't make a privileged container.
    """
    body: dict[str, Any] = {
        "Image": image_name(action.image),
        "Env": [f"{name}={value}" for name, value in action.env.items()],
        "Labels": {LABEL_AGENT: agent_id, LABEL_ACTION: action.id},
        "Tty": False,
        "HostConfig": {
            "NetworkMode": _network(action),
            "PidMode": _pid(action),
            "Binds": _binds(action),
            "Mounts": _mounts(action),
            "LogConfig": {"Type": "json-file", "Config": {"max-size": _LOG_LIMIT}},
            "RestartPolicy": {"Name": "no"},
            **_privileges(capability_mask),
        },
    }
    if action.cmd:
        body["Entrypoint"] = [action.cmd]
    if action.args:
        body["Cmd"] = list(action.args)
    return body


def failure_archive() -> bytes:
    """A tar archive of /tinkerbell with the two empty failure files, which any user of the container may write."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        directory = tarfile.TarInfo("tinkerbell")
        directory.type, directory.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(directory)
        for name in FAILURE_FILES:
            file = tarfile.TarInfo(f"tinkerbell/{name}")
            file.mode = 0o666
            archive.addfile(file)
        end = archive.offset + 2 * tarfile.BLOCKSIZE
    # Up to the mark of its end and no further: Podman's helper stops reading there, and the engine's write would fail.
    return buffer.getvalue()[:end]


def text_of_archive(head: bytes) -> str:
    """The text of the one file in a tar archive that begins with `head`; "" when it is no file or no archive."""
    try:
        with tarfile.open(fileobj=io.BytesIO(head), mode="r:") as archive:
            member = archive.next()
            if member is None or not member.isreg():
                return ""  # a link would be the action's way to another file; the engine does not follow it either
            begin = member.offset_data
            return head[begin : begin + min(max(member.size, 0), 2 * MESSAGE_LIMIT_BYTES)].decode(errors="replace")
    except (tarfile.TarError, EOFError, ValueError, OverflowError, RecursionError):
        return ""


def _privileges(capability_mask: int | None) -> dict[str, Any]:
    if capability_mask is None:
        return {"Privileged": True}
    lacking = [
        name for number, name in enumerate(CAPABILITIES[:_ENGINE_CAPABILITIES]) if not capability_mask & (1 << number)
    ]
    return {
        "Privileged": False,
        "CapAdd": ["ALL"],
        "CapDrop": lacking,
        "SecurityOpt": ["seccomp=unconfined", "apparmor=unconfined", "label=disable"],
        "MaskedPaths": [],
        "ReadonlyPaths": [],
        "DeviceCgroupRules": ["a *:* rwm"],
    }


def _binds(action: Action) -> list[str]:
    volumes = parse_volumes(action.volumes)
    machines_own = [] if any(volume.target == "/dev" for volume in volumes) else ["/dev:/dev"]
    return machines_own + [str(volume) for volume in volumes if not volume.must_exist]


def _mounts(action: Action) -> list[dict[str, Any]]:
    mounts: list[dict[str, Any]] = []
    for volume in parse_volumes(action.volumes):
        if not volume.must_exist:
            continue
        mount: dict[str, Any] = {"Type": "bind", "Source": volume.source, "Target": volume.target}
        mount["ReadOnly"] = "ro" in volume.options
        propagation = [option for option in volume.options if option not in ("ro", "rw")]
        if propagation:
            mount["BindOptions"] = {"Propagation": propagation[0]}
        mounts.append(mount)
    return mounts


def _network(action: Action) -> str:
    wanted = action.network_namespace
    if wanted in ("", "host", "/proc/1/ns/net"):
        return "host"
    if wanted in ("none", "bridge"):
        return wanted
    raise _no_namespace(action, "networkNamespace", wanted, '"host", "none", "bridge" nor "/proc/1/ns/net"')


def _pid(action: Action) -> str:
    wanted = action.pid_namespace
    if wanted in ("", "private"):
        return ""
    if wanted in ("host", "/proc/1/ns/pid"):
        return "host"
    raise _no_namespace(action, "PID namespace", wanted, '"host", "private" nor "/proc/1/ns/pid"')


def _no_namespace(action: Action, field: str, wanted: str, known: str) -> ActionError:
    message = f"{field}: {wanted!r} is neither {known}; a container engine joins no other (--runtime runc does)"
    return ActionError(Reason.INVALID_ACTION, f"action {action.name}: {message}")
