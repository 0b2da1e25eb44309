"""Why an action failed: a word for programs and a sentence for people."""

from __future__ import annotations


class ActionError(Exception):
    """Ends the action. `reason` becomes the Workflow's, `message` the sentence beside it."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
