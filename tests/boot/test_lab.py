"""From power-on to a Succeeded Workflow, on BIOS and UEFI; and the messages to the user in case of errors."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edge.building.builder import default_cache
from edge.lab.discovery import DISKS_MIB, PORT, SECOND_MAC, SECOND_PORT, SWITCH
from edge.lab.machine import Firmware, MachineSettings
from edge.lab.run import MAC
from tests.boot.conftest import Run
from tests.waiting import wait_until
from tink.workflow.status import parse_timestamp

pytestmark = pytest.mark.long

BOOT = ("dhcp", "script", "kernel", "initrd", "agent", "action", "workflow")
"""The steps of all machines, from iPXE on."""


def steps(shown: str) -> list[str]:
    """Return the names of the successful steps, in order."""
    return re.findall(r"^ *[\d.]+ s ✓ (\w+)", shown, re.MULTILINE)


def matching_sentences(shown: str, sentences: tuple[str, ...]) -> list[str]:
    """Return the sentences in the lines of a journey, in the order of the lines."""
    return [sentence for line in shown.splitlines() for sentence in sentences if sentence in line]


def in_order(expected: tuple[str, ...], actual: list[str]) -> bool:
    rest = iter(actual)
    return all(step in rest for step in expected)


def byte_code(initrd: Path, scratch: Path) -> set[str]:
    """Return the Pythons for which the agent in an OSIE is compiled: its squashfs is the last file of the archive."""
    content = initrd.read_bytes()
    squashed = scratch / "agent.squashfs"
    squashed.write_bytes(content[content.rindex(b"hsqs") :])
    listed = subprocess.run(["unsquashfs", "-l", squashed], capture_output=True, text=True, check=True).stdout
    assert "/tink/agent/__init__.py" in listed
    return set(re.findall(r"/tink/agent/.*\.([\w-]+)\.pyc$", listed, re.MULTILINE))


@pytest.mark.smoke
def test_bios_machine_boots_from_power_on_to_succeeded(lab: Run) -> None:
    outcome = lab("--firmware", "bios")
    assert outcome.status == 0, outcome.shown + outcome.error
    assert in_order(("power", *BOOT, "disk"), steps(outcome.shown)), outcome.shown
    assert re.search(r"workflow\.tinkerbell\.org/install +Succeeded", outcome.shown)


def test_machine_that_is_off_is_booted_by_its_bmc_to_succeeded_and_back_to_its_disk(lab: Run) -> None:
    outcome = lab("--bmc", "--firmware", "bios", "--patience", 200)
    assert outcome.status == 0, outcome.shown + outcome.error
    in_order_of_boot = (
        "is off (BIOS, blank disk)",
        "machine.bmc.tinkerbell.org/lab-machine-bmc created",
        "starts, boot device Pxe by its BMC",
        "DHCPACK to iPXE (x86 BIOS)",
        "agent connected from 172.31.77.50",
        "Succeeded after",
        "52:54:00:12:34:56 is off",
        "starts, in its own boot order",
        "tinkedge power lab-machine cycle: the BMC reports On",
        "DHCPACK to operating system",
        "instance-id to Wget",
        "netbooting is disabled again, and no boot device is set",
    )
    assert in_order(in_order_of_boot, matching_sentences(outcome.shown, in_order_of_boot)), outcome.shown
    assert in_order(("power", *BOOT, "power", "metadata", "disk"), steps(outcome.shown)), outcome.shown
    assert re.search(r"lab-machine-bmc +on +True", outcome.shown), outcome.shown
    print(outcome.shown)


@pytest.mark.soak
@pytest.mark.timeout(880)
@pytest.mark.parametrize(
    ("firmware", "programs"),
    [("uefi-secure", ("--shim-dir", "shim-trixie")), ("uefi-arm64", ("--ipxe-dir", "ipxe-arm64"))],
)
def test_machine_that_cannot_boot_the_labs_disk_is_booted_by_its_bmc_and_switched_off_at_the_end(
    lab: Run, firmware: str, programs: tuple[str, str]
) -> None:
    option, directory = programs
    words = ("--bmc", "--firmware", firmware, option, Path(sys.prefix) / directory, "--patience", 300)
    outcome = lab(*words, timeout=840)
    assert outcome.status == 0, outcome.shown + outcome.error
    in_order_of_boot = (
        "starts, boot device Pxe by its BMC",
        "agent connected from 172.31.77.50",
        "Succeeded after",
        "52:54:00:12:34:56 is off",
        "tinkedge power lab-machine off: the BMC reports Off",
        "netbooting is disabled again, and no boot device is set",
    )
    assert in_order(in_order_of_boot, matching_sentences(outcome.shown, in_order_of_boot)), outcome.shown
    assert re.search(r"lab-machine-bmc +off +True", outcome.shown), outcome.shown


@pytest.mark.soak
def test_machine_with_both_families_is_booted_by_its_bmc_to_succeeded_and_back_to_its_disk(lab: Run) -> None:
    outcome = lab("--bmc", "--dual-stack", "--patience", 200)
    assert outcome.status == 0, outcome.shown + outcome.error
    in_order_of_boot = (
        "starts, boot device Pxe by its BMC",
        "Succeeded after",
        "starts, in its own boot order",
        "instance-id to Wget",
        "netbooting is disabled again, and no boot device is set",
    )
    assert in_order(in_order_of_boot, matching_sentences(outcome.shown, in_order_of_boot)), outcome.shown


@pytest.mark.smoke
def test_uefi_machine_boots_from_power_on_to_succeeded(lab: Run, tmp_path: Path) -> None:
    outcome = lab("--firmware", "uefi")
    assert outcome.status == 0, outcome.shown + outcome.error
    # A new iPXE takes over the firmware's lease, and its embedded script uses it.
    ipxe = ("script", "script") if "autoexec.ipxe" in outcome.shown else ("dhcp", "script")
    assert in_order(("power", "dhcp", "tftp", *ipxe, *BOOT[2:], "disk"), steps(outcome.shown)), outcome.shown
    assert re.search(r"workflow\.tinkerbell\.org/install +Succeeded", outcome.shown)
    assert "hardware.tinkerbell.org/lab-machine" in outcome.shown
    share = re.search(r"\(([\d.]+)% of that\)", outcome.shown)
    assert share is not None
    osie = default_cache() / "osie" / "initrd"
    assert byte_code(osie, tmp_path) == {"cpython-311"}, "its own Python's, whatever this host's is"
    print(outcome.shown)


@pytest.mark.soak
def test_machine_with_secure_boot_gets_from_power_on_to_succeeded_without_a_packet_of_ipv4(lab: Run) -> None:
    shims = Path(sys.prefix) / "shim-trixie"
    outcome = lab("--firmware", "uefi-secure", "--shim-dir", shims, "--ipv6", "--patience", 200, timeout=360)
    assert outcome.status == 0, outcome.shown + outcome.error
    assert in_order(("power", "dhcp", "tftp", *BOOT[1:], "disk"), steps(outcome.shown)), outcome.shown
    assert "the machine has sent 0 packets of IPv4 and ARP since power-on" in outcome.shown
    assert "agent connected from fd31:77::50" in outcome.shown
    assert " ? " not in outcome.shown, "nothing is wrong with a boot like this"


@pytest.mark.soak
@pytest.mark.timeout(880)
def test_machine_is_installed_and_its_cloud_init_is_served_without_a_packet_of_ipv4(lab: Run) -> None:
    shims = Path(sys.prefix) / "shim-trixie"
    outcome = lab("--firmware", "uefi", "--shim-dir", shims, "--ipv6", "--full", "--patience", 300, timeout=840)
    assert outcome.status == 0, outcome.shown + outcome.error
    assert in_order(("power", "dhcp", "tftp", *BOOT[1:], "metadata"), steps(outcome.shown)), outcome.shown
    assert "the machine has sent 0 packets of IPv4 and ARP since power-on" in outcome.shown


@pytest.mark.soak
@pytest.mark.parametrize(("firmware", "first"), [("uefi", "tftp"), ("uefi-http", "binary")])
def test_machine_boots_over_ipv6_by_ipxe_to_succeeded(lab: Run, firmware: str, first: str) -> None:
    outcome = lab("--firmware", firmware, "--ipv6", "--ipxe-dir", Path(sys.prefix) / "ipxe-bookworm", timeout=360)
    assert outcome.status == 0, outcome.shown + outcome.error
    assert in_order(("power", "dhcp", first, "dhcp", *BOOT[1:], "disk"), steps(outcome.shown)), outcome.shown
    assert "agent connected from fd31:77::50" in outcome.shown


@pytest.mark.soak
@pytest.mark.parametrize(("firmware", "first"), [("uefi", "tftp"), ("uefi-http", "binary")])
def test_machine_boots_over_ipv6_through_a_router_to_succeeded(
    lab: Run, tmp_path: Path, firmware: str, first: str
) -> None:
    examples = Path(__file__).resolve().parents[2] / "deploy" / "examples"
    shutil.copy(examples / "template.yaml", tmp_path)
    machine = (examples / "ipv6" / "machine.yaml").read_text()
    (tmp_path / "machine.yaml").write_text(machine.replace("address: fd31:77::50", "address: fd31:78::50"))
    arguments = ("--firmware", firmware, "--ipv6", "--ipxe-dir", Path(sys.prefix) / "ipxe-bookworm")
    outcome = lab(*arguments, "--manifests", tmp_path, timeout=360, relayed=True)
    assert outcome.status == 0, outcome.shown + outcome.error
    assert in_order(("power", "dhcp", first, "dhcp", *BOOT[1:], "disk"), steps(outcome.shown)), outcome.shown
    assert "agent connected from fd31:78::50" in outcome.shown
    print(outcome.shown)


@pytest.mark.soak
@pytest.mark.timeout(880)
def test_machine_with_both_families_is_installed_and_has_an_address_of_each(lab: Run) -> None:
    """OVMF boots over IPv4, which it tries first. iPXE has an address of each family.

    The OSIE uses the edge's address that sent the script. The installed system reads metadata over IPv4 and reports
    over IPv6.
    """
    outcome = lab("--firmware", "uefi", "--dual-stack", "--full", "--patience", 300, timeout=840)
    assert outcome.status == 0, outcome.shown + outcome.error
    assert in_order(("power", "dhcp", "tftp", *BOOT, "metadata"), steps(outcome.shown)), outcome.shown
    in_order_of_boot = (
        "DHCPACK to UEFI x86-64 PXE ROM, boot file snponly.efi",
        "TFTP sent snponly.efi",
        "DHCPACK to iPXE (UEFI x86-64), script http://172.31.77.1:7080/",
        "DHCPv6 REPLY to iPXE (UEFI x86-64), script http://[fd31:77::1]:7080/",
        "kernel of OSIE default/lab sent",
        "DHCPACK to operating system",
        "agent connected from 172.31.77.50",
        "Succeeded after",
        "DHCPv6 REPLY to operating system",
        "cloud-init finished on lab-machine, instance lab-machine, datasource Ec2",
    )
    assert in_order(in_order_of_boot, matching_sentences(outcome.shown, in_order_of_boot)), outcome.shown
    assert "DHCPv6 REPLY to UEFI x86-64 PXE ROM" not in outcome.shown, "it had no need to try IPv6"
    assert " ? " not in outcome.shown, "nothing is wrong with a boot like this"


@pytest.mark.soak
@pytest.mark.timeout(880)
def test_arm64_machine_boots_from_power_on_to_succeeded(lab: Run) -> None:
    """Debian 13's iPXE, with an OSIE and actions that this host builds for arm64."""
    outcome = lab("--firmware", "uefi-arm64", "--ipxe-dir", Path(sys.prefix) / "ipxe-arm64", timeout=840)
    assert outcome.status == 0, outcome.shown + outcome.error
    assert in_order(("power", "dhcp", "tftp", *BOOT[1:], "disk"), steps(outcome.shown)), outcome.shown
    assert " ? " not in outcome.shown, "nothing is wrong with a boot like this"


