"""Volumes of an action: `SRC:DST[:OPTIONS]`, for every runtime that has them.

An absolute SRC is a path of the machine, made if it is missing; a name is a volume of the runtime, empty or new at
first, that lasts as long as the runtime keeps it. Options: ro, rw, and the kernel's propagation words.
Source: `volumes` of the Template in seeds/crd-refactor-final.md, which follows Docker.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tink.agent.model import ActionError, Reason

_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,127}")
_OPTIONS = frozenset({"ro", "rw", "rshared", "shared", "rslave", "slave", "rprivate", "private"})


@dataclass(frozen=True, slots=True)
class Volume:
    """One of the action's volumes: `source` is a path, or a name when `named`."""

    source: str
    target: str
    options: tuple[str, ...]
    named: bool


def parse_volume(text: str) -> Volume:
    """The volume that `text`, `SRC:DST[:OPTIONS]`, asks for. Raises ActionError."""

    def invalid(why: str) -> ActionError:
        return ActionError(Reason.INVALID_ACTION, f"volumes: {text!r}: {why}")

    parts = text.split(":")
    if len(parts) not in (2, 3):
        raise invalid("is not SRC:DST or SRC:DST:OPTIONS")
    source, target = parts[0], parts[1]
    options = tuple(option for option in parts[2].split(",") if option) if len(parts) == 3 else ()
    if unknown := [option for option in options if option not in _OPTIONS]:
        raise invalid(f"option {unknown[0]!r} is none of {', '.join(sorted(_OPTIONS))}")
    named = not source.startswith("/")
    if named and not _NAME.fullmatch(source):
        raise invalid(f"{source!r} is neither an absolute path nor a name of letters, digits, dots and dashes")
    if not target.startswith("/") or ".." in target.split("/") or not target.strip("/"):
        raise invalid(f"{target!r} is not an absolute path in the container below /")
    return Volume(source, target, options, named)
