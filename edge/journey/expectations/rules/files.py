"""Rules for kernel, initrd and user-data, and for the last step that failed or was refused."""

from __future__ import annotations

from edge.journey.events import PROGRESS, REPORTED_BY_API, JourneyEvent, Milestone, Outcome, Step
from edge.journey.expectations.facts import Diagnosis, Facts
from edge.journey.expectations.rules.remedies import remedy
from edge.journey.expectations.rules.words import overdue, seconds, size
from edge.journey.expectations.story import MachineBoot, Story

WAITED_SECONDS = 4.0
"""Seconds without data after which a download from upstream counts as stalled."""
_UNDER_WAY = {Milestone.KERNEL_BEGUN: Step.KERNEL, Milestone.INITRD_BEGUN: Step.INITRD}
_BY_TFTP = ("U-Boot", "Raspberry Pi")
"""Boot programs that fetch all files by TFTP."""


def upstream_stalls(story: Story, _facts: Facts) -> Diagnosis | None:
    """The machine waits for a file whose upstream sends no data."""
    boot = story.boot
    step = _UNDER_WAY.get(boot.at) if boot.at is not None else None
    if step is None:
        return None
    reports = [event for event in boot.since_then() if event.step is step and event.detail.get("phase") == PROGRESS]
    if not reports or (boot.last(step) is not reports[0]):
        return None
    received = reports[0].detail.get("received_bytes", 0)
    same = [event for event in reports if event.detail.get("received_bytes", 0) == received]
    began = same[-1].time if received else boot.since
    until = reports[0].time  # the time of the last report: later data is not known yet
    if until - began < WAITED_SECONDS or (received and len(same) < 2):
        return None
    upstream = reports[0].detail.get("upstream", "its upstream")
    waited = seconds(began, until)
    if not received:
        fact = f"waits for the {step}: {upstream} has sent no data for {waited}"
    else:
        fact = f"waits for the {step}: {upstream} has sent {size(float(received))}, and nothing more for {waited}"
    causes = (f"{upstream} is down or overloaded", "a firewall or a proxy between it and this host blocks the answer")
    checks = (f"fetch the OSIE's {step}Url from this host: is {upstream} up?",)
    return Diagnosis("UpstreamStalls", step, fact, causes, checks, began=began)


def last_failure(story: Story, _facts: Facts) -> Diagnosis | None:
    """The last step failed, and no step has succeeded since; the journey has its message."""
    event = _last(story.boot, Outcome.FAILED)
    if event is None:
        return None
    rule = f"{event.step.capitalize()}Failed"
    began = _first_since_ok(story.boot, event)
    return Diagnosis(rule, event.step, event.message, *remedy(event), reported=True, began=began)


def user_data_dropped(story: Story, _facts: Facts) -> Diagnosis | None:
    """The machine's user-data is nothing that cloud-init accepts; the rest of its metadata is valid."""
    reports = (event for event in reversed(story.boot.events) if event.detail.get("document") == "user-data")
    last = next(reports, None)
    if last is None or last.step is not Step.METADATA or not last.detail.get("problem"):
        return None
    which = "spec.instance.userdata of the Hardware"
    checks = (
        f"correct {which}, or the Secret that it names: `kubectl apply` warns about everything that cloud-init ignores",
    )
    return Diagnosis("UserDataInvalid", Step.METADATA, last.message, checks=checks, reported=True, began=last.time)


def last_refusal(story: Story, facts: Facts) -> Diagnosis | None:
    """The last step was refused: by policy, which may be intended, or because an agent was not authenticated.

    No finding if the machine boots from the network after its Workflow has succeeded: it gets a script that boots its
    disk.
    """
    event = _last(story.boot, Outcome.REFUSED)
    if event is None:
        return None
    began = _first_since_ok(story.boot, event)
    if event.step is Step.AGENT:
        return Diagnosis("AgentRefused", event.step, event.message, *remedy(event), reported=True, began=began)
    if facts.done and event.message.endswith(facts.done):
        return None
    rule, (causes, checks) = f"{event.step.capitalize()}Refused", remedy(event)
    return Diagnosis(rule, event.step, event.message, causes, checks, Outcome.INFO, reported=True, began=began)


