"""Where the numbers of the scale subresource stand in the objects of a definition, and what they may be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tink.kubeapi.schema import FieldError, Raw, invalid_whole


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
            value = _at(new, path, 0)
            if not isinstance(value, int) or isinstance(value, bool):
                found.append(invalid_whole(path, value, "must be an integer"))
            elif value < 0:
                found.append(invalid_whole(path, value, "should be a non-negative integer"))
            elif value > _INT32_MAX:
                found.append(invalid_whole(path, value, f"should be less than or equal to {_INT32_MAX}"))
        if scale.get("labelSelectorPath") is not None:
            selector = _at(new, scale["labelSelectorPath"], "")
            if not isinstance(selector, str):
                found.append(invalid_whole(scale["labelSelectorPath"], selector, "must be a string"))
        return found

    return check


def _at(obj: Any, path: str, zero: Any) -> Any:
    """Give the value at a simple path; a missing one is zero, and what stands in the way of others is what is there."""
    for step in path.removeprefix(".").split("."):
        if not isinstance(obj, dict):
            return obj
        obj = obj.get(step, zero)
    return obj
