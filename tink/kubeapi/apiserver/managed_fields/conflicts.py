"""What an apply would change although others own it, and how Kubernetes says so (409, reason Conflict)."""

from __future__ import annotations

from collections.abc import Mapping

from tink.kubeapi.apiserver.errors import StatusError
from tink.kubeapi.apiserver.managed_fields import entries, fields
from tink.kubeapi.apiserver.managed_fields.entries import Owner
from tink.kubeapi.apiserver.managed_fields.fields import Fields

MAX_CAUSES = 1000
"""Most conflicts that are listed, so that the answer is not larger than what caused it."""


class Conflicts(Exception):  # noqa: N818 - the name that Kubernetes gives them
    """Fields that would change, by their owners. False when there are none."""

    def __init__(self, owned: Mapping[Owner, Fields]) -> None:
        super().__init__("conflicts")
        self.owned = owned

    def __bool__(self) -> bool:
        return bool(self.owned)

    def without(self, allowed: Fields) -> Conflicts:
        """Give the conflicts about fields that are not in a set."""
        left: dict[Owner, Fields] = {}
        for who, owned in self.owned.items():
            rest = fields.from_paths([path for path in fields.paths(owned) if not fields.holds(allowed, path)])
            if rest:
                left[who] = rest
        return Conflicts(left)

    def error(self) -> StatusError:
        """Give the refusal, with a cause for each field."""
        causes = []
        blocks = []
        count = 0
        for who in sorted(self.owned, key=entries.rank):
            listed = [fields.render(path) for path in fields.paths(self.owned[who])]
            count += len(listed)
            message = f"conflict with {entries.shown(who)}"
            causes += [{"reason": "FieldManagerConflict", "message": message, "field": path} for path in listed]
            blocks.append("\n".join([f"conflicts with {entries.shown(who)}:", *(f"- {path}" for path in listed)]))
        if count == 1:
            text = f"Apply failed with 1 conflict: {causes[0]['message']}: {causes[0]['field']}"
        else:
            text = f"Apply failed with {count} conflicts: " + "\n".join(blocks)
        return StatusError(409, "Conflict", text, {"causes": causes[:MAX_CAUSES]})
