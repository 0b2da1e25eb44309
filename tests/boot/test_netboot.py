"""Real firmware, up to the kernel or its refusal: the boot of each kind, and the behaviour of refused machines."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from edge.building.builder import default_cache
from ipxe.medium import fat
from tests.boot.signed import make_uki, sign

pytestmark = pytest.mark.long

PROGRAM = Path(__file__).with_name("netboot.py")
OLD_IPXE, NEW_IPXE = (Path(sys.prefix) / f"ipxe-{suite}" for suite in ("bookworm", "trixie"))
"""Debian 12's iPXE, of 2019, and Debian 13's, of 2025 (`deploy/setup.sh ipxe`); one of them is the system's own."""

SHIMS = Path(sys.prefix)
"""Where shim and GRUB of two Debians are (`deploy/setup.sh shim`)."""

MAC = "52:54:00:12:34:56"
REFUSED = {"interface": {"disableNetboot": True}}
ON_VLAN = {"interface": {"dhcp": {"ip": "172.31.77.10", "netmask": "255.255.255.0", "vlanId": "50"}}}


@dataclass(frozen=True)
class Report:
    """The output of `netboot.py`: `seconds` from power-on to the expected text, None if it never appeared."""

    seconds: float | None
    journey: list[str]
    screen: list[str]
    ipv4_packets: int = 0
    """Number of IPv4 and ARP packets on an IPv6-only network."""
    dhcp: int = 0
    """Number of DHCP packets from the machine."""

    def __str__(self) -> str:
        return "\n".join([*self.journey, *(f"  | {line}" for line in self.screen)])

    def steps(self) -> list[str]:
        """`dhcp ok`, `script refused`, ... in order, each once."""
        steps = [" ".join(line.split()[1:3]).rstrip(":") for line in self.journey]
        return list(dict.fromkeys(steps))

    def warnings(self) -> list[str]:
        """Return the edge's warnings about the machine (`edge.journey.expectations`)."""
        return [line for line in self.journey if line.split()[2:3] == ["warning:"]]

    def shows(self, *words: str) -> bool:
        shown = "".join(self.screen)  # the screen wraps long lines
        shown = _PROGRESS.sub("... ", shown)
        return all(word in shown for word in words)


_PROGRESS = re.compile(r"\.\.\.[.\d% ]*(?=ok)")
"""iPXE's progress output for operations of more than a quarter of a second: dots, or a percentage that it erases."""

Boot = Callable[..., Report]


@pytest.fixture
def boot() -> Boot:
    def run(
        firmware: str,
        until: str,
        *up: str,
        ipxe: Path | None = None,
        spec: dict[str, Any] | None = None,
        beside: bool = False,
        vlan: int = 0,
        osie: Path | None = None,
        memory: int = 512,
        host_clock: bool = False,
        medium: str = "",
        static: bool = False,
        image: Path | None = None,
        kernel: Path | None = None,
        uki: Path | None = None,
        within: float = 100,
        ipv6: bool = False,
        relayed: bool = False,
        healthy: bool = True,
        typed: tuple[str, ...] = (),
    ) -> Report:
        command = [sys.executable, PROGRAM, "--firmware", firmware, "--until", until]
        command += [
            "--spec",
            json.dumps(spec or {}),
            "--vlan",
            str(vlan),
            "--within",
            str(within),
            *(["--beside-dnsmasq"] if beside else []),
            *(["--osie", str(osie)] if osie else []),
            *("--memory", str(memory)),
            *(["--host-clock"] if host_clock else []),
            *(["--ipv6"] if ipv6 or relayed else []),
            *(["--relayed"] if relayed else []),
            *(["--medium", medium] if medium else []),
            *(["--static"] if static else []),
            *(["--image", str(image)] if image is not None else []),
            *(["--kernel", str(kernel)] if kernel is not None else []),
            *(["--uki", str(uki)] if uki is not None else []),
            *(word for line in typed for word in ("--type", line)),
        ]
        command += ["--", *up]
        if ipxe is not None:
            assert (ipxe / "snponly.efi").exists(), f"no {ipxe}: deploy/setup.sh ipxe"
            command += ["--ipxe-dir", str(ipxe)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=within + 70, check=False)
        assert done.returncode == 0, done.stderr
        report = Report(**json.loads(done.stdout))
        assert report.seconds is not None, f"nothing matched {until!r}:\n{report}"
        assert bool(report.warnings()) <= (not healthy), f"warned about what is as it should be:\n{report}"
        print(f"{firmware}: {report.seconds} s\n{report}")
        return report

    return run


