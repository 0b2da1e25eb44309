"""Named formats: Kubernetes' `format.dns1123Label()` and the like, with `validate(text)`.

The result is an optional list of messages, which is absent if the text is valid.
"""

import base64
import binascii
import datetime
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from tink.kubeapi.cel.library.net import problem
from tink.kubeapi.cel.values import OpaqueValue

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_LABEL_1035 = "[a-z]([-a-z0-9]*[a-z0-9])?"
_NAME = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
# The same patterns without nested repetition, because Python's matcher backtracks.
_IS_LABEL = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?", re.ASCII)
_IS_1035 = re.compile(r"[a-z](?:[-a-z0-9]*[a-z0-9])?", re.ASCII)
_IS_NAME = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?", re.ASCII)
_IS_UUID = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}", re.ASCII | re.IGNORECASE)
_IS_DATETIME = re.compile(r"(\d{4}-\d\d-\d\d)[Tt](\d\d):(\d\d):(\d\d)(\.\d{1,40})?([Zz]|[+-]\d\d:?\d\d)", re.ASCII)

_LABEL_TEXT = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with"
    f" an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '{_LABEL}')"
)
_SUBDOMAIN_TEXT = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and"
    f" end with an alphanumeric character (e.g. 'example.com', regex used for validation is '{_SUBDOMAIN}')"
)
_1035_TEXT = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character,"
    " and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is"
    f" '{_LABEL_1035}')"
)
_NAME_TEXT = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character"
    f" (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '{_NAME}')"
)
_QUALIFIED_TEXT = (
    f"a valid label key {_NAME_TEXT} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
)
_VALUE_TEXT = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and"
    " end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is"
    f" '({_NAME})?')"
)


@dataclass(slots=True, unsafe_hash=True)
class NamedFormat(OpaqueValue):
    """A format: its name, the length of the pattern for costs, and the check, which returns messages."""

    name: str
    pattern_size: int = field(compare=False)
    check: Callable[[str], list[str]] = field(compare=False)
    type_name: ClassVar[str] = "kubernetes.NamedFormat"


def _long(text: str, limit: int, unit: str = "characters") -> list[str]:
    return [f"must be no more than {limit} {unit}"] if len(text.encode("utf-8", "surrogatepass")) > limit else []


def _label(text: str) -> list[str]:
    if _IS_LABEL.fullmatch(text):
        return _long(text, 63)
    dots = "." in text and all(map(_IS_LABEL.fullmatch, text.split(".")))
    return _long(text, 63) + (["must not contain dots"] if dots else [_LABEL_TEXT])


def _subdomain(text: str) -> list[str]:
    good = all(_IS_LABEL.fullmatch(part) for part in text.split("."))
    return _long(text, 253) + ([] if good else [_SUBDOMAIN_TEXT])


def _label_1035(text: str) -> list[str]:
    return _long(text, 63) + ([] if _IS_1035.fullmatch(text) else [_1035_TEXT])


def _qualified(text: str) -> list[str]:
    parts = text.split("/")
    if len(parts) > 2:
        return [_QUALIFIED_TEXT]
    problems: list[str] = []
    if len(parts) == 2:
        if parts[0]:
            problems += [f"prefix part {message}" for message in _subdomain(parts[0])]
        else:
            problems.append("prefix part must be non-empty")
    name = parts[-1]
    if not name:
        problems.append("name part must be non-empty")
    problems += [f"name part {message}" for message in _long(name, 63)]
    return problems if _IS_NAME.fullmatch(name) else [*problems, f"name part {_NAME_TEXT}"]


def _label_value(text: str) -> list[str]:
    return _long(text, 63) + ([] if not text or _IS_NAME.fullmatch(text) else [_VALUE_TEXT])


def _uri(text: str) -> list[str]:
    message = problem(text)
    return [message] if message else []


def decoded(text: str) -> bytes | None:
    """Decode base64. Return None if the text is invalid."""
    try:
        return base64.b64decode(text.replace("\r", "").replace("\n", ""), validate=True)
    except (binascii.Error, ValueError):
        return None


def _is_date(text: str) -> bool:
    try:
        datetime.date.fromisoformat(text)
    except ValueError:
        return False
    return len(text) == 10 and text[4] == "-"


def _is_datetime(text: str) -> bool:
    match = _IS_DATETIME.fullmatch(text)
    return match is not None and _is_date(match[1]) and int(match[2]) < 24 and int(match[3]) < 60 and int(match[4]) < 60


def _either(holds: Callable[[str], object], message: str) -> Callable[[str], list[str]]:
    return lambda text: [] if holds(text) else [message]


def _prefix(check: Callable[[str], list[str]]) -> Callable[[str], list[str]]:
    """Return the check of a name's beginning: a dash at the end is allowed because more text follows."""
    return lambda text: check(text[:-1] + "a" if len(text) > 1 and text.endswith("-") else text)


FORMATS = {
    "dns1123Label": NamedFormat("DNS1123Label", 30, _label),
    "dns1123Subdomain": NamedFormat("DNS1123Subdomain", 60, _subdomain),
    "dns1035Label": NamedFormat("DNS1035Label", 30, _label_1035),
    "qualifiedName": NamedFormat("QualifiedName", 60, _qualified),
    "dns1123LabelPrefix": NamedFormat("DNS1123LabelPrefix", 30, _prefix(_label)),
    "dns1123SubdomainPrefix": NamedFormat("DNS1123SubdomainPrefix", 60, _prefix(_subdomain)),
    "dns1035LabelPrefix": NamedFormat("DNS1035LabelPrefix", 30, _prefix(_label_1035)),
    "labelValue": NamedFormat("LabelValue", 40, _label_value),
    "uri": NamedFormat("URI", 1103, _uri),
    "uuid": NamedFormat("uuid", 70, _either(_IS_UUID.fullmatch, "does not match the UUID format")),
    "byte": NamedFormat("byte", 84, _either(lambda text: text and decoded(text) is not None, "invalid base64")),
    "date": NamedFormat("date", 71, _either(_is_date, "invalid date")),
    "datetime": NamedFormat("datetime", 71, _either(_is_datetime, "invalid datetime")),
}
"""Every format by its name."""
