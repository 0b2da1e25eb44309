"""The inventory of a machine, from documents in the style of three vendors, and from hostile ones."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pytest

from tests.support.bmc import CONNECTION, CREDENTIALS, FakeBmc, MemoryTransport
from tests.support.objects import hardware
from tink.api.crds import generate
from tink.api.inventory import mac_address
from tink.bmc.inventory import MAX_DOCUMENTS, SERVICE_ROOT, inventory, next_paths
from tink.bmc.redfish import RedfishClient
from tink.kubeapi.schema.checker import Checker, compile_definition

Raw = dict[str, Any]
V1 = "/redfish/v1"
ENABLED = {"Status": {"State": "Enabled", "Health": "OK"}}
ABSENT = {"Status": {"State": "Absent"}}


def ref(path: str) -> Raw:
    return {"@odata.id": f"{V1}/{path}"}


def refs(*paths: str) -> list[Raw]:
    return [ref(path) for path in paths]


def collection(base: str, **members: Raw) -> dict[str, Raw]:
    """Return a collection and its members, by their paths below /redfish/v1/. In names, `__` stands for a dot."""
    named = {name.replace("__", "."): member for name, member in members.items()}
    found: dict[str, Raw] = {base: {"Members": [ref(f"{base}/{name}") for name in named]}}
    return found | {f"{base}/{name}": {"Id": name, **member} for name, member in named.items()}


def served(*parts: dict[str, Raw]) -> dict[str, Raw]:
    """Return all documents of a BMC by path."""
    root = {"Systems": ref("Systems"), "Chassis": ref("Chassis"), "Managers": ref("Managers")}
    return {SERVICE_ROOT: root} | {f"{V1}/{path}": document for part in parts for path, document in part.items()}


def fetched(bmc: dict[str, Raw], system_name: str = "") -> dict[str, Raw | None]:
    """Fetch documents from a BMC until no path is left."""
    documents: dict[str, Raw | None] = {}
    while paths := next_paths(documents, system_name):
        assert not set(paths) & set(documents), "each document is fetched once"
        documents |= {path: bmc.get(path) for path in paths}
    assert len(documents) <= MAX_DOCUMENTS
    return documents


@cache
def checker() -> Checker:
    return compile_definition(generate()[0])["v1alpha2"]


def read(bmc: dict[str, Raw], system_name: str = "") -> Raw:
    """Return the inventory of a BMC. The API must take it whole."""
    found = inventory(fetched(bmc, system_name), system_name)
    assert_stored_whole(found)
    return found


def assert_stored_whole(attributes: Raw) -> None:
    checked = checker().check(hardware() | {"status": {"inventory": {"outOfBand": attributes}}})
    assert (checked.errors, checked.unknown) == ([], [])
    assert checked.object["status"]["inventory"]["outOfBand"] == attributes


# --- vendors ----------------------------------------------------------------------------------------------------------


def dell() -> dict[str, Raw]:
    """Return the documents of an iDRAC9: service tag in SKU, ports with AssociatedNetworkAddresses."""
    system, chassis = "Systems/System.Embedded.1", "Chassis/System.Embedded.1"
    nic = f"{chassis}/NetworkAdapters/NIC.Integrated.1"
    return served(
        collection(
            "Systems",
            System__Embedded__1={
                "Manufacturer": "Dell Inc.",
                "Model": "PowerEdge R650",
                "Name": "System",
                "SKU": "8YXW5K3",
                "SerialNumber": "CNFCP0012A00BC",
                "PartNumber": "0PYXKYA03",
                "BiosVersion": "1.9.2",
                "MemorySummary": {"TotalSystemMemoryGiB": 64},
                "TrustedModules": [{"FirmwareVersion": "7.2.2.0", "InterfaceType": "TPM2_0", **ENABLED}],
                "Links": {"Chassis": refs(chassis), "ManagedBy": refs("Managers/iDRAC.Embedded.1")},
                "Processors": ref(f"{system}/Processors"),
                "Memory": ref(f"{system}/Memory"),
                "Storage": ref(f"{system}/Storage"),
                "EthernetInterfaces": ref(f"{system}/EthernetInterfaces"),
                **ENABLED,
            },
        ),
        collection(
            "Chassis",
            System__Embedded__1={
                "Manufacturer": "Dell Inc.",
                "Model": "PowerEdge R650",
                "SerialNumber": "CNFCP0012A00BC",
                "NetworkAdapters": ref(f"{chassis}/NetworkAdapters"),
                "PowerSubsystem": ref(f"{chassis}/PowerSubsystem"),
            },
        ),
        {f"{chassis}/PowerSubsystem": {"PowerSupplies": ref(f"{chassis}/PowerSubsystem/PowerSupplies")}},
        collection(
            f"{chassis}/PowerSubsystem/PowerSupplies",
            PSU__1={"Name": "PS1 Status", "Model": "PWR SPLY,800W", "PowerCapacityWatts": 800.0, **ENABLED},
            PSU__2=ABSENT,
        ),
        collection(
            "Managers", iDRAC__Embedded__1={"FirmwareVersion": "5.10.10.05", "Model": "15G Monolithic", **ENABLED}
        ),
        collection(
            f"{chassis}/NetworkAdapters",
            NIC__Integrated__1={
                "Manufacturer": "Broadcom Inc. and subsidiaries",
                "Model": "BCM57414",
                "SerialNumber": "VNFCP00198R",
                "Controllers": [{"FirmwarePackageVersion": "22.31.6"}],
                "NetworkPorts": ref(f"{nic}/NetworkPorts"),
            },
        ),
        collection(
            f"{nic}/NetworkPorts",
            **{
                "NIC__Integrated__1-2-1": {"AssociatedNetworkAddresses": ["BC:97:E1:00:00:02"], "LinkStatus": "Down"},
                "NIC__Integrated__1-1-1": {
                    "AssociatedNetworkAddresses": ["BC:97:E1:00:00:01"],
                    "CurrentLinkSpeedMbps": 25000,
                    "LinkStatus": "Up",
                },
            },
        ),
        collection(
            f"{system}/EthernetInterfaces",
            **{"NIC__Integrated__1-1-1": {"PermanentMACAddress": "bc:97:e1:00:00:01", "MTUSize": 1500}},
        ),
        collection(
            f"{system}/Processors",
            **{
                "CPU__Socket__1": {
                    "Manufacturer": "Intel",
                    "Model": "Intel(R) Xeon(R) Gold 5318Y",
                    "ProcessorType": "CPU",
                    "Socket": "CPU.Socket.1",
                    "TotalCores": 24,
                    "TotalThreads": 48,
                    "MaxSpeedMHz": 4000,
                },
                "Video__Slot__3-1": {"ProcessorType": "GPU", "Manufacturer": "NVIDIA", "Model": "A100", **ENABLED},
            },
        ),
        collection(
            f"{system}/Memory",
            **{
                f"DIMM__Socket__A{n}": {
                    "DeviceLocator": f"DIMM A{n}",
                    "CapacityMiB": 32768,
                    "OperatingSpeedMhz": 2933,
                    "BaseModuleType": "RDIMM",
                    "Manufacturer": "Samsung",
                    "PartNumber": "M393A4K40DB3-CWE",
                    "SerialNumber": f"0392310{n}",
                }
                for n in (10, 2)
            },
            DIMM__Socket__B1={"DeviceLocator": "DIMM B1", "CapacityMiB": 0, **ABSENT},
        ),
        collection(
            f"{system}/Storage",
            NonRAID={
                "StorageControllers": [
                    {"Name": "HBA355i", "Manufacturer": "DELL", "FirmwareVersion": "22.15", **ENABLED}
                ],
                "Drives": refs(f"{system}/Storage/NonRAID/Drives/Disk.0"),
            },
        ),
        {
            f"{system}/Storage/NonRAID/Drives/Disk.0": {
                "Manufacturer": "TOSHIBA",
                "Model": "KPM6XRUG960G",
                "SerialNumber": "X1A0A00ZT0T8",
                "MediaType": "SSD",
                "Protocol": "SAS",
                "CapacityBytes": 960197124096,
                "BlockSizeBytes": 512,
                "Revision": "BJ02",
                "FailurePredicted": False,
                "Identifiers": [
                    {"DurableName": "nqn.2014-08.org.example:x", "DurableNameFormat": "NQN"},
                    {"DurableName": "58CE38EE22E1A2B1", "DurableNameFormat": "NAA"},
                ],
                **ENABLED,
            }
        },
    )


def test_inventory_of_dell_has_the_service_tag_and_every_part() -> None:
    ok = {"health": "OK", "state": "Enabled"}
    assert read(dell()) == {
        "collectionMethod": "redfish",
        "product": {
            "name": "System",
            "vendor": "Dell Inc.",
            "model": "PowerEdge R650",
            "serialNumber": "8YXW5K3",
            "status": ok,
        },
        "bios": {"firmwareVersion": "1.9.2"},
        "bmc": {"model": "15G Monolithic", "firmwareVersion": "5.10.10.05", "status": ok},
        "baseboard": {"serialNumber": "CNFCP0012A00BC", "model": "0PYXKYA03", "vendor": "Dell Inc."},
        "chassis": {"vendor": "Dell Inc.", "model": "PowerEdge R650", "serialNumber": "CNFCP0012A00BC"},
        "networkInterfaces": [
            {
                "vendor": "Broadcom Inc. and subsidiaries",
                "model": "BCM57414",
                "serialNumber": "VNFCP00198R",
                "firmwareVersion": "22.31.6",
                "ports": [
                    {
                        "portID": "NIC.Integrated.1-1-1",
                        "mac": "bc:97:e1:00:00:01",
                        "speedMbps": 25000,
                        "mtu": 1500,
                        "linkStatus": "Up",
                    },
                    {"portID": "NIC.Integrated.1-2-1", "mac": "bc:97:e1:00:00:02", "linkStatus": "Down"},
                ],
            }
        ],
        "cpu": {
            "totalCores": 24,
            "totalThreads": 48,
            "sockets": [
                {
                    "slot": "CPU.Socket.1",
                    "cores": 24,
                    "threads": 48,
                    "clockSpeedMHz": 4000,
                    "vendor": "Intel",
                    "model": "Intel(R) Xeon(R) Gold 5318Y",
                }
            ],
        },
        "memory": {
            "totalBytes": 64 << 30,
            "modules": [
                {
                    "slot": f"DIMM A{n}",
                    "partNumber": "M393A4K40DB3-CWE",
                    "sizeBytes": 32 << 30,
                    "speedMHz": 2933,
                    "formFactor": "RDIMM",
                    "vendor": "Samsung",
                    "serialNumber": f"0392310{n}",
                }
                for n in (2, 10)
            ],
        },
        "blockDevices": [
            {
                "controllerType": "SAS",
                "driveType": "SSD",
                "wwn": "58ce38ee22e1a2b1",
                "sizeBytes": 960197124096,
                "physicalBlockSizeBytes": 512,
                "smartStatus": "ok",
                "status": ok,
                "vendor": "TOSHIBA",
                "model": "KPM6XRUG960G",
                "serialNumber": "X1A0A00ZT0T8",
                "firmwareVersion": "BJ02",
            }
        ],
        "storageControllers": [{"vendor": "DELL", "firmwareVersion": "22.15", "description": "HBA355i", "status": ok}],
        "psus": [{"model": "PWR SPLY,800W", "description": "PS1 Status", "powerCapacityWatts": 800, "status": ok}],
        "tpms": [{"firmwareVersion": "7.2.2.0", "interfaceType": "TPM2_0", "status": ok}],
        "gpuDevices": [{"vendor": "NVIDIA", "model": "A100", "description": "Video.Slot.3-1", "status": ok}],
    }


def supermicro() -> dict[str, Raw]:
    """Return the documents of an X12: placeholders, the board in Oem, power supplies in Power, MACs of the System."""
    return served(
        collection(
            "Systems",
            **{
                "1": {
                    "Manufacturer": "Supermicro",
                    "Model": "SYS-510P-WTR",
                    "SerialNumber": "To be filled by O.E.M.",
                    "BiosVersion": "1.4",
                    "MemorySummary": {"TotalSystemMemoryGiB": 128},
                    "EthernetInterfaces": ref("Systems/1/EthernetInterfaces"),
                    "SimpleStorage": ref("Systems/1/SimpleStorage"),
                    "PCIeDevices": refs("Chassis/1/PCIeDevices/NIC1"),
                }
            },
        ),
        collection("Systems/1/SimpleStorage", **{"1": {"Devices": [{"Model": "Micron 7300", "CapacityBytes": 480e9}]}}),
        collection(
            "Systems/1/EthernetInterfaces",
            **{
                "2": {"MACAddress": "3C-EC-EF-00-00-02", "SpeedMbps": 1000, "LinkStatus": "LinkUp"},
                "1": {"MACAddress": "3CECEF000001", "SpeedMbps": None},
                "ToHost": {"MACAddress": "00:00:00:00:00:00"},
            },
        ),
        collection(
            "Chassis",
            **{
                "1": {
                    "Manufacturer": "Supermicro",
                    "SerialNumber": "0123456789",
                    "Oem": {"Supermicro": {"BoardSerialNumber": "VM21AS000001", "BoardID": "0x1c29"}},
                    "Power": ref("Chassis/1/Power"),
                }
            },
        ),
        {
            "Chassis/1/Power": {
                "PowerSupplies": [
                    {"SerialNumber": "P2K4ACK00000001", "PowerCapacityWatts": 500, "Name": "Power Supply"},
                    {"Name": "Power Supply", **ABSENT},
                ]
            }
        },
        {"Chassis/1/PCIeDevices/NIC1": {"Name": "Ethernet Controller X550", "Manufacturer": "Intel"}},
        collection(
            "Managers",
            **{
                "1": {
                    "FirmwareVersion": "01.02.14",
                    "EthernetInterfaces": ref("Managers/1/EthernetInterfaces"),
                }
            },
        ),
        collection("Managers/1/EthernetInterfaces", **{"1": {"MACAddress": "3c:ec:ef:00:00:fe", "SpeedMbps": 1000}}),
    )


def test_inventory_of_supermicro_leaves_placeholders_out() -> None:
    found = read(supermicro())
    assert found["product"] == {"vendor": "Supermicro", "model": "SYS-510P-WTR"}
    assert found["chassis"] == {"vendor": "Supermicro"}
    assert found["baseboard"] == {"serialNumber": "VM21AS000001", "model": "0x1c29", "vendor": "Supermicro"}
    assert found["networkInterfaces"] == [
        {"ports": [{"portID": "1", "mac": "3c:ec:ef:00:00:01"}]},
        {"ports": [{"portID": "2", "mac": "3c:ec:ef:00:00:02", "speedMbps": 1000, "linkStatus": "LinkUp"}]},
    ]
    assert found["memory"] == {"totalBytes": 128 << 30}
    assert found["blockDevices"] == [{"sizeBytes": 480_000_000_000, "model": "Micron 7300"}]
    assert [psu["serialNumber"] for psu in found["psus"]] == ["P2K4ACK00000001"]
    assert found["pciDevices"] == [{"vendor": "Intel", "model": "Ethernet Controller X550"}]
    assert found["bmc"]["nic"] == {"ports": [{"portID": "1", "mac": "3c:ec:ef:00:00:fe", "speedMbps": 1000}]}


def lenovo() -> dict[str, Raw]:
    """Return the documents of an XCC: the boot card's MAC address only at Ports; new Controllers, TrustedComponents."""
    adapter = "Chassis/1/NetworkAdapters/slot-2"
    return served(
        collection("Systems", **{"1": {"Manufacturer": "Lenovo", "Model": "SR650 V3", "SerialNumber": "J301A1B2"}}),
        {
            "Systems/1": {
                "Manufacturer": "Lenovo",
                "SerialNumber": "J301A1B2",
                "Storage": ref("Systems/1/Storage"),
                "Links": {"Chassis": refs("Chassis/1")},
            }
        },
        collection(
            "Chassis",
            **{
                "1": {
                    "NetworkAdapters": ref("Chassis/1/NetworkAdapters"),
                    "TrustedComponents": ref("Chassis/1/TrustedComponents"),
                }
            },
        ),
        collection("Chassis/1/TrustedComponents", TPM={"Manufacturer": "Nuvoton"}, RoT={"Manufacturer": "Lattice"}),
        collection(
            "Chassis/1/NetworkAdapters",
            **{"slot-2": {"Model": "ConnectX-6", "Ports": ref(f"{adapter}/Ports")}},
            empty=ABSENT,
        ),
        collection(
            f"{adapter}/Ports",
            **{
                "1": {
                    "Ethernet": {"AssociatedMACAddresses": ["B8:3F:D2:00:00:01", "B8:3F:D2:00:00:01"]},
                    "CurrentSpeedGbps": 25,
                    "LinkStatus": "LinkUp",
                }
            },
        ),
        collection("Systems/1/Storage", RAID={"Controllers": ref("Systems/1/Storage/RAID/Controllers")}),
        collection("Systems/1/Storage/RAID/Controllers", **{"1": {"Model": "RAID 940-8i", "Name": "RAID Controller"}}),
    )