def assert_only_dhcp_over_ipv4(report: Report) -> None:
    """On a network that has IPv6 alone, iPXE and a UKI's OSIE also request an IPv4 address; no more IPv4 is allowed."""
    assert report.dhcp == report.ipv4_packets <= 8, report


def test_uefi_http_boot_gets_ipxe_its_script_and_the_kernel(boot: Boot) -> None:
    report = boot("uefi-http", "kernel ok")
    assert report.steps() == ["dhcp ok", "binary ok", "script ok", "kernel ok"], report


def test_pxe_over_ipv6_gets_ipxe_which_gets_an_address(boot: Boot) -> None:
    report = boot("uefi", "DHCPv6 REPLY to iPXE", ipv6=True)
    assert [step for step in report.steps() if step.endswith("ok")] == ["dhcp ok", "tftp ok"]
    assert any("boot file tftp://[fd31:77::1]/snponly.efi" in line for line in report.journey)


@pytest.mark.soak
@pytest.mark.parametrize("ipxe", [OLD_IPXE, NEW_IPXE], ids=["old", "new"])
def test_pxe_over_ipv6_gets_ipxe_its_script_and_the_kernel(boot: Boot, ipxe: Path) -> None:
    """iPXE waits 15 s for an absent DHCPv4 server."""
    report = boot("uefi", "kernel ok", ipxe=ipxe, ipv6=True, within=100)
    assert [step for step in report.steps() if step.endswith("ok")] == ["dhcp ok", "tftp ok", "script ok", "kernel ok"]
    assert_only_dhcp_over_ipv4(report)


@pytest.mark.parametrize(
    ("firmware", "steps"),
    [
        ("uefi", ["dhcp ok", "tftp info", "tftp ok", "script ok", "kernel ok"]),
        ("uefi-http", ["dhcp ok", "binary ok", "script ok", "kernel ok"]),
    ],
    ids=["pxe", "http"],
)
def test_machine_boots_over_ipv6_through_a_router_with_a_dhcpv6_relay(
    boot: Boot, firmware: str, steps: list[str]
) -> None:
    """The link has no edge, so every URL that the machine receives leads over the router."""
    report = boot(firmware, "kernel ok", relayed=True, within=100)
    assert report.steps() == steps, report
    assert report.shows("net0: fd31:78::10/64 gw fe80::", "http://[fd31:77::1]:7080/osie/stub/kernel"), report
    assert_only_dhcp_over_ipv4(report)


@pytest.mark.soak
def test_refused_pxe_rom_goes_on_to_the_next_boot_device_over_ipv6(boot: Boot) -> None:
    report = boot("uefi", "tftp refused", ipv6=True, spec=REFUSED, healthy=False)
    assert "dhcp refused" in report.steps()


def test_machine_with_secure_boot_loads_the_kernel_by_shim_and_grub_and_shows_why_it_does_not_start(
    boot: Boot,
) -> None:
    """All files come by TFTP: Debian 12's GRUB has no HTTP. The kernel file is neither a kernel nor signed."""
    secure = ("--boot-path", "grub", "--shim-dir", str(SHIMS / "shim-bookworm"))
    report = boot("uefi-secure", "screen: If Secure Boot is on", *secure, within=180)
    assert report.steps() == ["dhcp ok", "tftp info", "tftp ok", "script ok", "kernel ok", "boot failed"], report
    assert report.shows("bad shim signature", "GRUB did not start the files that it received"), report


