"""The root of the exceptions of tinkedge."""

from __future__ import annotations

from typing import ClassVar


class TinkedgeError(Exception):
    """An expected error. Its message names the thing that is wrong and the remedy, and a user can read it alone.

    A command that it reaches prints the message without a trace and exits with `exit_status`.
    """

    exit_status: ClassVar[int] = 1
