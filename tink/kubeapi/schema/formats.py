"""The string formats of structural schemas (apiextensions.k8s.io/v1, "format"), and warnings about unknown formats.

The checks accept what k8s.io/kube-openapi (pkg/validation/strfmt) accepts, which is more than the standards allow:
`3 hours` is a duration. Formats outside the table are not checked, as in Kubernetes. All patterns run in linear time
(RE2), because the texts come from clients.
"""

from __future__ import annotations

import ipaddress
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from datetime import date
from functools import lru_cache
from typing import Any

import re2

from tink.kubeapi.cel import NAMED_FORMATS
from tink.kubeapi.schema.shapes import child_schemas

Check = Callable[[str], bool]


def _matches(pattern: str) -> Check:
    compiled = re2.compile(pattern)
    return lambda text: compiled.search(text) is not None


_DATE = re2.compile(r"^\d{4}-\d{2}-\d{2}$")
_CLOCK = re2.compile(r"^(\d{2}):(\d{2}):(\d{2})(.\d+)?(z|([+-]\d{2}:\d{2}))$")
_GO_DURATION = re2.compile(r"^[-+]?(0|((\d+(\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h))+)$")
_WORD_DURATION = re2.compile(r"\d+\s*([A-Za-zµ]+)")
_MAC = _matches(
    r"^([0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){5}((:[0-9A-Fa-f]{2}){2}((:[0-9A-Fa-f]{2}){12})?)?"
    r"|[0-9A-Fa-f]{2}(-[0-9A-Fa-f]{2}){5}((-[0-9A-Fa-f]{2}){2}((-[0-9A-Fa-f]{2}){12})?)?"
    r"|[0-9A-Fa-f]{4}(\.[0-9A-Fa-f]{4}){2}((\.[0-9A-Fa-f]{4}){1}((\.[0-9A-Fa-f]{4}){6})?)?)$"
)
_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~\x80-\x{10FFFF}-]+"
_ADDRESS = rf"({_ATOM}(\.{_ATOM})*|\"([^\"\\]|\\.)*\")@({_ATOM}(\.{_ATOM})*|\[[^\[\]\\]*\])"
_EMAIL = _matches(rf"^\s*({_ADDRESS}|(({_ATOM}|\"([^\"\\]|\\.)*\"|[.\s])*\s*)?<{_ADDRESS}>)\s*$")
_CARD = re2.compile(
    r"^(4\d{12}(\d{3})?|5[1-5]\d{14}|6(011|5\d\d)\d{12}|3[47]\d{13}|3(0[0-5]|[68]\d)\d{11}|(2131|1800|35\d{3})\d{11})$"
)
_SSN = _matches(r"^\d{3}[- ]?\d{2}[- ]?\d{4}$")
_BYTE = r"\s*(0|[1-9]\d?|1\d\d?|2[0-4]\d|25[0-5])\s*"


def _parses(parse: Callable[[str], object]) -> Check:
    def check(text: str) -> bool:
        try:
            parse(text)
        except ValueError:
            return False
        return True

    return check


def _date(text: str) -> bool:
    """Check for RFC 3339, full-date."""
    return _DATE.search(text) is not None and _parses(date.fromisoformat)(text)


_MAX_CACHED_TIME = 64


def _date_time(text: str) -> bool:
    """Check for RFC 3339, date-time. The result is cached: a status is written many times with the same times."""
    return _cached_date_time(text) if len(text) <= _MAX_CACHED_TIME else _is_date_time(text)


def _is_date_time(text: str) -> bool:
    day, _, clock = text.lower().partition("t")
    found = _CLOCK.search(clock)
    return _date(day) and found is not None and found[1] <= "23" and found[2] <= "59" and found[3] <= "59"


_cached_date_time = lru_cache(maxsize=4096)(_is_date_time)


_UNITS = (
    ("ns", "nano"),
    ("us", "µs", "micro"),
    ("ms", "milli"),
    ("s", "sec"),
    ("m", "min"),
    ("h", "hr", "hour"),
    ("d", "day"),
    ("w", "wk", "week"),
)


def _duration(text: str) -> bool:
    """Check for Go's durations, and for numbers with units that begin with the name of a unit."""
    if _GO_DURATION.search(text):
        return True
    units = [found[1].lower() for found in _WORD_DURATION.finditer(text)]
    return any(unit in names or unit.startswith(names[-1]) for unit in units for names in _UNITS)


def _ip(text: str) -> bool:
    if "%" in text:
        return False
    if ":" in text or _parses(ipaddress.IPv4Address)(text):
        return ":" not in text or _parses(ipaddress.IPv6Address)(text)
    # Kubernetes reads leading zeros of an IPv4 address as decimal.
    parts = (part.lstrip("0") or "0" if part.isascii() and part.isdigit() else part for part in text.split("."))
    return _parses(ipaddress.IPv4Address)(".".join(parts))


def _cidr(text: str) -> bool:
    address, slash, bits = text.partition("/")
    if not (slash and _ip(address) and bits.isascii() and bits.isdigit() and len(bits) <= 4):
        return False
    return int(bits) <= (128 if ":" in address else 32)


