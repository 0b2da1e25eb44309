"""Where the numbers of the scale subresource stand in the objects of a definition, and what they may be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tink import golang
from tink.schema import FieldError, Raw, invalid_whole


@dataclass(frozen=True, slots=True)
class ScalePaths:
    """Where the replicas that are wanted and that exist stand in an object, and the selector of what is scaled."""

    wanted: tuple[str, ...]
    actual: tuple[str, ...]
    selector: tuple[str, ...] = ()

    @staticmethod
    def of(version: Mapping[str, Any]) -> ScalePaths | None:
        """Read a version of a definition; None when it has no scale."""
        scale = (version.get("subresources") or {}).get("scale")
        if scale is None:
            return None
        names = ("specReplicasPath", "statusReplicasPath", "labelSelectorPath")
        wanted, actual, selector = (tuple((scale.get(name) or "").removeprefix(".").split(".")) for name in names)
        return ScalePaths(wanted, actual, () if selector == ("",) else selector)


_INT32_MAX = (1 << 31) - 1


def scale_check(scale: Raw) -> Callable[[Raw, Raw | None], list[FieldError]]:
    """Check what the scale of an object is read from (pkg/registry/customresource/validator.go)."""
    paths = [scale["specReplicasPath"], scale["statusReplicasPath"]]

    def check(new: Raw, _old: Raw | None) -> list[FieldError]:
        found = []
        for path in paths:
            value, why = _at(new, path, int, "int64", 0)
            if why:
                found.append(invalid_whole(path, 0, why))
            elif value < 0:
                found.append(invalid_whole(path, value, "should be a non-negative integer"))
            elif value > _INT32_MAX:
                found.append(invalid_whole(path, value, f"should be less than or equal to {_INT32_MAX}"))
        if scale.get("labelSelectorPath") is not None:
            _, why = _at(new, scale["labelSelectorPath"], str, "string", "")
            if why:
                found.append(invalid_whole(scale["labelSelectorPath"], "", why))
        return found

    return check


def _at(obj: Any, path: str, wanted: type, go_type: str, zero: Any) -> tuple[Any, str]:
    """Give the value at a simple path, or why there is none of the wanted type; a missing one is zero."""
    steps = path.removeprefix(".").split(".")
    at = ""
    for step in steps:
        if not isinstance(obj, dict):
            return zero, _accessor_error(at, obj, "map[string]interface {}")
        at += f".{step}"
        if step not in obj:
            return zero, ""
        obj = obj[step]
    if not isinstance(obj, wanted) or isinstance(obj, bool):
        return zero, _accessor_error(at, obj, go_type)
    return obj, ""


def _accessor_error(at: str, found: Any, wanted: str) -> str:
    return f"{at} accessor error: {golang.plain(found)} is of the type {golang.type_name(found)}, expected {wanted}"
