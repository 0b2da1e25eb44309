"""The CustomResourceDefinitions of Metal3's hosts, generated from the models of this package.

`tinkedge crds --metal3` prints them, `deploy/crds-metal3/` holds them. On a cluster of Metal3's they take the place of
the baremetal-operator's: what is stored there stays as it is, and BareMetalHost is served as v1beta1 as well.

Which version is stored and which are served is an argument: applying definitions again must not undo a migration
(`tink.metal3.migration`). They say nothing about conversion, so that applying them again doesn't turn a webhook off
that was registered since. A new definition has no webhook (Kubernetes' strategy None): until it has one, hosts read as
v1beta1 lack what v1alpha1 calls otherwise, so give `generate` the webhook at once where there is one.
"""

from __future__ import annotations

from tink.api.crds import AGE, Column, Version, definition
from tink.api.metal3 import GROUP, HOST_VERSIONS, v1alpha1, v1beta1
from tink.api.metal3.hardwaredata import HardwareData
from tink.api.v1alpha2 import Raw

_DEPRECATION = (
    "metal3.io/v1alpha1 BareMetalHost is deprecated; use metal3.io/v1beta1: online is poweredOn there, hardwareProfile "
    "and status.hardware are gone (say rootDeviceHints and architecture, read HardwareData)"
)


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
) -> list[Raw]:
    """Give the definitions (apiextensions.k8s.io/v1) of BareMetalHost and HardwareData; they belong to the caller.

    `conversion` is the `spec.conversion` of BareMetalHost, e.g. with the strategy Webhook. `storage` is the version,
    one of HOST_VERSIONS, that hosts are stored in.
    """
    old, new = HOST_VERSIONS
    before = Version(
        old,
        v1alpha1.BareMetalHost,
        _host_columns(_ONLINE),
        status=True,
        storage=storage == old,
        served=serve_v1alpha1,
        deprecation=_DEPRECATION,
    )
    now = Version(new, v1beta1.BareMetalHost, _host_columns(_POWERED_ON), status=True, storage=storage == new)
    hosts = definition(GROUP, "baremetalhosts", ["bmh", "bmhost"], before, now)
    if conversion is not None:
        hosts["spec"]["conversion"] = conversion
    return [hosts, definition(GROUP, "hardwaredata", ["hd"], Version("v1alpha1", HardwareData, (AGE,)))]
