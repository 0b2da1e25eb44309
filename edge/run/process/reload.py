"""SIGHUP: what can be read again is, the log says what can't, and nothing ends.

    standard error, if it is a file that a rotation has moved -> opened again by its name
    keys, tokens, certificates                                -> `tink.files.rereading`
    settings                                                  -> `steps` of the command line, which knows where they are

A terminal that closes sends SIGHUP, too: a `tinkedge up` that was started by hand goes on without it.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Sequence

from edge.run.logs import reopen
from edge.run.process.notify import Notifier
from tink.files.rereading import reread_all

log = logging.getLogger(__name__)

Step = Callable[[], None]
"""Reads something again, and says in the log what came of it. Raises nothing."""


class Reload:
    """Installed once the process is ready; before, SIGHUP is noted and done then."""

    def __init__(self, notifier: Notifier, status: Callable[[], str], steps: Sequence[Step] = ()) -> None:
        """`status`: what the manager is told when it is done."""
        self._notifier = notifier
        self._status = status
        self._steps = tuple(steps)
        self._ready = False
        self._asked = False

    def listen(self) -> None:
        """From now on, SIGHUP does not end the process."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self.hangup)

    def ready(self) -> None:
        """The start is done."""
        self._ready = True
        if self._asked:
            self.hangup()

    def hangup(self) -> None:
        """What SIGHUP asks for."""
        if not self._ready:
            self._asked = True
            return
        self._asked = False
        self._notifier.reloading()
        try:
            reopen()
            log.info("SIGHUP: reading files again")
            for step in self._steps:
                step()
            files, bad = reread_all()
            if bad:
                log.error("SIGHUP: of %d files with keys and certificates, %d can't be used; see above", files, bad)
            else:
                log.info("SIGHUP: done; %d files with keys and certificates are good", files)
        finally:
            self._notifier.ready(self._status())