def test_inventory_of_lenovo_has_the_mac_of_the_adapters_port() -> None:
    found = read(lenovo())
    ports = [{"portID": "1", "mac": "b8:3f:d2:00:00:01", "speedMbps": 25000, "linkStatus": "LinkUp"}]
    assert found["networkInterfaces"] == [{"model": "ConnectX-6", "ports": ports}]
    assert found["storageControllers"] == [{"model": "RAID 940-8i", "description": "RAID Controller"}]
    assert found["tpms"] == [{"vendor": "Nuvoton"}]


def test_functions_are_fetched_only_if_no_port_has_a_mac() -> None:
    bmc = lenovo()
    adapter = f"{V1}/Chassis/1/NetworkAdapters/slot-2"
    bmc[adapter]["NetworkDeviceFunctions"] = {"@odata.id": f"{adapter}/NetworkDeviceFunctions"}
    assert f"{adapter}/NetworkDeviceFunctions" not in fetched(bmc)
    del bmc[f"{adapter}/Ports/1"]["Ethernet"]
    functions = collection(
        "Chassis/1/NetworkAdapters/slot-2/NetworkDeviceFunctions",
        **{"1": {"Ethernet": {"PermanentMACAddress": "b8:3f:d2:00:00:02", "MTUSize": 9000}}},
    )
    bmc |= {f"{V1}/{path}": document for path, document in functions.items()}
    (interface,) = read(bmc)["networkInterfaces"]
    assert interface["ports"] == [{"portID": "1", "mac": "b8:3f:d2:00:00:02", "mtu": 9000}]


