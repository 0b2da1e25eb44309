"""The four resources of `tinkerbell.org/v1alpha2`: Hardware, OSIE, Template, Workflow.

These pydantic models are the only source of the schema. `tink.api.crds` generates the CustomResourceDefinitions from
them, with the rules of `tink.api.rules` and the bounds of `tink.api.bounds`, and every component reads objects through
them. The API server enforces rules and bounds; a model also reads objects that an older schema admitted. Objects that
are written back to the API are patched as raw dictionaries, never dumped from a model, so that fields of a newer
version survive.

Field names, defaults and patterns follow the final revision of the CRD refactor proposal, with its errors corrected:
anchored address patterns, VLAN 1-4094, the stray quote of the hostname pattern. `kubectl explain` prints every
description.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, StringConstraints
from pydantic.alias_generators import to_camel
from pydantic.config import JsonDict
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from tink.api import bounds, patterns, rules
from tink.api.rules import checked
from tink.api.schema import UNCHECKED

TIME: JsonDict = {"format": "date-time"}


def map_list(key: str) -> JsonDict:
    """Return the schema of a list whose items have unique keys: the API server refuses duplicates, and server-side
    apply merges by key.
    """
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}


class Model(BaseModel):
    """Base of every resource model: camelCase on the wire, immutable here, unknown fields left alone."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore", hide_input_in_errors=True
    )


def optional(description: str, *, extra: JsonDict | None = None, **bounds: Any) -> Any:
    """Return a field that may be absent. It has no default, so the API writes none. `extra` is for its schema
    (`checked`).
    """
    return Field(default=None, description=description, json_schema_extra=extra, **bounds)


class ObjectMeta(Model):
    """The part of Kubernetes' ObjectMeta that this program reads (Kubernetes API conventions, "Metadata")."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    # Factories, because pydantic would deep-copy a default value for each of a hundred thousand objects.
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    finalizers: list[str] = Field(default_factory=list)


class ConditionStatus(StrEnum):
    """Kubernetes API conventions, "Typical status properties"."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(Model):
    """An observation on a resource that is generally attainable by inspecting other status fields."""

    type: str = Field(description="Type of condition.")
    status: ConditionStatus = Field(description="Status of the condition: True, False or Unknown.")
    reason: str | None = optional("A short CamelCase description of the condition's last transition.")
    message: str | None = optional("A human readable message with details about the last transition.")
    last_transition_time: str | None = optional(
        "When status changed last; a change of reason or message alone leaves it. Absent: it is as it was at first.",
        extra=TIME,
    )


GROUP = "tinkerbell.org"
RUFIO_GROUP = "bmc.tinkerbell.org"
"""The group of the Machines that `spec.bmcRef` of a Hardware refers to (`tink.api.bmc`)."""
RUFIO_VERSION = "v1alpha1"
VERSION = "v1alpha2"
API_VERSION = f"{GROUP}/{VERSION}"

FINALIZER = "tinkerbell.org/workflow"
"""The controller sets it when it prepares a Workflow, and removes it when the Workflow has ended."""

BOOT_FINALIZER = "tinkerbell.org/boot"
"""BMC control sets it on a Workflow before it changes the machine, and removes it after the clean-up."""

# These patterns are for reading. They are more lenient than those of `tink.api.patterns`, which the API enforces.
_HOSTNAME_PATTERN = (
    r"^(([a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9\-]*[a-zA-Z0-9])\.)*([A-Za-z0-9]|[A-Za-z0-9][A-Za-z0-9\-]*[A-Za-z0-9])$"
)
_VLAN_PATTERN = r"^([1-9][0-9]{0,2}|[1-3][0-9]{3}|40[0-8][0-9]|409[0-4])$"
_DEVICE_PATTERN = r"^(/[^/ ]+)+/?$"
_URL_PATTERN = r"^(https?|file)://.+$"
_HTTP_URL_PATTERN = r"^https?://.+$"


class Resource(Model):
    """Any of the four resources."""

    api_version: str = API_VERSION
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()


class LocalObjectReference(Model):
    """Refers to an object in the same namespace."""

    model_config = ConfigDict(json_schema_extra={"x-kubernetes-map-type": "atomic"})

    name: str = Field(
        default="",
        json_schema_extra=checked(rules.OBJECT_NAME, maxLength=bounds.MAX_NAME_CHARACTERS),
        description="Name of the referent, in the namespace of this object.",
    )


# --- Hardware ---------------------------------------------------------------------------------------------------

IPv4 = Annotated[
    str,
    StringConstraints(pattern=patterns.IPV4),
    Field(json_schema_extra=checked(rules.IPV4, maxLength=bounds.MAX_ADDRESS_CHARACTERS)),
]
IPv6 = Annotated[
    str,
    StringConstraints(pattern=patterns.IPV6),
    Field(json_schema_extra=checked(rules.IPV6, rules.UNICAST_IPV6, maxLength=bounds.MAX_ADDRESS_CHARACTERS)),
]
HostOrIP = Annotated[
    str,
    StringConstraints(pattern=_HOSTNAME_PATTERN),
    Field(json_schema_extra=checked(rules.SERVER, maxLength=bounds.MAX_NAME_CHARACTERS)),
]
StorageDevice = Annotated[
    str,
    StringConstraints(pattern=_DEVICE_PATTERN),
    Field(json_schema_extra=checked(rules.DEVICE_PATH, rules.WHOLE_DISK, maxLength=bounds.MAX_DEVICE_PATH_CHARACTERS)),
]
KernelParam = Annotated[
    str, Field(json_schema_extra=checked(rules.KERNEL_PARAM, maxLength=bounds.MAX_KERNEL_PARAM_CHARACTERS))
]


