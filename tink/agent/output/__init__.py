"""What actions print: `lines` into the log and to a sink, `progress` of a pull among them, `sender` to the server."""

from __future__ import annotations

from tink.agent.output.lines import Output
from tink.agent.output.progress import PullProgress, thread_safe_sink
from tink.agent.output.sender import OutputSender

__all__ = ["Output", "OutputSender", "PullProgress", "thread_safe_sink"]
