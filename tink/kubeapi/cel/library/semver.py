"""Semantic versions (semver.org 2.0): Kubernetes' `semver`, `isSemver` and their methods."""

import re
from dataclasses import dataclass
from typing import ClassVar

from tink.golang import quote
from tink.kubeapi.cel.errors import EvaluationError
from tink.kubeapi.cel.values import MAX_UINT, OpaqueValue

_NUMBER = r"(0|[1-9][0-9]{0,19})"
_VERSION = re.compile(
    rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(?:-([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?(?:\+([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?",
    re.ASCII,
)
_DIGITS = re.compile(r"[0-9]+", re.ASCII)


@dataclass(slots=True, eq=False)
class Semver(OpaqueValue):
    """A version: three numbers, the identifiers of a pre-release, and build metadata."""

    numbers: tuple[int, int, int]
    pre: tuple[int | str, ...]
    build: str
    type_name: ClassVar[str] = "kubernetes.Semver"

    def __eq__(self, other: object) -> bool:
        return type(other) is Semver and compare(self, other) == 0

    def __hash__(self) -> int:
        return hash((self.numbers, self.pre))

    def __str__(self) -> str:
        text = ".".join(map(str, self.numbers))
        if self.pre:
            text += "-" + ".".join(map(str, self.pre))
        return f"{text}+{self.build}" if self.build else text


def _wrong(text: str) -> EvaluationError:
    return EvaluationError(f"{quote(text)} is not a semantic version")


def parse(text: str, loose: bool = False) -> Semver:
    """Parse a version. If `loose`, it may begin with v, have leading zeros, or lack its last numbers.

    Raises EvaluationError for other text.
    """
    found = _VERSION.fullmatch(_normalized(text) if loose else text)
    if found is None:
        raise _wrong(text)
    pre = found[4].split(".") if found[4] is not None else []
    numeric = [part for part in pre if _DIGITS.fullmatch(part)]
    numbers = int(found[1]), int(found[2]), int(found[3])
    if any(len(part) > 20 or (len(part) > 1 and part[0] == "0") for part in numeric):
        raise _wrong(text)
    if max(*numbers, *map(int, numeric)) > MAX_UINT:
        raise _wrong(text)
    return Semver(numbers, tuple(int(part) if part in numeric else part for part in pre), found[5] or "")


def _normalized(text: str) -> str:
    parts = text.removeprefix("v").split(".", 2)
    for at, part in enumerate(parts):
        if len(part) > 1:
            bare = part.lstrip("0")
            parts[at] = bare if bare[:1].isdigit() and bare[:1].isascii() else "0" + bare
    if len(parts) < 3:
        if "+" in parts[-1] or "-" in parts[-1]:
            raise _wrong(text)
        parts += ["0"] * (3 - len(parts))
    return ".".join(parts)


def _rank(pre: tuple[int | str, ...]) -> tuple[tuple[int, int, str], ...]:
    # A version without pre-release is greater than one with it; numbers are smaller than words.
    if not pre:
        return ((2, 0, ""),)
    return tuple((0, part, "") if isinstance(part, int) else (1, 0, part) for part in pre)


def compare(a: Semver, b: Semver) -> int:
    """Return -1, 0 or 1. Build metadata does not count."""
    left, right = (a.numbers, _rank(a.pre)), (b.numbers, _rank(b.pre))
    return (left > right) - (left < right)