async def test_redfish_client_fetches_the_documents_of_an_inventory() -> None:
    documents: dict[str, Raw | None] = {}
    async with RedfishClient(CONNECTION, CREDENTIALS, transport=MemoryTransport(FakeBmc())) as client:
        while paths := next_paths(documents):
            documents |= {path: await client.get(path) for path in paths}
    found = inventory(documents)
    assert_stored_whole(found)
    assert found["product"]["serialNumber"] == "437XR1138R2"
    assert [port["mac"] for each in found["networkInterfaces"] for port in each["ports"]] == ["52:54:00:00:00:01"]
    assert {"bmc", "bios", "chassis", "cpu", "memory", "blockDevices", "psus"} <= set(found)


# --- partial ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("maker", [dell, supermicro, lenovo])
def test_each_missing_document_costs_its_part_only(maker: Any) -> None:
    whole = read(maker())
    for path in maker():
        bmc = maker()
        del bmc[path]
        partial = read(bmc)
        if path in (SERVICE_ROOT, f"{V1}/Systems") or path.rpartition("/")[0] == f"{V1}/Systems":
            assert partial == {}
        else:
            assert partial["product"] == whole["product"], path
            assert set(partial) <= set(whole)


def test_documents_that_are_not_served_are_not_asked_for_again() -> None:
    assert next_paths({SERVICE_ROOT: None}) == []
    assert inventory({SERVICE_ROOT: None}) == {}


