"""What the path of a request names: `/api/v1/...`, `/apis/<group>/<version>/...` (Kubernetes: RequestInfo). Pure."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote


@dataclass(frozen=True, slots=True)
class Target:
    """What a path names. `namespace` is "" when the path has none; `name` and `subresource` may be "" too.

    `more`: the path goes on after what may be a subresource.
    """

    group: str
    version: str
    plural: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    more: bool = False


def parse_path(raw_path: str) -> Target | None:
    """Read the path of a resource; None when it is not one."""
    steps = [unquote(step) for step in raw_path.strip("/").split("/")]
    if any(not step or "/" in step or "\0" in step for step in steps):
        return None
    match steps:
        case ["api", "v1", *rest]:
            group, version = "", "v1"
        case ["apis", group, version, *rest]:
            pass
        case _:
            return None
    namespace = ""
    # /api/v1/namespaces/x is the namespace itself, /api/v1/namespaces/x/secrets is in it.
    if len(rest) > 2 and rest[0] == "namespaces" and not (not group and rest[2] in ("status", "finalize")):
        namespace, rest = rest[1], rest[2:]
    if not rest:
        return None
    plural, name, subresource = (*rest, "", "")[:3]
    return Target(group, version, plural, namespace, name, subresource, more=len(rest) > 3)
