"""SIGHUP: read files again. Files that can't be used are logged, and the process continues with the old content.

    standard error, if it is a file that a rotation has moved -> opened again by its name
    keys, tokens, certificates                                -> `tink.files.rereading`
    settings                                                  -> the `steps` of the command line

A terminal that closes sends SIGHUP too, so a `tinkedge up` that was started by hand continues without its terminal.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Sequence

from edge.run.logs import reopen
from edge.run.process.service_manager import Notifier
from tink.files.rereading import reread_all

log = logging.getLogger(__name__)

Step = Callable[[], None]  # reads something again and logs the result. Raises nothing.


class Reload:
    """The handler of SIGHUP. A signal that arrives before `ready` is handled then."""

    def __init__(self, notifier: Notifier, status: Callable[[], str], steps: Sequence[Step] = ()) -> None:
        """`status()` is the line for the service manager when a reload is done."""
        self._notifier = notifier
        self._status = status
        self._steps = tuple(steps)
        self._is_ready = False
        self._is_requested = False

    def listen(self) -> None:
        """Install the handler. From now on SIGHUP does not end the process."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self.hangup)

    def ready(self) -> None:
        """Allow reloads, because the start is done."""
        self._is_ready = True
        if self._is_requested:
            self.hangup()

    def hangup(self) -> None:
        """Handle a SIGHUP."""
        if not self._is_ready:
            self._is_requested = True
            return
        self._is_requested = False
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
