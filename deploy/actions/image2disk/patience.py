"""How often, and after which pauses, something is asked for again."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from image2disk.web import AnswerError

FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 30.0
LONGEST_WAIT_SECONDS: Final = 300.0
"""A server that asks for more is asked again after that, all the same."""
PATIENCE_SECONDS: Final = 3600.0
"""All that servers ask for."""


class BrokenError(Exception):
    """The connection; the message says how."""


class Patience:
    """With one thing that is asked for.

    Pauses between attempts grow; so many attempts in vain are the end. A server that is busy and says when to come
    again is not counted so: it is asked again then, for an hour.
    """

    def __init__(
        self, attempts: int, *, say: Callable[[str], None] = print, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._attempts = attempts
        self._say = say
        self._sleep = sleep
        self._vain = 0
        self._waited = 0.0

    def progressed(self) -> None:
        """The last attempt was not in vain."""
        self._vain = 0

    def lasts(self, error: AnswerError | BrokenError, then: str) -> bool:
        """Return False if attempts are over; else pause and return True. `then` is the log's text about the retry."""
        if isinstance(error, AnswerError):
            if not error.may_pass:
                return False
            if error.retry_after is not None and self._waited < PATIENCE_SECONDS:
                pause = min(max(error.retry_after, FIRST_PAUSE_SECONDS), LONGEST_WAIT_SECONDS)
                self._waited += pause
                self._say(f"{error}; asks again in {pause:g} s, as the server wants")
                self._sleep(pause)
                return True
        if self._vain >= self._attempts:
            return False
        pause = min(FIRST_PAUSE_SECONDS * 2**self._vain, LONGEST_PAUSE_SECONDS)
        self._vain += 1
        self._say(f"{error}; {then} in {pause:g} s ({self._vain} of {self._attempts})")
        self._sleep(pause)
        return True