def test_chosen_system_is_the_named_one() -> None:
    bmc = served(collection("Systems", HGX={"Model": "GPU tray"}, Host={"Model": "Server"}))
    assert read(bmc)["product"]["model"] == "GPU tray"
    assert read(bmc, "Host")["product"]["model"] == "Server"
    assert read(bmc, "Other") == {}
    for field in ("Name", "HostName"):
        bmc[f"{V1}/Systems/Host"][field] = f"by {field}"
        assert read(bmc, f"by {field}")["product"]["model"] == "Server"


def test_manager_and_chassis_without_links_are_those_of_the_service_root() -> None:
    bmc = dell()
    del bmc[f"{V1}/Systems/System.Embedded.1"]["Links"]
    assert read(bmc) == read(dell())


def test_order_of_members_does_not_change_the_inventory() -> None:
    expected, shuffled = read(dell()), dell()
    for document in shuffled.values():
        if "Members" in document:
            document["Members"].reverse()
    assert read(shuffled) == expected


def test_pages_of_a_collection_are_followed() -> None:
    bmc = dell()
    memory = bmc[f"{V1}/Systems/System.Embedded.1/Memory"]
    following = f"{V1}/Systems/System.Embedded.1/Memory?$skip=1"
    bmc[following] = {"Members": memory["Members"][1:]}
    memory |= {"Members": memory["Members"][:1], "Members@odata.nextLink": following}
    assert read(bmc) == read(dell())


