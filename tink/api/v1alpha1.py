"""The resources of `tinkerbell.org/v1alpha1` as upstream serves them: Hardware, Template, Workflow, WorkflowRuleSet.

Fields, types, required fields, enums, patterns and the one default are those of upstream's definitions (tinkerbell/
tinkerbell, crd/bases/v1alpha1, August 2026), so that its clients work unchanged. `tests/unit/api/test_v1alpha1.py` has
the table. The differences:

- `status.v1alpha2` is added. It has the status of the object in v1alpha2, which so depends on no annotation.
- `spec.data` of a Template has a maximum, because v1alpha2 keeps the text in an annotation, and Kubernetes limits those
  to 256 KiB.

The models are the source of the schema and of the texts of `kubectl explain`; `tink.versions` converts the objects as
mappings. Every description ends with the use of its field:

- `Served`: the field has its effect.
- `Kept`: the field is stored and returned, and has no effect. It had none in upstream either, or affects no machine.
- `Ignored`: the field is stored and returned. Upstream uses it and tinkedge does not, so the Hardware has the
  condition Misconfigured.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, GetJsonSchemaHandler
from pydantic.config import JsonDict
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from tink.api import bounds
from tink.api.rules import Rule, checked
from tink.api.schema import UNCHECKED
from tink.api.v1alpha2 import GROUP, TIME, FirmwareComponent, Model, ObjectMeta, Raw, optional
from tink.api.v1alpha2 import Component as InventoryComponent

VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

_DATA_SIZE = checked(maxLength=bounds.MAX_DATA_CHARACTERS)
"""The limit of v1alpha2. A longer text would become residue, and exceed the size of annotations."""
MAX_TEMPLATE_BYTES = 192 * 1024
"""Maximum size of a Template's text. All annotations of an object together may have 256 KiB (Kubernetes)."""

# --- helpers ----------------------------------------------------------------------------------------------------------

_INT32: JsonDict = {"format": "int32"}
_URI: JsonDict = {"format": "uri"}


def _served(description: str, *, extra: JsonDict | None = None, **field: Any) -> Any:
    """Return an optional field that has its effect."""
    return optional(f"{description} Served.", extra=extra, **field)


def _kept(description: str, *, extra: JsonDict | None = None, **field: Any) -> Any:
    """Return an optional field that is stored and returned, without an effect."""
    return optional(f"{description} Kept.", extra=extra, **field)


def _ignored(description: str, *, extra: JsonDict | None = None, **field: Any) -> Any:
    """Return an optional field of upstream that has no effect here and is reported."""
    return optional(f"{description} Ignored, with the condition Misconfigured.", extra=extra, **field)


def _v1alpha2(kind: str) -> Any:
    """Return `status.v1alpha2`: a mapping whose fields no schema of v1alpha1 describes."""
    return optional(
        f"The status of the {kind} in v1alpha2, whole. A client that writes the status must keep it.",
        alias=V1ALPHA2_STATUS,
    )


V1ALPHA2_STATUS = "v1alpha2"
"""The field of every status with v1alpha2's status."""


class _QuantitySchema:
    """Gives a value the schema of a Kubernetes quantity: an integer, or a text such as 32Gi."""

    @staticmethod
    def __get_pydantic_json_schema__(_schema: CoreSchema, _handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"x-kubernetes-int-or-string": True, "pattern": _QUANTITY}


Quantity = Annotated[int | str, _QuantitySchema]

_NUMBER = r"(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
_QUANTITY = rf"^(\+|-)?{_NUMBER}(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?{_NUMBER}))?$"
"""k8s.io/apimachinery, pkg/api/resource."""
_MAC = "([0-9a-f]{2}[:]){5}([0-9a-f]{2})"
"""Not anchored: a text with an address in it is accepted."""
_VLANS = (
    "^(([0-9][0-9]{0,2}|[1-3][0-9][0-9][0-9]|40([0-8][0-9]|9[0-6]))"
    "(,[1-9][0-9]{0,2}|[1-3][0-9][0-9][0-9]|40([0-8][0-9]|9[0-6]))*)$"
)
_OCTET = "(25[0-5]|2[0-4][0-9]|[01]?[0-9][0-9]?)"
_ADDRESS = rf"({_OCTET}\.){{3}}{_OCTET}"
_ROUTER = f"^{_ADDRESS}$"
_DESTINATION = f"^{_ADDRESS}/(3[0-2]|[12]?[0-9])$"

