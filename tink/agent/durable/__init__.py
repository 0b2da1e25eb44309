"""What outlives an agent that is killed: the `journal` of what it does, in a `ledger`; the `spool` of events."""

from __future__ import annotations

from tink.agent.durable.journal import Journal, Restored, boot_id
from tink.agent.durable.spool import Spool

__all__ = ["Journal", "Restored", "Spool", "boot_id"]
