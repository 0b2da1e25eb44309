"""Remedies for a step that failed or was refused: likely causes and checks, by the text of the event.

The event has the facts. Its recorder knows what went wrong, and not always what an operator can do about it. A pattern
matches the recorder's own words; a message that no pattern knows gets the checks of its step.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from edge.journey.events import JourneyEvent, Outcome, Step
from edge.journey.expectations.facts import Why


class _Known(NamedTuple):
    """A pattern of the failure's text, with its causes and checks."""

    words: re.Pattern[str]
    causes: tuple[str, ...]
    checks: tuple[str, ...]


def _known(words: str, *checks: str, causes: Iterable[str] = ()) -> _Known:
    return _Known(re.compile(words), tuple(causes), checks)


_FILE: Final = (
    _known(
        r"404 |410 |no such file",
        "correct that field of the OSIE, or put the file there",
        causes=("the URL has a typo", "the file was moved or was never uploaded"),
    ),
    _known(
        r"\b(401|403|407) |requires a user",
        "let this host read the file, or give the OSIE another URL",
        causes=("the upstream requires a user or a token", "it does not serve this host's address"),
    ),
    _known(r"can't be resolved", "correct the host in the URL, or this host's name servers (/etc/resolv.conf)"),
    _known(
        r"certificate is not trusted|no TLS connection",
        "add the upstream's authority to this host's trusted certificates, or use http with a checksum",
        causes=(
            "its certificate is from an authority that this host does not know",
            "it is for another host, or expired",
        ),
    ),
    _known(
        r"wrong SHA-256|can't be checked|checksum",
        "compare the OSIE's checksum annotation with `sha256sum` of the file, and correct the one that is wrong",
        causes=("the file was replaced and the annotation was not", "the upstream or a proxy sent another file"),
    ),
    _known(
        r"web page|an empty file|Content-Encoding",
        "open the URL from this host: it has to lead to the file itself",
        causes=("the upstream answers with a login or an error page",),
    ),
    _known(
        r"no room|whole cache",
        "make room for the cache: a larger --cache-size, or more space on the disk of --data-dir",
    ),
    _known(
        r"no connection|no answer|stopped sending|too slow|connection broke|not there within|usable answer|"
        r"\b5\d\d |other downloads",
        "fetch that URL from this host with curl: does the upstream answer, and is a proxy needed (HTTPS_PROXY)?",
        causes=("the upstream is down or overloaded", "a firewall or a proxy is between it and this host"),
    ),
    _known(
        r"which Hardware discovery-\S+ names, does not exist",
        "create that OSIE, or correct osie= of the rule of --discover and spec.osie.name of the Hardware",
    ),
    _known(r"does not exist", "create that OSIE, or correct spec.osie.name of the Hardware"),
)
_MACHINE_STOPPED: Final = _known(
    r"(?i)timeout|timed out|silent|no answer|not confirmed|closed|aborted|broke",
    "its screen may show why; does its network lose packets ('tinkedge doctor --probe')?",
    causes=("the machine was switched off or reset", "packets are lost on the way to it"),
)
_ACTION: Final = (
    _known(
        r"ImagePullFailed.*(has no such image|404)",
        "correct the action's image in the Template, or push that image to the registry",
    ),
    _known(
        r"ImagePullFailed.*(user and password|401|403)",
        "give machines the registry's user and password (spec.kernelParams of the Hardware, or --kernel-parameters)",
    ),
    _known(
        r"ImagePullFailed",
        "pull that image from the machines' network: is the registry up, and does it speak TLS that agents trust "
        "(--registry-ca, --insecure-registry)?",
        causes=("the registry is down", "the machine does not reach it, or does not trust it"),
    ),
    _known(
        r"TemplateError|no Template", "correct the Template or the Workflow's parameters, and create another Workflow"
    ),
    _known(
        r"(Action|Start|Workflow|Cancel)Timeout",
        "look at the action's last output; if it only needs longer, give it a longer timeout in the Template",
        causes=("the action waits for something that never arrives", "it needs longer than its timeout"),
    ),
    _known(
        r"AgentLost|RebootAssumed|Rebooted",
        "its console shows why it disappeared; then create another Workflow",
        causes=("the machine lost its power or was reset", "the agent stopped, or lost the network"),
    ),
    _known(
        r"AlreadyFinished|UnknownWorkflow|Rejected|InvalidStatus",
        "create another Workflow; the agent's log on the machine's console shows the request",
    ),
)
_BY_STEP: Final[dict[Step, tuple[_Known, ...]]] = {
    Step.KERNEL: (*_FILE, _MACHINE_STOPPED),
    Step.INITRD: (*_FILE, _MACHINE_STOPPED),
    Step.TFTP: (
        _known(r"TFTP transfer of .* failed", *_MACHINE_STOPPED.checks, causes=_MACHINE_STOPPED.causes),
        *_FILE,
    ),
    Step.SCRIPT: (_known(r"spec\.osie\.name is not set"), *_FILE),
    Step.ACTION: _ACTION,
    Step.WORKFLOW: _ACTION,
    Step.DHCP: (
        _known(r"it may not boot from this edge|[Cc]heck |[Ff]ind that host"),  # the message has the remedy
        _known(r"disable(Dhcp|Netboot) is true", "set that field to false to let it boot from the network"),
        _known(r"no Workflow for", "create a Workflow for it, or let it boot its disk"),
        _known(r"put one of "),
    ),
    Step.AGENT: (
        _known(r"request has no token", "boot it again from this edge, or set its tinkerbell_token="),
        _known(
            r"not signed|expired|token",
            "boot it again from this edge, so that it gets a new token",
            causes=("its token comes from another site or an earlier key", "another machine uses its name"),
        ),
        _known(r"no Hardware has", "register it: `tinkedge watch MAC` prints a Hardware manifest to copy"),
    ),
}
_GENERAL: Final[dict[Step, tuple[str, ...]]] = {
    Step.POWER: (
        "'tinkedge bmc check NAME' shows what works on its BMC, and 'kubectl describe workflow' the progress",
    ),
    Step.MEDIUM: ("create the boot medium again with `tinkedge iso`, and look at --public-ip",),
    Step.DHCP: ("look at dhcp of this card in the Hardware's spec.networkInterfaces",),
    Step.TFTP: ("look at --tftp-dir and --ipxe-dir, and at the machine's screen",),
    Step.BINARY: ("look at --ipxe-dir and --shim-dir: is that boot program there?",),
    Step.SCRIPT: ("look at spec.osie of the Hardware, and at its screen",),
    Step.KERNEL: ("look at kernelUrl of the OSIE ('kubectl get osie -o yaml')",),
    Step.INITRD: ("look at initrdUrl of the OSIE ('kubectl get osie -o yaml')",),
    Step.BOOT: (
        "its screen has iPXE's error, and https://ipxe.org/ERROR explains it: is the kernel one for its firmware?",
    ),
    Step.AGENT: ("look at the agent's log on its console, and at --agent-auth",),
    Step.DISCOVERY: ("'tinkedge discover list' shows the machines that wait, and the difference of each",),
    Step.WORKFLOW: ("'kubectl describe workflow' shows the whole reason; correct that, and create another Workflow",),
    Step.ACTION: ("look at the action's output; correct the Template, and create another Workflow",),
    Step.METADATA: ("correct spec.instance of the Hardware; the machine reads it at its next boot",),
    Step.LOG: ("look at what the machine logged",),
}
_BY_REASON: Final[dict[str, tuple[str, ...]]] = {
    "BmcUnreachable": (
        "look at spec.connection of the Machine, at the BMC's cable and VLAN, and at the firewall on the way (443/tcp, "
        "623/udp)",
    ),
    "CredentialsRefused": ("correct the Secret, and unlock the account if the BMC has locked it",),
    "CredentialsMissing": (),
    "LoginUnclear": (),
    "CertificateNotTrusted": (
        "was the BMC replaced or reset? Read its fingerprint over a network that you trust, and correct "
        "spec.connection.certificateFingerprint of the Machine",
    ),
    "NoBmc": (),
}
"""The checks of a report of BMC control, by the reason of BootPrepared; empty: the message has the remedy."""
_BOOT_CAUSES: Final = ("the kernel is for another architecture or firmware", "Secure Boot refuses it", "it is damaged")
_WRONG_ADDRESS: Final = (
    _known(
        r"not an address of this machine",
        "find out which address its system has and where from ('ip address'), or correct dhcp.ip of the Hardware",
        causes=("its system has an address of its own or of another DHCP server", "the Hardware has a wrong address"),
    ),
    _known(
        r"which is no MAC of this machine",
        "find the host that uses that address",
        causes=("another host has its address",),
    ),
)


def remedy(event: JourneyEvent) -> Why:
    """Return the causes and the checks of an event that failed or was refused."""
    known = (*_WRONG_ADDRESS, *_BY_STEP.get(event.step, ()))
    found = next((each for each in known if each.words.search(event.message)), None)
    if found is not None:
        return found.causes, found.checks
    if event.step is Step.BOOT and event.outcome is Outcome.FAILED:
        return _BOOT_CAUSES, _GENERAL[event.step]
    if event.step is Step.POWER:
        return (), _BY_REASON.get(str(event.detail.get("reason")), _GENERAL[event.step])
    return (), _GENERAL.get(event.step, ())
