"""The four resources of `tinkerbell.org/v1alpha2`: Hardware, OSIE, Template, Workflow.

These pydantic models are the only source of the schema: `tink.api.crds` generates the CustomResourceDefinitions
from them, with the rules of `tink.api.rules` and the bounds of `tink.api.bounds`, and every component reads objects
through them. Rules and bounds are the API server's affair: a model reads whatever an older schema let in, as far as it
has a meaning. Objects that are written back to the API are patched as raw dictionaries, never dumped from a model, so
that fields of a newer version survive.

Field names, defaults and patterns follow the final revision of the CRD refactor proposal with its slips mended:
anchored address patterns, VLAN 1-4094, the stray quote of the hostname pattern. Every description is what
`kubectl explain` prints.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from pydantic.alias_generators import to_camel
from pydantic.config import JsonDict

from tink.api import bounds, patterns, rules
from tink.api.rules import checked
from tink.api.schema import UNCHECKED

GROUP = "tinkerbell.org"
RUFIO_GROUP = "bmc.tinkerbell.org"
"""The group of the Machines that `spec.bmcRef` of a Hardware refers to."""
VERSION = "v1alpha2"
API_VERSION = f"{GROUP}/{VERSION}"

FINALIZER = "tinkerbell.org/workflow"
"""Put on a Workflow by the controller when it is prepared; removed when the Workflow has reached an end state."""

INSTANCE_ID_ANNOTATION = "tinkerbell.org/instance-id"
"""Overrides the instance id that the metadata service gives for a Hardware (default: the Hardware's name)."""

SSH_PUBLIC_KEYS_ANNOTATION = "tinkerbell.org/ssh-public-keys"
"""SSH keys that the metadata service gives for a Hardware: one a line, as in OpenSSH's authorized_keys."""

USERDATA_SECRET_ANNOTATION = "tinkerbell.org/userdata-secret"  # noqa: S105 - the name of an annotation
"""The Secret that holds a Hardware's user-data, in the Hardware's namespace: `NAME` or `NAME/KEY`."""

VENDORDATA_SECRET_ANNOTATION = "tinkerbell.org/vendordata-secret"  # noqa: S105 - the name of an annotation
"""The Secret that holds a Hardware's vendor-data, in the Hardware's namespace: `NAME` or `NAME/KEY`."""

KERNEL_SHA256_ANNOTATION = "tinkerbell.org/kernel-sha256"
"""SHA-256 of an OSIE's kernel, in hex: what is fetched from `kernelUrl` must have it to be served."""

INITRD_SHA256_ANNOTATION = "tinkerbell.org/initrd-sha256"
"""SHA-256 of an OSIE's initrd, in hex: what is fetched from `initrdUrl` must have it to be served."""

HOLD_ANNOTATION = "tinkerbell.org/hold"
"""Keeps a Workflow that has not begun from being prepared and given to an agent; the value says why. `tinkedge restore`
puts it on what may have run since the backup was made; whoever takes it away says that it may run."""

PAUSED_ANNOTATION = "tinkerbell.org/paused"
"""No component of tinkedge changes a Workflow that has it; the value says why. `tinkedge move` puts it on what it takes
to another API."""

ORIGIN_ANNOTATION = "tinkerbell.org/moved-from"
"""Of what `tinkedge move` has brought: the uid of the namespace kube-system of the API that it is from, and its uid
there."""

# Those of what is read are more lenient than those of `tink.api.patterns`, which the API enforces.
_HOSTNAME_PATTERN = (
    r"^(([a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9\-]*[a-zA-Z0-9])\.)*([A-Za-z0-9]|[A-Za-z0-9][A-Za-z0-9\-]*[A-Za-z0-9])$"
)
_VLAN_PATTERN = r"^([1-9][0-9]{0,2}|[1-3][0-9]{3}|40[0-8][0-9]|409[0-4])$"
_DEVICE_PATTERN = r"^(/[^/ ]+)+$"
_URL_PATTERN = r"^(https?|file)://.+$"
_HTTP_URL_PATTERN = r"^https?://.+$"


def _map_list(key: str) -> JsonDict:
    """A list whose items have unique keys: the API server refuses duplicates, and server-side apply merges by key."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}


class Model(BaseModel):
    """Base of every resource model: camelCase on the wire, immutable here, unknown fields left alone."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore", hide_input_in_errors=True
    )


