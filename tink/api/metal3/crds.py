"""The CustomResourceDefinitions of Metal3's hosts, generated from the models of this package.

`tinkedge crds --metal3` prints them, `deploy/crds-metal3/` holds them. On a cluster of Metal3's they take the place of
the baremetal-operator's: what is stored there stays as it is, and BareMetalHost is served as v1beta1 as well.

Which version is stored and which are served is an argument: applying definitions again must not undo a migration
(`tink.metal3.migration`). They say nothing about conversion, so that applying them again doesn't turn a webhook off
that was registered since. A new definition has no webhook (Kubernetes' strategy None): until it has one, hosts read as
v1beta1 lack what v1alpha1 calls otherwise, so give `generate` the webhook at once where there is one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tink.api.crds import AGE, Column, object_schema
from tink.api.metal3 import GROUP, HOST_VERSIONS, v1alpha1, v1beta1
from tink.api.metal3.hardwaredata import HardwareData
from tink.api.metal3.parts import Metal3Resource
from tink.api.v1alpha2 import Raw

_DEPRECATION = (
    "metal3.io/v1alpha1 BareMetalHost is deprecated; use metal3.io/v1beta1: online is poweredOn there, hardwareProfile "
    "and status.hardware are gone (say rootDeviceHints and architecture, read HardwareData)"
)


@dataclass(frozen=True)
class _Version:
    name: str
    model: type[Metal3Resource]
    columns: tuple[Column, ...]
    storage: bool
    status: bool
    deprecation: str = ""
    served: bool = True

    def entry(self) -> Raw:
        entry: Raw = {"name": self.name, "served": self.served, "storage": self.storage}
        if self.deprecation:
            entry |= {"deprecated": True, "deprecationWarning": self.deprecation}
        return entry | {
            "additionalPrinterColumns": [column.entry() for column in self.columns],
            "schema": {"openAPIV3Schema": object_schema(self.model)},
            "subresources": {"status": {}} if self.status else {},
        }


def _host_columns(power: Column) -> tuple[Column, ...]:
    return (
        Column("Status", ".status.operationalStatus", "Whether the host can be used.", priority=1),
        Column("State", ".status.provisioning.state", "What is being done with the host."),
        Column("Consumer", ".spec.consumerRef.name", "What uses the host."),
        Column("BMC", ".spec.bmc.address", "Address of the management controller.", priority=1),
        power,
        Column("Error", ".status.errorType", "What failed last."),
        AGE,
    )


_ONLINE = Column("Online", ".spec.online", "Whether the host shall be on.")
_POWERED_ON = Column("PoweredOn", ".spec.poweredOn", "Whether the host shall be on.")


def generate(
    conversion: Raw | None = None, *, storage: str = HOST_VERSIONS[0], serve_v1alpha1: bool = True
) -> list[dict[str, Any]]:
    """Give the definitions (apiextensions.k8s.io/v1) of BareMetalHost and HardwareData; they belong to the caller.

    `conversion` is the `spec.conversion` of BareMetalHost, e.g. with the strategy Webhook. `storage` is the version,
    one of HOST_VERSIONS, that hosts are stored in.
    """
    old, new = HOST_VERSIONS
    versions = (
        _Version(
            old, v1alpha1.BareMetalHost, _host_columns(_ONLINE), storage == old, True, _DEPRECATION, serve_v1alpha1
        ),
        _Version(new, v1beta1.BareMetalHost, _host_columns(_POWERED_ON), storage == new, True),
    )
    hosts = _definition("BareMetalHost", "baremetalhosts", ["bmh", "bmhost"], versions)
    if conversion is not None:
        hosts["spec"]["conversion"] = conversion
    found = _Version("v1alpha1", HardwareData, (AGE,), True, False)
    return [hosts, _definition("HardwareData", "hardwaredata", ["hd"], (found,))]


def _definition(kind: str, plural: str, short_names: list[str], versions: tuple[_Version, ...]) -> Raw:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "shortNames": short_names,
                "singular": kind.lower(),
            },
            "scope": "Namespaced",
            "versions": [version.entry() for version in versions],
        },
    }