# --- hostile ----------------------------------------------------------------------------------------------------------


def test_collection_that_never_ends_is_cut_off() -> None:
    bmc = dell()
    memory = f"{V1}/Systems/System.Embedded.1/Memory"
    bmc[memory]["Members@odata.nextLink"] = memory
    assert read(bmc)["memory"]["totalBytes"] <= 64 * (32 << 30)
    endless = {f"{memory}?{n}": {"Members": [], "Members@odata.nextLink": f"{memory}?{n + 1}"} for n in range(600)}
    bmc[memory]["Members@odata.nextLink"] = f"{memory}?0"
    assert len(fetched(bmc | endless)) < 100


def test_number_of_documents_and_of_items_is_limited() -> None:
    bmc = dell()
    system = "Systems/System.Embedded.1"
    for name in ("Processors", "Memory", "EthernetInterfaces"):
        many = {f"X{n}": {"CapacityMiB": 1, "MACAddress": f"02:00:00:00:00:{n % 256:02x}"} for n in range(5000)}
        bmc |= {f"{V1}/{path}": document for path, document in collection(f"{system}/{name}", **many).items()}
    for n in range(64):
        storage = collection(
            f"{system}/Storage", **{f"S{m}": {"Drives": refs(*(f"D/{m}/{d}" for d in range(64)))} for m in range(64)}
        )
        bmc |= {f"{V1}/{path}": document for path, document in storage.items()}
        bmc |= {f"{V1}/D/{n}/{d}": {"CapacityBytes": 1} for d in range(64)}
    assert len(fetched(bmc)) == MAX_DOCUMENTS
    found = read(bmc)
    assert len(found["memory"]["modules"]) == 64
    assert len(found["blockDevices"]) <= 64