class ObjectMeta(Model):
    """The part of Kubernetes' ObjectMeta that this program reads (Kubernetes API conventions, "Metadata")."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    # Factories, because a default value would be copied, deeply, for each of a hundred thousand objects.
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    finalizers: list[str] = Field(default_factory=list)


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


class ConditionStatus(StrEnum):
    """Kubernetes API conventions, "Typical status properties"."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(Model):
    """An observation on a resource that is generally attainable by inspecting other status fields."""

    type: str = Field(default=..., description="Type of condition.")
    status: ConditionStatus = Field(default=..., description="Status of the condition: True, False or Unknown.")
    reason: str | None = Field(
        default=None, description="A short CamelCase description of the condition's last transition."
    )
    message: str | None = Field(
        default=None, description="A human readable message with details about the last transition."
    )


# --- Hardware ---------------------------------------------------------------------------------------------------

IPv4 = Annotated[
    str,
    StringConstraints(pattern=patterns.IPV4),
    Field(json_schema_extra=checked(rules.IPV4, maxLength=bounds.MAX_ADDRESS_CHARACTERS)),
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


class DHCP(Model):
    """Basic network configuration to be served in DHCP replies: a DHCP reservation."""

    model_config = ConfigDict(json_schema_extra=checked(rules.GATEWAY_IN_SUBNET))

    ip: IPv4 | None = Field(
        default=None, description="IPv4 address to serve. No two interfaces of the cluster may have the same."
    )
    netmask: Annotated[str, StringConstraints(pattern=patterns.NETMASK)] | None = Field(
        default=None,
        json_schema_extra=checked(rules.NETMASK, maxLength=bounds.MAX_ADDRESS_CHARACTERS),
        description="IPv4 netmask to serve.",
    )
    gateway: IPv4 | None = Field(
        default=None,
        description="Default gateway address to serve, in the subnet of ip and netmask (unless netmask is "
        "255.255.255.255).",
    )
    hostname: Annotated[str, StringConstraints(pattern=_HOSTNAME_PATTERN)] | None = Field(
        default=None,
        json_schema_extra=checked(rules.HOSTNAME, maxLength=bounds.MAX_NAME_CHARACTERS),
        description="Host name to serve.",
    )
    vlan_id: Annotated[str, StringConstraints(pattern=_VLAN_PATTERN)] | None = Field(
        default=None,
        json_schema_extra=checked(rules.VLAN, maxLength=bounds.MAX_VLAN_CHARACTERS),
        description='VLAN ID between 1 and 4094, as a string, e.g. "100".',
    )
    nameservers: list[HostOrIP] | None = Field(
        default=None,
        json_schema_extra=checked(maxItems=bounds.MAX_SERVERS),
        description="Nameservers to serve: IPs or host names. DHCP carries the IPs only.",
    )
    timeservers: list[HostOrIP] | None = Field(
        default=None,
        json_schema_extra=checked(maxItems=bounds.MAX_SERVERS),
        description="Timeservers to serve: IPs or host names. DHCP carries the IPs only.",
    )
    lease_time_seconds: int = Field(
        default=86400,
        ge=0,
        le=bounds.MAX_LEASE_SECONDS,
        description="Lease time to serve, in seconds. Default: 24 hours. Maximum: that of RFC 2132 section 9.2.",
    )


class NetworkInterface(Model):
    """The desired configuration of one network interface."""

    dhcp: DHCP | None = Field(default=None, description="Basic network information for serving DHCP requests.")
    disable_dhcp: bool = Field(default=False, description="Disables DHCP for this interface. Implies disableNetboot.")
    disable_netboot: bool = Field(
        default=False,
        description="Disables netbooting for this interface. The interface still receives its network configuration "
        "by DHCP.",
    )


class IPXE(Model):
    """Overrides for the iPXE script. At least one option must be given."""

    model_config = ConfigDict(json_schema_extra=checked(rules.SOME_SCRIPT))

    inline: str | None = Field(
        default=None,
        json_schema_extra=checked(maxLength=bounds.MAX_DATA_CHARACTERS),
        description="An inline iPXE script.",
    )
    url: Annotated[str, StringConstraints(pattern=_HTTP_URL_PATTERN)] | None = Field(
        default=None,
        json_schema_extra=checked(rules.HTTP_URL, maxLength=bounds.MAX_URL_CHARACTERS),
        description="URL of a hosted iPXE script (http or https).",
    )


class Instance(Model):
    """Instance specific data, served to the machine's permanent operating system by the metadata service."""

    userdata: str | None = Field(
        default=None,
        json_schema_extra=checked(maxLength=bounds.MAX_DATA_CHARACTERS),
        description="Data with a structure understood by the producer and the consumer of the data, e.g. "
        "#cloud-config.",
    )
    vendordata: str | None = Field(
        default=None,
        json_schema_extra=checked(maxLength=bounds.MAX_DATA_CHARACTERS),
        description="Data with a structure understood by the producer and the consumer of the data.",
    )


class HardwareSpec(Model):
    """The desired state of a machine."""

    network_interfaces: dict[str, NetworkInterface] = Field(
        default={},
        min_length=1,
        json_schema_extra=checked(rules.MAC_KEYS, rules.UNIQUE_IPS, maxProperties=bounds.MAX_INTERFACES),
        description="Network interfaces by MAC address (lower case, colons). Defines the desired DHCP and netboot "
        "configuration of each. No two Hardware of the cluster may have the same MAC address.",
    )
    ipxe: IPXE | None = Field(
        default=None,
        description="iPXE script overrides, for debugging or for netboot customisation. Give inline or url.",
    )
    osie: LocalObjectReference | None = Field(
        default=None, description="The Operating System Installation Environment to be netbooted."
    )
    kernel_params: list[KernelParam] | None = Field(
        default=None,
        json_schema_extra=checked(maxItems=bounds.MAX_KERNEL_PARAMS),
        description="Parameters passed to the kernel when the OSIE is launched, joined with a space.",
    )
    instance: Instance | None = Field(
        default=None, description="Instance specific data that is generally unused by Tinkerbell itself."
    )
    storage_devices: list[StorageDevice] | None = Field(
        default=None,
        json_schema_extra=checked(maxItems=bounds.MAX_DISKS),
        description="Storage devices that will be available in the OSIE, as Linux paths without partitions, "
        "e.g. /dev/sda or /dev/nvme0n1.",
    )
    bmc_ref: LocalObjectReference | None = Field(default=None, description="Refers to a Rufio Machine object.")


class HardwareStatus(Model):
    """What was observed of a machine."""

    conditions: list[Condition] | None = Field(
        default=None,
        json_schema_extra=_map_list("type"),
        description="Observations about the machine. AddressConflict: it found another host at its address and "
        "declined it.",
    )


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
    """Where the kernel and the initrd are."""

    kernel_url: ArtifactURL = Field(default=..., description="URL of a kernel image (http, https or file).")
    initrd_url: ArtifactURL = Field(default=..., description="URL of an initrd image (http, https or file).")


class OSIE(Resource):
    """An Operating System Installation Environment: what a machine netboots; it launches the agent."""

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
        default=...,
        min_length=1,
        json_schema_extra=checked(rules.ACTION_NAME, maxLength=bounds.MAX_NAME_CHARACTERS),
        description="Name of the action, unique within the Template. Not a template.",
    )
    image: str = Field(
        default=...,
        min_length=1,
        json_schema_extra=checked(rules.IMAGE, maxLength=bounds.MAX_IMAGE_CHARACTERS),
        description="An OCI image.",
    )
    cmd: str | None = Field(
        default=None,
        json_schema_extra=checked(maxLength=bounds.MAX_TEXT_CHARACTERS),
        description="Command to use when launching the image (its entrypoint).",
    )
    args: list[Text] | None = Field(
        default=None,
        json_schema_extra=checked(maxItems=bounds.MAX_ARGS),
        description="Arguments passed to the container on launch.",
    )
    env: dict[str, Text] | None = Field(
        default=None, json_schema_extra=_env(), description="Environment variables of the container."
    )
    volumes: list[Volume] | None = Field(
        default=None,
        json_schema_extra=checked(maxItems=bounds.MAX_VOLUMES),
        description="Volumes to mount into the container, as {SRC-VOLUME-NAME | SRC-HOST-DIR}:TGT-CONTAINER-DIR:OPTIONS"
        ", e.g. /etc/data:/data:ro.",
    )
    network_namespace: str | None = Field(
        default=None,
        json_schema_extra=checked(maxLength=bounds.MAX_NETWORK_NAMESPACE_CHARACTERS),
        description='Network namespace to run the container in, e.g. "host".',
    )
    timeout: int | None = Field(
        default=None,
        ge=0,
        description="Seconds the action may take. 0 or absent: the controller's --action-timeout, by default none.",
    )
    reboots: bool | None = Field(
        default=None,
        description="Whether the action restarts the machine, or starts another kernel on it, so that nobody is left "
        "to report its end: it has succeeded when the agent is gone, or comes back anew. For the last action only, "
        "which is run in the machine's own PID namespace: no container can restart the machine from another one.",
    )