def test_u_boot_gets_its_script_kernel_and_initrd_and_starts_the_kernel(boot: Boot) -> None:
    """Debian's default: `dhcp`, then the script `boot.scr.uimg`. The kernel prints its command line."""
    report = boot("u-boot", f"screen: .*worker_id={MAC}")
    assert report.steps() == ["dhcp ok", "script ok", "kernel ok", "initrd ok"], report
    assert report.shows("linux,initrd-start", "tinkedge_sign=http://172.31.77.1:7080/sign/up"), report


def test_refused_u_boot_shows_why(boot: Boot) -> None:
    report = boot("u-boot", "screen: .*TFTP error: .*disableNetboot", spec=REFUSED)
    assert "script ok" not in report.steps(), report


@pytest.mark.soak
def test_new_u_boot_boots_by_its_script_once_it_knows_the_name(boot: Boot) -> None:
    typed = ("setenv boot_script_dhcp boot.scr.uimg", "bootflow scan -b")
    report = boot("u-boot-new", f"screen: .*worker_id={MAC}", typed=typed, host_clock=True)
    assert report.steps() == ["dhcp ok", "script ok", "kernel ok", "initrd ok"], report


@pytest.mark.soak
def test_new_u_boot_fetches_the_kernel_by_http_if_the_port_is_configured(boot: Boot) -> None:
    typed = ("dhcp", "setenv httpdstp 7080", "wget ${kernel_addr_r} 172.31.77.1:/osie/stub/kernel")
    report = boot("u-boot-new", "kernel of OSIE default/stub sent: .*file", typed=typed, host_clock=True)
    assert report.steps() == ["dhcp ok", "script ok", "kernel ok"], report


RISCV64_KERNEL = Path(sys.prefix) / "kernel-riscv64" / "vmlinux"
"""Debian 13's (`deploy/setup.sh riscv64`)."""


@pytest.mark.soak
@pytest.mark.parametrize("firmware", ["uefi-riscv64", "u-boot-riscv64"])
def test_riscv64_machine_gets_from_power_on_to_its_kernel(boot: Boot, firmware: str) -> None:
    """No OSIE exists for riscv64, so the kernel can't mount a root file system."""
    spec = {"kernelParams": ["earlycon=sbi", "console=ttyS0"]}
    more = {"memory": 1024, "kernel": RISCV64_KERNEL, "spec": spec, "host_clock": True, "within": 90}
    # The board has no real-time clock.
    report = boot(firmware, "screen: .*Unable to mount root fs", ipxe=NEW_IPXE, healthy=False, **more)
    assert [step for step in report.steps() if step.endswith("ok")][-3:] == ["script ok", "kernel ok", "initrd ok"]


@pytest.mark.parametrize("router", ["", "--no-router-advertisements"], ids=["answered", "waits-for-a-router"])
def test_ipxe_in_the_cards_rom_causes_no_warning_with_or_without_a_router(boot: Boot, router: str) -> None:
    """Without a router, iPXE waits 16 s for one after its lease; that is no fault."""
    report = boot("bios", "kernel ok", *filter(None, [router]), host_clock=True)
    assert report.steps() == ["dhcp ok", "script ok", "kernel ok"], report


@pytest.mark.parametrize("firmware", ["bios", "uefi"])
def test_machine_boots_through_a_proxy_beside_another_dhcp_server(boot: Boot, firmware: str) -> None:
    report = boot(firmware, "kernel ok", "--dhcp-mode", "proxy", beside=True)
    assert "ProxyDHCP offer to " in report.journey[0]
    assert report.steps()[-3:] == ["dhcp ok", "script ok", "kernel ok"] or "tftp ok" in report.steps(), report
    # The lease is dnsmasq's: iPXE shows it, and a new iPXE does not request it again.
    new = report.shows("autoexec.ipxe... ok", "Station IP address is 172.31.77.10")
    assert report.shows("gw 172.31.77.254") or (new and firmware == "uefi"), report