_SERVER_AND_FILE = Rule(
    '(has(self.tftp_server_name) && self.tftp_server_name != "") == '
    '(has(self.boot_file_name) && self.boot_file_name != "")',
    "TFTPServerName and BootFileName must both be specified or both be empty",
)
_TEXT_SIZE = Rule(
    f"size(bytes(self)) <= {MAX_TEMPLATE_BYTES}",
    f"must have at most {MAX_TEMPLATE_BYTES} bytes in UTF-8, because v1alpha2 keeps the text in an annotation",
    reason="FieldValueForbidden",  # its error does not repeat the whole text, unlike that of an invalid value
)


class OldModel(Model):
    """Base of the models here. Their validators are built at the first use, because most processes need none."""

    model_config = ConfigDict(defer_build=True)


class SnakeModel(OldModel):
    """Base of the models whose fields have underscores on the wire."""

    model_config = ConfigDict(alias_generator=lambda name: name)


class OldResource(OldModel):
    """Any of the four resources."""

    api_version: str = API_VERSION
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()


# --- Hardware: interfaces ---------------------------------------------------------------------------------------------


class IP(SnakeModel):
    """An address of an interface."""

    address: str | None = _served("IPv4 address to serve by DHCP, or IPv6 address to serve by DHCPv6.")
    netmask: str | None = _served("Netmask of the address. Of an IPv6 address: the length of its prefix.")
    gateway: str | None = _served("Default gateway to serve with an IPv4 address.")
    family: int | None = _served("Family of the address: 4 or 6. 0 or absent: that of address.")


class ClasslessStaticRoute(SnakeModel):
    """A static route (RFC 3442)."""

    destination_descriptor: str = Field(
        json_schema_extra={"pattern": _DESTINATION},
        description="Network of the route, such as 10.0.0.0/8. Ignored, with the condition Misconfigured.",
    )
    router: str = Field(
        json_schema_extra={"pattern": _ROUTER},
        description="Address of the route's router. Ignored, with the condition Misconfigured.",
    )


class DHCP(SnakeModel):
    """The DHCP reservation of an interface."""

    model_config = ConfigDict(json_schema_extra=checked(_SERVER_AND_FILE))

    mac: str | None = _served(
        "MAC address of the interface, in lower case with colons. Without one, the interface is kept and not served.",
        extra={"pattern": _MAC},
    )
    hostname: str | None = _served("Host name to serve.")
    domain_name: str | None = _ignored("Domain name to serve.")
    lease_time: int | None = _served("Lease time in seconds. 0 or absent: 24 hours.")
    name_servers: list[str] | None = _served("Nameservers to serve: IPv4 addresses, or IPv6 addresses for DHCPv6.")
    time_servers: list[str] | None = _served("Time servers to serve: IPv4 addresses or host names.")
    arch: str | None = _kept("Architecture of the machine, such as x86_64. The firmware reports it in each request.")
    uefi: bool | None = _served(
        "True if the machine boots by UEFI, false if by BIOS: the mode of the boot device that a BMC is given. True of "
        "one interface counts. Absent: the mode that the BMC reports, else UEFI."
    )
    iface_name: str | None = _kept("Name of the interface.")
    ip: IP | None = _served("The address of the interface.")
    vlan_id: str | None = _served("VLAN to which iPXE changes before it continues.", extra={"pattern": _VLANS})
    classless_static_routes: list[ClasslessStaticRoute] | None = _ignored("Static routes to serve (RFC 3442).")
    tftp_server_name: str | None = _ignored("TFTP server to serve as option 66. Must be given with boot_file_name.")
    boot_file_name: str | None = _ignored("Boot file to serve as option 67. Must be given with tftp_server_name.")


class IPXE(OldModel):
    """Changes of the iPXE boot."""

    url: str | None = _served(
        "URL of the iPXE script of the machine. That of the first interface that may netboot counts."
    )
    contents: str | None = _served(
        "The iPXE script of the machine, unless url is given. That of the first interface that may netboot counts."
    )
    binary: str | None = _ignored(
        "File name of the iPXE program. tinkedge chooses it by the architecture that the firmware reports."
    )


class OSIE(OldModel):
    """The installation environment of a machine."""

    base_url: str | None = _ignored(
        "URL of the directory of kernel and initrd. Use an OSIE of v1alpha2 instead.", alias="baseURL"
    )
    kernel: str | None = _ignored("File name of the kernel. Use an OSIE of v1alpha2 instead.")
    initrd: str | None = _ignored("File name of the initrd. Use an OSIE of v1alpha2 instead.")
    kernel_params: list[str] | None = _served(
        "Parameters of the kernel. Those of the first interface that may netboot count."
    )


