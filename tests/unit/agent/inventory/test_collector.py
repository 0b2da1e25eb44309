"""The inventory of machines whose files are given: two servers, a board and two virtual machines."""

import logging
import os
import subprocess
import sys

import pytest

from tests.unit.agent.inventory import trees
from tink.agent.inventory.collector import bmc_facts, collect, network_cards, network_cards_with_link
from tink.api.bounds import MAX_INVENTORY_ITEMS
from tink.api.v1alpha2 import Attributes


def collected(tree, **more):
    """Return the attributes of a tree; they satisfy the API's model."""
    found = collect(tree.root, **more)
    Attributes.model_validate(found)
    return found


def by(entries, name):
    return {entry[name]: entry for entry in entries}


@pytest.fixture
def dell(tmp_path):
    return trees.dell(tmp_path)


def test_identity_of_a_server_comes_from_its_smbios_table(dell):
    found = collected(dell, architecture="x86_64")
    assert found["collectionMethod"] == "agent"
    assert found["architecture"] == "x86_64"
    assert found["product"] == {
        "vendor": "Dell Inc.", "model": "PowerEdge R760", "serialNumber": "7XK3M44",
        "uuid": "4c4c4544-0058-4b10-b333-4d34c04f3758",
    }  # fmt: skip
    assert found["bios"] == {"vendor": "Dell Inc.", "firmwareVersion": "2.1.5"}
    assert found["baseboard"]["serialNumber"] == ".7XK3M44.CNIVC0035400F2."
    assert found["chassis"] == {"vendor": "Dell Inc.", "serialNumber": "7XK3M44"}, "no placeholder"
    assert found["firmware"] == {"mode": "UEFI", "secureBoot": True}
    assert found["tpms"] == [{"interfaceType": "TPM2_0"}]
    assert found["bmc"] == {"model": "IPMI KCS"}, "no address that only the machine itself reaches"


def test_processors_have_counts_of_linux_and_slots_of_smbios(dell):
    cpu = collected(dell)["cpu"]
    assert (cpu["totalCores"], cpu["totalThreads"]) == (64, 128)
    assert [each["slot"] for each in cpu["sockets"]] == ["CPU1", "CPU2"]
    assert cpu["sockets"][0] == {
        "slot": "CPU1", "vendor": "GenuineIntel", "model": "Intel(R) Xeon(R) Gold 6430", "cores": 32, "threads": 64,
        "clockSpeedMHz": 4100,
    }  # fmt: skip


def test_memory_is_the_sum_of_the_installed_modules(dell):
    memory = collected(dell)["memory"]
    assert memory["totalBytes"] == 64 << 30
    assert [each["slot"] for each in memory["modules"]] == ["A1", "B1"], "neither empty slots nor video memory"
    assert memory["modules"][0] == {
        "slot": "A1", "vendor": "Micron", "serialNumber": "80CE0001", "partNumber": "MTC40F2046S1RC56BD1",
        "sizeBytes": 32 << 30, "speedMHz": 4800, "formFactor": "RDIMM",
    }  # fmt: skip
    assert "serialNumber" not in memory["modules"][1]


def test_disks_are_those_of_the_machine_with_their_protocol_and_kind(dell):
    disks = by(collected(dell)["blockDevices"], "name")
    assert sorted(disks) == ["/dev/nvme0n1", "/dev/sda", "/dev/sdb"]
    assert disks["/dev/nvme0n1"] == {
        "name": "/dev/nvme0n1", "model": "Dell Ent NVMe PM1735a MU 1.6TB", "serialNumber": "S6UPNE0T500123",
        "firmwareVersion": "2.4.0", "controllerType": "NVMe", "driveType": "SSD", "sizeBytes": 1600321314816,
        "wwn": "36554e3054500123002538510000001", "physicalBlockSizeBytes": 4096, "logicalBlockSizeBytes": 512,
    }  # fmt: skip
    sas, sata = disks["/dev/sda"], disks["/dev/sdb"]
    assert (sas["controllerType"], sas["driveType"], sas["vendor"]) == ("SAS", "HDD", "SEAGATE")
    assert (sas["serialNumber"], sas["wwn"]) == ("WBM1A2B3", "5000c500d1e2f3a7")
    assert (sata["controllerType"], sata["serialNumber"]) == ("SATA", "PHYG1234001A960CGN")
    assert "vendor" not in sata, "ATA is no manufacturer"


