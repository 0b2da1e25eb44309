"""Known faults of BMCs, as data: which vendor, model and firmware, the symptom, the remedy, and the source.

`QUIRKS` is the table. `quirks_for` returns the switches for one BMC, and `rows_for` the rows that apply to it. A row
without vendors describes many BMCs: its remedy is the rule for all, and it sets no switch. `needs_ipmi` names the
operations whose remedy is IPMI, although Redfish works.

Sources: IR openstack/ironic, SU openstack/sushy, BL bmc-toolbox/bmclib, NI NVIDIA/bare-metal-manager-core, MA
canonical/maas, CG ansible-collections/community.general, DX dsx-ai-factory/infra-controller, LP Launchpad, `story`
OpenStack's StoryBoard; the others are issues of the repository that they name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Final

from tink.bmc.model import (
    BootDevice,
    BootMode,
    Identity,
    Observation,
    PowerAction,
    Wanted,
    WantedBoot,
    WantedPower,
)

MAX_VERSION_LENGTH: Final = 64
MAX_NAME_LENGTH: Final = 128
# ASCII digits alone: \d also matches digits that int() reads in other scripts.
_DOTTED: Final = re.compile(r"[0-9]+(?:\.[0-9]+)+")
_NUMBER: Final = re.compile(r"[0-9]+")
_WORD: Final = re.compile(r"[a-z0-9.+-]+")


@dataclass(frozen=True, slots=True)
class Quirks:
    """The switches for one BMC. The default of each is the rule of the Redfish specification (DSP0268)."""

    rows: tuple[int, ...] = ()
    """Numbers of the rows that apply, in the order of the table."""

    mode_required: bool = False
    """A boot override without BootSourceOverrideMode sets the mode to a default: send the mode with each."""
    enabled_required: bool = False
    """A target without BootSourceOverrideEnabled sets enabled to Once: send enabled with each target."""
    only_changes: bool = False
    """The BMC refuses BootSourceOverrideEnabled if it has that value already: send only what differs."""
    mode_by_itself: bool = False
    """BootSourceOverrideMode needs a request of its own, before the target."""
    full_request: bool = False
    """Each boot override needs target, enabled and mode."""
    mode_read_only: bool = False
    """The BMC refuses a request that contains BootSourceOverrideMode."""
    clear_keeps_target: bool = False
    """The BMC refuses the target None: clear an override by enabled Disabled alone."""
    at_settings: bool = False
    """The boot override is writable only in the resource of @Redfish.Settings."""
    no_continuous: bool = False
    """BootSourceOverrideEnabled can't be Continuous, whatever the BMC lists."""
    uefi_boot_by_ipmi: bool = False
    """Redfish can't ask for a boot in UEFI mode; IPMI can."""
    cd_target: str = ""
    """The target that boots the virtual CD, if it is not Cd."""
    pending_target: str = ""
    """The target that the BMC reports while the requested one is pending."""
    refusal_may_lie: bool = False
    """The BMC answers an error to a boot override that it applies: read back before the next request."""

    insert_image_alone: bool = False
    """InsertMedia with Inserted or WriteProtected is refused: send Image alone."""
    insert_by_patch: bool = False
    """Media are inserted by a PATCH of the slot."""
    slots: tuple[str, ...] = ()
    """Names of the slots that work, as shell patterns of the last segment of their path; empty: all."""

    http_boot_by_bios: bool = False
    """UEFI HTTP boot has no HttpBootUri; its URI is a BIOS attribute."""
    reset_by_ipmi: bool = False
    """A ForceRestart cuts the power of a DPU; the chassis reset of IPMI does not."""
    untouched_after_installation: bool = False
    """A boot override after the installation stops the next boot at a screen: change nothing then."""
    ipmi_raw_boot: bool = False
    """`ipmitool chassis bootdev` has no effect in UEFI mode: write boot parameter 5 by `raw 0 8 5`."""
    connection_close: bool = False
    """Answers on a kept connection break: send `Connection: close`."""


class Area(StrEnum):
    """The kind of request that a quirk affects."""

    POWER = "power"
    BOOT = "boot"
    MEDIA = "media"
    CLIENT = "client"
    INVENTORY = "inventory"


class Handler(StrEnum):
    """The part of BMC control that applies the remedy of a quirk, or the operator."""

    DECISION = "tink.bmc.decision"
    REDFISH = "tink.bmc.redfish"
    IPMI = "tink.bmc.ipmi"
    INVENTORY = "tink.bmc.inventory"
    CONNECTIONS = "tink.bmc.connections"
    LADDER = "the boot ladder of a Workflow"
    OPERATOR = "the operator"