class DHCPv6(Model):
    """The IPv6 address of an interface, which DHCPv6 (RFC 8415) assigns for any identity association.

    There is no gateway here: DHCPv6 has no option for it, and routers advertise themselves.
    """

    address: IPv6 = Field(
        description="IPv6 address to serve, in lower case, such as 2001:db8::10. No two Hardware of the cluster may "
        "have the same; several interfaces of one Hardware may. There is no field for the default route: routers "
        "advertise it."
    )
    prefix_length: int = Field(
        default=64,
        ge=1,
        le=128,
        description="Length of the prefix of the interface's network, for operating systems whose address is static. "
        "Default: 64.",
    )
    nameservers: list[IPv6] | None = optional(
        "Nameservers to serve over DHCPv6, by their IPv6 addresses.", extra=checked(maxItems=bounds.MAX_SERVERS)
    )


class DHCP(Model):
    """Basic network configuration to be served in DHCP replies: a DHCP reservation."""

    model_config = ConfigDict(json_schema_extra=checked(rules.GATEWAY_IN_SUBNET))

    ip: IPv4 | None = optional(
        "IPv4 address to serve. No two Hardware of the cluster may have the same. Several interfaces of one Hardware "
        "may: the members of a bond, or a card and its spare."
    )
    netmask: Annotated[str, StringConstraints(pattern=patterns.NETMASK)] | None = optional(
        "IPv4 netmask to serve.", extra=checked(rules.NETMASK, maxLength=bounds.MAX_ADDRESS_CHARACTERS)
    )
    gateway: IPv4 | None = optional(
        "Default gateway address to serve, in the subnet of ip and netmask (unless netmask is 255.255.255.255)."
    )
    hostname: Annotated[str, StringConstraints(pattern=_HOSTNAME_PATTERN)] | None = optional(
        "Host name to serve.", extra=checked(rules.HOSTNAME, maxLength=bounds.MAX_NAME_CHARACTERS)
    )
    ipv6: DHCPv6 | None = optional("IPv6 address to serve, beside ip or in its place.")
    vlan_id: Annotated[str, StringConstraints(pattern=_VLAN_PATTERN)] | None = optional(
        'VLAN ID between 1 and 4094, as a string, e.g. "100".',
        extra=checked(rules.VLAN, maxLength=bounds.MAX_VLAN_CHARACTERS),
    )
    nameservers: list[HostOrIP] | None = optional(
        "Nameservers to serve: IPs or host names. DHCP carries the IPs only.",
        extra=checked(maxItems=bounds.MAX_SERVERS),
    )
    timeservers: list[HostOrIP] | None = optional(
        "Timeservers to serve: IPs or host names. DHCP carries the IPs only.",
        extra=checked(maxItems=bounds.MAX_SERVERS),
    )
    lease_time_seconds: int = Field(
        default=86400,
        ge=0,
        le=bounds.MAX_LEASE_SECONDS,
        description="Lease time to serve, in seconds. Default: 24 hours. Maximum: that of RFC 2132 section 9.2.",
    )


class NetworkInterface(Model):
    """The desired configuration of one network interface."""

    dhcp: DHCP | None = optional("Basic network information for serving DHCP requests.")
    disable_dhcp: bool = Field(default=False, description="Disables DHCP for this interface. Implies disableNetboot.")
    disable_netboot: bool = Field(
        default=False,
        description="Disables netbooting for this interface. The interface still receives its network configuration "
        "by DHCP.",
    )


class IPXE(Model):
    """Overrides for the iPXE script. At least one option must be given."""

    model_config = ConfigDict(json_schema_extra=checked(rules.SOME_SCRIPT))

    inline: str | None = optional("An inline iPXE script.", extra=checked(maxLength=bounds.MAX_DATA_CHARACTERS))
    url: Annotated[str, StringConstraints(pattern=_HTTP_URL_PATTERN)] | None = optional(
        "URL of a hosted iPXE script (http or https).",
        extra=checked(rules.HTTP_URL, maxLength=bounds.MAX_URL_CHARACTERS),
    )


class Instance(Model):
    """Instance specific data, served to the machine's permanent operating system by the metadata service."""

    userdata: str | None = optional(
        "Data with a structure understood by the producer and the consumer of the data, e.g. #cloud-config.",
        extra=checked(maxLength=bounds.MAX_DATA_CHARACTERS),
    )
    vendordata: str | None = optional(
        "Data with a structure understood by the producer and the consumer of the data.",
        extra=checked(maxLength=bounds.MAX_DATA_CHARACTERS),
    )


