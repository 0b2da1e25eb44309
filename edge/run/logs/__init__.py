"""How the program logs: lines for people, or JSON for collectors, to standard error, or entries of the journal."""

from edge.run.logs.root import reopen, set_up

__all__ = ["reopen", "set_up"]