@dataclass(frozen=True, slots=True)
class Quirk:
    """One row of the table.

    number: never changes; docs and messages use it.
    symptom, remedy: plain sentences without a full stop.
    vendors: words of the vendor's name in lower case; empty for a rule that holds for all BMCs.
    models, except_models: shell patterns of the model in lower case; `models` is empty for all models of the vendors.
    since, until: first and last version of the BMC's firmware, both included; empty without a bound.
    sets: the switches of the row. A switch that has its default changes nothing.
    """

    number: int
    area: Area
    symptom: str
    remedy: str
    source: str
    vendors: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    except_models: tuple[str, ...] = ()
    since: str = ""
    until: str = ""
    sets: Quirks = Quirks()
    handled_by: Handler = Handler.DECISION
    is_advice: bool = False
    """The remedy is for the operator: the message of a failed operation contains it."""

    def applies_to(self, identity: Identity) -> bool:
        """Return True if the vendor, the model and the firmware match; False for a row without vendors."""
        vendor, model = f" {_words(identity.vendor)} ", _words(identity.model)
        return (
            any(f" {each} " in vendor for each in self.vendors)
            and (not self.models or _matches(model, self.models))
            and not _matches(model, self.except_models)
            and in_range(identity.firmware, self.since, self.until)
        )


def quirks_for(identity: Identity) -> Quirks:
    """Return the switches for a BMC. A later row of the table overrides an earlier one. Never raises."""
    rows = rows_for(identity)
    changed = {
        field.name: value
        for row in rows
        for field in fields(Quirks)
        if (value := getattr(row.sets, field.name)) != field.default
    }
    return Quirks(**{**changed, "rows": tuple(row.number for row in rows)})


def rows_for(identity: Identity) -> list[Quirk]:
    """Return the rows of the table that name this BMC's vendor, model and firmware, in their order. Never raises."""
    return [row for row in QUIRKS if row.applies_to(identity)]


def row(number: int) -> Quirk:
    """Return the row of this number. Raises KeyError if there is none."""
    return _ROWS[number]


def needs_ipmi(wanted: Wanted, seen: Observation) -> bool:
    """Return True if Redfish can't do this on the BMC, or harms the machine, and IPMI can. Never raises.

    `seen` was read with `boot`. These are the BMC's chassis reset (quirk 45), a boot in UEFI mode (quirk 11), and the
    boot device of a BMC without a boot override (quirk 43). False if the BMC was read by IPMI.
    """
    if not seen.identity.redfish:
        return False
    match wanted:
        case WantedPower(action=PowerAction.RESET):
            return quirks_for(seen.identity).reset_by_ipmi
        case WantedBoot() if wanted.device is not BootDevice.HTTP:
            boot = seen.boot
            if boot is None or boot.target is None or boot.enabled is None:
                return True
            is_unsupported = wanted.mode is BootMode.UEFI and boot.mode is None
            return is_unsupported and quirks_for(seen.identity).uefi_boot_by_ipmi
    return False


def in_range(firmware: str, since: str, until: str) -> bool:
    """Return True if `since` <= `firmware` <= `until`; an empty bound holds always. Never raises.

    A bound has the precision with which it is written: 3.32.32.32 is not after 3.32. A firmware without a number is
    in no range that has a bound.
    """
    version, first, last = version_of(firmware), version_of(since), version_of(until)
    if not version:
        return not first and not last
    return (not first or _padded(version, first) >= first) and (not last or _padded(version, last) <= last)


def version_of(text: str) -> tuple[int, ...]:
    """Return the numbers of the first dotted version in a text, or else of the first number; empty if it has none.

    Reads at most 64 characters, 8 numbers, and 9 digits of each.
    """
    match = _DOTTED.search(text[:MAX_VERSION_LENGTH]) or _NUMBER.search(text[:MAX_VERSION_LENGTH])
    numbers = match.group().split(".") if match else []
    return tuple(int(number[:9]) for number in numbers[:8])


def _padded(version: tuple[int, ...], bound: tuple[int, ...]) -> tuple[int, ...]:
    """Return the version with as many numbers as the bound."""
    return (version + (0,) * len(bound))[: len(bound)]