def test_refused_uefi_machine_shows_why_and_continues_without_another_request(boot: Boot) -> None:
    report = boot("uefi", "screen: .*(PXE over IPv6|UEFI PXEv4.*Not Found)", spec=REFUSED)
    assert report.steps() == ["dhcp refused"], report
    assert report.shows("No netboot: Hardware default/m1", "disableNetboot is true", "PXE-E21"), report
    # Without our boot menu, OVMF would repeat its request four times, for a minute.
    assert sum("DHCPOFFER" in line for line in report.journey) < 4, report  # with its fast clock, it may repeat one


def test_refused_ipxe_shows_why_and_boots_the_next_device(boot: Boot) -> None:
    report = boot("bios", "screen: .*(No more network devices|No bootable device)", spec=REFUSED)
    assert report.steps() == ["dhcp refused", "script refused"], report
    assert report.shows("tinkedge does not boot 52:54:00:12:34:56 from the network:", "disableNetboot is"), report


_FEATURES = re.compile(rb"\xeb\x03...(?:[\x10-\x3f]\x01[\x01-\x0f]){6,}", re.DOTALL)
"""iPXE's table of the entries in option 175: its version, then features (include/ipxe/features.h)."""


@pytest.mark.parametrize("mode", ["reservation", "proxy"])
def test_ipxe_that_lists_no_format_of_kernels_boots_a_full_one(boot: Boot, tmp_path: Path, mode: str) -> None:
    """VirtualBox's own ROM is one; here it is Debian's for UEFI, which lists SDI where it listed EFI."""
    program = (NEW_IPXE / "ipxe.efi").read_bytes()
    (listed,) = _FEATURES.findall(program)
    program = program.replace(listed, listed.replace(b"\x24\1", b"\x28\1"))
    image = tmp_path / "image"
    image.write_bytes(fat.write("IPXE", {"EFI/BOOT/BOOTX64.EFI": program}).content)
    beside = mode == "proxy"
    report = boot("uefi", "kernel ok", "--dhcp-mode", mode, ipxe=NEW_IPXE, medium="usb", image=image, beside=beside)
    assert report.steps() == ["dhcp ok", "tftp ok", "script ok", "kernel ok"], report
    assert "to iPXE without bzImage and EFI (UEFI x86-64), boot file snponly.efi" in report.journey[0], report


def test_ipxe_without_vlan_support_reports_it(boot: Boot) -> None:
    report = boot("uefi", "screen: .*next boot device", ipxe=OLD_IPXE, spec=ON_VLAN)
    assert report.shows("VLAN 50", "vcreate: command not found", "FAILED: this iPXE can't make a VLAN interface"), (
        report
    )


def test_ipxe_gets_its_files_by_tftp_too(boot: Boot) -> None:
    fetch = f"kernel tftp://172.31.77.1/{MAC}/osie/stub/kernel && initrd tftp://172.31.77.1/{MAC}/osie/stub/initrd"
    report = boot("bios", "initrd ok", spec={"ipxe": {"inline": f"#!ipxe\n{fetch}"}})
    assert report.steps() == ["dhcp ok", "script ok", "kernel ok", "initrd ok"], report


@pytest.mark.parametrize(("firmware", "first"), [("uefi", "tftp ok"), ("uefi-http", "binary ok")])
def test_new_ipxe_goes_straight_to_its_script(boot: Boot, firmware: str, first: str) -> None:
    report = boot(firmware, "kernel ok", ipxe=NEW_IPXE)
    assert first in report.steps()
    assert report.shows("autoexec.ipxe... ok"), report
    # The firmware's own DHCP conversation was the only one that was recorded before the script, but for HTTP Boot,
    # whose lease iPXE can't read.
    assert sum("to iPXE" in line for line in report.journey) <= (2 if firmware == "uefi-http" else 0), report


