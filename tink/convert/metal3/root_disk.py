"""Choose the root disk by Metal3's root device hints: the one disk that fits all hints, or none.

The comparisons are those that the baremetal-operator requests from Ironic (pkg/provisioner/ironic/devicehints) and that
Ironic makes (ironic-lib, utils.match_root_device_hints): case-insensitive text, `s==` for most hints, `<in>` for model
and vendor, GiB for sizes. Ironic takes the first disk that fits. Here exactly one must fit, because an installation
destroys the data on the disk.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from tink.api import bounds
from tink.api.v1alpha2 import Raw
from tink.convert import constraints
from tink.convert.fields import type_name

_GIB = 1 << 30
_MAX_HINT_CHARACTERS = 1024
"""Maximum characters of a hint. A disk's own values have about 40; each is compared with the hint."""
_DEVICE = re.compile(r"[\w#+.:=@\\/-]*", re.ASCII)
r"""The characters of device names (systemd, udev's `udev_replace_chars`; udev writes others as \xNN).

Templates put these names into scripts, and a user who may write hosts need not be allowed to run scripts.
"""
_OLD_NAMES = {"deviceName": "devicePath", "model": "modelContains", "vendor": "vendorContains"}
PATH = "devicePath"


@dataclass(frozen=True, slots=True)
class Choice:
    """The result of `choose`.

    `devices` starts with the root disk. It is empty if the root disk is unknown; then `problem` says why.
    """

    devices: tuple[str, ...] = ()
    problem: str = ""
    left_out: tuple[tuple[int, str], ...] = ()
    """Other disks that v1alpha2 would refuse: their index in the inventory, and the reason."""


def choose(hints: Raw, disks: Any, *, verified: bool = False) -> Choice:
    """Return the storage devices of a machine, the root disk first.

    `hints` are root device hints of either version. `disks` is `storage` of HardwareData, or None if there was no
    inspection. With `verified`, a path is accepted only if a disk has it: for hints that no user wrote.
    """
    wanted = {_OLD_NAMES.get(name, name): value for name, value in hints.items() if value not in (None, "")}
    wanted = {name: value for name, value in wanted.items() if name != "minSizeGigabytes" or value != 0}
    for name, value in wanted.items():
        if problem := _unfit(name, value):
            return Choice(problem=problem)
    if disks is not None and not isinstance(disks, list):
        return Choice(problem=f"the inventory's storage must be a list, is {type_name(disks)}")
    found = disks or []
    if any(not isinstance(disk, dict) for disk in found):
        return Choice(problem="the inventory's storage has entries that are no objects: inspect the host again")
    if not found:
        # Choose without an inventory: only a path can be accepted as it is.
        if set(wanted) != {PATH} or verified:
            return Choice(problem="there is no HardwareData with the host's disks to choose from")
        if problem := _not_a_device(wanted[PATH]):
            return Choice(problem=f"the path {problem}")
        return Choice((wanted[PATH],))
    for name, value in wanted.items():
        if _KINDS[name] is str and name != PATH:
            wanted[name] = _normal(value)
    fitting = [
        place for place, disk in enumerate(found) if all(_MATCH[name](disk, value) for name, value in wanted.items())
    ]
    if len(fitting) != 1:
        return Choice(problem=_ambiguous(wanted, found, fitting))
    root = wanted.get(PATH) or found[fitting[0]].get("name")
    if problem := _not_a_device(root):
        return Choice(problem=f"the root disk's name {problem}")
    devices: list[str] = [root]
    left_out: list[tuple[int, str]] = []
    for number, disk in enumerate(found):
        device: Any = disk.get("name")
        if number == fitting[0] or device in devices:
            continue
        if problem := _not_a_device(device):
            left_out.append((number, problem))
        elif len(devices) == bounds.MAX_DISKS:
            left_out.append((number, f"v1alpha2 takes {bounds.MAX_DISKS} disks of a machine"))
        else:
            devices.append(device)
    return Choice(tuple(devices), left_out=tuple(left_out))


def _ambiguous(wanted: Raw, disks: list[Raw], fitting: list[int]) -> str:
    if not wanted:
        return f"there are no hints, and the host has {len(disks)} disks: say which"
    names = ", ".join(str(disks[place].get("name"))[:80] for place in fitting[:4])
    more = ", …" if len(fitting) > 4 else ""
    return f"{len(fitting)} disks fit: {names}{more}" if fitting else f"none of the host's {len(disks)} disks fits"


def _unfit(name: str, value: Any) -> str:
    kind = _KINDS.get(name)
    if kind is None:
        return f"{name[:80]} is no hint that can be compared"
    if kind is bool:
        return "" if isinstance(value, bool) else f"{name} must be true or false, is {type_name(value)}"
    if not isinstance(value, kind) or isinstance(value, bool):
        wanted = "a string" if kind is str else "a number"
        return f"{name} must be {wanted}, is {type_name(value)}"
    if isinstance(value, str) and len(value) > _MAX_HINT_CHARACTERS:
        return f"{name} has {len(value)} characters; the most that are compared are {_MAX_HINT_CHARACTERS}"
    return ""


def _not_a_device(name: Any) -> str:
    """Return the reason why v1alpha2 would refuse a device's name; empty if it accepts the name."""
    if not isinstance(name, str):
        return f"must be a string, is {type_name(name)}"
    refusal = constraints.disk(name)
    if not refusal and not _DEVICE.fullmatch(name):
        refusal = "names of devices are made of letters, digits and #+-.:=@_"
    return f"{name[:80]!r} is refused: {refusal}" if refusal else ""


def _normal(value: Any) -> str | None:
    """Return text as Ironic compares it; None for any other value."""
    return unquote(value.strip().lower()) if isinstance(value, str) and value else None


def _exactly(key: str) -> Callable[[Raw, Any], bool]:
    return lambda disk, value: _normal(disk.get(key)) == value


def _within(key: str) -> Callable[[Raw, Any], bool]:
    def matches(disk: Raw, value: Any) -> bool:
        text = _normal(disk.get(key))
        return text is not None and value is not None and value in text

    return matches


def _path(disk: Raw, value: Any) -> bool:
    names = disk.get("alternateNames")
    return value in [disk.get("name"), *(names if isinstance(names, list) else [])]


def _size(disk: Raw, value: Any) -> bool:
    size = disk.get("sizeBytes")
    return isinstance(size, int) and not isinstance(size, bool) and size >= value * _GIB


def _rotational(disk: Raw, value: Any) -> bool:
    # The inventory omits the value False.
    rotational = disk.get("rotational")
    if rotational is None:
        rotational = disk.get("type") == "HDD"
    return rotational is value


_MATCH: dict[str, Callable[[Raw, Any], bool]] = {
    PATH: _path,
    "hctl": _exactly("hctl"),
    "modelContains": _within("model"),
    "vendorContains": _within("vendor"),
    "serialNumber": _exactly("serialNumber"),
    "minSizeGigabytes": _size,
    "wwn": _exactly("wwn"),
    "wwnWithExtension": _exactly("wwnWithExtension"),
    "wwnVendorExtension": _exactly("wwnVendorExtension"),
    "rotational": _rotational,
}
_KINDS: dict[str, type] = dict.fromkeys(_MATCH, str) | {"minSizeGigabytes": int, "rotational": bool}