@pytest.mark.soak
@pytest.mark.timeout(880)
def test_machine_with_secure_boot_boots_by_shim_and_grub_over_http_to_succeeded(lab: Run) -> None:
    shims = Path(sys.prefix) / "shim-trixie"
    outcome = lab("--firmware", "uefi-secure-http", "--shim-dir", shims, "--patience", 300, timeout=840)
    assert outcome.status == 0, outcome.shown + outcome.error
    assert in_order(("power", "dhcp", "binary", *BOOT[1:], "disk"), steps(outcome.shown)), outcome.shown
    assert "boot program grubx64.efi sent over HTTP" in outcome.shown


@pytest.mark.soak
@pytest.mark.parametrize(
    ("firmware", "drive", "how"),
    [("bios", "cdrom", "static"), ("bios", "usb", "static"), ("uefi", "usb", "static"), ("uefi", "cdrom", "dhcp")],
)
def test_machine_boots_from_its_medium_to_succeeded_without_dhcp_where_it_has_the_address(
    lab: Run, firmware: str, drive: str, how: str
) -> None:
    static = ["--static"] if how == "static" else []
    ipxe = Path(sys.prefix) / "ipxe-trixie"
    outcome = lab("--firmware", firmware, "--medium", drive, *static, "--ipxe-dir", ipxe)
    assert outcome.status == 0, outcome.shown + outcome.error
    assert in_order(("power", "medium", *BOOT[1:], "disk"), steps(outcome.shown)), outcome.shown
    # The edge's DHCP server runs meanwhile.
    assert ("dhcp" in steps(outcome.shown)) == (how == "dhcp"), outcome.shown
    assert "warning" not in outcome.shown


