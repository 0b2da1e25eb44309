"""What a compiled schema finds in an object: errors, each with its path, and the fields that no schema knows.

Paths are chains of (parent, step) and become text only when something is wrong. Shared by compiled
schemas (`structural`) and rules (`validations`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tink.kubeapi.schema.field_errors import FieldError

Path = tuple["Path", str | int] | None
CompiledSchema = Callable[[Any, Path, "Outcome"], None]
"""A schema or a keyword of one, compiled: prunes, completes and checks a value in place, and reports what it finds."""

NOWHERE = "<nil>"
"""The path of errors that Kubernetes reports without one."""
MAX_ERRORS = 100
"""After so many errors the rest is not reported: an answer should not be larger than what caused it."""
MAX_ADDED = 3 << 20
"""So many bytes of JSON may defaults add to an object: as many as a client may send."""


class TooMuchAddedError(Exception):
    """Defaults add more than `MAX_ADDED` bytes to an object; `path` is that of the field at which they do."""

    def __init__(self, path: str) -> None:
        super().__init__(f"the defaults of {path} and of what stands before it add more than {MAX_ADDED} bytes")
        self.path = path


@dataclass(slots=True)
class Outcome:
    """What one walk found: errors, and the paths of fields that were dropped because the schema does not know them.

    With `keeps_nulls` a null that no default takes the place of stays, to be refused where it may not be.
    """

    errors: list[FieldError] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    added: int = 0
    keeps_nulls: bool = False

    def report(self, error: FieldError) -> None:
        """Note an error."""
        if len(self.errors) < MAX_ERRORS:
            self.errors.append(error)

    def add(self, path: Path, name: str | int, size: int) -> None:
        """Note a default of `size` bytes, before it is filled in. Raises TooMuchAddedError."""
        self.added += size
        if self.added > MAX_ADDED:
            raise TooMuchAddedError(render((path, name)))

    def drop_late(self, at: str) -> None:
        """Note an unknown field in the metadata of an embedded object; Kubernetes tells of these last."""
        if len(self.late) < MAX_ERRORS:
            self.late.append(at)

    def drop(self, path: Path, name: str) -> None:
        """Note an unknown field."""
        if len(self.unknown) < MAX_ERRORS:
            self.unknown.append(render((path, name)))


def render(path: Path) -> str:
    """Write a path as Kubernetes does: `spec.actions[0].name`."""
    steps: list[str | int] = []
    while path is not None:
        path, step = path
        steps.append(step)
    text = ""
    for step in reversed(steps):
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text
