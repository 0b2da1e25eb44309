"""Convert Metal3's hosts: BareMetalHost between its two versions, and to Hardware (docs/metal3.md).

`versions` is the core of the conversion webhook. `to_hardware` makes Hardware: `safety` decides whether the machine may
netboot, `network_data` what DHCP serves, `root_disk` which disk is the root disk.
"""

from tink.convert.metal3.safety import (
    HOST_LABEL,
    REFUSED_ANNOTATION,
    SECURED_ANNOTATION,
    NetbootRefusal,
    bounded,
    is_consumed_by_cluster_api,
    label_of,
    refusals,
)
from tink.convert.metal3.to_hardware import HostOptions, convert_to_hardware, secrets_to_read
from tink.convert.metal3.versions import (
    CONVERSION_DATA_ANNOTATION,
    MAX_ANNOTATIONS_BYTES,
    ConversionSettings,
    convert_version,
    wrongly_md5,
)

__all__ = [
    "CONVERSION_DATA_ANNOTATION",
    "HOST_LABEL",
    "MAX_ANNOTATIONS_BYTES",
    "REFUSED_ANNOTATION",
    "SECURED_ANNOTATION",
    "ConversionSettings",
    "HostOptions",
    "NetbootRefusal",
    "bounded",
    "convert_to_hardware",
    "convert_version",
    "is_consumed_by_cluster_api",
    "label_of",
    "refusals",
    "secrets_to_read",
    "wrongly_md5",
]
