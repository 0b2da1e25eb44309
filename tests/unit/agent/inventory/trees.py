"""Files of /sys and /proc of machines, and their SMBIOS tables, as the kernel and firmware serve them."""

import struct
from pathlib import Path

DELL = {"vendor": "Dell Inc.", "product": "PowerEdge R760", "serial": "7XK3M44"}
UUID_LE = bytes.fromhex("44454c4c5800104bb3334d34c04f3758")
"""The UUID 4c4c4544-0058-4b10-b333-4d34c04f3758, as SMBIOS 2.6 and later stores it."""


def structure(kind, body=b"", strings=(), handle=0):
    """Return a structure of an SMBIOS table; `body` is the formatted part behind the header."""
    texts = b"".join(text.encode() + b"\0" for text in strings) or b"\0"
    return struct.pack("<BBH", kind, 4 + len(body), handle) + body + texts + b"\0"


def placed(size, **fields):
    """Return a body of `size` bytes; fields are at_HEX=value, of one byte, or of bytes."""
    body = bytearray(size)
    for name, value in fields.items():
        at = int(name.removeprefix("at_"), 16) - 4
        content = value if isinstance(value, bytes) else bytes((value,))
        body[at : at + len(content)] = content
    return bytes(body)


def word(value):
    return struct.pack("<H", value)


def double(value):
    return struct.pack("<I", value)


def dimm(slot, size=0x7FFF, extended=32768, array=0x1000, serial="80CE0123", **more):
    """Return a module of registered DDR5 memory; `extended` is its size in MB."""
    fields = {
        "at_04": word(array), "at_0c": word(size), "at_0e": 9, "at_10": 1, "at_13": word(1 << 13), "at_15": word(5600),
        "at_17": 2, "at_18": 3, "at_1a": 4, "at_1c": double(extended), "at_20": word(4800),
    }  # fmt: skip
    return structure(17, placed(0x5C - 4, **(fields | more)), (slot, "Micron", serial, "MTC40F2046S1RC56BD1"))


def processor(slot, serial="", cores=32, threads=64, status=0x41):
    fields = {"at_04": 1, "at_05": 3, "at_07": 2, "at_10": 3, "at_14": word(4100), "at_18": status, "at_20": 4}
    body = placed(0x32 - 4, **fields, at_23=cores, at_25=threads)
    return structure(4, body, (slot, "Intel", "Intel(R) Xeon(R) Gold 6430", serial or "Not Specified"))


def redfish_interface(address, form=1):
    """Return a host interface whose Redfish service has this address (DSP0270)."""
    record = bytes(16) + b"\x01\x01" + bytes(32) + b"\x01" + bytes((form,)) + address.ljust(16, b"\0") + bytes(23)
    return structure(42, bytes((0x40, 1, 2, 1, 4, len(record))) + record)


IPMI = structure(38, placed(12, at_04=1, at_05=0x20, at_06=0x20))


def dell_table():
    """Return the table of a Dell with two processors, two of 16 modules and a BMC."""
    return b"".join([
        structure(0, placed(20, at_04=1, at_05=2, at_08=3), ("Dell Inc.", "2.1.5", "03/14/2024")),
        structure(
            1,
            placed(23, at_04=1, at_05=2, at_06=3, at_07=4, at_08=UUID_LE),
            (DELL["vendor"], DELL["product"], "Not Specified", DELL["serial"]),
        ),
        structure(2, placed(11, at_04=1, at_05=2, at_07=3), ("Dell Inc.", "0NH278", ".7XK3M44.CNIVC0035400F2.")),
        structure(3, placed(17, at_04=1, at_06=2, at_07=3), ("Dell Inc.", "Not Specified", "7XK3M44")),
        processor("CPU1"),
        processor("CPU2"),
        structure(16, placed(19, at_05=3), handle=0x1000),
        structure(16, placed(19, at_05=4), handle=0x1001),
        dimm("A1", serial="80CE0001"),
        dimm("A2", size=0),
        dimm("B1", serial="00000000"),
        dimm("VIDEO", array=0x1001),
        IPMI,
        redfish_interface(bytes((169, 254, 1, 1))),
        structure(127),
    ])  # fmt: skip