def test_new_ipxe_sends_dhcp_in_its_vlan_and_gives_up_in_time(boot: Boot) -> None:
    until = "screen: .*Attempt 1 of 2 to get a lease in VLAN 50"
    report = boot("uefi", until, ipxe=NEW_IPXE, spec=ON_VLAN, healthy=False, host_clock=True)
    assert any("the switch port does not carry VLAN 50 tagged" in line for line in report.warnings()), report
    assert report.shows("VLAN 50: net0-50", "Configuring [dhcp] (net0-50 "), report


def test_new_ipxe_boots_inside_its_vlan_and_goes_there_once(boot: Boot) -> None:
    report = boot("uefi", "kernel ok", ipxe=NEW_IPXE, spec=ON_VLAN, vlan=50)
    assert report.shows("Configuring [dhcp] (net0-50 52:54:00:12:34:56)... ok"), report
    # One script on the trunk, and one in the VLAN, where the DHCP server named it.
    assert sum("script sent" in line for line in report.journey) == 2, report


@pytest.mark.soak
@pytest.mark.parametrize(
    ("parameters", "memory", "screen", "sentence"),
    [
        (["rdinit=/nowhere"], 512, "Kernel panic - not syncing", "boot warning: iPXE started the kernel"),
        (
            ["module_blacklist=virtio_net"],
            512,
            "osie: waiting for the network interface",
            "boot warning: iPXE started the kernel",
        ),
        ([], 112, "", "boot warning: has 11[0-9.]+ MB of memory, too little for Linux"),
    ],
    ids=["panic", "no driver", "little memory"],
)
def test_kernel_without_progress_is_reported(
    boot: Boot, parameters: list[str], memory: int, screen: str, sentence: str
) -> None:
    """The first boot of its model is given 90 s until its kernel counts as silent (`limits`)."""
    osie = default_cache() / "osie"
    assert (osie / "kernel").exists(), "no OSIE in the cache: run tests/boot/test_lab.py first"
    spec = {"kernelParams": [*parameters, "console=ttyS0"]}
    report = boot("bios", sentence, osie=osie, memory=memory, spec=spec, within=150, healthy=False)
    assert report.shows(screen), report


def test_machine_without_any_dhcp_boots_from_its_medium(boot: Boot) -> None:
    """A VLAN would only add one command to the medium's script."""
    report = boot("bios", "kernel ok", ipxe=NEW_IPXE, medium="cdrom", static=True)
    assert report.steps() == ["medium ok", "script ok", "kernel ok"], report
    assert report.dhcp == 0, report
    assert report.shows("boot medium of 52:54:00:12:34:56 (default/m1)"), report


@pytest.mark.soak
def test_medium_of_an_old_ipxe_boots_bios_without_dhcp_and_uefi_with_it(boot: Boot) -> None:
    assert boot("bios", "kernel ok", ipxe=OLD_IPXE, medium="usb", static=True).dhcp == 0
    report = boot("uefi", "kernel ok", ipxe=OLD_IPXE, medium="usb", static=True)
    assert report.dhcp > 0, "or docs/engineering/netboot.md is wrong about iPXE of 2019"
    assert report.steps() == ["medium ok", "dhcp ok", "script ok", "kernel ok"], report


@pytest.mark.soak
@pytest.mark.parametrize("static", [True, False])
def test_medium_boots_inside_the_vlan_of_its_machine(boot: Boot, static: bool) -> None:
    report = boot("uefi", "kernel ok", ipxe=NEW_IPXE, spec=ON_VLAN, vlan=50, medium="cdrom", static=static)
    assert (report.dhcp == 0) == static
    assert report.shows("boots OSIE default/stub"), report


# --- Secure Boot with keys of the site's own --------------------------------------------------------------------------


