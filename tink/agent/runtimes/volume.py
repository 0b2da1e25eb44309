"""Volumes of an action: `SRC:DST[:OPTIONS]`, for every runtime that has them.

An absolute SRC is a path of the machine, made as a directory if it is missing, unless it names a socket, a file or a
device: an action that finds an empty directory there would do something else than it was written for. A name is a
volume of the runtime, empty or new at first, that lasts as long as the runtime keeps it. Options: ro, rw, and the
kernel's propagation words.
Source: `volumes` of the Template of Tinkerbell's v1alpha2, which follows Docker.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from tink.agent.model import ActionError, Reason

_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,127}")
_FILE = re.compile(
    r"\.(?:sock|socket|conf|cfg|ini|ya?ml|json|toml|env|txt|list|repo|service|pem|crt|cer|key|pub|p12|csr|sh|py"
    r"|img|iso|raw|qcow2|efi|gz|xz|zst|bz2|tgz|tar|zip|squashfs|pid|lock|log|db)\Z"
    r"|/(?:hosts|hostname|passwd|group|shadow|fstab|machine-id|os-release|localtime|cmdline)\Z",
    re.IGNORECASE,
)
"""Names that files and sockets have, and directories have not; `conf.d` and `v1.2` are directories."""
_NEVER_MADE = ("/dev/", "/proc/", "/sys/")

_ACCESS = frozenset({"ro", "rw"})
_PROPAGATION = frozenset({"rshared", "shared", "rslave", "slave", "rprivate", "private"})


@dataclass(frozen=True, slots=True)
class Volume:
    """One of the action's volumes: `source` is a path, or a name when `named`."""

    source: str
    target: str
    options: tuple[str, ...]
    named: bool

    @property
    def must_exist(self) -> bool:
        """Whether the source can't be a directory that is made: by its place, or by the ending of its name."""
        if self.named:
            return False
        return self.source.startswith(_NEVER_MADE) or bool(_FILE.search(self.source))

    def __str__(self) -> str:
        return ":".join(part for part in (self.source, self.target, ",".join(self.options)) if part)


def parse_volumes(texts: Iterable[str]) -> tuple[Volume, ...]:
    """The volumes of an action in the order to mount them in: one inside of another after that. Raises ActionError.

    The order in which they are written can't tell: those of the Template and those of the action were merged.
    """
    found: dict[str, Volume] = {}
    for text in texts:
        volume = parse_volume(text)
        if other := found.get(volume.target):
            message = f"volumes: {text!r}: {volume.target!r} is the place of another one, {str(other)!r}"
            raise ActionError(Reason.INVALID_ACTION, message)
        found[volume.target] = volume
    return tuple(sorted(found.values(), key=lambda volume: volume.target.count("/")))


def parse_volume(text: str) -> Volume:
    """The volume that `text`, `SRC:DST[:OPTIONS]`, asks for. Raises ActionError."""

    def invalid(why: str) -> ActionError:
        return ActionError(Reason.INVALID_ACTION, f"volumes: {text!r}: {why}")

    pieces = text.split(":")
    if len(pieces) not in (2, 3):
        raise invalid("is not SRC:DST or SRC:DST:OPTIONS")
    source, target = pieces[0], pieces[1]
    options = tuple(option for option in pieces[2].split(",") if option) if len(pieces) == 3 else ()
    if unknown := [option for option in options if option not in _ACCESS | _PROPAGATION]:
        raise invalid(f"option {unknown[0]!r} is none of {', '.join(sorted(_ACCESS | _PROPAGATION))}")
    for kind in (_ACCESS, _PROPAGATION):
        if len(of_kind := [option for option in options if option in kind]) > 1:
            raise invalid(f"{' and '.join(of_kind)}: only one of {', '.join(sorted(kind))} can be")
    named = not source.startswith("/")
    if named and not _NAME.fullmatch(source):
        raise invalid(f"{source!r} is neither an absolute path nor a name of letters, digits, dots and dashes")
    if named and not _PROPAGATION.isdisjoint(options):
        raise invalid("a volume with a name has no mounts to propagate")
    parts = [part for part in target.split("/") if part not in ("", ".")]
    if not target.startswith("/") or ".." in parts or not parts:
        raise invalid(f"{target!r} is not an absolute path in the container below /")
    return Volume(source, "/" + "/".join(parts), options, named)