def _first_since_ok(boot: MachineBoot, last: JourneyEvent) -> float:
    """Return the time of the first such end of this step since its last success."""
    began = last.time
    for event in reversed(boot.events):
        if event.step is last.step and event.outcome is Outcome.OK:
            break
        if event.step is last.step and event.outcome is last.outcome:
            began = event.time
    return began


def not_asked_for(story: Story, facts: Facts) -> Diagnosis | None:
    """The machine has its script or kernel, and does not request the next file."""
    boot = story.boot
    if not overdue(boot, facts):
        return None
    if boot.at is Milestone.SCRIPT_SENT and (vlan := _goes_to(boot)):
        return _silent_in_vlan(boot, facts, vlan)
    if boot.at is Milestone.SCRIPT_SENT and boot.detail.get("boots") == "osie":
        rule, what, before, step = "NoKernelRequest", "kernel", "script", Step.KERNEL
    elif boot.at is Milestone.KERNEL_SENT and boot.detail_of("boots") == "osie":
        rule, what, before, step = "NoInitrdRequest", "initrd", "kernel", Step.INITRD
    else:
        return None
    fact = f"has its {before}, but has not requested the {what} for {seconds(boot.since, facts.now)}"
    client = str(boot.detail_of("client"))
    by_tftp = client.startswith(_BY_TFTP)
    program = client.partition(" (")[0] if by_tftp else "iPXE"
    port = "udp/69" if by_tftp else f"tcp/{facts.http_port}"
    causes = (f"{program} has stopped at an error, or is waiting for a key", f"{port} is blocked on the way")
    return Diagnosis(rule, step, fact, causes, ("look at its screen",))


def _goes_to(boot: MachineBoot) -> str:
    """Return the VLAN that the script leads to, if the machine has not been heard there yet; else an empty string."""
    if boot.heard_of(Step.DHCP):
        return ""
    led = [event.detail["vlan"] for event in boot.events if event.step is Step.SCRIPT and "vlan" in event.detail]
    return str(led[0]) if len(led) == 1 else ""


def _silent_in_vlan(boot: MachineBoot, facts: Facts, vlan: str) -> Diagnosis:
    """The script has the machine get a lease in a VLAN first, and no DISCOVER has come from there."""
    waited = seconds(boot.since, facts.now)
    fact = (
        f"has its script, which makes it request a lease in VLAN {vlan}, but nothing was received from it for {waited}"
    )
    causes = (
        f"the switch port does not carry VLAN {vlan} tagged",
        f"no DHCP relay leads here from VLAN {vlan}",
        "another DHCP server answers there",
    )
    check = "look at its screen, and at spec.networkInterfaces[].dhcp.vlanId of its Hardware"
    return Diagnosis("NoLeaseInVLAN", Step.DHCP, fact, causes, (check,))


def sending_stalls(story: Story, facts: Facts) -> Diagnosis | None:
    """A file takes long to reach the machine, which may be its network."""
    boot = story.boot
    step = _UNDER_WAY.get(boot.at) if boot.at is not None else None
    if step is None or not overdue(boot, facts):
        return None
    fact = f"has been downloading the {step} for {seconds(boot.since, facts.now)}"
    causes = (
        "the network between here and the machine is slow, or loses packets",
        f"the {step} is large, or its upstream is slow",
        "the machine was switched off in between",
    )
    checks = ("the page and `tinkedge watch` show the artifact cache's downloads; its screen shows how far it is",)
    return Diagnosis(f"Slow{step.capitalize()}", step, fact, causes, checks, outcome=Outcome.INFO)


def _last(boot: MachineBoot, outcome: Outcome) -> JourneyEvent | None:
    """Return the last event of this outcome if no step has succeeded or begun since; other reports don't count."""
    for event, reached in zip(reversed(boot.events), reversed(boot.marks), strict=True):
        if event.step in REPORTED_BY_API:
            continue  # these steps have rules of their own
        if event.outcome is outcome:
            return event
        if event.outcome is Outcome.OK or reached is not None or event.outcome in (Outcome.REFUSED, Outcome.FAILED):
            return None
    return None
