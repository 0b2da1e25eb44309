"""Metal3's hosts: BareMetalHost in both of its versions, and HardwareData.

`crds` has their CustomResourceDefinitions, `profiles` the hardware profiles, which v1beta1 does not have.
`tink.convert.metal3` converts one version to the other.
"""

from __future__ import annotations

GROUP = "metal3.io"
HOST_VERSIONS = ("v1alpha1", "v1beta1")
"""The versions of BareMetalHost, the older one first."""
V1ALPHA1 = f"{GROUP}/v1alpha1"
"""The version in which hosts are stored, and which Metal3's own controller uses."""
V1BETA1 = f"{GROUP}/v1beta1"
"""The newer version: without hardware profiles and hardware details, with clearer field names."""
