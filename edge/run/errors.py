"""The exceptions of `edge.run`. Each message names the part, with the reason and the remedy.

RunError
    StackError      the stack can't start, or a part of it ended
    ServingError    a server for machines or operators can't open its port
    HealthError     the port for probes and metrics can't be opened
    MessageError    the gRPC server's process has sent bytes that are no message
"""

from __future__ import annotations

from tink.errors import TinkedgeError


class RunError(TinkedgeError):
    """The root of these exceptions."""


class StackError(RunError):
    """The stack can't start, or a part of it ended."""


class ServingError(RunError):
    """A server for machines or operators can't open its port."""


class HealthError(RunError):
    """The port for probes and metrics can't be opened."""


class MessageError(RunError):
    """The gRPC server's process has sent bytes that are no message."""