@pytest.mark.timeout(880)  # below faulthandler_timeout
def test_bios_machine_is_installed_boots_its_disk_and_its_cloud_init_gets_the_user_data(lab: Run) -> None:
    # The installed system boots silently, slowly beside other tests.
    outcome = lab("--full", "--patience", 300, timeout=840)
    assert outcome.status == 0, outcome.shown + outcome.error
    assert in_order(("power", *BOOT, "metadata"), steps(outcome.shown)), outcome.shown
    assert re.search(r"workflow\.tinkerbell\.org/\S+ +Succeeded", outcome.shown)
    assert re.search(r"✓ metadata +instance-id to Cloud-Init/", outcome.shown)
    assert re.search(r"✓ metadata +user-data to ", outcome.shown)
    assert "✓ metadata  cloud-init finished on lab-machine, instance lab-machine, datasource Ec2" in outcome.shown


def test_unknown_image_fails_the_workflow_with_reason_and_message(lab: Run, manifests: Callable[..., Path]) -> None:
    directory = manifests(template=("/actions/inspect:1", "/actions/missing:1"))
    outcome = lab("--manifests", directory)
    assert outcome.status == 1
    assert "ImagePullFailed" in outcome.error
    assert "172.31.77.1:5000/actions/missing:1: manifest unknown" in outcome.error
    assert "last step that worked: agent" in outcome.error


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("/osie/kernel", "/osie/absent", "http://172.31.77.1:8080/osie/absent: 404 Not Found"),
        (":8080/osie/initrd", ":8099/initrd", "http://172.31.77.1:8099/initrd: no connection: Connection refused"),
    ],
    ids=["broken-url", "upstream-down"],
)
def test_unfetchable_osie_is_named_on_screen_and_in_the_journey(
    lab: Run, manifests: Callable[..., Path], old: str, new: str, reason: str
) -> None:
    outcome = lab("--manifests", manifests(osie=(old, new)), "--patience", 12)
    assert outcome.status == 1
    assert re.search(rf"✗ (kernel|initrd) +OSIE default/lab: .*{re.escape(reason)}", outcome.shown)
    assert reason.rpartition("/")[2] in re.sub(r"\n *\| ", "", outcome.error)  # the machine's screen wraps lines


