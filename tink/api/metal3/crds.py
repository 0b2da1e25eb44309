"""The CustomResourceDefinitions of Metal3's hosts: BareMetalHost and HardwareData, as they stand in `definitions.yaml`.

`tinkedge crds --metal3` prints them, `deploy/crds-metal3/` holds them. On a cluster of Metal3's they take the place of
the baremetal-operator's: what is stored there stays as it is, and BareMetalHost is served as v1beta1 as well.

Which version is stored and which are served is an argument: applying definitions again must not undo a migration
(`tink.metal3.migration`). They say nothing about conversion, so that applying them again doesn't turn a webhook off
that was registered since. A new definition has no webhook (Kubernetes' strategy None): until it has one, hosts read as
v1beta1 lack what v1alpha1 calls otherwise, so give `generate` the webhook at once where there is one.
"""

from __future__ import annotations

from pathlib import Path

import yaml

from tink.api.metal3 import HOST_VERSIONS
from tink.api.v1alpha2 import Raw

_DEFINITIONS = Path(__file__).with_name("definitions.yaml")


def generate(
    conversion: Raw | None = None, *, storage: str = HOST_VERSIONS[0], serve_v1alpha1: bool = True
) -> list[Raw]:
    """Give the definitions (apiextensions.k8s.io/v1) of BareMetalHost and HardwareData; they belong to the caller.

    `conversion` is the `spec.conversion` of BareMetalHost, e.g. with the strategy Webhook. `storage` is the version,
    one of HOST_VERSIONS, that hosts are stored in.
    """
    hosts, found = yaml.load_all(_DEFINITIONS.read_bytes(), Loader=yaml.CSafeLoader)
    old, new = hosts["spec"]["versions"]
    old |= {"served": serve_v1alpha1, "storage": storage == old["name"]}
    new["storage"] = storage == new["name"]
    if conversion is not None:
        hosts["spec"]["conversion"] = conversion
    return [hosts, found]
