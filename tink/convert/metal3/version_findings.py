"""BareMetalHosts of files to their other version, with a word about what would be lost on the way back."""

from __future__ import annotations

from tink.api.metal3 import GROUP, V1ALPHA1
from tink.api.v1alpha2 import Raw
from tink.convert.findings import Findings
from tink.convert.metal3.versions import ConversionSettings, convert_version, wrongly_md5


def convert_version_with_findings(
    obj: Raw, findings: Findings, version: str, settings: ConversionSettings
) -> list[Raw]:
    """The host in `version` (v1beta1)."""
    converted = convert_version(obj, f"{GROUP}/{version}", settings)
    if obj["apiVersion"] != converted["apiVersion"] and converted["apiVersion"] != V1ALPHA1:
        if settings.empty_checksum_type == "md5":
            for path in wrongly_md5(obj):
                reason = "empty means md5, and this checksum is none: say its type, or --empty-checksum-type auto"
                findings.changed(f"{path}.checksumType", reason)
        if _details(convert_version(converted, obj["apiVersion"], settings)) != _details(obj):
            reason = "too large for the annotation that keeps it; a HardwareData of the host's name is to hold it"
            findings.dropped("status.hardware", reason)
    return [converted]


def _details(host: Raw) -> object:
    """What inspection found, which v1beta1 has no place for."""
    status = host.get("status")
    return status.get("hardware") if isinstance(status, dict) else None