def _words(text: str) -> str:
    """Return the words of a text in lower case, at most 128 characters."""
    return " ".join(_WORD.findall(text[:MAX_NAME_LENGTH].lower()))


def _matches(model: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(model, each) for each in patterns)


_SUPERMICRO: Final = ("supermicro", "super micro")
_DELL: Final = ("dell",)
_HPE: Final = ("hpe", "hp", "hewlett packard", "hewlett-packard")
_LENOVO: Final = ("lenovo",)
_AMI: Final = ("ami", "american megatrends", "asrock", "asrockrack", "gigabyte", "giga computing")
_OPENBMC: Final = ("openbmc", "ibm")
# The third digit of a PowerEdge's model counts the generations: R730 is 13G, R660 16G, R670 17G (iDRAC10).
_POWEREDGE_13G: Final = ("*poweredge [a-z]?3*",)
_POWEREDGE_IDRAC9: Final = ("*poweredge [a-z]?[456]*",)
_POWEREDGE_17G: Final = ("*poweredge [a-z]?7*",)

QUIRKS: Final = (
    # --- boot devices ---
    Quirk(
        1, Area.BOOT,
        "the BMC answers 200 to Once, Pxe, UEFI; then it reports mode Legacy and enabled Disabled",
        "disable CSM in the firmware's setup, use UEFI HTTP boot, or set the boot order there",
        "bmclib#459 (AS-1015CS-TNR-EU, Redfish 1.22.2)",
        _SUPERMICRO, ("as-1015cs*",), is_advice=True,
    ),
    Quirk(
        2, Area.BOOT,
        "a boot override without a mode sets the mode to its default",
        "the mode is sent with each boot override",
        "DMTF/Redfishtool#106, ironcore-dev/metal-operator#607",
        _SUPERMICRO, sets=Quirks(mode_required=True),
    ),
    Quirk(
        3, Area.BOOT,
        "a boot override without enabled sets enabled to Once",
        "enabled is sent with each target",
        "story 2008547 (IR management.py)",
        _SUPERMICRO, sets=Quirks(enabled_required=True),
    ),
    Quirk(
        4, Area.BOOT,
        "the BMC refuses enabled if it has that value already",
        "only the fields that differ are sent",
        "story 2007355 (IR management.py)",
        _DELL, sets=Quirks(only_changes=True),
    ),
    Quirk(
        5, Area.BOOT,
        "a mode that is sent with the target breaks a change between BIOS and UEFI",
        "the mode is sent in a request of its own",
        "IR note restrict-sync-mode-after-device, story 2008712",
        _DELL, sets=Quirks(mode_by_itself=True),
    ),
    Quirk(
        6, Area.BOOT,
        "a boot override needs target, enabled and mode each time",
        "all three are sent",
        "IR management.py, VENDORS_REQUIRING_FULL_BOOT_REQUEST",
        _AMI, sets=Quirks(full_request=True),
    ),
    Quirk(
        7, Area.BOOT,
        "the mode is not writable: a request that contains it is refused with 400",
        "the mode is left out; change it in the firmware's setup",
        "CG#3509, CG#3690, BL boot_device.go (DL380 Gen10 with iLO 5 2.30, Gen9, DL160 Gen10)",
        _HPE, ("*gen9*", "*gen10*"), sets=Quirks(mode_read_only=True),
    ),
    Quirk(
        8, Area.BOOT,
        "the BMC refuses to clear a boot override with the target None",
        "the override is cleared with enabled Disabled, and the target stays",
        "ironcore-dev/metal-operator#998",
        _HPE, sets=Quirks(clear_keeps_target=True),
    ),
    Quirk(
        9, Area.BOOT,
        "a boot override during POST is refused with 400 UnableToModifyDuringSystemPOST",
        "the request is sent again with growing pauses; power the machine off to avoid them",
        "IR management.py, LP 2136275",
        _HPE,
    ),
    Quirk(
        10, Area.POWER,
        "requests after a change of power are refused with 400 InvalidOperationForSystemState",
        "the request is sent again with growing pauses",
        "SU note retry-ilo-not-ready",
        _HPE,
    ),
    Quirk(
        11, Area.BOOT,
        "the BMC has no boot mode, and boots by network in UEFI mode only if asked by IPMI",
        "set the boot device by IPMI",
        "gacybercenter/kinetic#60",
        _SUPERMICRO, ("*x10*",), sets=Quirks(uefi_boot_by_ipmi=True),
    ),
    Quirk(
        12, Area.BOOT,
        "the virtual CD boots as UsbCd, not as Cd",
        "the target UsbCd is used if the BMC lists it",
        "SU system.py (X11, X12; not ARS-111GL-NHR)",
        _SUPERMICRO, except_models=("ars-111gl-nhr",), sets=Quirks(cd_target="UsbCd"),
    ),
    Quirk(
        13, Area.BOOT,
        "one of three installations disables the UEFI boot option of the disk",
        "restore the base names in FixedBootOrder",
        "dsx-ai-factory/libredfish#12",
        _SUPERMICRO, ("sys-221h-tn24r",), handled_by=Handler.OPERATOR, is_advice=True,
    ),
    Quirk(
        14, Area.BOOT,
        "the BMC reports an old boot order while it is in lockdown",
        "end the lockdown, restart the machine, and read again",
        "NI handler.rs, NI#505",
        _SUPERMICRO, handled_by=Handler.OPERATOR, is_advice=True,
    ),
    Quirk(
        15, Area.BOOT,
        "IPMI's bootdev pxe with efiboot is accepted, and the machine boots from its disk",
        "use Redfish, or boot parameter 5 in raw form",
        "bmclib#209 (X11DSC+, BIOS 3.1, BMC 1.68)",
        _SUPERMICRO, ("*x11dsc*",), sets=Quirks(ipmi_raw_boot=True), handled_by=Handler.IPMI,
    ),
    Quirk(
        16, Area.BOOT,
        "the one-time target Pxe reads back as UefiTarget",
        "UefiTarget is accepted as pending; the DHCP DISCOVER shows if the machine netboots",
        "redfish-ansible-module#74, ansible#52658",
        _DELL, ("*poweredge r640*",), since="3.21", until="3.32", sets=Quirks(pending_target="UefiTarget"),
    ),
    Quirk(
        17, Area.BOOT,
        "a one-time boot in UEFI mode becomes a Lifecycle job, and the BMC answers 400 though the override is set",
        "the override is read back before the refusal is believed; it needs one more boot",
        "CG#5091",
        _DELL, _POWEREDGE_13G, sets=Quirks(refusal_may_lie=True),
    ),
    Quirk(
        18, Area.BOOT,
        "Once is set, and the machine boots from its disk",
        "set it while the machine is off, and power-cycle once more",
        "ironcore-dev/metal-operator#80, redhat-performance/badfish#397",
        _DELL, _POWEREDGE_IDRAC9, handled_by=Handler.LADDER, is_advice=True,
    ),
    Quirk(
        19, Area.POWER,
        "the BMC accepts On, and the machine stays off",
        "update the iDRAC to 5.10.30",
        "redhat-performance/jetlag#245",
        _DELL, ("*poweredge r650*",), since="5.10.10", until="5.10.10", is_advice=True,
    ),
    Quirk(
        20, Area.POWER,
        "On is refused with 409 ActionParameterValueConflict for a while after the machine was powered off",
        "On is sent again with growing pauses",
        "IR power.py, LP 2162995",
        _DELL, _POWEREDGE_17G,
    ),
    Quirk(
        21, Area.BOOT,
        "the allowable targets are in the settings resource",
        "the client reads them there as well",
        "SU note idrac10-settings-resource",
        _DELL, _POWEREDGE_17G, handled_by=Handler.REDFISH,
    ),
    Quirk(
        22, Area.BOOT,
        "the boot override is writable only in the settings resource (/SD)",
        "the request is sent to the resource of @Redfish.Settings",
        "Redfish-Tacklebox#144, SU note check-for-boot-attrs, MA redfish.py",
        _AMI, sets=Quirks(at_settings=True),
    ),
    Quirk(
        23, Area.BOOT,
        "the BMC has no HttpBootUri; its TLS mode OneWay refuses http:// (UEFI0417)",
        "set the BIOS attribute HttpDev1Uri, and HttpDev1TlsMode None for http://",
        "bmclib#463, bmclib#470, dsx-ai-factory/libredfish#75",
        _DELL, sets=Quirks(http_boot_by_bios=True),
    ),
    Quirk(
        24, Area.BOOT,
        "enabled allows Once and Disabled only",
        "set a persistent boot device by the boot order in the firmware's setup",
        "BL providers/lenovo/boot.go",
        _LENOVO, sets=Quirks(no_continuous=True),
    ),
    Quirk(
        25, Area.BOOT,
        "a boot override after the operating system wrote its boot entry stops at the screen Boot Option Restoration",
        "nothing is changed after the installation",
        "IR note limit-boot-to-disk-calls-lenovo, LP 2053064",
        _LENOVO, sets=Quirks(untouched_after_installation=True), handled_by=Handler.LADDER,
    ),
    # --- the client ---
    Quirk(
        26, Area.CLIENT,
        "a PATCH without If-Match is refused with 412 or 428",
        "If-Match has the ETag of the last GET",
        "gofish#171, Redfish-Tacklebox#22, theforeman/smart-proxy#930",
        (*_LENOVO, *_AMI), handled_by=Handler.REDFISH,
    ),
    Quirk(
        27, Area.CLIENT,
        "a PATCH with If-Match is refused with 412",
        "the PATCH is sent again without it",
        "CG#11270",
        _LENOVO, handled_by=Handler.REDFISH,
    ),
    Quirk(
        28, Area.CLIENT,
        "an ETag that is weak, quoted twice, repeated or empty is refused when it is sent back",
        "it is sent as it came, then without W/, then not at all",
        "CG#6434, CG#3268, ibm-openbmc/bmcweb#833, SU notes ignore-empty-string-etags, return-full-weak-etag",
        ("gigabyte", "giga computing", *_OPENBMC), handled_by=Handler.REDFISH,
    ),
    Quirk(
        29, Area.CLIENT,
        "503 RAC0218: the iDRAC has 8 sessions, and forgotten ones live until they expire",
        "one session is used and deleted at the end; 503 does not count as a refused password",
        "check_redfish#198, gofish#75, theforeman/smart-proxy#895",
        _DELL, handled_by=Handler.REDFISH,
    ),
    Quirk(
        30, Area.CLIENT,
        "a GET of a finished task monitor deletes the task",
        "the client polls the task, not its monitor",
        "BL providers/lenovo/lenovo.go",
        _LENOVO, handled_by=Handler.REDFISH,
    ),
    Quirk(
        31, Area.CLIENT,
        "requests fail with 5xx or 400 SYS518 for minutes after an operation",
        "the request is sent again with growing pauses",
        "SU connector.py",
        _DELL, handled_by=Handler.REDFISH,
    ),
    Quirk(
        32, Area.CLIENT,
        "the address of a new job answers 404 at first",
        "it is read three times",
        "SU note fix-dell-bmc-404-race",
        _DELL, handled_by=Handler.REDFISH,
    ),
    Quirk(
        33, Area.CLIENT,
        "failed logins lock the account or the address",
        "a refused password is not tried again until the Secret changes",
        "Redfish-Protocol-Validator#12, ibm-openbmc/openbmc#90, NI#1292",
        handled_by=Handler.CONNECTIONS,
    ),
    # --- virtual media ---
    Quirk(
        34, Area.MEDIA,
        "virtual media are below Systems from iDRAC 6.00.02 on; on an iDRAC10 only slot 1 works",
        "slots are searched in both places; slot 1 is used",
        "iDRAC-Redfish-Scripting#265, IR note idrac10-vmedia-slot1, terraform-provider-redfish#331",
        _DELL, _POWEREDGE_17G, sets=Quirks(slots=("1",)),
    ),
    Quirk(
        35, Area.MEDIA,
        "Inserted stays true after an eject, and an insert during it fails with 5xx",
        "an eject is awaited before the insert, and sent up to three times",
        "IR boot.py, story 2008504",
        _DELL,
    ),
    Quirk(
        36, Area.MEDIA,
        "an eject under a running installation environment corrupts its file system",
        "the machine is powered off before the eject",
        "LP 2160374",
        handled_by=Handler.LADDER,
    ),
    Quirk(
        37, Area.MEDIA,
        "Inserted or WriteProtected in the request are refused with 400; ImageName stays after an eject",
        "Image is sent alone; ConnectedVia NotConnected counts as empty",
        "SU virtual_media.py, CG#4839, CG#12537 (X11, X12)",
        _SUPERMICRO, sets=Quirks(insert_image_alone=True),
    ),
    Quirk(
        38, Area.MEDIA,
        "slots have no InsertMedia, and the RDOC slots fail",
        "media are inserted by PATCH, in the slots EXT1 to EXT4",
        "SU virtual_media.py, gofish#529, lenovo/python-redfish-lenovo#21 (SD530, SR630 v2 with XCC 1.89)",
        _LENOVO, ("*sd530*", "*sr630 v2*"), sets=Quirks(insert_by_patch=True, slots=("EXT*",)),
    ),
    Quirk(
        39, Area.MEDIA,
        "an eject without a body is refused with 415 or 400",
        "the body is an empty object",
        "SU virtual_media.py",
        _HPE, handled_by=Handler.REDFISH,
    ),
    Quirk(
        40, Area.MEDIA,
        "InsertMedia requires TransferProtocolType, TransferMethod, UserName or Password",
        "the properties that the refusal names are added",
        "SU virtual_media.py",
        ("nokia", "nvidia"),
    ),
    Quirk(
        41, Area.MEDIA,
        "slots are for DVD only; internal slots answer 400; some have no InsertMedia (405)",
        "the next slot is used",
        "IR boot.py (UCSB, UCSX, C845A M8)",
        ("cisco",),
    ),
    Quirk(
        42, Area.CLIENT,
        "a System has no ManagedBy",
        "the client reads the collection Managers",
        "SU note retry-on-missing-managedby (1288H)",
        ("huawei", "xfusion"), handled_by=Handler.REDFISH,
    ),
    # --- power, IPMI, the client again, inventory ---
    Quirk(
        43, Area.BOOT,
        "the BMC has no boot override",
        "set the boot device by IPMI, or let DHCP alone decide",
        "ibm-openbmc/bmcweb#939, ibm-openbmc/bmcweb#1236",
        ("ibm",),
    ),
    Quirk(
        44, Area.POWER,
        "the BMC reports On while the host is Quiesced",
        "the DHCP DISCOVER shows if the machine boots",
        "xcat-core#2937",
        _OPENBMC, handled_by=Handler.LADDER,
    ),
    Quirk(
        45, Area.POWER,
        "ForceRestart cuts the power of a DPU, and its PXE fails",
        "restart by the chassis reset of IPMI",
        "NI handler.rs, NI#347",
        _LENOVO, ("*sr650 v4*",), sets=Quirks(reset_by_ipmi=True), handled_by=Handler.LADDER,
    ),
    Quirk(
        46, Area.BOOT,
        "the boot flag of IPMI expires after 60 seconds",
        "`raw 0 8 3 8` is sent first; a refusal of it is ignored",
        "kinvolk/racker#36, bougou/go-ipmi#74",
        handled_by=Handler.IPMI,
    ),
    Quirk(
        47, Area.BOOT,
        "ipmitool without options=efiboot sets the flag for a legacy boot",
        "the option is always given for UEFI",
        "ipmitool#236",
        handled_by=Handler.IPMI,
    ),
    Quirk(
        48, Area.CLIENT,
        "Accept-Encoding identity is refused with 406",
        "the client accepts gzip",
        "SU connector.py",
        _HPE, ("*gen10 plus*",), handled_by=Handler.REDFISH,
    ),
    Quirk(
        49, Area.CLIENT,
        "a path needs a slash at its end; POST and PATCH are redirected; JSON is cut off",
        "one try with the slash; redirects to the same origin only; answers are bounded",
        "MA redfish.py",
        handled_by=Handler.REDFISH,
    ),
    Quirk(
        50, Area.CLIENT,
        "answers on a kept connection break",
        "`Connection: close`, for the BMC that needs it only",
        "SU connector.py",
        handled_by=Handler.REDFISH,
    ),
    Quirk(
        51, Area.INVENTORY,
        "the MAC address of the boot NIC is only at the Ports of a chassis' NetworkAdapter",
        "these are read as well",
        "DX#4952",
        _LENOVO, handled_by=Handler.INVENTORY,
    ),
    Quirk(
        52, Area.INVENTORY,
        "serial numbers of DMI are not in Redfish, or read NA at first",
        "a machine has a set of serial numbers; NA and To be filled are none",
        "DX#3327, DX#1017 (GB300, switches)",
        (*_LENOVO, "nvidia"), handled_by=Handler.INVENTORY,
    ),
    Quirk(
        53, Area.INVENTORY,
        "EthernetInterfaces answer 404 and Bios 500 now and then",
        "the inventory is partial, and read again",
        "NI bmc-explorer/computer_system.rs",
        ("nvidia",), ("*bluefield*",), handled_by=Handler.INVENTORY,
    ),
)  # fmt: skip
"""The table. Numbers are in order and never reused."""

_ROWS: Final = {each.number: each for each in QUIRKS}