class TemplateSpec(Model):
    """Actions, and what they share."""

    actions: list[Action] = Field(
        default=...,
        min_length=1,
        json_schema_extra=_map_list("name") | checked(maxItems=bounds.MAX_ACTIONS),
        description="Actions to be run on a target machine, one after the other in this order. Names are unique.",
    )
    volumes: list[Volume] | None = Field(
        default=None,
        json_schema_extra=checked(maxItems=bounds.MAX_VOLUMES),
        description="Volumes mounted on all actions. An action's own volume takes precedence.",
    )
    env: dict[str, Text] | None = Field(
        default=None,
        json_schema_extra=_env(),
        description="Environment variables of all actions. An action's own variable takes precedence.",
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
        """Whether nothing may follow."""
        return self in (WorkflowState.SUCCEEDED, WorkflowState.FAILED, WorkflowState.CANCELED)


class ActionState(StrEnum):
    """Where an action of a Workflow is."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class ActionStatus(Model):
    """What became of one action."""

    rendered: Action | None = Field(
        default=None, json_schema_extra={UNCHECKED: True}, description="The rendered action."
    )
    id: str = Field(default=..., description="Uniquely identifies the action within the Workflow.")
    started_at: str | None = Field(
        default=None,
        json_schema_extra={"format": "date-time"},
        description="When the action was started. Absent: it has not started.",
    )
    last_transitioned: str | None = Field(
        default=None, json_schema_extra={"format": "date-time"}, description="When state changed last."
    )
    state: ActionState | None = Field(default=None, description="Current state of the action.")
    failure_reason: str | None = Field(
        default=None, description="A short CamelCase word or phrase that says why the action failed."
    )
    failure_message: str | None = Field(
        default=None, description="A free-form, user friendly elaboration on the failure reason."
    )


class WorkflowSpec(Model):
    """What to run, and where."""

    hardware_ref: LocalObjectReference = Field(
        default=...,
        json_schema_extra=checked(rules.NAMES_HARDWARE),
        description="The Hardware this Workflow executes on, in the Workflow's namespace. Can't be changed once the "
        "Workflow has left Pending.",
    )
    template_ref: LocalObjectReference = Field(
        default=...,
        json_schema_extra=checked(rules.NAMES_TEMPLATE),
        description="The Template used to render the Workflow's actions, in the Workflow's namespace. Can't be changed "
        "once the Workflow has left Pending.",
    )
    template_params: dict[str, Text] | None = Field(
        default=None,
        json_schema_extra=checked(maxProperties=bounds.MAX_TEMPLATE_PARAMS),
        description='Key-value pairs exposed to the Template as .Params, e.g. {"foo": "bar"} as .Params.foo. Can\'t be '
        "changed once the Workflow has left Pending.",
    )
    timeout: int = Field(
        default=0,
        ge=0,
        description="Seconds the Workflow has to complete, counted from the start of its first action. 0: no timeout.",
    )


UNPREPARED = "waits for the controller"
"""`status.message` of a Workflow that no controller has looked at."""


class WorkflowStatus(Model):
    """The observed state of a Workflow."""

    model_config = ConfigDict(json_schema_extra=checked(rules.ENDED_STAYS_ENDED))

    actions: list[ActionStatus] | None = Field(
        default=None, json_schema_extra=_map_list("id"), description="The actions and their states."
    )
    id: str | None = Field(
        default=None,
        description="Identifies the Workflow to its agent, where that is not metadata.uid: it was moved here from "
        "another API, where it had this one.",
    )
    started_at: str | None = Field(
        default=None,
        json_schema_extra={"format": "date-time"},
        description="When the first action was started. Absent: the Workflow has not started.",
    )
    last_transitioned: str | None = Field(
        default=None, json_schema_extra={"format": "date-time"}, description="When state changed last."
    )
    state: WorkflowState | None = Field(default=None, description="Current state of the Workflow.")
    message: str | None = Field(
        default=None,
        description="Where the Workflow is, or why it ended, in one line for people; programs read the conditions.",
    )
    observed_generation: int | None = Field(
        default=None,
        description="metadata.generation that the actions were rendered from. While it is another, the Workflow is not "
        "given to an agent.",
    )
    current_action: str | None = Field(default=None, description="Name of the action that runs now, or that ran last.")
    dispatched: bool | None = Field(
        default=None,
        description="Whether the Workflow was given to an agent, which has not rejected it. While this is false, a "
        "Workflow that is cancelled or deleted ends at once: there is nobody to stop it.",
    )
    claimed_at: str | None = Field(
        default=None,
        json_schema_extra={"format": "date-time"},
        description="When a server last claimed the Workflow, to give it to its agent.",
    )
    rejections: int | None = Field(
        default=None, ge=0, description="How often an agent has rejected the Workflow since it was last started."
    )
    dispatch_after: str | None = Field(
        default=None,
        json_schema_extra={"format": "date-time"},
        description="Before that moment the Workflow is not offered to its agent again, which has rejected it.",
    )
    agent_seen_at: str | None = Field(
        default=None,
        json_schema_extra={"format": "date-time"},
        description="When a server last had a stream of the agent while the last action, which reboots the machine, "
        "ran. Written only where that action takes longer than a moment, or its agent connects anew.",
    )
    conditions: list[Condition] | None = Field(
        default=None,
        json_schema_extra=_map_list("type"),
        description="Observations about the Workflow: Prepared, Started, Succeeded.",
    )


class Workflow(Resource):
    """A set of actions to be run on a specific Hardware. Workflows execute once and are ephemeral."""

    model_config = ConfigDict(json_schema_extra=checked(rules.FIXED_HARDWARE, rules.FIXED_TEMPLATE, rules.FIXED_PARAMS))

    kind: str = "Workflow"
    spec: WorkflowSpec
    status: WorkflowStatus = WorkflowStatus()


Raw = dict[str, Any]
"""A Kubernetes object as it came from the API."""


def as_mapping(value: Any) -> Raw:
    """A part of an object that should be a mapping: an empty one for anything else."""
    return value if isinstance(value, dict) else {}