def test_ports_of_one_card_are_one_adapter(dell):
    neighbour = {"chassisID": "00:1c:73:00:00:01", "portID": "Ethernet7"}
    (adapter,) = collected(dell, neighbours={"eno1": neighbour})["networkInterfaces"]
    assert (adapter["vendor"], adapter["model"]) == ("0x8086", "0x159b")
    assert adapter["ports"] == [
        {"name": "eno1", "pciAddress": "0000:31:00.0", "mac": "b4:96:91:00:00:00", "speedMbps": 25000, "mtu": 1500,
         "linkStatus": "LinkUp", "lldp": neighbour},
        {"name": "eno2", "pciAddress": "0000:31:00.1", "mac": "b4:96:91:00:00:01", "speedMbps": 25000, "mtu": 1500,
         "linkStatus": "LinkDown"},
    ]  # fmt: skip
    assert network_cards(dell.root) == ["eno1", "eno2"], "no bond, SR-IOV function or card of the BMC"
    assert network_cards_with_link(dell.root) == ["eno1"]


def test_card_in_a_bond_has_its_permanent_mac(dell):
    dell.files("sys/class/net/eno2", address="b4:96:91:00:00:00", bonding_slave__perm_hwaddr="b4:96:91:00:00:01")
    (adapter,) = collected(dell)["networkInterfaces"]
    assert [port["mac"] for port in adapter["ports"]] == ["b4:96:91:00:00:00", "b4:96:91:00:00:01"]


def test_infiniband_port_has_the_mac_that_identifies_it(dell):
    port = dell.pci("0000:b1:00.0", "0x15b3", "0x1021", "0x020700", "mlx5_core")
    address = "00:00:10:49:fe:80:00:00:00:00:00:00:b8:3f:d2:03:00:1e:5c:aa"
    dell.card("ibp177s0", port, address, type="32")
    ports = [port for each in collected(dell)["networkInterfaces"] for port in each["ports"]]
    assert by(ports, "name")["ibp177s0"]["mac"] == "b8:3f:d2:1e:5c:aa"
    assert "ibp177s0" not in network_cards(dell.root), "LLDP is a protocol of Ethernet"


def test_pci_devices_are_network_storage_display_and_accelerators(dell):
    found = collected(dell)
    assert by(found["pciDevices"], "pciAddress")["0000:31:00.0"] == {
        "vendor": "0x8086", "model": "0x159b", "pciAddress": "0000:31:00.0", "classCode": "0x020000", "driver": "ice",
    }  # fmt: skip
    addresses = [each["pciAddress"] for each in found["pciDevices"]]
    assert addresses == sorted(addresses)
    assert "0000:00:1f.0" not in by(found["pciDevices"], "pciAddress"), "a bridge"
    assert "0000:31:01.0" not in by(found["pciDevices"], "pciAddress"), "an SR-IOV function"
    assert found["gpuDevices"] == [{"vendor": "0x10de", "model": "0x2330", "description": "0000:ca:00.0"}]


def test_virtual_machine_without_the_raw_table_is_described_by_decoded_files(tmp_path):
    found = collected(trees.qemu(tmp_path), architecture="x86_64")
    assert found["product"] == {
        "vendor": "QEMU", "model": "Standard PC (Q35 + ICH9, 2009)", "uuid": "d3b07384-d9a0-4c9b-8e1f-0123456789ab",
    }  # fmt: skip
    assert found["firmware"] == {"mode": "BIOS"}
    assert found["memory"] == {"totalBytes": 256 << 20}
    assert found["blockDevices"] == [
        {"name": "/dev/vda", "serialNumber": "disk-one", "controllerType": "virtio", "sizeBytes": 20 << 30,
         "physicalBlockSizeBytes": 4096, "logicalBlockSizeBytes": 512}
    ], "virtio knows neither kind nor vendor"  # fmt: skip
    (adapter,) = found["networkInterfaces"]
    assert (adapter["vendor"], adapter["ports"][0]["pciAddress"]) == ("0x1af4", "0000:00:02.0")
    assert "speedMbps" not in adapter["ports"][0], "-1 is unknown"
    assert not {"bmc", "tpms", "gpuDevices"} & found.keys()
    assert found["chassis"] == {"vendor": "QEMU"}, "its version is no model"


def test_board_without_smbios_is_described_by_its_device_tree(tmp_path):
    found = collected(trees.raspberry_pi(tmp_path), architecture="aarch64")
    assert found["product"] == {
        "vendor": "raspberrypi", "model": "Raspberry Pi 4 Model B Rev 1.4", "serialNumber": "10000000abcdef01",
    }  # fmt: skip
    assert "firmware" not in found, "neither UEFI nor BIOS"
    assert found["cpu"]["sockets"] == [{"vendor": "Arm", "model": "0xd08", "cores": 4, "threads": 4}]
    assert found["memory"] == {"totalBytes": 3884372 * 1024}
    assert [(each["name"], each["model"], each["serialNumber"]) for each in found["blockDevices"]] == [
        ("/dev/mmcblk0", "SC32G", "0x8e5a1c2b")
    ]
    assert found["networkInterfaces"][0]["ports"][0]["mac"] == "dc:a6:32:00:00:01"