class Tree:
    """A root of a file system."""

    def __init__(self, root: Path):
        self.root = root

    def files(self, base, **contents):
        """Write files of a directory; a double underscore in a name is a slash."""
        for name, content in contents.items():
            path = self.root / base / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else f"{content}\n".encode())
        return self.root / base

    def link(self, path, target):
        """Make a relative link, as sysfs does."""
        at = self.root / path
        at.parent.mkdir(parents=True, exist_ok=True)
        up = "../" * (len(Path(path).parts) - 1)
        at.symlink_to(f"{up}{target}")

    def cpus(self, packages, cores, threads_per_core=1):
        number = 0
        for package in range(packages):
            for core in range(cores):
                siblings = ",".join(str(number + at) for at in range(threads_per_core))
                for _ in range(threads_per_core):
                    base = f"sys/devices/system/cpu/cpu{number}/topology"
                    self.files(base, physical_package_id=package, core_id=core, core_cpus_list=siblings)
                    number += 1

    def pci(self, address, vendor, device, code, driver=""):
        """Add a PCI device, and return its path below the root."""
        real = f"sys/devices/pci0000:00/{address}"
        self.files(real, vendor=vendor, device=device, **{"class": code})
        self.link(f"sys/bus/pci/devices/{address}", real)
        if driver:
            (self.root / "sys/bus/pci/drivers" / driver).mkdir(parents=True, exist_ok=True)
            self.link(f"{real}/driver", f"sys/bus/pci/drivers/{driver}")
        return real

    def card(self, name, real, mac, **files):
        """Add a network card at a device; without one it is virtual."""
        net = f"{real or 'sys/devices/virtual'}/net/{name}"
        self.files(net, **{"address": mac, "type": "1", "mtu": "1500", "carrier": "1", "speed": "-1"} | files)
        self.link(f"sys/class/net/{name}", net)
        if real:
            self.link(f"{net}/device", real)

    def disk(self, name, real, sectors, **files):
        """Add a disk at a device; without one it is virtual."""
        block = f"{real or 'sys/devices/virtual'}/block/{name}"
        standard = {"size": sectors, "removable": 0, "queue__rotational": 0, "queue__logical_block_size": 512}
        self.files(block, **standard | {"queue__physical_block_size": 4096} | files)
        self.link(f"sys/block/{name}", block)
        if real:
            self.link(f"{block}/device", real)


def page80(serial):
    return b"\0\x80" + len(serial).to_bytes(2, "big") + serial.encode()


def dell(root):
    """Build a Dell R760: NVMe, an HBA with SAS and SATA disks, two cards of two ports, a GPU, a TPM, Secure Boot."""
    tree = Tree(root)
    tree.files("sys/firmware/dmi/tables", DMI=dell_table(), smbios_entry_point=b"_SM3_\0\x18\x03\x03\0" + bytes(14))
    tree.files("sys/firmware/efi/efivars", **{"SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c": b"\x06\0\0\0\x01"})
    tree.files("proc", cpuinfo="processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Intel(R) Xeon(R) Gold 6430\n")
    tree.cpus(2, 32, 2)
    nvme = tree.pci("0000:65:00.0", "0x144d", "0xa824", "0x010802", "nvme")
    tree.files(
        f"{nvme}/nvme/nvme0", model="Dell Ent NVMe PM1735a MU 1.6TB", serial="S6UPNE0T500123   ", firmware_rev="2.4.0"
    )
    tree.disk("nvme0n1", f"{nvme}/nvme/nvme0", 3125627568, wwid="eui.36554e3054500123002538510000001")
    hba = tree.pci("0000:4b:00.0", "0x1000", "0x00e6", "0x010700", "mpt3sas")
    sas, sata = (f"{hba}/host0/port-0:{at}/end_device-0:{at}/target0:0:{at}/0:0:{at}:0" for at in (0, 1))
    tree.files(
        sas,
        vendor="SEAGATE ",
        model="ST2400MM0159    ",
        rev="N003",
        wwid="naa.5000c500d1e2f3a7",
        vpd_pg80=page80("WBM1A2B3"),
        sas_address="0x5000c500d1e2f3a5",
    )
    tree.files(
        sata,
        vendor="ATA     ",
        model="SSDSC2KG960G8R  ",
        rev="DL63",
        wwid="naa.55cd2e4151234567",
        vpd_pg80=page80("  PHYG1234001A960CGN"),
    )
    tree.disk("sda", sas, 4688430768, queue__rotational=1)
    tree.disk("sdb", sata, 1875385008)
    tree.disk("sdc", f"{hba}/usb1/1-14/host3/target3:0:0/3:0:0:0", 1024, removable=1)
    for name in ("loop0", "ram0", "dm-0", "md127", "sr0", "zram0", "nvme0c0n1"):
        tree.disk(name, nvme if name == "nvme0c0n1" else "", 1024, **({"hidden": 1} if name.startswith("nvme") else {}))
    for at in (0, 1):
        port = tree.pci(f"0000:31:00.{at}", "0x8086", "0x159b", "0x020000", "ice")
        tree.card(f"eno{at + 1}", port, f"b4:96:91:00:00:0{at}", speed="25000", carrier="1" if at == 0 else "0")
    function = tree.pci("0000:31:01.0", "0x8086", "0x1889", "0x020000", "iavf")
    tree.link(f"{function}/physfn", "sys/devices/pci0000:00/0000:31:00.0")
    tree.card("eno1v0", function, "b4:96:91:00:10:00")
    tree.card("lo", "", "00:00:00:00:00:00", type="772")
    tree.card("bond0", "", "b4:96:91:00:00:00")
    usb = f"{hba}/usb1/1-13/1-13:1.0"
    tree.files(f"{hba}/usb1/1-13", idVendor="413c")
    tree.files(usb, bInterfaceClass="02")
    tree.card("idrac", usb, "e8:65:38:00:00:01")
    tree.pci("0000:03:00.0", "0x102b", "0x0536", "0x030000", "mgag200")
    tree.pci("0000:ca:00.0", "0x10de", "0x2330", "0x030200", "nvidia")
    tree.pci("0000:00:1f.0", "0x8086", "0x1b81", "0x060100")
    tree.pci("0000:00:1f.2", "0x8086", "0x2922", "0x010601", "ahci")
    tree.pci("0000:00:02.0", "0x1000", "0x0073", "0x010400", "megaraid_sas")
    tree.files("sys/class/tpm/tpm0", tpm_version_major="2")
    return tree


