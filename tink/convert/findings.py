"""The findings of a conversion: each field that could not be carried over unchanged, with its path and the reason.

Converters report findings here and raise nothing for odd input. `tinkedge convert` shows them as a table or as JSON,
and takes its exit code from them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum


class FindingKind(StrEnum):
    """How bad a finding is."""

    DROPPED = "dropped"
    """The field is lost: the result has no place for it."""
    CHANGED = "changed"
    """The field was carried over in another form or with another meaning: a person should check it."""
    ERROR = "error"
    """The object could not be read or converted: it has no result, or none that an API server would accept."""


@dataclass(frozen=True, slots=True)
class ObjectPlace:
    """The place where an object was read. An attribute that the object does not have (kind, name) is empty."""

    file: str
    """A path; "-" for standard input, "cluster" for a live cluster."""
    document: int
    """The number of the document in the file, from 1; 0 for the whole file."""
    kind: str = ""
    namespace: str = ""
    name: str = ""

    @property
    def label(self) -> str:
        """Kind, namespace and name of the object: `Hardware default/node-1`."""
        name = f"{self.namespace}/{self.name}" if self.namespace else self.name
        return " ".join(part for part in (self.kind, name) if part)

    def __str__(self) -> str:
        """Return the place for people: `rack.yaml, document 2: Hardware default/node-1`."""
        place = f"{self.file}, document {self.document}" if self.document else self.file
        return place + (f": {self.label}" if self.label else "")


@dataclass(frozen=True, slots=True)
class ConversionFinding:
    """One field that was not carried over unchanged."""

    kind: FindingKind
    source: ObjectPlace
    path: str
    """A path such as `spec.metadata.instance.tags[0]`; empty for the whole object."""
    reason: str


def nested(prefix: str, path: str) -> str:
    """Return the path of a field in an object that stands at `prefix`. Either may be empty."""
    return f"{prefix}.{path}" if prefix and path else prefix or path


@dataclass(frozen=True, slots=True)
class Comment:
    """One line of comment."""

    paths: tuple[str, ...]
    """The fields on the comment's line, the innermost last. The comment goes to the last one that the result has."""
    text: str
    """The comment with its `#`."""
    beside: bool
    """True if the comment is on the field's own line, False if it is above the field."""
    line: int = 0
    """Its line in the text, from 1."""


class Findings:
    """The findings of one source object, and the new paths of its fields."""

    def __init__(self, source: ObjectPlace, prefix: str = "") -> None:
        """`prefix` is put before each path: `items[3]` for an object that stands in a List."""
        self.source = source
        self.moves: dict[str, str] = {}
        """Path in the source -> path in the result, so that comments follow their fields."""
        self.comments: list[Comment] = []
        """Comments that stood inside a field's text, with their fields' paths in the result."""
        self._prefix = prefix
        self._found: list[ConversionFinding] = []

    def dropped(self, path: str, reason: str) -> None:
        """Report that a field is lost, and why."""
        self._add(FindingKind.DROPPED, path, reason)

    def changed(self, path: str, reason: str) -> None:
        """Report that a field has another form or meaning now, and which."""
        self._add(FindingKind.CHANGED, path, reason)

    def error(self, path: str, reason: str) -> None:
        """Report that a field prevents the conversion, and what to do."""
        self._add(FindingKind.ERROR, path, reason)

    def moved(self, path: str, to: str) -> None:
        """Record the new path of a field in the first object of the result, so that its comments follow it."""
        self.moves[path] = to

    @property
    def failed(self) -> bool:
        """True if there is an error among the findings."""
        return any(finding.kind is FindingKind.ERROR for finding in self._found)

    def _add(self, kind: FindingKind, path: str, reason: str) -> None:
        self._found.append(ConversionFinding(kind, self.source, nested(self._prefix, path), reason))

    def __iter__(self) -> Iterator[ConversionFinding]:
        """Yield the findings in the order in which they were reported."""
        return iter(self._found)

    def __len__(self) -> int:
        """Return the number of findings."""
        return len(self._found)