class PXELINUX(OldModel):
    """Boot configuration of U-Boot."""

    config: str | None = _ignored("Content of pxelinux.cfg, in extlinux format.")


class RPI(OldModel):
    """Network boot of the Raspberry Pi's own firmware."""

    config_txt: str | None = _ignored("Content of config.txt.")
    firmware_path: str | None = _ignored("Directory of the firmware's files on the TFTP server.")
    serial_num: str = Field(
        description="Serial number of the Raspberry Pi, or its last 8 characters. Ignored, with the condition "
        "Misconfigured."
    )


class Netboot(OldModel):
    """How an interface netboots."""

    allow_pxe: bool | None = _served("True: the interface may netboot. Absent: it may not.", alias="allowPXE")
    allow_workflow: bool | None = _kept("Upstream does not use it either: a machine that netboots runs its Workflows.")
    ipxe: IPXE | None = _served("Changes of the iPXE boot.")
    osie: OSIE | None = _served("The installation environment that the machine netboots.")
    pxelinux: PXELINUX | None = _ignored("Boot configuration of U-Boot.")
    rpi: RPI | None = _ignored("Network boot of the Raspberry Pi's own firmware.")


class Isoboot(OldModel):
    """Boot from an ISO image."""

    source_iso: str | None = _ignored(
        "URL of the ISO image that is patched for the machine. tinkedge makes the machine's boot medium itself.",
        alias="sourceISO",
        extra=_URI,
    )


class Interface(OldModel):
    """A network interface."""

    dhcp: DHCP | None = _served("The DHCP reservation of the interface, with its MAC address.")
    netboot: Netboot | None = _served("How the interface netboots. Absent: it does not.")
    isoboot: Isoboot | None = _ignored("Boot from an ISO image.")
    disable_dhcp: bool = Field(
        default=False, description="True: the interface gets no answer by DHCP. Default: false. Served."
    )


# --- Hardware: metadata -----------------------------------------------------------------------------------------------


class OperatingSystem(SnakeModel):
    """An operating system."""

    slug: str | None = _served("Short name with the version, such as ubuntu_24_04.")
    distro: str | None = _served("Name of the distribution.")
    version: str | None = _served("Version of the distribution.")
    image_tag: str | None = _served("Tag of the image.")
    os_slug: str | None = _kept("Short name of the distribution.")


class PreinstalledSystem(SnakeModel):
    """The fields of an operating system, which have no effect on a preinstalled one."""

    slug: str | None = _kept("Short name with the version, such as ubuntu_24_04.")
    distro: str | None = _kept("Name of the distribution.")
    version: str | None = _kept("Version of the distribution.")
    image_tag: str | None = _kept("Tag of the image.")
    os_slug: str | None = _kept("Short name of the distribution.")


class InstanceIP(SnakeModel):
    """An address of the installed system."""

    address: str | None = _served("Address. The metadata service has the first public address of each family.")
    netmask: str | None = _kept("Netmask of the address.")
    gateway: str | None = _kept("Gateway of the address.")
    family: int | None = _kept("Family of the address: 4 or 6.")
    public: bool | None = _served("True: the metadata service may serve the address.")
    management: bool | None = _kept("True for an address of the management network.")


class StoragePartition(SnakeModel):
    """A partition of a disk."""

    label: str | None = _served("Label of the partition.")
    number: int | None = _served("Number of the partition.")
    size: int | None = _served("Size of the partition in sectors.")
    start: int | None = _served("First sector of the partition.")
    type_guid: str | None = _served("Type of the partition (GPT).")


class StorageDisk(SnakeModel):
    """A disk to partition."""

    device: str | None = _served("Path of the disk in Linux.")
    wipe_table: bool | None = _served("True: delete the partition table first.")
    partitions: list[StoragePartition] | None = _served("Partitions to create.")


class StorageRAID(SnakeModel):
    """A RAID to create."""

    name: str | None = _served("Name of the RAID.")
    level: str | None = _served("Level of the RAID.")
    devices: list[str] | None = _served("Devices of the RAID.")
    spare: int | None = _served("Number of spare devices.")


class StorageFile(SnakeModel):
    """A file to write into a filesystem."""

    path: str | None = _served("Path of the file.")
    contents: str | None = _served("Content of the file.")
    mode: int | None = _served("Permissions of the file.")
    uid: int | None = _served("Numerical user that owns the file.")
    gid: int | None = _served("Numerical group that owns the file.")


class FilesystemOptions(SnakeModel):
    """How a filesystem is created."""

    force: bool | None = _served("True: overwrite a filesystem that is there.")
    options: list[str] | None = _served("Arguments of mkfs.")