class HardwareSpec(Model):
    """The desired state of a machine."""

    network_interfaces: dict[str, NetworkInterface] = Field(
        default={},
        min_length=1,
        json_schema_extra=checked(rules.MAC_KEYS, maxProperties=bounds.MAX_INTERFACES),
        description="Network interfaces by MAC address (lower case, colons). Defines the desired DHCP and netboot "
        "configuration of each. No two Hardware of the cluster may have the same MAC address. The MAC address of an "
        "InfiniBand port consists of the first three and the last three bytes of its GUID: 7c:fe:90:29:26:52 for "
        "7c:fe:90:03:00:29:26:52.",
    )
    ipxe: IPXE | None = optional(
        "iPXE script overrides, for debugging or for netboot customisation. Give inline or url."
    )
    osie: LocalObjectReference | None = optional("The Operating System Installation Environment to be netbooted.")
    kernel_params: list[KernelParam] | None = optional(
        "Parameters passed to the kernel when the OSIE is launched, joined with a space.",
        extra=checked(maxItems=bounds.MAX_KERNEL_PARAMS),
    )
    instance: Instance | None = optional("Instance specific data that is generally unused by Tinkerbell itself.")
    storage_devices: list[StorageDevice] | None = optional(
        "Storage devices that will be available in the OSIE, as Linux paths without partitions, "
        "e.g. /dev/sda or /dev/nvme0n1.",
        extra=checked(maxItems=bounds.MAX_DISKS),
    )
    bmc_ref: LocalObjectReference | None = optional(
        "The Machine (bmc.tinkerbell.org) whose BMC controls the power and the boot device of this machine, in the "
        "namespace of this object."
    )


# --- Hardware inventory -----------------------------------------------------------------------------------------


def _fact(description: str, **field: Any) -> Any:
    """Return a text of an inventory."""
    return optional(description, extra=checked(maxLength=bounds.MAX_INVENTORY_CHARACTERS), **field)


def _amount(description: str, **field: Any) -> Any:
    """Return a number of an inventory."""
    return optional(description, ge=0, **field)


def _parts(description: str) -> Any:
    """Return a list of components."""
    return optional(description, extra=checked(maxItems=bounds.MAX_INVENTORY_ITEMS))


class ComponentStatus(Model):
    """Health and state of a component."""

    health: str | None = _fact("Health of the component: OK, Warning or Critical.")
    state: str | None = _fact("State of the component, such as Enabled or Disabled.")
    post_code: int | None = optional("Last code of the power-on self-test, from Rufio alone.")
    post_code_status: str | None = _fact("Meaning of that code, from Rufio alone.")


class Component(Model):
    """The fields that most components of a machine have."""

    vendor: str | None = _fact("Manufacturer of the component.")
    model: str | None = _fact("Model of the component.")
    serial_number: str | None = _fact("Serial number of the component. Absent if firmware reports a placeholder.")


class FirmwareComponent(Component):
    """A component with firmware."""

    firmware_version: str | None = _fact("Version of the component's firmware.")


class MonitoredComponent(FirmwareComponent):
    """A component with firmware whose BMC reports its health."""

    status: ComponentStatus | None = optional("Health and state of the component.")


class CPUSocket(FirmwareComponent):
    """A processor."""

    slot: str | None = _fact("Socket of the processor, such as CPU1.")
    cores: int | None = _amount("Number of cores.")
    threads: int | None = _amount("Number of threads.")
    clock_speed_mhz: int | None = _amount("Maximum clock speed in MHz.", alias="clockSpeedMHz")


class CPU(Model):
    """The processors of a machine."""

    total_cores: int | None = _amount("Number of cores of all processors.")
    total_threads: int | None = _amount("Number of threads of all processors.")
    sockets: list[CPUSocket] | None = _parts("The processors.")


class MemoryModule(FirmwareComponent):
    """A memory module."""

    slot: str | None = _fact("Slot of the module, such as DIMM.A1.")
    part_number: str | None = _fact("Part number of the module.")
    size_bytes: int | None = _amount("Size in bytes.")
    speed_mhz: int | None = _amount("Speed in MHz.", alias="speedMHz")
    form_factor: str | None = _fact("Form of the module, such as RDIMM.")


class Memory(Model):
    """The memory of a machine."""

    total_bytes: int | None = _amount("Size of the installed memory in bytes.")
    modules: list[MemoryModule] | None = _parts("The memory modules. Empty slots are left out.")


class BlockDevice(MonitoredComponent):
    """A drive."""

    name: str | None = _fact("Path of the drive in Linux, such as /dev/nvme0n1. In-band alone.")
    controller_type: str | None = _fact("Protocol of the drive, such as SATA, SAS or NVMe.")
    drive_type: str | None = _fact("Kind of the drive: HDD or SSD.")
    wwn: str | None = _fact("World Wide Name of the drive, in lower case.")
    size_bytes: int | None = _amount("Size in bytes.")
    physical_block_size_bytes: int | None = _amount("Size of a physical block in bytes.")
    logical_block_size_bytes: int | None = _amount("Size of a logical block in bytes: the sector size. In-band alone.")
    smart_status: str | None = _fact("Forecast of the drive: ok or predict-failure.")


