"""The resources of BMC control, `bmc.tinkerbell.org/v1alpha1`: Machine, Job and Task. They are Rufio's.

Fields, enums, defaults and required fields are those of Rufio (tinkerbell/tinkerbell, crd/bases/v1alpha1, August 2026),
so that its manifests and clients work unchanged. `tests/unit/api/test_bmc.py` has the table.

- Added, all optional: `caSecretRef` and `certificateFingerprint` of a connection; `reason` and `lastTransitionTime` of
  conditions; `status.stage` of a Task.
- Refused, although Rufio accepts them: objects that can't work, such as an empty list of boot devices, an unknown
  device, a task without an action, or a medium that is not on an HTTP server.
- Bounded: Rufio has no maxima. Those here (`tink.api.bounds`) are far above the needs of machines.

`tink.api.crds` generates the definitions. The models also read objects that Rufio's definitions admitted.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field

from tink.api import bounds, patterns, rules
from tink.api.rules import checked
from tink.api.v1alpha2 import RUFIO_GROUP, RUFIO_VERSION, TIME, BmcAction, Model, ObjectMeta, Raw, as_mapping, optional

GROUP = RUFIO_GROUP
VERSION = RUFIO_VERSION
API_VERSION = f"{GROUP}/{VERSION}"

OWNER_LABEL = "owner-name"
"""The label of a Task with the name of its Job (Rufio)."""


class BmcConditionType(StrEnum):
    """The types of conditions. A Machine has Contactable, a Job the others, a Task Completed or Failed."""

    CONTACTABLE = "Contactable"
    RUNNING = "Running"
    COMPLETED = "Completed"
    FAILED = "Failed"


_ENDS: Final = (BmcConditionType.COMPLETED, BmcConditionType.FAILED)


def is_ended(obj: Raw) -> bool:
    """Return True if a Job or Task has ended: its condition Completed or Failed is True."""
    conditions = as_mapping(obj.get("status")).get("conditions")
    found = map(as_mapping, conditions if isinstance(conditions, list) else ())
    return any(each.get("type") in _ENDS and each.get("status") == "True" for each in found)


# --- the parts of several resources -----------------------------------------------------------------------------------

Word = Annotated[str, Field(json_schema_extra=checked(maxLength=bounds.MAX_NAME_CHARACTERS))]
"""A name, or a word of a protocol."""
Words = Annotated[list[Word], Field(json_schema_extra=checked(maxItems=bounds.MAX_RPC_ITEMS))]
Port = Annotated[int, Field(json_schema_extra={"minimum": 0, "maximum": bounds.MAX_PORT})]


class BmcModel(Model):
    """Base of the models here. Their validators are built at the first use, because most processes need none."""

    model_config = ConfigDict(defer_build=True)


class BmcResource(BmcModel):
    """Any of the three resources."""

    api_version: str = API_VERSION
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()


class SecretReference(BmcModel):
    """Refers to a Secret."""

    model_config = ConfigDict(json_schema_extra={"x-kubernetes-map-type": "atomic"})

    name: Word | None = optional("Name of the Secret.")
    namespace: Word | None = optional("Namespace of the Secret. Absent: that of the Machine.")


class BmcCondition(BmcModel):
    """An observation on a Job or Task."""

    type: str = Field(description="Type of condition.")
    status: str = Field(description="Status of the condition: True, False or Unknown.")
    reason: str | None = optional("A short CamelCase word for the cause. Rufio writes none.")
    message: str | None = optional("A human readable message with details about the last transition.")
    last_transition_time: str | None = optional("When status changed last. Rufio writes none.", extra=TIME)


# --- Machine ----------------------------------------------------------------------------------------------------------

Provider = Annotated[
    str, Field(json_schema_extra={"pattern": patterns.BMC_PROVIDER, "maxLength": bounds.MAX_NAME_CHARACTERS})
]


class RedfishOptions(BmcModel):
    """Options of Redfish."""

    port: Port | None = optional("HTTPS port of the BMC. Absent or 0: 443.")
    use_basic_auth: bool | None = optional(
        "True: send user and password with each request. Absent or false: log in to a session."
    )
    system_name: Word | None = optional(
        "Name of the system to control, for a BMC that manages several systems (Id or Name of the ComputerSystem)."
    )


class IpmiOptions(BmcModel):
    """Options of IPMI over LAN."""

    port: Port | None = optional("UDP port of the BMC. Absent or 0: 623.")
    cipher_suite: Word | None = optional('Cipher suite of RMCP+, such as "3". Absent: 17.')


class IntelAmtOptions(BmcModel):
    """Options of Intel AMT, for Rufio."""

    port: Port | None = optional("Port of the BMC.")
    host_scheme: Literal["http", "https"] = Field(default="http", description="Scheme of URLs. Default: http.")


class RpcRequestOptions(BmcModel):
    """The HTTP request of an RPC, for Rufio."""

    http_content_type: Word | None = optional("Content type of the request.")
    http_method: Word | None = optional("Method of the request.")
    static_headers: dict[str, Words] | None = optional(
        "Headers of every request.", extra=checked(maxProperties=bounds.MAX_RPC_ITEMS)
    )
    timestamp_format: Word | None = optional("Format of the time in the timestamp header.")
    timestamp_header: Word | None = optional("Name of the header with the time.")


class RpcSignatureOptions(BmcModel):
    """The header with the signature of an RPC, for Rufio."""

    append_algo_to_header_disabled: bool | None = optional("True: the header's name does not end with the algorithm.")
    header_name: Word | None = optional("Name of the header with the signature.")
    included_payload_headers: Words | None = optional("Headers that are part of the signed content.")


class RpcHmacOptions(BmcModel):
    """The signature of an RPC, for Rufio."""

    prefix_sig_disabled: bool | None = optional("True: the signature does not begin with the algorithm.")
    secrets: (
        dict[str, Annotated[list[SecretReference], Field(json_schema_extra=checked(maxItems=bounds.MAX_RPC_ITEMS))]]
        | None
    ) = optional(
        "Secrets to sign with, by algorithm. Their key is secret.", extra=checked(maxProperties=bounds.MAX_RPC_ITEMS)
    )


class RpcExperimentalOptions(BmcModel):
    """The content of an RPC, for Rufio."""

    custom_request_payload: str | None = optional(
        "JSON object that the request is put into.", extra=checked(maxLength=bounds.MAX_TEXT_CHARACTERS)
    )
    dot_path: Word | None = optional("Place of the request in that object, such as object.data.body.")


class RpcOptions(BmcModel):
    """Options of the provider rpc, for Rufio."""

    consumer_url: Annotated[str, Field(json_schema_extra=checked(maxLength=bounds.MAX_URL_CHARACTERS))] = Field(
        alias="consumerURL", description="URL that receives the requests."
    )
    log_notifications_disabled: bool | None = optional("True: answers are not logged.")
    request: RpcRequestOptions | None = optional("The HTTP request.")
    signature: RpcSignatureOptions | None = optional("The header with the signature.")
    hmac: RpcHmacOptions | None = optional("The signature of each request.")
    experimental: RpcExperimentalOptions | None = optional("Experimental options.")


class HomeAssistantOptions(BmcModel):
    """Options of the provider Home Assistant, for Rufio."""

    switch_entity_id: Word = Field(alias="switchEntityID", description="Id of the switch that controls the power.")
    power_operation_delay_seconds: int | None = optional(
        "Seconds to wait after a power operation.", extra={"format": "int32"}
    )


class ProviderOptions(BmcModel):
    """Options of the protocols that reach a BMC. tinkedge uses Redfish and IPMI."""

    preferred_order: list[Provider] | None = optional(
        "Providers of Rufio in the order to try, in any case. tinkedge uses the protocols named here alone: ipmitool "
        "means IPMI; gofish, dell, supermicro, openbmc and asrockrack mean Redfish. Absent: Redfish, then IPMI.",
        extra=checked(maxItems=bounds.MAX_PROVIDERS),
    )
    redfish: RedfishOptions | None = optional("Options of Redfish.")
    ipmitool: IpmiOptions | None = optional("Options of IPMI over LAN.")
    intel_amt: IntelAmtOptions | None = optional(
        "Options of Intel AMT. They are stored for Rufio; tinkedge does not use them.", alias="intelAMT"
    )
    rpc: RpcOptions | None = optional(
        "Options of the provider rpc. They are stored for Rufio; tinkedge does not use them."
    )
    homeassistant: HomeAssistantOptions | None = optional(
        "Options of the provider Home Assistant. They are stored for Rufio; tinkedge does not use them."
    )


class Connection(BmcModel):
    """How to reach a BMC."""

    host: str = Field(
        json_schema_extra={"minLength": 1, "maxLength": bounds.MAX_NAME_CHARACTERS},
        description="IP address or host name of the BMC.",
    )
    port: int = Field(
        default=623,
        description="Not used, neither by Rufio nor by tinkedge: the ports are in providerOptions. Default: 623.",
    )
    insecure_tls: bool = Field(
        alias="insecureTLS",
        description="True: accept any certificate of the BMC, unless caSecretRef or certificateFingerprint is given. "
        "False: the certificate must be valid. Rufio accepts any certificate in both cases.",
    )
    auth_secret_ref: SecretReference | None = optional("The Secret with the keys username and password.")
    ca_secret_ref: SecretReference | None = optional(
        "The Secret whose key ca.crt has the certificate authority of the BMC, as PEM. Rufio does not know this field."
    )
    certificate_fingerprint: str | None = optional(
        "SHA-256 of the BMC's certificate, as 64 hex digits, with or without colons. The BMC must have this "
        "certificate, whatever signed it. Rufio does not know this field.",
        extra=checked(rules.FINGERPRINT, maxLength=bounds.MAX_NAME_CHARACTERS),
    )
    provider_options: ProviderOptions | None = optional("Options of the protocols that reach the BMC.")


class MachineSpec(BmcModel):
    """The BMC of a machine."""

    connection: Connection = Field(description="How to reach the BMC.")


class MachineCondition(BmcCondition):
    """An observation on a Machine."""

    last_update_time: str | None = optional("When status or message changed last.", extra=TIME)


LoginResult = Literal["Begun", "Accepted", "Refused"]


class LoginStatus(BmcModel):
    """The results of the first login with a version of the Secret, so that a restart does not repeat a refused one."""

    version: str | None = optional("The BMC (address and ports), and the Secret with its version.")
    redfish: LoginResult | None = optional(
        "Result by Redfish. Begun: the password may have been sent, and the result is not known. After a restart of "
        "tinkedge, Begun counts as Refused."
    )
    ipmi: LoginResult | None = optional("Result by IPMI.")
    retry: str | None = optional(
        "The value of the annotation tinkerbell.org/retry-login that has permitted the last further login."
    )


class MachineStatus(BmcModel):
    """The observed state of a machine, as its BMC reports it."""

    conditions: list[MachineCondition] | None = optional(
        "Observations about the BMC. Contactable: it answered the last request, and accepted the password."
    )
    power_state: Literal["on", "off", "unknown"] | None = optional("State of the machine's power.")
    login: LoginStatus | None = optional(
        "The login with the present version of the Secret. Rufio does not know this field."
    )


class Machine(BmcResource):
    """A baseboard management controller (BMC), which switches the power of one machine and chooses its boot device."""

    kind: str = "Machine"
    spec: MachineSpec
    status: MachineStatus = MachineStatus()


# --- Job and Task -----------------------------------------------------------------------------------------------------


class MachineReference(BmcModel):
    """Refers to a Machine."""

    name: Word = Field(description="Name of the Machine.")
    namespace: Word = Field(description="Namespace of the Machine.")


class JobSpec(BmcModel):
    """The tasks of one Machine."""

    machine_ref: MachineReference = Field(description="The Machine whose BMC executes the tasks.")
    tasks: list[BmcAction] = Field(
        json_schema_extra={"minItems": 1, "maxItems": bounds.MAX_BMC_TASKS},
        description="Tasks, executed one after the other. Each has one action. The first that fails ends the Job.",
    )


class JobStatus(BmcModel):
    """The observed state of a Job."""

    conditions: list[BmcCondition] | None = optional(
        "Running: the Job has begun. Completed: the effect of every task was read back from the BMC. Failed: a task "
        "failed, and the message has the cause. The last one is the present state."
    )
    start_time: str | None = optional("When the Job began.", extra=TIME)
    completion_time: str | None = optional("When the Job was completed. Absent if it failed.", extra=TIME)


class Job(BmcResource):
    """Tasks for the BMC of one machine, executed once and in order. Each becomes a Task object NAME-task-NUMBER."""

    kind: str = "Job"
    spec: JobSpec
    status: JobStatus = JobStatus()


class TaskSpec(BmcModel):
    """One action, and the BMC that executes it."""

    task: BmcAction = Field(description="The action to execute.")
    connection: Connection | None = optional(
        "How to reach the BMC: a copy of the Machine's spec.connection from the time when the Task was created."
    )


class TaskStatus(BmcModel):
    """The observed state of a Task."""

    conditions: list[BmcCondition] | None = optional(
        "Completed: the effect of the action was read back from the BMC. Failed: the message has the cause."
    )
    start_time: str | None = optional("When the Task began.", extra=TIME)
    completion_time: str | None = optional("When the Task was completed. Absent if it failed.", extra=TIME)
    stage: str | None = optional(
        "The part of the action that is done, so that a controller that restarts continues after it: the off of a "
        "cycle, for example. Rufio does not know this field."
    )
    login: LoginStatus | None = optional(
        "The login of a Task that no Job created, as in the status of a Machine. Rufio does not know this field."
    )


class Task(BmcResource):
    """One action of a BMC. The controller creates the Tasks of a Job."""

    kind: str = "Task"
    spec: TaskSpec
    status: TaskStatus = TaskStatus()
