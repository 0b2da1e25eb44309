"""Sprig's `semver` and `semverCompare`: semantic versions and constraints on them, as Masterminds/semver reads them.

`semver "1.2.3-rc.1+7"` has .Major, .Minor, .Patch, .Prerelease, .Metadata and .Original, and is shown as the version.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tink.golang import strconv
from tink.golang.strconv import byte_length
from tink.golang.values import CallError, Struct
from tink.template.signatures import STRING, Function, Functions, table
from tink.template.sprig.numbers import Spend

_MAX_VERSION_BYTES: Final = 256
_MAX_CONSTRAINT_BYTES: Final = 512
_MAX_ALTERNATIVES: Final = 32

_WORDS: Final = r"[0-9A-Za-z\-]+(?:\.[0-9A-Za-z\-]+)*"
_TAIL: Final = rf"(?:-({_WORDS}))?(?:\+({_WORDS}))?"
_VERSION: Final = re.compile(rf"v?([0-9]+)(?:\.([0-9]+))?(?:\.([0-9]+))?{_TAIL}")
_PART: Final = "[0-9|xX*]+"
_PARTS: Final = rf"v?({_PART})(?:\.({_PART}))?(?:\.({_PART}))?{_TAIL}"
_PATTERN: Final = rf"v?{_PART}(?:\.{_PART})?(?:\.{_PART})?(?:-{_WORDS})?(?:\+{_WORDS})?"
_OPERATOR: Final = r"!=|>=|=>|<=|=<|~>|>|<|=|~|\^|"
_ONE: Final = re.compile(rf"\s*({_OPERATOR})\s*({_PARTS})\s*", re.ASCII)
_EACH: Final = re.compile(rf"(?:{_OPERATOR})\s*{_PATTERN}", re.ASCII)
_ALL: Final = re.compile(
    rf"\s*(?:{_OPERATOR})\s*{_PATTERN}\s*(?:(?:\s+|,\s*)(?:{_OPERATOR})\s*{_PATTERN}\s*)*", re.ASCII
)
_RANGE: Final = re.compile(rf"\s*({_PATTERN})\s+-\s+({_PATTERN})\s*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Version:
    """A semantic version. Comparisons ignore only `metadata`."""

    major: int
    minor: int
    patch: int
    pre: str
    metadata: str

    def __str__(self) -> str:
        pre = f"-{self.pre}" if self.pre else ""
        metadata = f"+{self.metadata}" if self.metadata else ""
        return f"{self.major}.{self.minor}.{self.patch}{pre}{metadata}"

    @property
    def order(self) -> tuple[object, ...]:
        """The sort key of versions (semver.org, 11): a release follows its pre-releases."""
        identifiers = [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in self.pre.split(".")]
        return (self.major, self.minor, self.patch, not self.pre, identifiers if self.pre else [])


def parse_version(text: str) -> Version:
    """Parse a version, which may be short (`v1.2`). Raises CallError."""
    if byte_length(text) > _MAX_VERSION_BYTES:
        raise CallError(f"version string is too long (max {_MAX_VERSION_BYTES} bytes)")
    found = _VERSION.fullmatch(text)
    if found is None:
        raise CallError("invalid semantic version")
    numbers = [int(digits or 0) for digits in found.groups()[:3]]
    for number, digits in zip(numbers, found.groups(), strict=False):
        if number > strconv.UINT64_MAX:
            raise CallError(
                f"error parsing version segment: strconv.ParseUint: parsing {strconv.quote(digits or '')}: "
                "value out of range"
            )
    pre = found[4] or ""
    if any(part.isdigit() and len(part) > 1 and part[0] == "0" for part in pre.split(".")):
        raise CallError("version segment starts with 0")
    return Version(numbers[0], numbers[1], numbers[2], pre, found[5] or "")


# --- constraints ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Constraint:
    """A condition such as `>= 1.2.x`: operator, version, and the parts that are open."""

    operator: str
    version: Version
    open_minor: bool
    open_patch: bool
    open_any: bool


def _constraint(text: str) -> _Constraint:
    found = _ONE.fullmatch(text)
    if found is None:
        raise CallError(f"improper constraint: {strconv.quote(text)}")
    operator, _, major, minor, patch, pre, _ = found.groups()
    tail = f"-{pre}" if pre else ""
    version, open_minor, open_patch, open_any = found[2], False, False, True
    if major in _OPEN:
        version = f"0.0.0{tail}"
    elif minor in _OPEN:
        version, open_minor = f"{major}.0.0{tail}", True
    elif patch in _OPEN:
        version, open_patch = f"{major}.{minor}.0{tail}", True
    else:
        open_any = False
    try:
        return _Constraint(operator, parse_version(version), open_minor, open_patch, open_any)
    except CallError:
        raise CallError("constraint parser error") from None


_OPEN: Final = ("x", "X", "*", "", None)


def _not_equal(version: Version, wanted: _Constraint) -> bool:
    bound = wanted.version
    if not wanted.open_any:
        return version.order != bound.order
    if version.major != bound.major:
        return True
    if wanted.open_minor:
        return False
    if version.minor != bound.minor:
        return True
    if wanted.open_patch:
        return version.pre != bound.pre
    return version.patch != bound.patch or version.order != bound.order


def _greater(version: Version, wanted: _Constraint) -> bool:
    bound = wanted.version
    if not wanted.open_any:
        return version.order > bound.order
    if version.major != bound.major:
        return version.major > bound.major
    if wanted.open_minor:
        return False
    if wanted.open_patch:
        return version.minor > bound.minor
    return version.order > bound.order


def _at_most(version: Version, wanted: _Constraint) -> bool:
    bound = wanted.version
    if not wanted.open_any:
        return version.order <= bound.order
    if version.major > bound.major:
        return False
    return not (version.major == bound.major and version.minor > bound.minor and not wanted.open_minor)


def _tilde(version: Version, wanted: _Constraint) -> bool:
    bound = wanted.version
    if version.order < bound.order:
        return False
    if (bound.major, bound.minor, bound.patch) == (0, 0, 0) and not wanted.open_minor and not wanted.open_patch:
        return True
    return version.major == bound.major and (wanted.open_minor or version.minor == bound.minor)


def _equal(version: Version, wanted: _Constraint) -> bool:
    return _tilde(version, wanted) if wanted.open_any else version.order == wanted.version.order


def _caret(version: Version, wanted: _Constraint) -> bool:
    bound = wanted.version
    if version.order < bound.order or version.major != bound.major:
        return False
    if bound.major > 0 or wanted.open_minor:
        return True
    if bound.minor > 0 or wanted.open_patch:
        return version.minor == bound.minor
    return version.minor == 0 and version.patch == bound.patch


_CHECKS: Final[dict[str, Callable[[Version, _Constraint], bool]]] = {
    "": _equal,
    "=": _equal,
    "!=": _not_equal,
    ">": _greater,
    "<": lambda version, wanted: version.order < wanted.version.order,
    ">=": lambda version, wanted: version.order >= wanted.version.order,
    "=>": lambda version, wanted: version.order >= wanted.version.order,
    "<=": _at_most,
    "=<": _at_most,
    "~": _tilde,
    "~>": _tilde,
    "^": _caret,
}


def _compare(spend: Spend, constraint: str, text: str) -> bool:
    """Return True if the version meets all conditions of one of the alternatives (`||`)."""
    spend(10 + len(constraint))
    if byte_length(constraint) > _MAX_CONSTRAINT_BYTES:
        raise CallError(f"constraint string is too long (max {_MAX_CONSTRAINT_BYTES} bytes)")
    alternatives = _RANGE.sub(r">= \1, <= \2 ", constraint).split("||")
    if len(alternatives) > _MAX_ALTERNATIVES:
        raise CallError(f"too many constraint groups (max {_MAX_ALTERNATIVES})")
    groups = []
    for alternative in alternatives:
        if not _ALL.fullmatch(alternative):
            raise CallError(f"improper constraint: {strconv.quote(alternative)}")
        groups.append([_constraint(found) for found in _EACH.findall(alternative)])
    version = parse_version(text)
    for group in groups:
        # A pre-release can only meet a group in which one condition names a pre-release.
        if version.pre and not any(wanted.version.pre for wanted in group):
            continue
        if all(_CHECKS[wanted.operator](version, wanted) for wanted in group):
            return True
    return False


def _semver(text: str) -> Struct:
    version = parse_version(text)
    fields = {
        "Major": version.major,
        "Minor": version.minor,
        "Patch": version.patch,
        "Prerelease": version.pre,
        "Metadata": version.metadata,
        "Original": text,
    }
    return Struct("*semver.Version", fields, text=str(version))


VERSIONS: Final[Functions] = table(
    Function("semver", _semver, (STRING,)), Function("semverCompare", _compare, (STRING, STRING), metered=True)
)
