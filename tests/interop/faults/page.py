"""The page docs/engineering/faults.md: the message for each fault, its delay, and the places that show it.

`TINKEDGE_RECORD=1 pytest tests/interop/faults` writes it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.interop.faults.machine import Fault

PAGE = Path(__file__).resolve().parents[3] / "docs" / "engineering" / "faults.md"
RECORDING = bool(os.environ.get("TINKEDGE_RECORD"))
_HEAD = """# Faults, and the message for each

Search this page for a message. A scripted machine ([tests/interop/faults](../../tests/interop/faults)) played each
fault on a real network against a real `tinkedge up`, with a real agent if one is needed; [journey.md](../journey.md)
explains the messages. The seconds are of one run of all faults at the same time on two processors. They count from
the moment in the column beside them. The same words are on the journey (`tinkedge watch`, the web page, the log) and,
by the last column, in the condition `BootProblem` and an Event of the Hardware (`kubectl describe hardware`), and in
the column MESSAGE of `kubectl get workflows`. For a failed or refused step, the log and the journey have the text up
to ": likely" or the first sentence. The condition and the web page add the likely causes and the remedy.
The BMCs are fakes that fail in the ways of real ones, with `--bmc-boot-named-after 15` instead of 60 s. Their messages
are also in the condition `BootPrepared` of the Workflow; [bmc.md](../bmc.md#reasons-of-bootprepared) explains it.
For a machine that discovery judges, the condition is `AsExpected` ([discovery.md](../discovery.md)).
`TINKEDGE_RECORD=1 python -m pytest tests/interop/faults` writes this page.

| fault | message | s | counted from | where |
|---|---|---|---|---|
"""
_MOMENTS = {
    "NoTFTPRequest": "its lease",
    "NoScriptRequest": "iPXE's lease",
    "OfferNotTaken": "its third question",
    "KernelSilent": "15 s after its kernel was started, which is three times what others needed, or more",
    "UpstreamStalls": "its request for the kernel",
    "KernelFailed": "its request for the kernel",
    "TFTPStalls": "its last acknowledgement",
    "NoWorkflow": "its agent's connection",
    "WorkflowNotBegun": "its agent's connection",
    "WorkflowFailed": "the start of the action",
    "ActionFailed": "the start of the action",
    "PullStalls": "the start of the action",
    "ActionSilent": "a minute of silence",
}
_SINCE = {"connected": "its agent's connection", "action write started": "the start of the action"}
_EXAMPLES = {
    "172.31.77.0/24, 172.31.78.0/24": "10.0.0.0/24",
    "172.31.77.": "10.0.0.",
    "172.31.78.": "10.0.1.",
    "rack0": "eth1",
    "rack1": "eth2",
    "other1": "eth3",
    "127.0.0.1:5": "registry:5",
    "127.0.0.1": "mirror",
}
"""Names and addresses on the test's network, and the examples in their place on the page."""
_FINGERPRINT = re.compile(r"\b[0-9a-f]{64}\b")
_DISCOVERED = re.compile(r"\b(SN)?02([:-]?)d1\2[0-9a-f]{2}\2")
_RULE = re.compile(r"\brule-\d+\b")
"""The MAC address of a discovered machine, and the name of its rule: both have the number of its fault."""


@dataclass(frozen=True)
class Row:
    """One fault: the sentence, its `reason`, `seconds`, and `where` it is seen beside the journey."""

    fault: Fault
    reason: str
    sentence: str
    seconds: float
    where: tuple[str, ...]
    ip: str

    @property
    def line(self) -> str:
        """Return the row in Markdown."""
        reported = self.sentence.replace(self.fault.slug, "m1" if self.fault.discovered is None else "rack7")
        if self.fault.discovered is not None:
            reported = _RULE.sub("rack7", _DISCOVERED.sub(r"\g<1>52\g<2>54\g<2>00\g<2>", reported))
        if self.fault.bmc is not None:
            reported = _FINGERPRINT.sub("5e2b0c...", reported.replace(self.fault.bmc.host, "10.0.0.9"))
        reported = _example(reported if self.fault.ip else reported.replace(self.ip, "10.0.0.5"))
        after = "0" if self.seconds < 0.5 else f"{self.seconds:.0f}"
        moment = self.fault.moment or _SINCE.get(self.fault.since) or _MOMENTS.get(self.reason) or "what shows it"
        where = ", ".join(self.where) or "journey alone: it has no Hardware"
        return f"| {self.fault.name} | `{self.reason}`: {reported.replace('|', '/')} | {after} | {moment} | {where} |"


def write(rows: Iterable[Row]) -> None:
    """Write the page."""
    PAGE.write_text(_HEAD + "\n".join(row.line for row in rows) + "\n")


def _example(reported: str) -> str:
    for there, example in _EXAMPLES.items():
        reported = reported.replace(there, example)
    return reported


def reported() -> dict[str, str]:
    """Return the rest of each row of the page, by the fault's name."""
    rows = [line.strip("|").partition(" | ") for line in PAGE.read_text().splitlines()[8:] if line.startswith("| ")]
    return {name.strip(): rest for name, _, rest in rows if name.strip() != "fault"}


def expected(fault: Fault) -> str:
    """The sentence that the page has to have, as a regular expression."""
    sentence = fault.sentence.replace("\\.", ".")
    if fault.bmc is not None:
        sentence = sentence.replace(fault.bmc.host, "10.0.0.9")
    return _example(sentence).replace(fault.slug, "m1")
