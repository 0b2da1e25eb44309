"""Which Secret holds a document of a Hardware, as an annotation says it.

The Secret is in the Hardware's own namespace. `edge.http` reads it when the document is asked for; what is served of it
says `hegel.documents`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

DEFAULT_KEYS = ("userData", "value")
"""Where the document is if the annotation names no key: Metal3's name for it, then that of Cluster API's bootstrap."""

_LABEL = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_NAME = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(?:\.{_LABEL})*")
_KEY = re.compile(r"(?!\.\.?\Z)[-._a-zA-Z0-9]{1,253}")


class SecretUnusableError(Exception):
    """A reference, or the Secret it names, cannot give a document. Says which, why, and what to do."""


@dataclass(frozen=True, slots=True)
class SecretReference:
    """A Secret's name, and the keys of it that may hold the document, in the order of trial."""

    name: str
    keys: tuple[str, ...] = DEFAULT_KEYS

    @classmethod
    def parse(cls, annotation: str) -> SecretReference:
        """Read `NAME` or `NAME/KEY`; raise SecretUnusableError if it is neither."""
        name, slash, key = annotation.strip().partition("/")
        if not _NAME.fullmatch(name) or (slash and not _KEY.fullmatch(key)):
            raise SecretUnusableError("must be NAME or NAME/KEY of a Secret in the Hardware's namespace")
        return cls(name, (key,)) if slash else cls(name)
