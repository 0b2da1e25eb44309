"""Semantic versions (semver.org 2.0): Kubernetes' `semver`, `isSemver` and their methods."""

import re

from tink.cel.errors import EvaluationError
from tink.cel.values import MAX_UINT, OpaqueValue
from tink.golang import quote

_ALPHANUM = re.compile(r"[0-9A-Za-z-]*", re.ASCII)
_NUMERIC = re.compile(r"[0-9]*", re.ASCII)


class Semver(OpaqueValue):
    """A version: three numbers, the identifiers of a pre-release, and build metadata."""

    __slots__ = ("build", "numbers", "pre")
    type_name = "kubernetes.Semver"

    def __init__(self, numbers: tuple[int, int, int], pre: tuple[int | str, ...], build: str) -> None:
        self.numbers = numbers
        self.pre = pre
        self.build = build

    def __eq__(self, other: object) -> bool:
        return type(other) is Semver and compare(self, other) == 0

    def __hash__(self) -> int:
        return hash((self.numbers, self.pre))

    def __str__(self) -> str:
        text = ".".join(map(str, self.numbers))
        if self.pre:
            text += "-" + ".".join(map(str, self.pre))
        return f"{text}+{self.build}" if self.build else text


def _number(text: str, what: str) -> int:
    if not _NUMERIC.fullmatch(text):
        raise EvaluationError(f"Invalid character(s) found in {what.lower()} number {quote(text)}")
    if len(text) > 1 and text[0] == "0":
        raise EvaluationError(f"{what} number must not contain leading zeroes {quote(text)}")
    return _unsigned(text)


def _unsigned(text: str) -> int:
    if not text:
        raise EvaluationError('strconv.ParseUint: parsing "": invalid syntax')
    if len(text) > 20 or int(text) > MAX_UINT:
        raise EvaluationError(f"strconv.ParseUint: parsing {quote(text)}: value out of range")
    return int(text)


def _identifier(text: str) -> int | str:
    if not text:
        raise EvaluationError("Prerelease is empty")
    if _NUMERIC.fullmatch(text):
        if len(text) > 1 and text[0] == "0":
            raise EvaluationError(f"Numeric PreRelease version must not contain leading zeroes {quote(text)}")
        return _unsigned(text)
    if not _ALPHANUM.fullmatch(text):
        raise EvaluationError(f"Invalid character(s) found in prerelease {quote(text)}")
    return text


def parse(text: str) -> Semver:
    """A version, strictly. Raises EvaluationError: the text is none."""
    if not text:
        raise EvaluationError("Version string empty")
    parts = text.split(".", 2)
    if len(parts) != 3:
        raise EvaluationError("No Major.Minor.Patch elements found")
    major, minor = _number(parts[0], "Major"), _number(parts[1], "Minor")
    rest, plus, build = parts[2].partition("+")
    patch, minus, pre = rest.partition("-")
    numbers = (major, minor, _number(patch, "Patch"))
    identifiers = tuple(_identifier(part) for part in pre.split(".")) if minus else ()
    for part in build.split(".") if plus else ():
        if not part:
            raise EvaluationError("Build meta data is empty")
        if not _ALPHANUM.fullmatch(part):
            raise EvaluationError(f"Invalid character(s) found in build meta data {quote(part)}")
    return Semver(numbers, identifiers, build)


def normalized(text: str) -> Semver:
    """A version that may begin with v, have leading zeros, or lack its last numbers.

    Raises EvaluationError: the text is none even so.
    """
    parts = text.removeprefix("v").split(".", 2)
    for at, part in enumerate(parts):
        if len(part) > 1:
            bare = part.lstrip("0")
            parts[at] = bare if bare[:1].isdigit() and bare[:1].isascii() else "0" + bare
    if len(parts) < 3:
        if "+" in parts[-1] or "-" in parts[-1]:
            raise EvaluationError("short version cannot contain PreRelease/Build meta data")
        parts += ["0"] * (3 - len(parts))
    return parse(".".join(parts))


def is_semver(text: str, *, loose: bool = False) -> bool:
    """Whether `parse`, or `normalized` if `loose`, takes the text."""
    try:
        (normalized if loose else parse)(text)
    except EvaluationError:
        return False
    return True


def _rank(pre: tuple[int | str, ...]) -> tuple[tuple[int, int, str], ...]:
    # A version without pre-release is above all with one; numbers are below words.
    if not pre:
        return ((2, 0, ""),)
    return tuple((0, part, "") if isinstance(part, int) else (1, 0, part) for part in pre)


def compare(a: Semver, b: Semver) -> int:
    """-1, 0 or 1; build metadata does not count."""
    left, right = (a.numbers, _rank(a.pre)), (b.numbers, _rank(b.pre))
    return (left > right) - (left < right)
