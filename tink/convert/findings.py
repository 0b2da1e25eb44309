"""What a conversion could not carry over as it was: for each such field its place, and the reason.

Converters write here and raise nothing for odd input; `tinkedge convert` shows the findings as a table or as JSON,
and takes its exit code from them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """How bad a finding is."""

    DROPPED = "dropped"
    """The field is lost: the result has no place for it."""
    CHANGED = "changed"
    """The field was carried over in another form or with another meaning: have a look."""
    ERROR = "error"
    """The object could not be converted, or not read: it has no result, or none that an API server would take."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where an object was read. What it does not say of itself (no kind, no name) is empty."""

    file: str
    """A path; "-" for standard input, "cluster" for a live cluster."""
    document: int
    """Which document of the file, from 1; 0 for the whole file."""
    kind: str
    namespace: str
    name: str

    @property
    def label(self) -> str:
        """What the object says it is: `Hardware default/node-1`."""
        name = f"{self.namespace}/{self.name}" if self.namespace else self.name
        return " ".join(part for part in (self.kind, name) if part)

    def __str__(self) -> str:
        """For a person: `rack.yaml, document 2: Hardware default/node-1`."""
        place = f"{self.file}, document {self.document}" if self.document else self.file
        return place + (f": {self.label}" if self.label else "")


@dataclass(frozen=True, slots=True)
class Finding:
    """One field that did not come through as it was."""

    kind: Kind
    source: Source
    path: str
    """As in `spec.metadata.instance.tags[0]`; empty for the whole object."""
    reason: str


def nested(prefix: str, path: str) -> str:
    """The path of a field of an object that itself stands at `prefix`; either may be empty."""
    return f"{prefix}.{path}" if prefix and path else prefix or path


@dataclass(frozen=True, slots=True)
class Comment:
    """One line of comment."""

    paths: tuple[str, ...]
    """The fields at its line, the innermost last; the first that is found in the result, from the last, gets it."""
    text: str
    """With its `#`."""
    beside: bool
    """On the field's own line, not above it."""
    line: int = 0
    """Where it stands in its text, from 1."""


class Findings:
    """Collects the findings of one source object, and where its fields have gone."""

    def __init__(self, source: Source, prefix: str = "") -> None:
        """`prefix` is put before each path: `items[3]` for an object that stands in a List."""
        self.source = source
        self.moves: dict[str, str] = {}
        """Path in the source -> path in the result, for the comments that stand at a field to follow it."""
        self.comments: list[Comment] = []
        """Comments that stood inside of a field's text, with their fields' paths in the result."""
        self._prefix = prefix
        self._found: list[Finding] = []

    def dropped(self, path: str, reason: str) -> None:
        """The field is lost, and why."""
        self._add(Kind.DROPPED, path, reason)

    def changed(self, path: str, reason: str) -> None:
        """The field came through in another form or meaning: which."""
        self._add(Kind.CHANGED, path, reason)

    def error(self, path: str, reason: str) -> None:
        """The object cannot be converted because of this field: what is wrong, and what to do."""
        self._add(Kind.ERROR, path, reason)

    def moved(self, path: str, to: str) -> None:
        """Say where a field is in the first object of the result. No finding: it only keeps comments beside it."""
        self.moves[path] = to

    @property
    def failed(self) -> bool:
        """Whether an error was found."""
        return any(finding.kind is Kind.ERROR for finding in self._found)

    def _add(self, kind: Kind, path: str, reason: str) -> None:
        self._found.append(Finding(kind, self.source, nested(self._prefix, path), reason))

    def __iter__(self) -> Iterator[Finding]:
        """In the order in which they were found."""
        return iter(self._found)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._found)