def test_ipxe_that_the_site_has_signed_runs_and_a_kernel_that_it_has_not_is_refused_with_the_reason(
    boot: Boot, tmp_path: Path
) -> None:
    (tmp_path / "ipxe").mkdir()
    (tmp_path / "ipxe" / "snponly.efi").write_bytes((NEW_IPXE / "snponly.efi").read_bytes())
    sign(NEW_IPXE / "snponly.efi", tmp_path / "ipxe" / "site.efi")
    up = ("--ipxe-dir", str(tmp_path / "ipxe"), "--boot-file", "x86_64=site.efi")
    # A UEFI program in place of a kernel.
    report = boot("uefi-own-keys", "boot failed", *up, kernel=NEW_IPXE / "ipxe-amd64.efi", within=180)
    assert report.steps()[-5:] == ["script ok", "kernel ok", "initrd ok", "boot info", "boot failed"], report
    assert "Where Secure Boot is on, the kernel of the OSIE must be signed" in report.journey[-1]


@pytest.mark.soak
def test_machine_that_refuses_ipxe_is_recognised_and_boots_by_shim_and_grub(boot: Boot) -> None:
    secure = ("--boot-path", "auto", "--shim-dir", str(SHIMS / "shim-trixie"))
    report = boot("uefi-secure", "script ok", *secure, ipxe=NEW_IPXE, within=300, healthy=False)
    assert any("Secure Boot refuses it" in line for line in report.warnings()), report
    assert any(
        "boot path auto: iPXE was not started, so it is offered shim and GRUB" in line for line in report.journey
    )
    assert "tftp ok" in report.steps(), report


@pytest.fixture(scope="session")
def unsigned_uki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the lab's OSIE as an unsigned UKI, without settings of the machine."""
    osie = default_cache() / "osie"
    assert (osie / "kernel").exists(), "make run"
    words = "console=ttyS0,115200 no_timer_check"
    return make_uki(osie / "kernel", osie / "initrd", words, tmp_path_factory.mktemp("uki") / "uki.efi")


@pytest.mark.soak
def test_osie_as_one_signed_program_determines_its_identity_and_its_edge(
    boot: Boot, unsigned_uki: Path, tmp_path: Path
) -> None:
    uki = sign(unsigned_uki, tmp_path / "uki.efi")
    report = boot("uefi-own-keys-http", "agent ok", "--boot-path", "uki", uki=uki, within=300)
    assert report.steps()[:3] == ["dhcp ok", "binary info", "binary ok"] or report.steps()[:2] == [
        "dhcp ok",
        "binary ok",
    ]
    assert any("UKI of OSIE default/stub sent" in line for line in report.journey), report
    assert any("the OSIE has requested its parameters" in line for line in report.journey), report


@pytest.mark.soak
@pytest.mark.parametrize("relayed", [False, True], ids=["on the link", "relayed"])
def test_osie_as_one_signed_program_finds_the_edge_over_ipv6(
    boot: Boot, unsigned_uki: Path, tmp_path: Path, relayed: bool
) -> None:
    uki = sign(unsigned_uki, tmp_path / "uki.efi")
    up = ("--boot-path", "uki")
    report = boot("uefi-own-keys-http", "agent ok", *up, uki=uki, ipv6=True, relayed=relayed, within=300)
    assert any("UKI of OSIE default/stub sent" in line for line in report.journey), report
    assert any("http://[fd31:77::1]:7080/osie/stub/uki.efi" in line for line in report.journey), report
    assert sum("DHCPv6 REPLY to the OSIE, its parameters at" in line for line in report.journey) == 1, report
    assert f"agent connected from fd31:7{'8' if relayed else '7'}::10" in report.journey[-1]
    assert_only_dhcp_over_ipv4(report)


@pytest.mark.soak
def test_unsigned_uki_is_refused_with_the_reason_on_the_journey(boot: Boot, unsigned_uki: Path) -> None:
    report = boot(
        "uefi-own-keys-http",
        "warning: .*Secure Boot refuses it",
        "--boot-path",
        "uki",
        uki=unsigned_uki,
        within=300,
        healthy=False,
    )
    assert any("has got the UKI" in line for line in report.warnings()), report