class LldpNeighbour(Model):
    """The port of a switch that a network port is connected to, as the switch describes it (IEEE 802.1AB)."""

    chassis_id: str | None = _fact("Chassis ID of the switch, such as its MAC address.", alias="chassisID")
    system_name: str | None = _fact("Name of the switch.")
    port_id: str | None = _fact("Port ID on the switch, such as Ethernet1/7.", alias="portID")
    port_description: str | None = _fact("Description of the port on the switch.")
    vlan_id: int | None = _amount("Untagged VLAN of the port (IEEE 802.1Q).", alias="vlanID")


class NetworkPort(Model):
    """A port of a network adapter."""

    name: str | None = _fact("Name of the port in Linux, such as eno1. In-band alone.")
    pci_address: str | None = _fact("PCI address of the port, such as 0000:01:00.0. In-band alone.")
    port_id: str | None = _fact("Name of the port on the BMC, such as NIC.Embedded.1-1-1.", alias="portID")
    mac: str | None = _fact("MAC address of the port, in lower case with colons.")
    speed_mbps: int | None = _amount("Present speed in Mbit/s.")
    mtu: int | None = _amount("MTU in bytes.")
    link_status: str | None = _fact("Link of the port, such as LinkUp or LinkDown.")
    lldp: LldpNeighbour | None = optional("The switch port at the other end of the cable. In-band alone.")


class NetworkAdapter(FirmwareComponent):
    """A network adapter, or a port whose adapter the BMC does not report."""

    ports: list[NetworkPort] | None = _parts("The ports, one for each MAC address.")


class Product(Component):
    """The machine itself."""

    name: str | None = _fact("Name of the machine's System on the BMC.")
    uuid: str | None = _fact("UUID of the machine in lower case (SMBIOS 3.7 section 7.2.1).")
    status: ComponentStatus | None = optional("Health and state of the machine.")


class BMC(MonitoredComponent):
    """The management controller of a machine."""

    nic: NetworkAdapter | None = optional("The management controller's own network interface.")
    address: str | None = _fact("IP address of the management controller, as the machine reads it. In-band alone.")


class DescribedComponent(MonitoredComponent):
    """A component whose BMC has a name for it."""

    description: str | None = _fact("Name of the component on the BMC.")


class PSU(DescribedComponent):
    """A power supply."""

    power_capacity_watts: int | None = _amount("Capacity in watts.")


class TPM(MonitoredComponent):
    """A trusted platform module."""

    interface_type: str | None = _fact("Interface of the TPM, such as TPM2_0.")


class PCIDevice(Model):
    """A PCI device."""

    vendor: str | None = _fact("Manufacturer of the device. In-band: its PCI vendor ID, such as 0x8086.")
    model: str | None = _fact("Model of the device. In-band: its PCI device ID, such as 0x1572.")
    pci_address: str | None = _fact("PCI address of the device, such as 0000:01:00.0. In-band alone.")
    class_code: str | None = _fact("PCI class code of the device, such as 0x020000. In-band alone.")
    driver: str | None = _fact("Linux driver of the device. In-band alone.")


class FirmwareMode(StrEnum):
    """The mode in which the firmware booted the machine."""

    UEFI = "UEFI"
    BIOS = "BIOS"


class FirmwareState(Model):
    """How the firmware booted the machine."""

    mode: FirmwareMode | None = optional("Mode of the firmware: UEFI or BIOS.")
    secure_boot: bool | None = optional("True if Secure Boot is on.")


class Attributes(Model):
    """A machine as its BMC or its agent describes it. A field that the source does not report is absent."""

    last_updated: str | None = optional("When the inventory was read last.", extra=TIME)
    collection_method: str | None = _fact("Source of the inventory: redfish, agent, or tink-agent.")
    architecture: str | None = _fact("Architecture of the machine as Linux names it, such as x86_64. In-band alone.")
    firmware: FirmwareState | None = optional("How the firmware booted the machine. In-band alone.")
    clock_offset_seconds: float | None = optional(
        "Seconds by which the clock of the machine was ahead of the server's. In-band alone."
    )
    product: Product | None = optional("The machine itself.")
    bios: MonitoredComponent | None = optional("The firmware of the machine.")
    bmc: BMC | None = optional("The management controller.")
    baseboard: DescribedComponent | None = optional("The main board, of vendors whose BMC reports it.")
    chassis: Component | None = optional("The chassis.")
    cpu: CPU | None = optional("The processors.")
    memory: Memory | None = optional("The memory.")
    block_devices: list[BlockDevice] | None = _parts("The drives.")
    network_interfaces: list[NetworkAdapter] | None = _parts(
        "The network adapters with the MAC addresses of their ports. spec.networkInterfaces decides what is served."
    )
    gpu_devices: list[DescribedComponent] | None = _parts("GPUs and other accelerators.")
    pci_devices: list[PCIDevice] | None = _parts("PCI devices.")
    psus: list[PSU] | None = _parts("The power supplies.")
    tpms: list[TPM] | None = _parts("The trusted platform modules.")
    storage_controllers: list[DescribedComponent] | None = _parts("The storage controllers.")


class Inventory(Model):
    """Observed components of a machine, one part for each source."""

    out_of_band: Attributes | None = optional(
        "The machine as its BMC describes it, in the shape of Rufio's status.attributes.outOfBand. Read by Redfish, "
        "once a day."
    )
    in_band: Attributes | None = optional(
        "The machine as its agent describes it, in the same shape. Collected at every start of the agent in the OSIE."
    )


