"""`waitdaemon`, the last action of many templates. An engine starts another image some seconds after it has ended.

The other image mostly reboots the machine or starts another kernel, so no agent could report its end. `waitdaemon`
passes its own arguments, environment and volumes on to the image in $IMAGE, except those named here. `tinkedge convert`
replaces `waitdaemon` by that image, and our agent runs it after the server knows the end: neither needs an engine.

Source: waitdaemon v0.1 to v0.4.3, README.md and main.go.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

NAME = "waitdaemon"
_RESTARTS = re.compile(r"(?:^|[^a-z])(?:kexec|reboot)(?:[^a-z]|\Z)")
_OWN_VARIABLES = frozenset({"IMAGE", "WAIT_SECONDS", "PHASE", "CONTAINER_RUNTIME", "NERDCTL_NAMESPACE", "NERDCTL_HOST"})
_OF_ENGINES = frozenset(
    {
        *("/var/run/docker.sock", "/run/docker.sock"),
        *("/run/containerd/containerd.sock", "/var/run/containerd/containerd.sock"),
        *("/var/lib/containerd", "/var/lib/nerdctl", "/opt/cni/bin", "/etc/cni/net.d"),
    }
)
"""The sockets and directories of engines that it mounts."""


def image_name(image: str) -> str:
    """Return the last part of an image's name, without registry, path, tag and digest."""
    return image.partition("@")[0].rpartition("/")[2].partition(":")[0]


def started_by(image: str, env: Mapping[str, str]) -> str:
    """Return the image that an action with `image` and `env` starts by an engine, or "" if it is no waitdaemon."""
    return env.get("IMAGE", "") if image_name(image) == NAME else ""


def without_its_own(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of `env` that `waitdaemon` passes on to the image."""
    return {name: value for name, value in env.items() if name not in _OWN_VARIABLES}


def without_engines(volumes: Iterable[str]) -> list[str]:
    """Return the volumes (`SRC:DST[:OPTIONS]`) that `waitdaemon` passes on to the image."""
    return [volume for volume in volumes if _OF_ENGINES.isdisjoint(volume.split(":")[1:2])]


def restarts(action: Mapping[str, Any]) -> bool:
    """Return True if an action (`name`, `image`) seems to restart the machine, or to start another kernel on it."""
    image, name = image_name(action["image"]), str(action["name"])
    return bool(_RESTARTS.search(image.lower()) or _RESTARTS.search(name.lower())) or image == NAME


def unwrap(action: dict[str, Any]) -> str:
    """Replace waitdaemon in an action (`image`, `env`, `volumes`) by the image that it makes an engine start.

    Return that image, or "" if the action is no waitdaemon, which stays as it is.
    """
    image = started_by(action["image"], action.get("env", {}))
    if not image:
        return ""
    action["image"] = image
    env = without_its_own(action["env"])
    volumes = without_engines(action.get("volumes", ()))
    for field, left in (("env", env), ("volumes", volumes)):
        if left:
            action[field] = left
        else:
            action.pop(field, None)
    return image
