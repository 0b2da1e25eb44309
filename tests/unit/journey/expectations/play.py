"""One machine's boots, played step by step on a clock that is moved by hand, with what is found out about them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from ipaddress import IPv4Network
from typing import Any

from edge.journey.events import Milestone, Outcome, Step, Value
from edge.journey.expectations import Diagnosis, Expectations, Facts, KnownNetworks, Registered, Story
from edge.journey.recorder import Journey

MAC = "52:54:00:00:00:01"
HERE = KnownNetworks((IPv4Network("10.0.0.0/24"),), (), "10.0.0.1", "eth1")
MACHINE = Registered("default/m1", "10.0.0.5", "255.255.255.0", "10.0.0.1")
FACTS = Facts(now=0.0, registered=MACHINE, network=HERE, workflow="default/install")
OSIE = {"osie": "default/lab", "boots": "osie"}


class Play:
    """`at(seconds)` moves the clock, second by second, with a sweep each; the rest is what a machine does."""

    def __init__(self, facts: Facts = FACTS) -> None:
        self.now = 1000.0
        self.began = self.now
        self.facts = facts
        self.reported: list[tuple[float, Diagnosis]] = []
        self.settled = 0
        self.journey = Journey(lambda: self.now, per_machine=500)
        self.expectations = Expectations(self.journey, self._facts, self._say, lambda: self.now)

    def _facts(self, _story: Story, now: float, limit: Callable[[Milestone], float]) -> Facts:
        return replace(self.facts, now=now, limit=limit)

    def _say(self, _mac: str, finding: Diagnosis | None) -> None:
        if finding is not None:
            self.reported.append((self.now - self.began, finding))
        else:
            self.settled += 1

    # --- time ---

    def sweep(self) -> None:
        for _ in self.expectations.sweep():
            pass

    def wait(self, seconds: float) -> Play:
        """Time goes by."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(self.now + 1.0, end)
            self.sweep()
        return self

    @property
    def found(self) -> Diagnosis | None:
        """The last reported finding."""
        self.sweep()
        return self.reported[-1][1] if self.reported else None

    @property
    def warnings(self) -> list[str]:
        self.sweep()
        return [finding.rule for _, finding in self.reported if finding.outcome is not Outcome.INFO]

    # --- what machines do ---

    def record(self, step: Step, outcome: Outcome, message: str, **detail: Value) -> Play:
        self.journey.record(MAC, step, outcome, message, **detail)
        return self

    def dhcp(self, what: str, stage: str, boot: str = "") -> Play:
        detail: dict[str, Value] = {"stage": stage, "dhcp": what, **({"boot": boot} if boot else {})}
        return self.record(Step.DHCP, Outcome.OK, f"DHCP{what.upper()} to {stage}", **detail)

    def rom(self) -> Play:
        """EDK2 asks for an address, and takes it 5 s later."""
        self.dhcp("offer", "PXE ROM", "boot file snponly.efi")
        return self.wait(5).dhcp("ack", "PXE ROM", "boot file snponly.efi")

    def rom6(self, stage: str = "PXE ROM") -> Play:
        """EDK2 over IPv6."""
        self.dhcp("advertise", stage, "boot file shimx64.efi")
        return self.wait(2).dhcp("reply", stage, "boot file shimx64.efi")

    def program(self, name: str = "snponly.efi") -> Play:
        self.record(Step.TFTP, Outcome.INFO, f"TFTP {name} requested", phase="begun", name=name, file_bytes=300_000)
        return self.wait(1).record(Step.TFTP, Outcome.OK, f"TFTP sent {name}", name=name)

    def ipxe(self) -> Play:
        url = "script http://10.0.0.1:7080/ipxe/script/x/auto.ipxe"
        return self.wait(3).dhcp("offer", "iPXE", url).wait(1).dhcp("ack", "iPXE", url)

    def script(self, **detail: Value) -> Play:
        return self.record(Step.SCRIPT, Outcome.OK, "script sent: OSIE default/lab", client="iPXE/1", **OSIE, **detail)

    def file(self, step: Step, seconds: float = 2.0) -> Play:
        self.record(step, Outcome.INFO, f"{step} requested", phase="begun", osie="default/lab")
        return self.wait(seconds).record(step, Outcome.OK, f"{step} sent", size_bytes=14_000_000)

    def files(self) -> Play:
        return self.file(Step.KERNEL).file(Step.INITRD)

    def starts(self, **detail: Value) -> Play:
        facts: dict[str, Value] = {"phase": "starting", "model": "QEMU Standard PC", **detail}
        return self.record(Step.BOOT, Outcome.INFO, "iPXE starts the kernel", **facts)

    def osie(self, seconds: float = 20.0) -> Play:
        """Linux comes up, gets its lease, says so."""
        self.wait(seconds).dhcp("offer", "operating system").dhcp("ack", "operating system")
        return self.wait(1).record(Step.BOOT, Outcome.INFO, "the OSIE is up", phase="up")

    def agent(self) -> Play:
        return self.wait(5).record(Step.AGENT, Outcome.OK, "connected")

    def workflow(self, state: str, outcome: Outcome = Outcome.INFO, message: str = "") -> Play:
        message = message or f"workflow default/install: {state}"
        return self.record(Step.WORKFLOW, outcome, message, state=state, workflow="default/install")

    def action(self, name: str = "disk", number: int = 1, of: int = 2, **detail: Value) -> Play:
        message = f"action {name} started ({number} of {of})"
        facts: dict[str, Value] = {"action": name, "number": number, "of": of, "state": "Running", **detail}
        return self.record(Step.ACTION, Outcome.INFO, message, **facts)

    def action_ends(self, outcome: Outcome = Outcome.OK, message: str = "action disk succeeded") -> Play:
        return self.record(Step.ACTION, outcome, message, action="disk", number=1, state="Succeeded")

    # --- whole ways ---

    def act(self, steps: list[Any]) -> Play:
        """Do what `boots.yaml` lists: each step is the name of a method, alone or with arguments, the last by name."""
        for step in steps:
            name, *given = step if isinstance(step, list) else [step]
            named = given.pop() if given and isinstance(given[-1], dict) else {}
            if name in ("record", "file"):
                given[0] = Step(given[0])
            at = {"record": 1, "workflow": 1, "action_ends": 0}.get(name, len(given))
            given[at : at + 1] = map(Outcome, given[at : at + 1])
            getattr(self, name)(*given, **named)
        return self

    def to_ipxe(self) -> Play:
        return self.rom().program().ipxe()

    def to_kernel(self) -> Play:
        return self.to_ipxe().script().files().starts()

    def restarts(self, count: int) -> Play:
        """The kernel panics so often, and the firmware begins again."""
        for _ in range(count):
            self.to_kernel().wait(8)
        return self.dhcp("offer", "PXE ROM", "boot file snponly.efi")

    def to_agent(self) -> Play:
        return self.to_kernel().osie().agent()

    def installed(self) -> Play:
        """A boot in which all is well, to the end of its Workflow."""
        self.to_agent().workflow("Running").action().wait(30).action_ends()
        self.action("reboot", 2).wait(2)
        self.facts = replace(self.facts, workflow="")
        return self.workflow("Succeeded", Outcome.OK)