class StorageMount(SnakeModel):
    """A filesystem and its mount point."""

    device: str | None = _served("Device of the filesystem.")
    format: str | None = _served("Type of the filesystem.")
    files: list[StorageFile] | None = _served("Files to write into the filesystem.")
    create: FilesystemOptions | None = _served("How the filesystem is created.")
    point: str | None = _served("Mount point of the filesystem.")


class StorageFilesystem(SnakeModel):
    """A filesystem to create."""

    mount: StorageMount | None = _served("The filesystem and its mount point.")


class InstanceStorage(SnakeModel):
    """The storage of the installed system."""

    disks: list[StorageDisk] | None = _served("Disks to partition.")
    raid: list[StorageRAID] | None = _served("RAIDs to create.")
    filesystems: list[StorageFilesystem] | None = _served("Filesystems to create.")


class MetadataInstance(SnakeModel):
    """The installed system, for its metadata service."""

    id: str | None = _served("Identifier of the installed system: instance-id of the metadata service.")
    state: str | None = _kept("State of the installed system.")
    hostname: str | None = _served("Host name, if no interface has one in its DHCP reservation.")
    allow_pxe: bool | None = _kept("Upstream does not use it either: netboot.allowPXE of an interface decides.")
    rescue: bool | None = _kept("True while the machine is in a rescue system.")
    operating_system: OperatingSystem | None = _served("The operating system, for the metadata service.")
    always_pxe: bool | None = _kept("Upstream does not use it either: netboot.allowPXE of an interface decides.")
    ipxe_script_url: str | None = _kept("Upstream does not use it either: netboot.ipxe of an interface decides.")
    ips: list[InstanceIP] | None = _served("Addresses, for the metadata service.")
    userdata: str | None = _kept("Upstream does not use it either: spec.userData is served.")
    crypted_root_password: str | None = _kept("Hash of root's password. The metadata service does not serve it.")
    tags: list[str] | None = _served("Tags, for the metadata service.")
    storage: InstanceStorage | None = _served("Storage of the machine, for the action rootio.")
    ssh_keys: list[str] | None = _served("SSH public keys, for the metadata service.")
    network_ready: bool | None = _kept("True if the network of the machine is set up.")


class MetadataManufacturer(SnakeModel):
    """The manufacturer of a machine."""

    id: str | None = _kept("Identifier of the manufacturer.")
    slug: str | None = _kept("Short name of the manufacturer.")


class MetadataCustom(SnakeModel):
    """Further metadata of a machine."""

    preinstalled_operating_system_version: PreinstalledSystem | None = _kept(
        "The operating system that was preinstalled."
    )
    private_subnets: list[str] | None = _kept("Private networks of the machine.")


class MetadataFacility(SnakeModel):
    """The location of a machine."""

    plan_slug: str | None = _served("Plan of the machine, for the metadata service.")
    plan_version_slug: str | None = _kept("Version of the plan.")
    facility_code: str | None = _served("Facility of the machine, for the metadata service.")


class HardwareMetadata(SnakeModel):
    """Metadata of a machine."""

    state: str | None = _kept("State of the machine. Upstream does not use it either.")
    bonding_mode: int | None = _kept("Mode of the bond of the machine's interfaces.")
    manufacturer: MetadataManufacturer | None = _kept("The manufacturer of the machine.")
    instance: MetadataInstance | None = _served("The installed system, for its metadata service.")
    custom: MetadataCustom | None = _kept("Further metadata of the machine.")
    facility: MetadataFacility | None = _served("The location of the machine, for the metadata service.")


# --- Hardware: status.attributes --------------------------------------------------------------------------------------


class ComponentHealth(OldModel):
    """Health and state of a component."""

    health: str | None = optional("Health of the component.")
    state: str | None = optional("State of the component.")
    post_code: int | None = optional("Last code of the power-on self-test.", extra=_INT32)
    post_code_status: str | None = optional("Meaning of that code.")


class Monitored(FirmwareComponent):
    """A component with firmware whose BMC reports its health."""

    status: ComponentHealth | None = optional("Health and state of the component.")


class Described(Monitored):
    """A component for which the BMC has a name."""

    description: str | None = optional("Name of the component on the BMC.")


class CPUSocket(FirmwareComponent):
    """A processor."""

    slot: str | None = optional("Socket of the processor.")
    cores: int | None = optional("Number of cores.", extra=_INT32)
    threads: int | None = optional("Number of threads.", extra=_INT32)
    clock_speed_mhz: int | None = optional("Clock speed in MHz.", alias="clockSpeedMHz", extra=_INT32)
    capabilities: list[str] | None = optional("Features of the processor.")