def qemu(root):
    """Build QEMU's Q35 with virtio, booted by SeaBIOS; the kernel has decoded the table."""
    tree = Tree(root)
    tree.files(
        "sys/class/dmi/id", sys_vendor="QEMU", product_name="Standard PC (Q35 + ICH9, 2009)", product_serial="",
        product_uuid="D3B07384-D9A0-4C9B-8E1F-0123456789AB", bios_vendor="SeaBIOS", bios_version="1.16.2-debian",
        chassis_vendor="QEMU", chassis_version="pc-q35-7.2", chassis_serial="",
    )  # fmt: skip
    tree.cpus(1, 2)
    tree.files("proc", cpuinfo="processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel name\t: QEMU Virtual CPU\n")
    tree.files(
        "sys/devices/system/memory", block_size_bytes="8000000", memory0__state="online", memory32__state="online"
    )
    disk = tree.pci("0000:00:03.0", "0x1af4", "0x1042", "0x010000", "virtio-pci")
    tree.files(f"{disk}/virtio1", vendor="0x1af4", device="0x0002")
    tree.disk("vda", f"{disk}/virtio1", 41943040, queue__rotational=1, serial="disk-one")
    card = tree.pci("0000:00:02.0", "0x1af4", "0x1041", "0x020000", "virtio-pci")
    tree.files(f"{card}/virtio0", vendor="0x1af4", device="0x0001")
    tree.card("eth0", f"{card}/virtio0", "52:54:00:aa:00:01")
    return tree


def raspberry_pi(root):
    """Build a Raspberry Pi 4: a device tree, an SD card, and a card that is no PCI device."""
    tree = Tree(root)
    tree.files(
        "sys/firmware/devicetree/base", model=b"Raspberry Pi 4 Model B Rev 1.4\0",
        compatible=b"raspberrypi,4-model-b\0brcm,bcm2711\0", **{"serial-number": b"10000000abcdef01\0"},
    )  # fmt: skip
    tree.cpus(1, 4)
    tree.files("proc", cpuinfo="processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd08\n")
    tree.files("proc", meminfo="MemTotal:        3884372 kB\nMemFree:  1 kB\n")
    tree.disk("mmcblk0", "sys/devices/platform/emmc2bus/mmc0:aaaa", 62333952)
    tree.files("sys/devices/platform/emmc2bus/mmc0:aaaa", name="SC32G", serial="0x8e5a1c2b")
    tree.disk("mmcblk0boot0", "sys/devices/platform/emmc2bus/mmc0:aaaa", 8192)
    tree.card("eth0", "sys/devices/platform/scb/fd580000.ethernet", "dc:a6:32:00:00:01", speed="1000")
    return tree


def plain_vm(root):
    """Build a small VM without DMI, PCI and disks; its firmware is unknown to Linux."""
    tree = Tree(root)
    tree.cpus(1, 1)
    tree.card("eth0", "sys/devices/platform/virtio.0", "02:fc:00:00:00:01")
    return tree