def test_documents_that_refer_to_the_same_documents_again_and_again_are_read_a_limited_number_of_times() -> None:
    reads = 0

    class Counted(dict[str, Any]):
        def get(self, key: str, default: Any = None) -> Any:
            nonlocal reads
            reads += key == "LinkStatus"
            return super().get(key, default)

    adapter, ports = "Chassis/1/NetworkAdapters/1", "Chassis/1/NetworkAdapters/1/Ports"
    bmc = served(
        collection("Systems", **{"1": {"Model": "x", "Links": {"Chassis": refs(*["Chassis/1"] * 64)}}}),
        {"Chassis/1": {"NetworkAdapters": ref("Chassis/1/NetworkAdapters")}},
        {"Chassis/1/NetworkAdapters": {"Members": refs(*[adapter] * 64)}},
        {adapter: {"Ports": ref(ports)}, ports: {"Members": refs(*[f"{ports}/1"] * 64)}},
        {f"{ports}/1": Counted(LinkStatus="LinkUp")},
    )
    read(bmc)
    assert reads < 10_000


@pytest.mark.parametrize(
    "path",
    [
        "http://192.0.2.66/redfish/v1/Systems/1",
        "//192.0.2.66/redfish/v1/Systems/1",
        "/etc/passwd",
        "/redfish/../etc/passwd",
        "/redfish/v1/Systems/..",
        "/redfish/v1/Systems/1\r\nHost: x",
        "/redfish/v1/" + "x" * 1000,
        "",
        None,
        7,
        ["/redfish/v1/Systems/1"],
    ],
)
def test_path_that_leads_elsewhere_is_not_followed(path: object) -> None:
    assert fetched(served({"Systems": {"Members": [{"@odata.id": path}]}})).keys() == {SERVICE_ROOT, f"{V1}/Systems"}


