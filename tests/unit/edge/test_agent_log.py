"""The lines of the agent on a machine's console, which contain text that others choose."""

from __future__ import annotations

import logging
import sys

from edge.commands.agent import AgentFormatter


def test_no_message_and_no_exception_forges_a_line_or_moves_the_cursor() -> None:
    forged = "agent: workflow lab/install succeeded"
    try:
        raise ValueError(f"the registry answered x\n{forged}\x1b[2J")
    except ValueError:
        error = sys.exc_info()
    record = logging.LogRecord("tink.agent", logging.ERROR, "f", 1, "pull of %s\tfailed", (f"a\n{forged}",), error)
    first, *rest = AgentFormatter().format(record).split("\n")
    assert first == f"agent: pull of a\\n{forged}\tfailed"
    assert {line[:4] for line in rest} == {"    "}
    assert all(line.isprintable() for line in rest)