class _InventorySchema:
    """Gives a mapping the schema of `Inventory`."""

    @staticmethod
    def __get_pydantic_json_schema__(_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return handler(Inventory.__pydantic_core_schema__)


RawInventory = Annotated[dict[str, Any], _InventorySchema]
"""An inventory as it came from the API. Reading it makes no object for each of a machine's hundred components."""


class PowerState(StrEnum):
    """The state of a machine's power."""

    ON = "on"
    OFF = "off"
    UNKNOWN = "unknown"


class BootClient(StrEnum):
    """The DHCP client that begins a boot."""

    NETBOOT = "Netboot"
    OPERATING_SYSTEM = "OperatingSystem"


class LastBoot(Model):
    """The last boot of a machine, as an edge has seen it by DHCP."""

    at: str | None = optional(
        "When the first DHCP packet of this boot arrived. Two boots are at least 5 s apart.", extra=TIME
    )
    client: BootClient | None = optional(
        "The DHCP client that sent the packet. Netboot: the firmware or iPXE. OperatingSystem: an installed system, "
        "so the machine did not netboot."
    )
    mac: str | None = optional("MAC address of the interface that sent the packet.")


class HardwareStatus(Model):
    """The observed state of a machine. Edges write it."""

    state: str | None = optional(
        "The phase of the machine. Netbooting: from its first DHCP packet to the start of the kernel. InOSIE: "
        "the installation environment is up. Waiting: its agent is connected and has no Workflow. Working: the agent "
        "runs a Workflow. Failed: its last Workflow failed. Installed: its last Workflow succeeded, or its installed "
        "system has sent a packet. Absent: the machine has never sent a packet."
    )
    state_since: str | None = optional("When state changed last.", extra=TIME)
    mac: str | None = optional(
        "MAC address of the interface that sent the last packet; before that, of the first interface."
    )
    ip: str | None = optional("The reserved address of the interface in mac.")
    boot_problem: str | None = optional(
        "The reason why the machine does not boot: the reason of the condition BootProblem while that is True."
    )
    power: PowerState | None = optional(
        "State of the machine's power as its BMC reported it last: on, off or unknown. Absent: the Hardware has no BMC."
    )
    last_boot: LastBoot | None = optional("The last boot of the machine, as an edge has seen it by DHCP.")
    conditions: list[Condition] | None = optional(
        "Observations about the machine. AddressConflict: it found another host at its address and declined it. "
        "Misconfigured: this object has values that can't work. BootProblem: why the machine does not boot; False with "
        "the reason GetsOn when it boots again. AsExpected: whether the machine is the one that the list of expected "
        "machines and its BMC describe; False names the difference.",
        extra=map_list("type"),
    )
    inventory: RawInventory | None = optional("Observed components of the machine, one part for each source.")


class Hardware(Resource):
    """A logical representation of a machine that can execute Workflows."""

    kind: str = "Hardware"
    spec: HardwareSpec = HardwareSpec()
    status: HardwareStatus = HardwareStatus()


# --- OSIE -------------------------------------------------------------------------------------------------------

ArtifactURL = Annotated[
    str,
    StringConstraints(pattern=_URL_PATTERN),
    Field(json_schema_extra=checked(rules.ARTIFACT_URL, maxLength=bounds.MAX_URL_CHARACTERS)),
]


class OSIESpec(Model):
    """The URLs of the kernel and the initrd."""

    kernel_url: ArtifactURL = Field(description="URL of a kernel image (http, https or file).")
    initrd_url: ArtifactURL = Field(description="URL of an initrd image (http, https or file).")


class OSIE(Resource):
    """An Operating System Installation Environment, which a machine netboots. It starts the agent."""

    kind: str = "OSIE"
    spec: OSIESpec


# --- Template ---------------------------------------------------------------------------------------------------


Text = Annotated[str, Field(json_schema_extra=checked(maxLength=bounds.MAX_TEXT_CHARACTERS))]
"""One argument, or the value of one variable."""
Volume = Annotated[str, Field(json_schema_extra=checked(rules.VOLUME, maxLength=bounds.MAX_VOLUME_CHARACTERS))]


def _env() -> JsonDict:
    return checked(rules.ENV_NAMES, maxProperties=bounds.MAX_VARIABLES)


class Action(Model):
    """An individual action to be run on a target machine."""

    name: str = Field(
        min_length=1,
        json_schema_extra=checked(rules.ACTION_NAME, maxLength=bounds.MAX_NAME_CHARACTERS),
        description="Name of the action, unique within the Template. Not a template.",
    )
    image: str = Field(
        min_length=1,
        json_schema_extra=checked(rules.IMAGE, maxLength=bounds.MAX_IMAGE_CHARACTERS),
        description="An OCI image.",
    )
    cmd: str | None = optional(
        "Command to use when launching the image (its entrypoint).", extra=checked(maxLength=bounds.MAX_TEXT_CHARACTERS)
    )
    args: list[Text] | None = optional(
        "Arguments passed to the container on launch. Linux accepts at most 131071 bytes for each.",
        extra=checked(maxItems=bounds.MAX_ARGS),
    )
    env: dict[str, Text] | None = optional(
        "Environment variables of the container. Linux accepts at most 131071 bytes for each NAME=VALUE.", extra=_env()
    )
    volumes: list[Volume] | None = optional(
        "Volumes to mount into the container, as {SRC-VOLUME-NAME | SRC-HOST-DIR}:TGT-CONTAINER-DIR:OPTIONS"
        ", e.g. /etc/data:/data:ro.",
        extra=checked(maxItems=bounds.MAX_VOLUMES),
    )
    network_namespace: str | None = optional(
        'Network namespace to run the container in, e.g. "host".',
        extra=checked(maxLength=bounds.MAX_NAMESPACE_CHARACTERS),
    )
    pid_namespace: str | None = optional(
        'PID namespace to run the container in: "host" for the machine\'s own, in which the action sees all processes. '
        "Absent: one of its own, unless the action reboots.",
        extra=checked(maxLength=bounds.MAX_NAMESPACE_CHARACTERS),
    )
    timeout: int | None = optional(
        "Seconds the action may take. 0 or absent: the controller's --action-timeout, by default none.", ge=0
    )
    reboots: bool | None = optional(
        "True if the action restarts the machine or starts another kernel on it, so that no agent is left to report "
        "its end. The action has succeeded when the agent disconnects or starts again. Only the last action may have "
        "this. It runs in the machine's own PID namespace, because a container can't restart the machine from "
        "another one."
    )


class TemplateSpec(Model):
    """Actions, and the volumes and environment variables that they share."""

    actions: list[Action] = Field(
        min_length=1,
        json_schema_extra=map_list("name") | checked(maxItems=bounds.MAX_ACTIONS),
        description="Actions to be run on a target machine, one after the other in this order. Names are unique.",
    )
    volumes: list[Volume] | None = optional(
        "Volumes mounted on all actions. An action's own volume takes precedence.",
        extra=checked(maxItems=bounds.MAX_VOLUMES),
    )
    env: dict[str, Text] | None = optional(
        "Environment variables of all actions. An action's own variable takes precedence.", extra=_env()
    )


class Template(Resource):
    """A set of actions to be run on a target machine, rendered with Hardware and user-defined data before execution.

    All fields but the names of actions may hold Go text/template expressions.
    """

    kind: str = "Template"
    spec: TemplateSpec


# --- Workflow ---------------------------------------------------------------------------------------------------


class WorkflowState(StrEnum):
    """Where a Workflow is. The last three are terminal and never change."""

    PENDING = "Pending"
    SCHEDULED = "Scheduled"
    RUNNING = "Running"
    CANCELLING = "Cancelling"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    CANCELED = "Canceled"

    @property
    def terminal(self) -> bool:
        """True if no other state may follow."""
        return self in (WorkflowState.SUCCEEDED, WorkflowState.FAILED, WorkflowState.CANCELED)


class ActionState(StrEnum):
    """Where an action of a Workflow is."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class ActionStatus(Model):
    """The result of one action."""

    rendered: Action | None = optional("The rendered action.", extra={UNCHECKED: True})
    id: str = Field(description="Uniquely identifies the action within the Workflow.")
    started_at: str | None = optional("When the action was started. Absent: it has not started.", extra=TIME)
    last_transitioned: str | None = optional("When state changed last.", extra=TIME)
    state: ActionState | None = optional("Current state of the action.")
    failure_reason: str | None = optional("A short CamelCase word or phrase that says why the action failed.")
    failure_message: str | None = optional("A free-form, user friendly elaboration on the failure reason.")


BOOT_DEVICES: Final = ("pxe", "disk", "bios", "cdrom", "safe")
POWER_ACTIONS: Final = ("on", "off", "soft", "status", "cycle", "reset")

Device = Annotated[str, Field(json_schema_extra={"enum": list(BOOT_DEVICES)})]
PowerActionName = Annotated[str, Field(json_schema_extra={"enum": list(POWER_ACTIONS)})]


class OneTimeBootDeviceAction(Model):
    """A boot device for the next boot."""

    device: list[Device] = Field(
        json_schema_extra={"minItems": 1, "maxItems": bounds.MAX_BOOT_DEVICES},
        description="Boot devices, of which the first alone counts.",
    )
    efi_boot: bool | None = optional("True: boot it by UEFI. Absent or false: the mode stays as it is.")


class BootDeviceAction(Model):
    """A boot device for the next boot, or for all."""

    model_config = ConfigDict(json_schema_extra=checked(rules.NAMES_BOOT_DEVICE))

    device: Device | None = optional("Boot device: pxe, disk, bios (the setup of the firmware), cdrom or safe.")
    persistent: bool | None = optional("True: for every boot. Absent or false: for the next boot.")
    efi_boot: bool | None = optional("True: boot it by UEFI. Absent or false: the mode stays as it is.")


class VirtualMediaAction(Model):
    """An image in a virtual drive of the BMC."""

    kind: Annotated[str, Field(json_schema_extra=checked(maxLength=bounds.MAX_NAME_CHARACTERS))] = Field(
        description="Kind of the medium, such as CD."
    )
    media_url: str | None = optional(
        "URL of the image (http or https). Absent or empty: eject the medium.",
        alias="mediaURL",
        extra=checked(rules.MEDIA_URL, maxLength=bounds.MAX_URL_CHARACTERS),
    )


class BmcAction(Model):
    """One action of a BMC."""

    model_config = ConfigDict(json_schema_extra=checked(rules.NAMES_ACTION, maxProperties=1))

    power_action: PowerActionName | None = optional(
        'Change of the power. Write "on" and "off" in quotes: without, YAML reads true and false. soft: shut the '
        "operating system down. cycle: off, then on. reset: restart at once. status: only read the state."
    )
    one_time_boot_device_action: OneTimeBootDeviceAction | None = optional(
        "Boot device for the next boot. Deprecated by Rufio: use bootDevice."
    )
    boot_device: BootDeviceAction | None = optional("Boot device for the next boot, or for every boot.")
    virtual_media_action: VirtualMediaAction | None = optional("Insert or eject a virtual medium.")


class BootMode(StrEnum):
    """How the BMC makes the machine boot before its Workflow."""

    NETBOOT = "netboot"
    ISOBOOT = "isoboot"
    CUSTOMBOOT = "customboot"


class CustombootConfig(Model):
    """The actions of the BMC for bootMode customboot."""

    preparing_actions: list[BmcAction] | None = optional(
        "Actions before the Workflow is sent to its agent.", extra=checked(maxItems=bounds.MAX_BMC_TASKS)
    )
    post_actions: list[BmcAction] | None = optional(
        "Actions after the Workflow has ended, in any state.", extra=checked(maxItems=bounds.MAX_BMC_TASKS)
    )


class BootOptions(Model):
    """How the machine is made to boot before the Workflow, and what is undone after its end."""

    model_config = ConfigDict(json_schema_extra=checked(rules.NAMES_PREPARING_ACTIONS))

    toggle_allow_netboot: bool | None = optional(
        "True: permit netbooting on all interfaces of the Hardware (disableNetboot false) before the Workflow, and "
        "forbid it after the end of the Workflow."
    )
    boot_mode: BootMode | None = optional(
        "How the machine's BMC (spec.bmcRef of the Hardware) boots it. netboot: switch it off, set the boot device "
        "PXE for one boot, and switch it on; if no DISCOVER of the machine arrives, try the further ways of this BMC. "
        "isoboot: boot the image in isoURL as a virtual CD. customboot: the actions in custombootConfig. Absent: the "
        "machine's power is left alone."
    )
    iso_url: str | None = optional(
        "URL of the image for isoboot (http or https). Absent: the boot medium of the machine that the edge serves. "
        "May hold Go text/template expressions over the Hardware.",
        alias="isoURL",
        extra=checked(rules.ISO_URL, maxLength=bounds.MAX_URL_CHARACTERS),
    )
    custom_boot_config: CustombootConfig | None = optional(
        "Actions of the BMC for customboot. mediaURL may hold Go text/template expressions over the Hardware.",
        alias="custombootConfig",
    )


class WorkflowSpec(Model):
    """The Template to run, and the Hardware to run it on."""

    hardware_ref: LocalObjectReference = Field(
        json_schema_extra=checked(rules.NAMES_HARDWARE),
        description="The Hardware this Workflow executes on, in the Workflow's namespace. Can't be changed once the "
        "Workflow has left Pending, or once BMC control boots the machine.",
    )
    template_ref: LocalObjectReference = Field(
        json_schema_extra=checked(rules.NAMES_TEMPLATE),
        description="The Template used to render the Workflow's actions, in the Workflow's namespace. Can't be changed "
        "once the Workflow has left Pending.",
    )
    template_params: dict[str, Text] | None = optional(
        'Key-value pairs exposed to the Template as .Params, e.g. {"foo": "bar"} as .Params.foo. Can\'t be '
        "changed once the Workflow has left Pending.",
        extra=checked(maxProperties=bounds.MAX_TEMPLATE_PARAMS),
    )
    timeout: int = Field(
        default=0,
        ge=0,
        description="Seconds the Workflow has to complete, counted from the start of its first action. 0: no timeout.",
    )
    ttl_seconds_after_finished: int | None = optional(
        "Seconds after its end (status.lastTransitioned, in any terminal state) after which the controller deletes the "
        "Workflow. 0: at once. Absent: it is kept. May be changed at any time, as that of a Job.",
        ge=0,
        le=bounds.MAX_TTL_SECONDS,
    )
    boot_options: BootOptions | None = optional(
        "How the machine is made to boot before the Workflow, and what is undone after its end. An addition to the "
        "proposal, with the names of Tinkerbell's v1alpha1. Can't be changed."
    )


class BootWay(StrEnum):
    """The way in which BMC control makes a machine boot. The first four are the ways of `bootMode: netboot`."""

    PXE = "pxe"
    HTTP = "http"
    CD = "cd"
    IPMI = "ipmi"
    ISO = "iso"
    CUSTOM = "custom"


class FormerMachine(Model):
    """A Machine that the Hardware named before, and whose BMC was changed for the Workflow."""

    machine: str = Field(description="Name of the Machine, in the Workflow's namespace.")
    since: str | None = optional("When BMC control began again with the Machine that the Hardware names.", extra=TIME)
    medium: str | None = optional("Kind of the virtual medium that was inserted, such as CD.")


class BootStatus(Model):
    """The progress of BMC control with the boot of the machine."""

    way: BootWay | None = optional(
        "The present way. pxe: boot device PXE for one boot. http: UEFI HTTP boot from a URL that the BMC sets. cd: "
        "the machine's own boot medium as a virtual CD. ipmi: boot device PXE by IPMI. iso: the image in isoURL as a "
        "virtual CD. custom: the actions in custombootConfig."
    )
    attempt: int | None = optional("Number of this attempt of the present way, from 1.", ge=1)
    machine: str | None = optional(
        "Name of the Machine whose BMC boots the machine, in the Workflow's namespace. After the Workflow's end, this "
        "BMC is cleaned up, also if the Hardware then names another Machine or is gone."
    )
    since: str | None = optional(
        "When the BMC reported that the machine is on, in this attempt. Absent: it is not on yet.", extra=TIME
    )
    message: str | None = optional("What was done, and what is awaited, in one line for people.")
    last_boot: str | None = optional(
        "status.lastBoot.at of the Hardware before the machine was switched on: a later time there is this boot.",
        extra=TIME,
    )
    done: int | None = optional("Number of actions in custombootConfig that are done, of both lists.", ge=0)
    medium: str | None = optional("Kind of the virtual medium that was inserted and has not been ejected, such as CD.")
    former: list[FormerMachine] | None = optional(
        "The Machines that the Hardware named before spec.bmcRef was corrected, and whose BMCs are not cleaned up yet. "
        "That is tried again for an hour."
    )


UNPREPARED = "waits for the controller"
"""`status.message` of a Workflow that no controller has looked at."""


class WorkflowStatus(Model):
    """The observed state of a Workflow."""

    model_config = ConfigDict(json_schema_extra=checked(rules.ENDED_STAYS_ENDED))

    actions: list[ActionStatus] | None = optional("The actions and their states.", extra=map_list("id"))
    started_at: str | None = optional(
        "When the first action was started. Absent: the Workflow has not started.", extra=TIME
    )
    id: str | None = optional(
        "Identifies the Workflow to its agent, if that is not metadata.uid: a Workflow that was moved here from "
        "another API keeps the identifier that it had there."
    )
    creation_version: str | None = optional(
        "metadata.resourceVersion when a controller first saw the Workflow. It orders the Workflows of a machine that "
        "were created in one second."
    )
    last_transitioned: str | None = optional("When state changed last.", extra=TIME)
    state: WorkflowState | None = optional("Current state of the Workflow.")
    message: str | None = optional(
        "The progress of the Workflow, or the reason of its end, in one line for people. Programs read the conditions."
    )
    observed_generation: int | None = optional(
        "metadata.generation that the actions were rendered from. While it differs, the Workflow is not "
        "sent to an agent."
    )
    timeout: int | None = optional(
        "Seconds the Workflow has to complete if spec.timeout is 0: global_timeout in the text of a Template of "
        "Tinkerbell's v1alpha1.",
        ge=1,
    )
    current_action: str | None = optional("Name of the action that runs now, or that ran last.")
    dispatched: bool | None = optional(
        "True if the Workflow was sent to an agent, which has not rejected it. While this is false, a "
        "Workflow that is cancelled or deleted ends at once, because no agent has to stop it."
    )
    claimed_at: str | None = optional("When a server last claimed the Workflow, to send it to its agent.", extra=TIME)
    rejections: int | None = optional(
        "The number of times that an agent has rejected the Workflow since it was last started.", ge=0
    )
    dispatch_after: str | None = optional(
        "The time before which the Workflow is not offered again to its agent, which has rejected it.",
        extra=TIME,
    )
    agent_seen_at: str | None = optional(
        "When a server last had a stream of the agent while the last action, which reboots the machine, "
        "ran. Written only if that action takes longer than a moment, or if its agent connects again.",
        extra=TIME,
    )
    boot: BootStatus | None = optional("The progress of BMC control with the boot of the machine (spec.bootOptions).")
    conditions: list[Condition] | None = optional(
        "Observations about the Workflow: Prepared, Started, Succeeded; BootPrepared if it has bootOptions: the "
        "machine boots as they ask, or the reason why not; BootCleanedUp after its end, if BMC control had something "
        "to undo: what was undone, or the reason why not; HardwareGone if its Hardware was deleted before its end.",
        extra=map_list("type"),
    )


class Workflow(Resource):
    """A set of actions to be run on a specific Hardware. Workflows execute once and are ephemeral."""

    model_config = ConfigDict(
        json_schema_extra=checked(
            rules.FIXED_HARDWARE,
            rules.FIXED_HARDWARE_OF_BOOT,
            rules.FIXED_TEMPLATE,
            rules.FIXED_PARAMS,
            rules.FIXED_BOOT_OPTIONS,
        )
    )

    kind: str = "Workflow"
    spec: WorkflowSpec
    status: WorkflowStatus = WorkflowStatus()


Raw = dict[str, Any]
"""A Kubernetes object as it came from the API."""


def as_mapping(value: Any) -> Raw:
    """Return a part of an object that should be a mapping; an empty one for any other value."""
    return value if isinstance(value, dict) else {}