def test_texts_have_one_line_no_control_characters_and_256_characters() -> None:
    bmc = dell()
    system = bmc[f"{V1}/Systems/System.Embedded.1"]
    system |= {"Model": "a\x1b[31m\u202eb\ud800\x00c\r\n d", "Name": "n" * 100_000, "BiosVersion": ["1"]}
    found = read(bmc)
    assert found["product"]["model"] == "a [31m b c d"
    assert found["product"]["name"] == "n" * 256
    assert "bios" not in found


@pytest.mark.parametrize(
    "serial",
    [
        "NA",
        "n/a",
        "To Be Filled By O.E.M.",
        "0000000000",
        "00:00",
        "Default string",
        " ",
        "0123456789",
        "XXXXXXXX",
        "FFFFFFFF",
        "None",
        7,
        None,
        True,
    ],
)
def test_placeholder_is_no_serial_number(serial: object) -> None:
    bmc = lenovo()
    bmc[f"{V1}/Systems/1"]["SerialNumber"] = serial
    assert read(bmc)["product"] == {"vendor": "Lenovo"}


@pytest.mark.parametrize("size", [-1, 0, 2**63, 10**400, float("inf"), float("nan"), "5", True, None, [], 1e300])
def test_number_out_of_range_is_absent(size: object) -> None:
    bmc = dell()
    bmc[f"{V1}/Systems/System.Embedded.1/Storage/NonRAID/Drives/Disk.0"]["CapacityBytes"] = size
    (drive,) = read(bmc)["blockDevices"]
    assert "sizeBytes" not in drive


@pytest.mark.parametrize(
    ("text", "mac"),
    [
        ("52:54:00:AA:bb:01", "52:54:00:aa:bb:01"),
        ("52-54-00-AA-BB-01", "52:54:00:aa:bb:01"),
        (" 525400AABB01 ", "52:54:00:aa:bb:01"),
        ("52:54-00:aa:bb:01", ""),
        ("01:00:5e:00:00:01", ""),
        ("ff:ff:ff:ff:ff:ff", ""),
        ("00:00:00:00:00:00", ""),
        ("7c:fe:90:03:00:29:26:52", ""),
        ("٥2:54:00:aa:bb:01", ""),
        (None, ""),
    ],
)
def test_mac_address_is_unicast_and_in_lower_case(text: object, mac: str) -> None:
    assert mac_address(text) == mac


def mutilated(value: Any, chance: random.Random) -> Any:
    """Return a document of which parts are replaced by values of wrong types, references to anywhere, or long lists."""
    if chance.random() < 0.03:
        wrong = [
            None,
            True,
            -1,
            2**70,
            1e308,
            float("nan"),
            "",
            "\x00\ud800",
            "9" * 9999,
            [],
            {},
            [[]],
            {"@odata.id": 5},
        ]
        return chance.choice([*wrong, [value] * 70, {"Members": value}, ref("Systems"), {"@odata.id": SERVICE_ROOT}])
    if isinstance(value, dict):
        return {name: mutilated(child, chance) for name, child in value.items()}
    if isinstance(value, list):
        return [mutilated(child, chance) for child in value]
    return value


@pytest.mark.parametrize("seed", range(150))
def test_hostile_documents_give_an_inventory_that_the_api_takes(seed: int) -> None:
    chance = random.Random(seed)
    bmc = {path: mutilated(document, chance) for path, document in chance.choice([dell, supermicro, lenovo])().items()}
    read(bmc)