class CPU(OldModel):
    """The processors of a machine."""

    total_cores: int | None = optional("Number of cores of all processors.", extra=_INT32)
    total_threads: int | None = optional("Number of threads of all processors.", extra=_INT32)
    sockets: list[CPUSocket] | None = optional("The processors.")


class MemoryModule(FirmwareComponent):
    """A memory module."""

    slot: str | None = optional("Slot of the module.")
    part_number: str | None = optional("Part number of the module.")
    size_bytes: int | None = optional("Size in bytes.")
    speed_mhz: int | None = optional("Speed in MHz.", alias="speedMHz", extra=_INT32)
    form_factor: str | None = optional("Form of the module.")


class Memory(OldModel):
    """The memory of a machine."""

    total_bytes: int | None = optional("Size of the installed memory in bytes.")
    usable_bytes: int | None = optional("Size of the memory that Linux can use, in bytes.")
    modules: list[MemoryModule] | None = optional("The memory modules.")


class BlockDevice(Monitored):
    """A drive."""

    name: str | None = optional("Name of the drive in Linux.")
    controller_type: str | None = optional("Protocol of the drive.")
    drive_type: str | None = optional("Kind of the drive.")
    wwn: str | None = optional("World Wide Name of the drive.")
    size_bytes: int | None = optional("Size in bytes.")
    physical_block_size_bytes: int | None = optional("Size of a physical block in bytes.")
    smart_status: str | None = optional("Forecast of the drive.")


class AttributesPort(OldModel):
    """A port of a network adapter."""

    port_id: str | None = optional("Name of the port on the BMC.", alias="portID")
    mac: str | None = optional("MAC address of the port.")
    speed_mbps: int | None = optional("Speed in Mbit/s.", extra=_INT32)
    mtu: int | None = optional("MTU in bytes.", extra=_INT32)
    link_status: str | None = optional("Link of the port.")
    enabled_capabilities: list[str] | None = optional("Offloads and features that are on.")


class AttributesAdapter(FirmwareComponent):
    """A network adapter."""

    name: str | None = optional("Name of the adapter in Linux.")
    ports: list[AttributesPort] | None = optional("The ports of the adapter.")


class PCIDevice(OldModel):
    """A PCI device."""

    vendor: str | None = optional("Manufacturer of the device.")
    model: str | None = optional("Model of the device.")
    class_: str | None = optional("PCI class of the device.", alias="class")
    driver: str | None = optional("Linux driver of the device.")


class GPUDevice(Described):
    """A GPU or another accelerator."""

    class_: str | None = optional("PCI class of the device.", alias="class")
    driver: str | None = optional("Linux driver of the device.")


class Product(InventoryComponent):
    """The machine itself."""

    name: str | None = optional("Name of the machine on the BMC.")
    status: ComponentHealth | None = optional("Health and state of the machine.")


class BIOS(Monitored):
    """The firmware of a machine."""

    release_date: str | None = optional("Date of the firmware's release.")


class BMC(Monitored):
    """The management controller of a machine."""

    nic: AttributesAdapter | None = optional("The management controller's own network interface.")


class PSU(Described):
    """A power supply."""

    power_capacity_watts: int | None = optional("Capacity in watts.")


class TPM(Monitored):
    """A trusted platform module."""

    interface_type: str | None = optional("Interface of the TPM.")


class OutOfBandAttributes(OldModel):
    """A machine as its BMC describes it."""

    last_updated: str | None = optional("When the attributes were read last.", extra=TIME)
    collection_method: str | None = optional("Source of the attributes, such as redfish.")
    product: Product | None = optional("The machine itself.")
    bios: BIOS | None = optional("The firmware of the machine.")
    bmc: BMC | None = optional("The management controller.")
    baseboard: Described | None = optional("The main board.")
    chassis: InventoryComponent | None = optional("The chassis.")
    cpu: CPU | None = optional("The processors.")
    memory: Memory | None = optional("The memory.")
    block_devices: list[BlockDevice] | None = optional("The drives.")
    network_interfaces: list[AttributesAdapter] | None = optional("The network adapters.")
    gpu_devices: list[GPUDevice] | None = optional("GPUs and other accelerators.")
    pci_devices: list[PCIDevice] | None = optional("PCI devices.")
    psus: list[PSU] | None = optional("The power supplies.")
    tpms: list[TPM] | None = optional("The trusted platform modules.")
    storage_controllers: list[Described] | None = optional("The storage controllers.")