def _hostname(text: str) -> bool:
    """Check for one label, or labels and a top-level domain of letters. All scripts and symbols are allowed."""
    if len(text.encode("utf-8", "replace")) > 255:
        return False
    *labels, last = text.split(".")
    if any(len(part.encode("utf-8", "replace")) > 63 for part in (*labels, last)):
        return False
    if not labels:
        dash = last[1:2] == "-"
        return bool(last) and all(map(_may_name, last[:1] + last[1 + dash :]))
    if not (2 <= len(last) <= 63 and all(unicodedata.category(letter)[0] == "L" for letter in last)):
        return False
    return all(
        part
        and _may_name(part[0])
        and _may_name(part[-1])
        and all(letter == "-" or _may_name(letter) for letter in part)
        for part in labels
    )


def _may_name(letter: str) -> bool:
    """Return True if a label may contain the character: ASCII digits, letters, symbols (Unicode categories L and S)."""
    return letter in "0123456789" or unicodedata.category(letter)[0] in "LS"


def _luhn(text: str) -> bool:
    """Check for credit cards: a known number range, and the check digit of ISO/IEC 7812-1."""
    digits = "".join(letter for letter in text if letter in "0123456789")
    if not _CARD.search(digits):
        return False
    total = 0
    for place, digit in enumerate(reversed(digits)):
        value = int(digit) * (1 + place % 2)
        total += value - 9 if value > 9 else value
    return total % 10 == 0


def _isbn(text: str, digits: int) -> bool:
    text = "".join(letter for letter in text if letter not in " \t\r\n\f\v-")
    body, last = text[: digits - 1], text[digits - 1 :]
    if not (body.isascii() and body.isdigit() and len(body) == digits - 1 and len(last) == 1):
        return False
    if last != "X" and not (last.isascii() and last.isdigit()):
        return False
    if digits == 10:
        total = sum(place * int(digit) for place, digit in enumerate(body, 1))
        return (total + 10 * (10 if last == "X" else int(last))) % 11 == 0
    return last != "X" and int(last) == -sum((1, 3)[place % 2] * int(digit) for place, digit in enumerate(body)) % 10


def _uuid(middle: str) -> Check:
    return _matches(rf"(?i)^[0-9a-f]{{8}}-?[0-9a-f]{{4}}-?{middle}-?[0-9a-f]{{12}}$")


def _named(name: str) -> Check:
    """Return the check of CEL's named format."""
    check = NAMED_FORMATS[name].check
    return lambda text: not check(text)


CHECKS: dict[str, Check] = {
    "bsonobjectid": _matches("^[0-9a-fA-F]{24}$"),
    "byte": _matches(r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})$"),
    "cidr": _cidr,
    "creditcard": _luhn,
    "date": _date,
    "date-time": _date_time,
    "datetime": _date_time,
    "duration": _duration,
    "email": _EMAIL,
    "hexcolor": _matches("^#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})$"),
    "hostname": _hostname,
    "ipv4": lambda text: "." in text and _ip(text),
    "ipv6": lambda text: ":" in text and _ip(text),
    "isbn": lambda text: _isbn(text, 10) or _isbn(text, 13),
    "isbn10": lambda text: _isbn(text, 10),
    "isbn13": lambda text: _isbn(text, 13),
    "k8s-long-name": _named("dns1123Subdomain"),
    "k8s-short-name": _named("dns1123Label"),
    "mac": _MAC,
    "password": lambda _: True,
    "rgbcolor": _matches(rf"^rgb\({_BYTE},{_BYTE},{_BYTE}\)$"),
    "ssn": lambda text: len(text) == 11 and _SSN(text),
    "uri": _named("uri"),
    "uuid": _uuid("[0-9a-f]{4}-?[0-9a-f]{4}"),
    "uuid3": _uuid("3[0-9a-f]{3}-?[0-9a-f]{4}"),
    "uuid4": _uuid("4[0-9a-f]{3}-?[89ab][0-9a-f]{3}"),
    "uuid5": _uuid("5[0-9a-f]{3}-?[89ab][0-9a-f]{3}"),
}
"""The check of every known format."""


# Kubernetes removes dashes from names before it compares (pkg/apiserver/validation/formats.go).
_OF_STRINGS = frozenset(name.replace("-", "") for name in CHECKS)
_OF_NUMBERS = {"integer": ("int32", "int64"), "number": ("float", "double")}


def format_warnings(definition: Mapping[str, Any]) -> list[str]:
    """Return a warning for each unknown format in a definition. Equal schemas of several versions count once."""
    found: list[str] = []
    seen: list[Any] = []
    for version in (definition.get("spec") or {}).get("versions") or ():
        schema = (version.get("schema") or {}).get("openAPIV3Schema") or {}
        if schema not in seen:
            seen.append(schema)
            found += [f'unrecognized format "{name}"' for name in _unknown(schema)]
    return found


def _unknown(schema: Mapping[str, Any]) -> Iterator[str]:
    name, kind = schema.get("format", ""), schema.get("type", "")
    known = name.replace("-", "") in _OF_STRINGS if kind in ("", "string") else name in _OF_NUMBERS.get(kind, ())
    if name and not known:
        yield name
    for child in child_schemas(schema):
        yield from _unknown(child)
