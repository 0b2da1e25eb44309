"""Metal3's hosts: BareMetalHost between its versions, and to Hardware: docs/metal3.md.

`versions` is the conversion webhook's core, `conversion_data` keeps what a version has no field for. `to_hardware`
makes Hardware: `safety` decides whether the machine may netboot, `interfaces` and `network_data` what DHCP serves,
`root_disk` which disk is the root, `rufio` how the management controller is reached; `surroundings` has what inspection
found, and the Secrets; `marks` are labels and annotations by which the controller of `tink.metal3` knows the result.
"""

from tink.convert.metal3.marks import (
    HOST_LABEL,
    REFUSED_ANNOTATION,
    SECURED_ANNOTATION,
    bounded,
    is_consumed_by_cluster_api,
    label_of,
)
from tink.convert.metal3.safety import Refusal, refusals
from tink.convert.metal3.surroundings import secrets_to_read
from tink.convert.metal3.to_hardware import HostOptions, convert_to_hardware
from tink.convert.metal3.versions import ConversionSettings, convert_version, wrongly_md5

__all__ = [
    "HOST_LABEL",
    "REFUSED_ANNOTATION",
    "SECURED_ANNOTATION",
    "ConversionSettings",
    "HostOptions",
    "Refusal",
    "bounded",
    "convert_to_hardware",
    "convert_version",
    "is_consumed_by_cluster_api",
    "label_of",
    "refusals",
    "secrets_to_read",
    "wrongly_md5",
]