class HardwareAttributes(OldModel):
    """Observed components of a machine."""

    out_of_band: OutOfBandAttributes | None = _served(
        "The machine as its BMC describes it: status.inventory.outOfBand of v1alpha2.", extra={UNCHECKED: True}
    )


# --- Hardware ---------------------------------------------------------------------------------------------------------


class Reference(OldModel):
    """Refers to any object."""

    namespace: str | None = _kept("Namespace of the object.")
    name: str | None = _kept("Name of the object.")
    group: str | None = _kept("API group of the object.")
    version: str | None = _kept("API version of the object.")
    resource: str | None = _kept("Resource of the object: its kind in lower case and plural.")


class AutoCapabilities(OldModel):
    """Automatic enrolment."""

    enrollment_enabled: bool = Field(
        default=False,
        description="True: upstream creates Workflows for the Hardware by the WorkflowRuleSets. Default: false. Kept.",
    )


class BMCReference(OldModel):
    """Refers to the object of a BMC."""

    model_config = ConfigDict(json_schema_extra={"x-kubernetes-map-type": "atomic"})

    api_group: str | None = _kept("API group of the object: bmc.tinkerbell.org.")
    kind: str = Field(description="Kind of the object: Machine. Kept.")
    name: str = Field(description="Name of the Machine. Served.")


class Disk(OldModel):
    """A disk."""

    device: str | None = _served("Path of the disk in Linux, such as /dev/sda.")


class HardwareSpec(OldModel):
    """The desired state of a machine."""

    agent_id: str | None = _served(
        "Identifier with which the machine's agent connects, if that is not its MAC address.", alias="agentID"
    )
    auto: AutoCapabilities | None = _kept("Automatic enrolment.")
    bmc_ref: BMCReference | None = _served("The Machine (bmc.tinkerbell.org) whose BMC controls the machine.")
    interfaces: list[Interface] | None = _served("The network interfaces.")
    references: dict[str, Reference] | None = _kept(
        "Objects for Templates, by name. They are not read: .references of a Template is empty, as in upstream's "
        "default."
    )
    metadata: HardwareMetadata | None = _served("Metadata of the machine.")
    tink_version: int | None = _kept("Version of Tinkerbell. Upstream does not use it either.")
    disks: list[Disk] | None = _served("The disks, for Templates.")
    resources: dict[str, Quantity] | None = _kept("Resources of the machine, for schedulers, such as memory: 32Gi.")
    user_data: str | None = _served("User-data of the machine, for cloud-init. At most 1 MiB.", extra=_DATA_SIZE)
    vendor_data: str | None = _served("Vendor-data of the machine, for cloud-init. At most 1 MiB.", extra=_DATA_SIZE)


class HardwareStatus(OldModel):
    """The observed state of a machine."""

    state: str | None = _served(
        "State of the machine: Error after a failed Workflow or with a boot problem, else Ready; absent before the "
        "machine was heard. Computed from v1alpha2.state. A write has no effect."
    )
    attributes: HardwareAttributes | None = _served("Observed components of the machine.")
    v1alpha2: Raw | None = _v1alpha2("Hardware")


class OldHardware(OldResource):
    """A machine that can execute Workflows, in the version v1alpha1 of Tinkerbell.

    The description of each field ends with its use.
    Served: the field has its effect.
    Kept: the field is stored and returned, and has no effect.
    Ignored: the same, but upstream uses the field. So status.v1alpha2 has the condition Misconfigured.
    """

    kind: str = "Hardware"
    spec: HardwareSpec = HardwareSpec()
    status: HardwareStatus = HardwareStatus()


# --- Template ---------------------------------------------------------------------------------------------------------


class TemplateSpec(OldModel):
    """The text of a Template."""

    data: str | None = _served(
        "Go template of a YAML document with a task and its actions, or several tasks of one worker. It is rendered "
        "for each Workflow, as upstream does. At most 192 KiB.",
        extra=checked(_TEXT_SIZE, maxLength=MAX_TEMPLATE_BYTES),
    )


class TemplateStatus(OldModel):
    """The observed state of a Template."""

    state: str | None = _kept("State of the Template. Upstream does not write it.")
    v1alpha2: Raw | None = _v1alpha2("Template")


class OldTemplate(OldResource):
    """The actions of Workflows as a text, in the version v1alpha1 of Tinkerbell."""

    kind: str = "Template"
    spec: TemplateSpec = TemplateSpec()
    status: TemplateStatus = TemplateStatus()


# --- Workflow ---------------------------------------------------------------------------------------------------------


