"""The CustomResourceDefinitions of BareMetalHost and HardwareData, from `definitions.yaml`.

`tinkedge crds --metal3` prints them, `deploy/crds-metal3/` holds them. On a Metal3 cluster they replace those of the
baremetal-operator: stored objects stay unchanged, and BareMetalHost is served as v1beta1, too.

The storage version and the served versions are arguments, because applying definitions again must not undo a migration
(`tink.metal3.migration`). The definitions do not contain the conversion, so that applying them again does not remove a
webhook that was registered since. A new definition has no webhook (Kubernetes' strategy None). Until it has one, hosts
read as v1beta1 lack the fields with other names in v1alpha1. So pass the webhook to `generate` if there is one.
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
    """Return the definitions (apiextensions.k8s.io/v1) of BareMetalHost and HardwareData. The caller may change them.

    `conversion` is the `spec.conversion` of BareMetalHost, e.g. with the strategy Webhook. `storage` is the storage
    version, one of HOST_VERSIONS.
    """
    hosts, found = yaml.load_all(_DEFINITIONS.read_bytes(), Loader=yaml.CSafeLoader)
    old, new = hosts["spec"]["versions"]
    old |= {"served": serve_v1alpha1, "storage": storage == old["name"]}
    new["storage"] = storage == new["name"]
    if conversion is not None:
        hosts["spec"]["conversion"] = conversion
    return [hosts, found]
