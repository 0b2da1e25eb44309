"""Faults before the first packet: a Workflow boots its machine by a BMC, which does not do that."""

from __future__ import annotations

import time
from typing import Final

from tests.interop.faults.machine import SYSTEM, Bmc, Fault, Scripted
from tests.waiting import wait_until

NAMED_AFTER: Final = 15
"""The value of --bmc-boot-named-after for these faults, in seconds. The edge reports a boot after up to 5 s."""
_WORKFLOW: Final = "templateRef: {name: boots-by-bmc}, bootOptions: {bootMode: netboot}"
TEMPLATE: Final = "boots-by-bmc"
_ON: Final = r"the machine is on, waiting for its DISCOVER"
_AFTER: Final = f"{NAMED_AFTER} s after power-on; the default of --bmc-boot-named-after is 60 s"


def _nothing(_firmware: Scripted) -> None:
    """Do nothing: the BMC is at fault, or the machine sends nothing."""


def _boots_its_disk(firmware: Scripted) -> float:
    """Send the DHCP packets of an installed system after power-on."""
    wait_until(lambda: _ON in firmware.journey_text(), firmware.journey_text, every=0.3)
    began = time.time()
    firmware.lease(SYSTEM)
    return began


def _fault(name: str, reason: str, sentence: str, bmc: Bmc | None, *, is_on: bool = False) -> Fault:
    """Return a fault whose machine sends nothing. `is_on`: it is named some time after power-on."""
    since, moment, plus = (_ON, _AFTER, float(NAMED_AFTER)) if is_on else ("", "the preparation of its Workflow", 0.0)
    return Fault(
        name,
        _nothing,
        reason,
        sentence,
        workflow=_WORKFLOW,
        bmc=bmc,
        since=since or r": Pending",
        plus=plus,
        moment=moment,
    )


FAULTS = [
    _fault(
        "no DISCOVER after power-on",
        "NoDiscover",
        r"the BMC reports On, boot target Pxe \(Once, UEFI\), no DISCOVER from 52:54:\S+; possible causes: cable",
        Bmc("Off,POST=3600"),
        is_on=True,
    ),
    _fault(
        "the boot device is used, and no DISCOVER",
        "NoDiscover",
        r"the BMC reports On, no boot override any more, no DISCOVER from",
        Bmc("Off"),
        is_on=True,
    ),
    _fault(
        "off again after power-on",
        "NoDiscover",
        r"the BMC reports Off again, no DISCOVER from",
        Bmc("Off,POWER_LOST"),
        is_on=True,
    ),
    Fault(
        "the disk boots instead of the network",
        _boots_its_disk,
        "OverrideLost",
        r"the last boot seen by DHCP is of the installed operating system \(from 52:54:\S+\), no netboot",
        workflow=_WORKFLOW,
        bmc=Bmc("On,BOOT_LOST"),
        moment="the DHCP packet of the installed system",
    ),
    _fault("the BMC ignores the boot device", "RequestIgnored", r"accepted", Bmc("On,BOOT_IGNORED")),
    _fault("the BMC keeps the boot device for all boots", "RequestIgnored", r"Continuous", Bmc("On,WRONG_ENABLED")),
    _fault("the BMC does not answer", "BmcUnreachable", r"172\.31\.77\.250", Bmc(host="172.31.77.250")),
    _fault("the BMC refuses the password", "CredentialsRefused", r"refuses", Bmc("On", password="of-another-bmc")),
    _fault(
        "the BMC has another certificate", "CertificateNotTrusted", r"fingerprint", Bmc("On", fingerprint="ab" * 32)
    ),
    _fault("the Secret of the BMC is missing", "CredentialsMissing", r"Secret", Bmc("On", password="")),
    _fault("bootOptions without a BMC", "NoBmc", r"set spec\.bmcRef\.name", None),
]