class OneTimeBootDevice(OldModel):
    """A boot device for the next boot."""

    device: list[str] = Field(description="Boot devices, of which the first alone counts. Served.")
    efi_boot: bool | None = _served("True: boot it by UEFI.")


class BootDevice(OldModel):
    """A boot device."""

    device: str | None = _served("Boot device: pxe, disk, bios, cdrom or safe.")
    persistent: bool | None = _served("True: for every boot. Absent or false: for the next boot.")
    efi_boot: bool | None = _served("True: boot it by UEFI.")


class VirtualMedia(OldModel):
    """An image in a virtual drive of the BMC."""

    kind: str = Field(description="Kind of the medium, such as CD. Served.")
    media_url: str | None = _served("URL of the image. Absent or empty: eject the medium.", alias="mediaURL")


class BootAction(OldModel):
    """One action of a BMC."""

    model_config = ConfigDict(json_schema_extra=checked(maxProperties=1))

    power_action: Literal["on", "off", "soft", "status", "cycle", "reset"] | None = _served("Change of the power.")
    one_time_boot_device_action: OneTimeBootDevice | None = _served("Boot device for the next boot.")
    boot_device: BootDevice | None = _served("Boot device for the next boot, or for every boot.")
    virtual_media_action: VirtualMedia | None = _served("Insert or eject a virtual medium.")


class Customboot(OldModel):
    """The actions of the BMC for bootMode customboot."""

    preparing_actions: list[BootAction] | None = _served("Actions before the Workflow is sent to its agent.")
    post_actions: list[BootAction] | None = _served(
        "Actions after the end of the Workflow. tinkedge executes them after every end, upstream after a success."
    )


class BootOptions(OldModel):
    """How the machine is made to boot before the Workflow."""

    toggle_allow_netboot: bool | None = _served(
        "True: permit netbooting on all interfaces before the Workflow, and forbid it after its end."
    )
    iso_url: str | None = _served("URL of the ISO image for isoboot.", alias="isoURL", extra=_URI)
    boot_mode: Literal["netboot", "isoboot", "iso", "customboot"] | None = _served(
        "How the BMC boots the machine. iso is the old name of isoboot."
    )
    custom_boot_config: Customboot | None = _served("Actions of the BMC for customboot.", alias="custombootConfig")


class WorkflowSpec(OldModel):
    """The Template to run, and the Hardware to run it on."""

    disabled: bool | None = _served("True: the Workflow is held until this is false.")
    template_ref: str | None = _served("Name of the Template. Without one, the Workflow does not start.")
    hardware_ref: str | None = _served("Name of the Hardware. Without one, the Workflow does not start.")
    hardware_map: dict[str, str] | None = _served("Values for the Template, by name, such as device_1: its address.")
    boot_options: BootOptions | None = _served("How the machine is made to boot before the Workflow.")


class AllowNetbootStatus(OldModel):
    """The changes of allowPXE for a Workflow."""

    toggled_true: bool | None = optional("True if netbooting was permitted before the Workflow.")
    toggled_false: bool | None = optional("True if netbooting was forbidden after the Workflow.")


class BootJobStatus(OldModel):
    """The progress of a Job (bmc.tinkerbell.org)."""

    uid: str | None = optional("UID of the Job.")
    complete: bool | None = optional("True if the Job has ended.")
    existing_job_deleted: bool | None = optional("True if an older Job of the same name was deleted.")


class BootOptionsStatus(OldModel):
    """The progress of the boot options."""

    allow_netboot: AllowNetbootStatus | None = optional("The changes of allowPXE for the Workflow.")
    jobs: dict[str, BootJobStatus] | None = optional("The Jobs for the Workflow, by name. tinkedge creates none.")


class CurrentState(OldModel):
    """The present action of a Workflow."""

    agent_id: str | None = optional("Identifier of the agent.", alias="agentID")
    task_id: str | None = optional("Identifier of the task.", alias="taskID")
    action_id: str | None = optional("Identifier of the action.", alias="actionID")
    state: str | None = optional("State of the action.")
    action_name: str | None = optional("Name of the action.")
    task_name: str | None = optional("Name of the task.")


class ActionNamespaces(OldModel):
    """The Linux namespaces of an action."""

    network: str | None = optional("Network namespace of the action.")
    pid: str | None = optional("PID namespace of the action.")


