"""A host's management controller to a Machine of Rufio's (bmc.tinkerbell.org/v1alpha1), which Hardware refers to.

The address is a URL whose scheme names the driver (baremetal-operator, docs/api.md); Rufio takes host and port, and
tries its own drivers. The credentials stay where they are: both worlds have them in the keys `username` and `password`
of a Secret, and the Machine refers to it.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit

from tink.api.v1alpha2 import RUFIO_GROUP, Raw
from tink.convert import constraints
from tink.convert.fields import Fields
from tink.convert.findings import Findings

API_VERSION = f"{RUFIO_GROUP}/v1alpha1"
KIND = "Machine"

_IPMI_PORT = 623
_REDFISH = ("redfish", "idrac-redfish", "ilo5-redfish", "idrac-virtualmedia", "ilo5-virtualmedia")
_REDFISH_FORMS = ("redfish-virtualmedia", "redfish-uefihttp")
_IPMI = ("", "ipmi", "libvirt")
"""Without a scheme it is IPMI; libvirt's is virtualbmc, which speaks IPMI."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a management controller is, and which protocol it speaks: `ipmi` or `redfish`."""

    host: str
    port: int
    protocol: str
    path: str


def address(text: str) -> Address:
    """Read `spec.bmc.address`. Raises ValueError, which says what to do."""
    parts = urlsplit(text if "://" in text else f"//{text}")
    driver, _, transport = parts.scheme.lower().partition("+")
    if "://" not in text and text.count(":") > 1 and not text.startswith("["):
        parts = urlsplit(f"//[{text}]")  # an IPv6 address alone
    if driver in _IPMI and transport in ("", "ipmi"):
        protocol, port = "ipmi", _IPMI_PORT
    elif driver in (*_REDFISH, *_REDFISH_FORMS) and transport in ("", "https", "http"):
        protocol, port = "redfish", 80 if transport == "http" else 443
    else:
        raise ValueError(f"Rufio knows no driver {parts.scheme[:60]!r}: make its Machine by hand")
    host = parts.hostname or ""
    if not host or (not _is_ip(host) and constraints.hostname(host)):
        raise ValueError("it names no host: write it like redfish://192.0.2.7/redfish/v1/Systems/1")
    if "@" in parts.netloc:
        raise ValueError("it has credentials in it: put them into the Secret that credentialsName names")
    return Address(host, parts.port or port, protocol, parts.path.strip("/"))


def machine(bmc: Fields, metadata: Raw, findings: Findings) -> Raw | None:
    """The Machine of `spec.bmc`, named and labelled like its Hardware (`metadata`); None if a finding says why not."""
    said, credentials = bmc.text("address") or "", bmc.text("credentialsName") or ""
    insecure = bmc.flag("disableCertificateVerification")
    bmc.rest()
    try:
        where = address(said)
    except ValueError as error:
        findings.dropped(bmc.at("address"), str(error))
        return None
    if refusal := credentials and constraints.object_name(credentials):
        findings.dropped(bmc.at("credentialsName"), refusal)
        return None
    connection: Raw = {"host": where.host, "port": where.port, "insecureTLS": bool(insecure)}
    if credentials:
        reference = {"name": credentials}
        if namespace := metadata.get("namespace"):
            reference["namespace"] = namespace
        connection["authSecretRef"] = reference
    else:
        findings.changed(bmc.at("credentialsName"), "there is none: Rufio logs in with no name and no password")
    if where.protocol == "redfish":
        # Rufio's own default is IPMI's port.
        connection["providerOptions"] = {"preferredOrder": ["gofish"], "redfish": {"port": where.port}}
        if where.path.removesuffix("/") not in ("", "redfish/v1"):
            findings.changed(
                bmc.at("address"),
                "Rufio finds the system by itself; where several share a controller, name it in the Machine's "
                "providerOptions.redfish.systemName",
            )
    else:
        connection["providerOptions"] = {"preferredOrder": ["ipmitool"], "ipmitool": {"port": where.port}}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": dict(metadata), "spec": {"connection": connection}}


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
