"""Which test holds each row of the tables in docs/engineering/netboot.md that say what real firmware was seen to do.

A row is known by how it begins, with ` | ` between its cells. It is held by tests (of tests/boot, or of tests/unit
where it takes no firmware), or was seen BY_HAND, or NOT_TRIED: then the row itself says so. tests/unit/test_papers.py
compares them.
"""

from __future__ import annotations

from typing import Final

BY_HAND: Final = "by hand"
NOT_TRIED: Final = "not tried"

NETBOOT, LAB = "tests/boot/test_netboot.py::", "tests/boot/test_lab.py::"
RELAYED = f"{NETBOOT}test_machine_boots_over_ipv6_through_a_router_with_a_dhcpv6_relay"
RELAYED_LAB = f"{LAB}test_machine_boots_over_ipv6_through_a_router_to_succeeded"
BINARIES = "tests/unit/ipxe_binaries/test_binaries.py::"

SEEN: Final[dict[str, tuple[str, ...]]] = {
    # IPv6
    "PXE, iPXE of Debian 12": (f"{LAB}test_machine_boots_over_ipv6_by_ipxe_to_succeeded[uefi-tftp]",),
    "PXE with Secure Boot, shim and GRUB 2.12 of Debian 13": (
        f"{LAB}test_machine_with_secure_boot_gets_from_power_on_to_succeeded_without_a_packet_of_ipv4",
    ),
    "PXE, the same shim and GRUB": (
        f"{LAB}test_machine_is_installed_and_its_cloud_init_is_served_without_a_packet_of_ipv4",
    ),
    "PXE with IPv4 and IPv6": (f"{LAB}test_machine_with_both_families_is_installed_and_has_an_address_of_each",),
    "BIOS, iPXE in the card's ROM": (BY_HAND,),
    "UEFI PXE, iPXE of Debian 13": (f"{NETBOOT}test_pxe_over_ipv6_gets_ipxe_its_script_and_the_kernel[new]",),
    "HTTP Boot, iPXE of Debian 12": (f"{LAB}test_machine_boots_over_ipv6_by_ipxe_to_succeeded[uefi-http-binary]",),
    "PXE through a router with a DHCPv6 relay": (f"{RELAYED}[pxe]", f"{RELAYED_LAB}[uefi-tftp]"),
    "HTTP Boot through a router with a DHCPv6 relay": (
        f"{RELAYED}[http]",
        f"{RELAYED_LAB}[uefi-http-binary]",
    ),
    "PXE and HTTP Boot through the same router, shim and GRUB": (BY_HAND,),
    # U-Boot
    "2023.01, as it comes": (f"{NETBOOT}test_u_boot_gets_its_script_kernel_and_initrd_and_starts_the_kernel",),
    "2023.01, `dhcp; pxe get; pxe boot`": (BY_HAND,),
    "2025.01, `bootflow scan -b` with": (f"{NETBOOT}test_new_u_boot_boots_by_its_script_once_it_knows_the_name",),
    "2025.01, `bootflow scan -b pxe`": (BY_HAND,),
    "2023.01 for 32-bit ARM": (BY_HAND,),
    "2025.01, as it comes": (BY_HAND,),
    "2025.01, `setenv httpdstp": (f"{NETBOOT}test_new_u_boot_fetches_the_kernel_by_http_if_the_port_is_configured",),
    "2025.01 for riscv64": (f"{NETBOOT}test_riscv64_machine_gets_from_power_on_to_its_kernel[u-boot-riscv64]",),
    # arm64, riscv64
    "EDK2 of Debian 12 (2022.11), PXE": (f"{LAB}test_arm64_machine_boots_from_power_on_to_succeeded",),
    "EDK2 of Debian 13 (2025.02), PXE |": (BY_HAND,),
    "EDK2 of Debian 13 (2025.02), PXE, iPXE of Debian 13": (
        f"{NETBOOT}test_riscv64_machine_gets_from_power_on_to_its_kernel[uefi-riscv64]",
    ),
    # boot media
    "BIOS, CD or USB": (
        f"{LAB}test_machine_boots_from_its_medium_to_succeeded_without_dhcp_where_it_has_the_address[bios-cdrom-static]",
        f"{LAB}test_machine_boots_from_its_medium_to_succeeded_without_dhcp_where_it_has_the_address[bios-usb-static]",
        f"{NETBOOT}test_medium_of_an_old_ipxe_boots_bios_without_dhcp_and_uefi_with_it",
    ),
    "UEFI x86-64, CD or USB": (
        f"{LAB}test_machine_boots_from_its_medium_to_succeeded_without_dhcp_where_it_has_the_address[uefi-usb-static]",
        f"{LAB}test_machine_boots_from_its_medium_to_succeeded_without_dhcp_where_it_has_the_address[uefi-cdrom-dhcp]",
        f"{NETBOOT}test_medium_of_an_old_ipxe_boots_bios_without_dhcp_and_uefi_with_it",
    ),
    "UEFI arm64": (NOT_TRIED,),
    # Secure Boot
    "OVMF 2022.11, own keys, PXE": (
        f"{NETBOOT}test_ipxe_that_the_site_has_signed_runs_and_a_kernel_that_it_has_not_is_refused_with_the_reason",
    ),
    "the same, UEFI HTTP Boot | a UKI": (
        f"{NETBOOT}test_osie_as_one_signed_program_determines_its_identity_and_its_edge",
        f"{NETBOOT}test_unsigned_uki_is_refused_with_the_reason_on_the_journey",
    ),
    "the same, UEFI HTTP Boot over IPv6": (
        f"{NETBOOT}test_osie_as_one_signed_program_finds_the_edge_over_ipv6[on the link]",
        f"{NETBOOT}test_osie_as_one_signed_program_finds_the_edge_over_ipv6[relayed]",
    ),
    "OVMF 2022.11, Microsoft's keys, path `auto`": (
        f"{NETBOOT}test_machine_that_refuses_ipxe_is_recognised_and_boots_by_shim_and_grub",
    ),
    "OVMF 2022.11, Microsoft's keys, PXE": (
        f"{NETBOOT}test_machine_with_secure_boot_loads_the_kernel_by_shim_and_grub_and_shows_why_it_does_not_start",
    ),
    "the same, UEFI HTTP Boot | GRUB of Debian 13": (
        f"{LAB}test_machine_with_secure_boot_boots_by_shim_and_grub_over_http_to_succeeded",
    ),
    "UEFI HTTP Boot | GRUB 2.06": (f"{BINARIES}test_firmware_that_boots_by_http_is_not_sent_to_a_grub_that_can_not",),
}