def test_machine_without_dmi_has_what_linux_knows(tmp_path):
    found = collected(trees.plain_vm(tmp_path), architecture="x86_64")
    assert sorted(found) == ["architecture", "collectionMethod", "cpu", "firmware", "networkInterfaces"]


def test_empty_root_gives_an_empty_inventory(tmp_path):
    assert collected(trees.Tree(tmp_path), architecture="riscv64") == {
        "collectionMethod": "agent", "architecture": "riscv64",
    }  # fmt: skip


def test_secure_boot_is_known_without_efivarfs(tmp_path):
    tree = trees.Tree(tmp_path)
    tree.files("sys/firmware/efi", fw_platform_size="64")
    assert collected(tree)["firmware"] == {"mode": "UEFI"}
    for byte, is_on in ((2, False), (3, True)):
        tree.files("sys/kernel/boot_params", data=bytes(0x1EC) + bytes((byte,)) + bytes(100))
        assert collected(tree)["firmware"] == {"mode": "UEFI", "secureBoot": is_on}


@pytest.mark.parametrize(
    ("broken", "lost", "logged"),
    [
        ("cpu", "cpu", "cpu can't be read: ValueError"),
        ("address", "", "network card eno2 can't be read: ValueError"),
    ],
)
def test_broken_part_costs_nothing_but_itself(dell, broken, lost, logged, caplog, monkeypatch):
    whole = collected(dell)
    if broken == "cpu":
        dell.files("proc", cpuinfo="processor\t: 0\nCPU implementer\t: zero\n")
    else:
        dell.files("sys/class/net/eno2", type="32", address="no digits")
    with caplog.at_level(logging.WARNING):
        found = collected(dell)
    assert logged in caplog.text
    assert set(whole) - set(found) == ({lost} if lost else set())
    if broken == "address":
        assert [port["name"] for port in found["networkInterfaces"][0]["ports"]] == ["eno1"]


def test_texts_of_devices_are_cleaned_and_bounded(dell):
    dell.files("sys/devices/pci0000:00/0000:65:00.0/nvme/nvme0", model="\x1b[2J" + "M" * 100_000, serial="\x07 000 ")
    disk = by(collected(dell)["blockDevices"], "name")["/dev/nvme0n1"]
    assert disk["model"].startswith("[2JMMM")
    assert len(disk["model"]) == 256
    assert "serialNumber" not in disk


def test_number_of_disks_is_bounded(tmp_path):
    tree = trees.Tree(tmp_path)
    for number in range(MAX_INVENTORY_ITEMS + 10):
        tree.disk(f"sd{number}", f"sys/devices/pci0000:00/0000:4b:00.0/{number}", 1024)
    assert len(collected(tree)["blockDevices"]) == MAX_INVENTORY_ITEMS


def test_fifo_and_endless_file_do_not_stop_the_collection(dell):
    (dell.root / "sys/class/dmi/id").mkdir(parents=True)
    os.mkfifo(dell.root / "sys/class/dmi/id/sys_vendor")
    (dell.root / "sys/class/dmi/id/product_name").symlink_to("/dev/zero")
    assert collected(dell)["product"]["model"] == "PowerEdge R760"


class Bmc:
    """The answers of a BMC: its LAN is channel 8."""

    def __init__(self, address=b"\x0a\x01\x02\x03", code=0):
        self.address, self.code, self.requests = address, code, []

    def request(self, function, command, data):
        self.requests.append((function, command, data))
        if (function, command) == (6, 1):
            return bytes((0, 0x20, 0x81, 0x07, 0x10, 0x02))
        if (function, command) == (6, 0x42):
            return bytes((0, data[0], 4 if data[0] == 8 else 12)) if data[0] in (1, 8) else b"\xcc"
        value = {3: self.address, 5: bytes.fromhex("d0946600a1b2")}[data[1]]
        return bytes((self.code, 0x11)) + value


def test_bmc_has_the_address_of_its_lan_channel():
    bmc = Bmc()
    assert bmc_facts(bmc.request) == {
        "firmwareVersion": "7.10", "address": "10.1.2.3", "nic": {"ports": [{"mac": "d0:94:66:00:a1:b2"}]},
    }  # fmt: skip
    assert all(data[0] == 8 for function, _, data in bmc.requests if function == 12)
    assert "address" not in bmc_facts(Bmc(address=bytes(4)).request), "not configured"
    assert bmc_facts(Bmc(code=0xD4).request) == {"firmwareVersion": "7.10"}, "no privilege"


def test_printing_the_inventory_imports_neither_grpc_nor_the_api_models():
    code = (
        "import sys\n"
        "from edge.cli import main\n"
        "try: main(['agent', '--print-inventory'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'grpc', 'google.protobuf', 'pydantic', 'aiohttp'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    assert '"collectionMethod": "agent"' in done.stdout
