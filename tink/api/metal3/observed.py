"""The status that both versions of BareMetalHost have in common: what the baremetal-operator writes."""

from __future__ import annotations

from typing import Annotated, Generic, Literal

from pydantic import Field, StringConstraints
from pydantic.config import JsonDict

from tink.api.metal3.parts import BootMode, CustomDeploy, FirmwareConfig, Hints, Image, RAIDConfig, SecretReference
from tink.api.v1alpha2 import TIME, ConditionStatus, Model, optional

_TIME_OR_NULL: JsonDict = {**TIME, "nullable": True}
_BY_TYPE: JsonDict = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}

_CONDITION_TYPE = (
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
    r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$"
)
_CONDITION_REASON = r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"


class CredentialsStatus(Model):
    """Credentials of a management controller, as they were at some time."""

    credentials: SecretReference | None = optional("The Secret with the credentials.")
    credentials_version: str | None = optional("The resourceVersion that the Secret had.")


class OperationMetric(Model):
    """When an operation ran."""

    start: str | None = optional("When it began.", extra=_TIME_OR_NULL)
    end: str | None = optional("When it ended.", extra=_TIME_OR_NULL)


class OperationHistory(Model):
    """When the operations of a host ran last."""

    register_: OperationMetric | None = optional("Registration.", alias="register")
    inspect: OperationMetric | None = optional("Inspection.")
    provision: OperationMetric | None = optional("Provisioning.")
    deprovision: OperationMetric | None = optional("Deprovisioning.")


class HostCondition(Model):
    """An observation about a host (Kubernetes API conventions, metav1.Condition)."""

    type: Annotated[str, StringConstraints(pattern=_CONDITION_TYPE, max_length=316)] = Field(
        description="Type of the condition, e.g. Ready."
    )
    status: ConditionStatus = Field(description="Status of the condition: True, False or Unknown.")
    observed_generation: int | None = optional("The generation of the host that was looked at.", ge=0)
    last_transition_time: str = Field(
        json_schema_extra=TIME, description="When the status last changed from one to another."
    )
    reason: Annotated[str, StringConstraints(pattern=_CONDITION_REASON, min_length=1, max_length=1024)] = Field(
        description="A CamelCase word for why the status last changed."
    )
    message: str = Field(max_length=32768, description="The same for people. May be empty.")


class ProvisionStatus(Model, Generic[Hints, Image]):
    """What the provisioner is doing with a host."""

    state: str = Field(description="What is being done with the host, e.g. inspecting, available, provisioned.")
    id: str = Field(alias="ID", description="The host's ID in the provisioner (Ironic's node UUID).")
    boot_mode: BootMode | None = optional("The boot mode that the host was provisioned with.")
    firmware: FirmwareConfig | None = optional("Deprecated: always empty.")
    custom_deploy: CustomDeploy | None = optional("The deploy procedure that was used, instead of an image.")
    image: Image | None = optional("The image that was last provisioned successfully.")
    root_device_hints: Hints | None = optional("The root device hints that the host was provisioned with.")
    raid: RAIDConfig[Hints] | None = optional("The RAID configuration that is in effect.")


class HostStatus(Model, Generic[Hints, Image]):
    """The observed state of a host, as far as the versions agree."""

    operational_status: Literal["", "OK", "discovered", "error", "delayed", "detached", "servicing"] = Field(
        description="Whether the host can be used, and if not, why."
    )
    error_type: (
        Literal[
            "",
            "provisioned registration error",
            "registration error",
            "inspection error",
            "preparation error",
            "provisioning error",
            "power management error",
            "detach error",
            "servicing error",
        ]
        | None
    ) = optional("What failed, while operationalStatus is error.")
    last_updated: str | None = optional("When this status was observed last.", extra=TIME)
    good_credentials: CredentialsStatus | None = optional(
        "The last credentials with which the management controller let us in."
    )
    tried_credentials: CredentialsStatus | None = optional("The last credentials that were given to the provisioner.")
    error_message: str = Field(description="The provisioner's last error. Empty if there is none.")
    powered_on: bool = Field(description="Whether the host is on. May lag behind while the host is being provisioned.")
    operation_history: OperationHistory | None = optional("When the operations of this host ran last.")
    error_count: int = Field(default=0, description="How often the host has failed since something last succeeded.")
    provisioning_fail_count: int = Field(
        default=0,
        description="How often provisioning has failed in a row with this image. A success or another image sets it "
        "back.",
    )
    conditions: list[HostCondition] | None = optional("Observations about the host.", max_length=32, extra=_BY_TYPE)
    provisioning: ProvisionStatus[Hints, Image] = Field(description="What the provisioner knows of the host.")
    last_attempted_image: Image | None = optional(
        "The image of the last attempt at provisioning. With another one failures are counted anew."
    )