def test_unregistered_machine_is_shown_with_a_manifest_to_copy_and_an_interrupted_lab_takes_everything_down(
    lab: Run, manifests: Callable[..., Path]
) -> None:
    directory = manifests(hardware=("52:54:00:12:34:56", "52:54:00:00:00:01"))
    process = subprocess.Popen(
        [sys.executable, "-m", "edge.cli", "lab", "--manifests", directory],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    shown = ""
    for line in process.stdout:
        shown += line
        if '"52:54:00:12:34:56"' in line:
            break
    process.send_signal(signal.SIGTERM)
    rest, error = process.communicate()
    shown += rest
    assert "seen, not registered" in shown
    assert '"52:54:00:12:34:56"' in shown
    assert "kind: Hardware" in shown
    assert "✓ dhcp" not in shown
    assert process.returncode == 130
    assert "interrupted" in error
    # A second lab right after it works; the fixture checks that neither leaves anything.
    outcome = lab("--manifests", "/nonexistent")
    assert outcome.status == 2


def test_killed_lab_leaves_no_process_and_the_next_one_clears_up_and_names_a_missing_osie(
    lab: Run, manifests: Callable[..., Path]
) -> None:
    process = subprocess.Popen([sys.executable, "-m", "edge.cli", "lab"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if "✓ power" in line:
            break
    process.kill()
    process.wait()
    process.stdout.close()
    namespace = Path(f"/run/netns/tinkedge-lab-{process.pid}")
    wait_until(lambda: not _in_namespace(namespace))
    outcome = lab("--manifests", manifests(without="osie"), "--patience", 12)
    assert not namespace.exists()
    assert outcome.status == 1
    reason = "OSIE default/lab, which Hardware lab-machine names, does not exist"
    assert f"✗ script    no boot: {reason}" in outcome.shown
    assert f"| {reason}" in outcome.error, "the machine's own screen names it, too"
    assert "last step that worked: dhcp" in outcome.error


def _in_namespace(namespace: Path) -> list[str]:
    """Return the processes in a network namespace."""
    try:
        inode = namespace.stat().st_ino
    except FileNotFoundError:  # another test has removed it
        return []
    pids = []
    for entry in Path("/proc").glob("[0-9]*/ns/net"):
        try:
            if entry.stat().st_ino == inode:
                pids.append(entry.parts[2])
        except OSError:
            continue
    return pids


# --- machines that no Hardware describes ------------------------------------------------------------------------------
#
# Admitted, introduced, approved and compared with a list. The Hardware at the end of a lab is in the lab's logs.

GIVEN = MachineSettings(MAC, "machine0", Firmware.BIOS, more_disks_mib=DISKS_MIB[1:], disk_mib=DISKS_MIB[0])
"""The machine as QEMU gets it."""
LLDP_SECONDS, PROCESSING_SECONDS = 35, 5


def hardware() -> Any:
    """Return the Hardware of the last lab's machine."""
    return json.loads((default_cache() / "lab-logs" / "hardware.json").read_text())


def condition(machine: Any) -> Any:
    (found,) = (each for each in machine["status"]["conditions"] if each["type"] == "AsExpected")
    return found


def reported(machine: Any) -> dict[str, Any]:
    """Return the inventory of a machine, in the shape of `given`."""
    facts = machine["status"]["inventory"]["inBand"]
    ports = [port for adapter in facts["networkInterfaces"] for port in adapter["ports"]]
    return {
        "firmware": facts["firmware"]["mode"],
        "product": {name: facts["product"][name] for name in ("vendor", "model", "serialNumber", "uuid")},
        "memory": facts["memory"]["totalBytes"],
        "disks": [(each["name"], each["sizeBytes"], each["serialNumber"]) for each in facts["blockDevices"]],
        "cables": {each["mac"]: (each["lldp"]["systemName"], each["lldp"]["portID"]) for each in ports},
    }


def given(firmware: str, port: str = PORT) -> dict[str, Any]:
    """Return what the machine must report: the values that QEMU and lldpd were started with."""
    sizes = enumerate(GIVEN.disks_mib)
    return {
        "firmware": firmware,
        "product": {"vendor": "tinkedge", "model": "lab", "serialNumber": GIVEN.serial, "uuid": GIVEN.uuid},
        "memory": GIVEN.memory_mib << 20,
        "disks": [(f"/dev/vd{'ab'[at]}", size << 20, GIVEN.disk_serial(at)) for at, size in sizes],
        "cables": {MAC: (SWITCH, port), SECOND_MAC: (SWITCH, SECOND_PORT)},
    }


@pytest.mark.timeout(880)
def test_unknown_machine_is_admitted_by_rule_approved_by_its_operator_installed_and_boots_from_its_disk(
    lab: Run,
) -> None:
    outcome = lab("--discover", "rule", "--full", "--patience", 300, timeout=840)
    assert outcome.status == 0, outcome.shown + outcome.error
    in_order_of_boot = (
        "admitted by rule lab: Hardware default/discovery-52-54-00-12-34-56 created",
        "agent connected from 172.31.77.1",
        "tinkedge discover approve discovery-52-54-00-12-34-56 lab-machine: Hardware default/lab-machine is approved",
        "NoExpectations: ",
        "workflow.tinkerbell.org/install created",
        "Succeeded after",
        "cloud-init finished on lab-machine, instance lab-machine",
    )
    assert in_order(in_order_of_boot, matching_sentences(outcome.shown, in_order_of_boot)), outcome.shown
    assert in_order(("power", *BOOT[:5], "approve", "verdict", "workflow", "metadata"), steps(outcome.shown))
    assert "tinkedge discover approve discovery-52-54-00-12-34-56 NEW-NAME -n default" in outcome.shown
    assert reported(hardware()) == given("BIOS")
    print(outcome.shown)


@pytest.mark.timeout(880)
def test_unknown_uefi_machine_is_approved_by_the_list_with_its_serial_number_and_matches_it(lab: Run) -> None:
    outcome = lab("--discover", "list", "--firmware", "uefi", "--patience", 200)
    assert outcome.status == 0, outcome.shown + outcome.error
    in_order_of_boot = (
        "tinkedge discover import lab.csv: ConfigMap default/lab: 1 machines",
        "admitted by rule lab: Hardware default/discovery-52-54-00-12-34-56 created",
        "Hardware discovery-52-54-00-12-34-56 is now lab-machine",
        "Matches: the machine is as ConfigMap default/lab, lab.csv line 2 describes it",
        "workflow.tinkerbell.org/install created",
        "Succeeded after",
    )
    assert in_order(in_order_of_boot, matching_sentences(outcome.shown, in_order_of_boot)), outcome.shown
    assert in_order(("power", *BOOT[:5], "approved", "verdict", *BOOT[5:], "disk"), steps(outcome.shown))
    found = hardware()
    assert reported(found) == given("UEFI")
    assert (condition(found)["status"], condition(found)["reason"]) == ("True", "Matches")
    assert list(found["spec"]["networkInterfaces"]) == [MAC]
    print(outcome.shown)


@pytest.mark.timeout(880)
def test_machine_at_another_port_of_the_switch_is_reported_with_both_ports(lab: Run) -> None:
    outcome = lab("--discover", "list", "--switch-port", "Ethernet1/9", "--patience", 200)
    assert outcome.status == 0, outcome.shown + outcome.error
    assert "WrongPort: " in outcome.shown
    found = hardware()
    assert reported(found) == given("BIOS", "Ethernet1/9")
    assert (condition(found)["status"], condition(found)["reason"]) == ("False", "WrongPort")
    assert all(port in condition(found)["message"] for port in (f"{SWITCH}/Ethernet1/9", f"{SWITCH}/{PORT}"))
    # The Hardware is created with the first inventory of the machine, which knows no cable yet.
    created = parse_timestamp(found["metadata"]["creationTimestamp"])
    noticed = parse_timestamp(condition(found)["lastTransitionTime"])
    assert created is not None
    assert noticed is not None
    assert noticed - created <= LLDP_SECONDS + PROCESSING_SECONDS


@pytest.mark.timeout(880)
def test_unknown_machine_with_a_bmc_is_powered_on_approved_by_the_list_installed_and_back_to_its_disk(
    lab: Run,
) -> None:
    outcome = lab("--discover", "list", "--bmc", "--patience", 200, timeout=840)
    assert outcome.status == 0, outcome.shown + outcome.error
    in_order_of_boot = (
        "tinkedge discover import lab.csv: ConfigMap default/lab: 1 machines, 1 Secrets",
        "job.bmc.tinkerbell.org/first-boot created",
        "starts, boot device Pxe by its BMC",
        "admitted by rule lab: Hardware default/discovery-52-54-00-12-34-56 created",
        "Hardware discovery-52-54-00-12-34-56 is now lab-machine",
        "Matches: the machine is as ConfigMap default/lab, lab.csv line 2 describes it",
        "workflow.tinkerbell.org/install created",
        "starts, boot device Pxe by its BMC",
        "agent connected from 172.31.77.50",
        "Succeeded after",
        "52:54:00:12:34:56 is off",
        "starts, in its own boot order",
        "instance-id to Wget",
        "netbooting is disabled again, and no boot device is set",
    )
    assert in_order(in_order_of_boot, matching_sentences(outcome.shown, in_order_of_boot)), outcome.shown
    found = hardware()
    assert reported(found) == given("BIOS")
    assert found["spec"]["bmcRef"] == {"name": "lab-machine"}
    assert "tinkerbell.org/discovery-address" not in found["metadata"]["annotations"], "it has booted since"
    print(outcome.shown)
