"""The messages of Kubernetes' protobuf, for the built-in kinds: which field number is which field of the JSON.

`messages.txt` has one line for each message, in a notation close to the `generated.proto` files of k8s.io/api and
k8s.io/apimachinery from which the numbers are: `<number> <field> <type>`, where the type is a message or one of

    string int bool bytes     as in protobuf; bytes are base64 in JSON
    time micro                seconds and nanoseconds; RFC 3339 text with no or six decimals in JSON
    map bytesmap listmap      string to string, to bytes, to a list of strings
    json                      bytes that hold JSON

with `*` after it when it is repeated, `?` when an empty value differs from none (a pointer in Go), and `+` when the
fields of the message stand beside the others in JSON. `protobuf` reads and writes by it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

MAX_ENVELOPE = 16
"""Deepest nesting of messages."""

_MESSAGES = Path(__file__).with_name("messages.txt").read_text(encoding="ascii")
_GROUPS = {
    "v1": ("Namespace", "ConfigMap", "Secret", "Event", "Status"),
    "coordination.k8s.io/v1": ("Lease",),
    "admissionregistration.k8s.io/v1": ("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"),
    "authorization.k8s.io/v1": (
        "SelfSubjectAccessReview",
        "SubjectAccessReview",
        "LocalSubjectAccessReview",
        "SelfSubjectRulesReview",
    ),
    "authentication.k8s.io/v1": ("SelfSubjectReview", "TokenReview"),
}
SCALARS = frozenset(
    ("string", "int", "bool", "bytes", "time", "micro", "map", "bytesmap", "listmap", "json", "raw"),
)


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a message: its name in JSON and its type (one of SCALARS, or a message)."""

    number: int
    name: str
    type: str
    repeated: bool = False
    pointer: bool = False
    inline: bool = False


def _field(text: str) -> Field:
    number, name, kind = text.split()
    return Field(int(number), name, kind.rstrip("*?+"), kind.endswith("*"), kind.endswith("?"), kind.endswith("+"))


def _parse(text: str) -> dict[str, tuple[Field, ...]]:
    joined = text.replace("\n  ", " ")
    lines = (line.partition(": ") for line in joined.splitlines() if line)
    return {name: tuple(_field(field) for field in fields.split(",")) for name, _, fields in lines}


MESSAGES = _parse(_MESSAGES)
"""Message -> its fields."""
BY_NUMBER = {name: {field.number: field for field in fields} for name, fields in MESSAGES.items()}
"""Message -> number -> field."""
KINDS = {(version, kind): kind for version, kinds in _GROUPS.items() for kind in kinds} | {
    ("events.k8s.io/v1", "Event"): "NewEvent"
}
"""apiVersion and kind -> message. DeleteOptions are of every group and version."""