class TaskAction(OldModel):
    """An action of a Workflow, and its state."""

    id: str = Field(description="Identifier of the action.")
    name: str | None = optional("Name of the action.")
    image: str | None = optional("An OCI image.")
    timeout: int | None = optional("Seconds that the action may take.")
    command: list[str] | None = optional("Command and arguments of the container.")
    volumes: list[str] | None = optional("Volumes of the container.")
    pid: str | None = optional("PID namespace of the action. Deprecated by upstream: see namespaces.pid.")
    namespaces: ActionNamespaces | None = optional("The Linux namespaces of the action.")
    environment: dict[str, str] | None = optional("Environment variables of the container.")
    state: str | None = optional("State of the action, in the words of the Workflow's state.")
    execution_start: str | None = optional("When the action was started.", extra=TIME)
    execution_stop: str | None = optional("When the action ended.", extra=TIME)
    execution_duration: str | None = optional("Time between both, such as 1m5s.")
    message: str | None = optional("The reason why the action failed.")


class WorkflowTask(OldModel):
    """The actions of a Workflow."""

    id: str = Field(description="Identifier of the task.")
    name: str = Field(description="Name of the task.")
    agent_id: str = Field(description="Identifier of the agent.", alias="agentID")
    actions: list[TaskAction] = Field(description="The actions and their states.")
    volumes: list[str] | None = optional("Volumes of all actions.")
    environment: dict[str, str] | None = optional("Environment variables of all actions.")


class WorkflowCondition(OldModel):
    """An observation about a Workflow."""

    type: str = Field(description="Type of condition.")
    status: str = Field(description="Status of the condition: True, False or Unknown.")
    reason: str | None = optional("A short word for the cause.")
    message: str | None = optional("A sentence about the condition.")
    time: str | None = optional("When the condition was written.", extra=TIME)


class WorkflowStatus(OldModel):
    """The observed state of a Workflow. All fields but v1alpha2 are computed from it. Writes of them have no effect."""

    agent_id: str | None = optional("Identifier of the agent.", alias="agentID")
    state: str | None = optional(
        "State of the Workflow: PENDING, PREPARING (the BMC boots the machine), RUNNING, POST (what the BMC changed is "
        "put back), SUCCESS, FAILED or TIMEOUT."
    )
    boot_options: BootOptionsStatus | None = optional("The progress of the boot options.")
    template_rendering: str | None = optional("Result of the rendering: successful or failed.")
    global_timeout: int | None = optional("Seconds that the Workflow may take.")
    global_execution_stop: str | None = optional("When the Workflow times out.", extra=TIME)
    current_state: CurrentState | None = optional("The present action.")
    tasks: list[WorkflowTask] | None = optional("The task with the actions and their states.")
    conditions: list[WorkflowCondition] | None = optional(
        "Observations about the Workflow, with upstream's types, such as TemplateRenderedSuccess."
    )
    v1alpha2: Raw | None = _v1alpha2("Workflow")


class OldWorkflow(OldResource):
    """A Template to run on a Hardware, in the version v1alpha1 of Tinkerbell."""

    kind: str = "Workflow"
    spec: WorkflowSpec = WorkflowSpec()
    status: WorkflowStatus = WorkflowStatus()


# --- WorkflowRuleSet --------------------------------------------------------------------------------------------------


class TemplateConfig(OldModel):
    """The Template of the Workflows that rules create."""

    agent_value: str | None = _kept("Name of the value of hardwareMap that gets the identifier of the agent.")
    kvs: dict[str, str] | None = _kept("Further values of hardwareMap.")
    ref: str | None = _kept("Name of the Template.")


class RuleSetWorkflow(OldModel):
    """The Workflows that rules create."""

    disabled: bool | None = _kept("True: the Workflows are created with disabled true.")
    namespace: str | None = _kept("Namespace of the Workflows.")
    add_attributes: bool | None = _kept("True: the attributes of the agent become an annotation of the Workflow.")
    template: TemplateConfig | None = _kept("The Template of the Workflows.")


class WorkflowRuleSetSpec(OldModel):
    """Rules, and the Workflow that is created for an agent to which one of them applies."""

    rules: list[str] | None = _kept("Patterns of Quamina for the attributes of an agent. One that applies is enough.")
    workflow: RuleSetWorkflow | None = _kept("The Workflow to create.")


class WorkflowRuleSetStatus(OldModel):
    """The observed state of a WorkflowRuleSet. It has no fields."""


class WorkflowRuleSet(OldResource):
    """Rules by which upstream creates Workflows for unknown agents. tinkedge stores them and creates no Workflows."""

    kind: str = "WorkflowRuleSet"
    spec: WorkflowRuleSetSpec = WorkflowRuleSetSpec()
    status: WorkflowRuleSetStatus = WorkflowRuleSetStatus()
