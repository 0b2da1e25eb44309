"""Management controllers as Rufio's Machines: where they are, and whose credentials they take."""

from __future__ import annotations

from typing import Any

import pytest

from tink.api.v1alpha2 import Raw
from tink.convert.fields import Fields
from tink.convert.findings import Findings, Source
from tink.convert.metal3.rufio import machine

METADATA = {"name": "n0", "namespace": "metal3", "labels": {"a": "b"}}


def made(address: Any, **more: Any) -> tuple[Raw | None, list[str]]:
    findings = Findings(Source("f", 1, "BareMetalHost", "metal3", "n0"))
    bmc = Fields({"address": address, "credentialsName": "n0-bmc", **more}, findings, "spec.bmc")
    return machine(bmc, METADATA, findings), [f"{each.path}: {each.reason}" for each in findings]


@pytest.mark.parametrize(
    ("address", "host", "port", "provider"),
    [
        ("redfish://192.0.2.7/redfish/v1", "192.0.2.7", 443, "redfish"),
        ("redfish://192.0.2.7:8000", "192.0.2.7", 8000, "redfish"),
        ("redfish+http://bmc.example.org", "bmc.example.org", 80, "redfish"),
        ("redfish-virtualmedia+https://192.0.2.7:444", "192.0.2.7", 444, "redfish"),
        ("redfish-uefihttp://192.0.2.7", "192.0.2.7", 443, "redfish"),
        ("idrac-virtualmedia://192.0.2.7", "192.0.2.7", 443, "redfish"),
        ("ilo5-redfish://[2001:db8::7]:443", "2001:db8::7", 443, "redfish"),
        ("ipmi://192.0.2.7", "192.0.2.7", 623, "ipmitool"),
        ("ipmi://192.0.2.7:6230", "192.0.2.7", 6230, "ipmitool"),
        ("libvirt://192.0.2.7:6231", "192.0.2.7", 6231, "ipmitool"),
        ("192.0.2.7", "192.0.2.7", 623, "ipmitool"),
        ("192.0.2.7:6230", "192.0.2.7", 6230, "ipmitool"),
        ("[2001:db8::7]:6230", "2001:db8::7", 6230, "ipmitool"),
        ("2001:db8::7", "2001:db8::7", 623, "ipmitool"),
    ],
)
def test_controller_is_reached_where_metal3_reaches_it(address: str, host: str, port: int, provider: str) -> None:
    found, said = made(address, disableCertificateVerification=True)
    assert said == []
    assert found is not None
    assert found["metadata"] == METADATA
    connection = found["spec"]["connection"]
    assert (connection["host"], connection["port"], connection["insecureTLS"]) == (host, port, True)
    assert connection["providerOptions"][provider] == {"port": port}
    assert connection["authSecretRef"] == {"name": "n0-bmc", "namespace": "metal3"}


@pytest.mark.parametrize(
    "address",
    ["", "ftp://x", "redfish://", "irmc://192.0.2.7", "redfish://user:pw@192.0.2.7", "redfish://x:99999", "redfish://[x",
     "redfish+ftp://192.0.2.7", "ipmi://a_b"],
)  # fmt: skip
def test_address_that_rufio_cannot_use_makes_no_machine_and_says_why(address: str) -> None:
    found, said = made(address)
    assert found is None
    assert said
    assert said[0].startswith("spec.bmc.address: ")
    assert "pw" not in said[0]


def test_system_of_a_shared_controller_is_told() -> None:
    found, said = made("redfish://192.0.2.7/redfish/v1/Systems/1")
    assert found is not None
    assert "systemName" in said[0]


def test_odd_fields_are_told_and_no_bad_reference_is_written() -> None:
    assert made("ipmi://192.0.2.7", credentialsName="Not A Name")[0] is None
    found, said = made("ipmi://192.0.2.7", credentialsName="", verbose=True)
    assert found is not None
    assert "authSecretRef" not in found["spec"]["connection"]
    assert [each.partition(":")[0] for each in said] == ["spec.bmc.verbose", "spec.bmc.credentialsName"]
