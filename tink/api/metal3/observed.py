"""The status that both versions of BareMetalHost have in common: what the baremetal-operator writes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints
from pydantic.config import JsonDict

from tink.api.metal3.parts import BootMode, CustomDeploy, FirmwareConfig, SecretReference
from tink.api.v1alpha2 import ConditionStatus, Model

_TIME: JsonDict = {"format": "date-time"}
_TIME_OR_NULL: JsonDict = {**_TIME, "nullable": True}
_BY_TYPE: JsonDict = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}

_CONDITION_TYPE = (
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
    r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$"
)
_CONDITION_REASON = r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"


class CredentialsStatus(Model):
    """Credentials of a management controller, as they were at some time."""

    credentials: SecretReference | None = Field(default=None, description="The Secret with the credentials.")
    credentials_version: str | None = Field(default=None, description="The resourceVersion that the Secret had.")


class OperationMetric(Model):
    """When an operation ran."""

    start: str | None = Field(default=None, json_schema_extra=_TIME_OR_NULL, description="When it began.")
    end: str | None = Field(default=None, json_schema_extra=_TIME_OR_NULL, description="When it ended.")


class OperationHistory(Model):
    """When the operations of a host ran last."""

    register_: OperationMetric | None = Field(default=None, alias="register", description="Registration.")
    inspect: OperationMetric | None = Field(default=None, description="Inspection.")
    provision: OperationMetric | None = Field(default=None, description="Provisioning.")
    deprovision: OperationMetric | None = Field(default=None, description="Deprovisioning.")


class HostCondition(Model):
    """An observation about a host (Kubernetes API conventions, metav1.Condition)."""

    type: Annotated[str, StringConstraints(pattern=_CONDITION_TYPE, max_length=316)] = Field(
        default=..., description="Type of the condition, e.g. Ready."
    )
    status: ConditionStatus = Field(default=..., description="Status of the condition: True, False or Unknown.")
    observed_generation: int | None = Field(
        default=None, ge=0, description="The generation of the host that was looked at."
    )
    last_transition_time: str = Field(
        default=..., json_schema_extra=_TIME, description="When the status last changed from one to another."
    )
    reason: Annotated[str, StringConstraints(pattern=_CONDITION_REASON, min_length=1, max_length=1024)] = Field(
        default=..., description="A CamelCase word for why the status last changed."
    )
    message: str = Field(default=..., max_length=32768, description="The same for people. May be empty.")


class Provisioning(Model):
    """What the provisioner is doing with a host, as far as the versions agree."""

    state: str = Field(
        default=..., description="What is being done with the host, e.g. inspecting, available, provisioned."
    )
    id: str = Field(default=..., alias="ID", description="The host's ID in the provisioner (Ironic's node UUID).")
    boot_mode: BootMode | None = Field(default=None, description="The boot mode that the host was provisioned with.")
    firmware: FirmwareConfig | None = Field(default=None, description="Deprecated: always empty.")
    custom_deploy: CustomDeploy | None = Field(
        default=None, description="The deploy procedure that was used, instead of an image."
    )


class HostStatus(Model):
    """The observed state of a host, as far as the versions agree."""

    operational_status: Literal["", "OK", "discovered", "error", "delayed", "detached", "servicing"] = Field(
        default=..., description="Whether the host can be used, and if not, why."
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
    ) = Field(default=None, description="What failed, while operationalStatus is error.")
    last_updated: str | None = Field(
        default=None, json_schema_extra=_TIME, description="When this status was observed last."
    )
    good_credentials: CredentialsStatus | None = Field(
        default=None, description="The last credentials with which the management controller let us in."
    )
    tried_credentials: CredentialsStatus | None = Field(
        default=None, description="The last credentials that were given to the provisioner."
    )
    error_message: str = Field(default=..., description="The provisioner's last error. Empty if there is none.")
    powered_on: bool = Field(
        default=..., description="Whether the host is on. May lag behind while the host is being provisioned."
    )
    operation_history: OperationHistory | None = Field(
        default=None, description="When the operations of this host ran last."
    )
    error_count: int = Field(default=0, description="How often the host has failed since something last succeeded.")
    provisioning_fail_count: int = Field(
        default=0,
        description="How often provisioning has failed in a row with this image. A success or another image sets it "
        "back.",
    )
    conditions: list[HostCondition] | None = Field(
        default=None, max_length=32, json_schema_extra=_BY_TYPE, description="Observations about the host."
    )
