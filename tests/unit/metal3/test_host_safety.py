"""No machine that may run a workload netboots, whatever else its host says."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tink.api.v1alpha2 import Raw
from tink.convert.findings import Findings, Source
from tink.convert.metal3 import REFUSED_ANNOTATION, HostOptions, convert_to_hardware, refusals

MAC = "52:54:00:00:00:01"
SOURCE = Source("in.yaml", 1, "BareMetalHost", "metal3", "n0")
NICS = [{"mac": MAC, "pxe": True}, {"mac": "52:54:00:00:00:02", "pxe": True}, {"mac": "52:54:00:00:00:03"}]
ALL = HostOptions(bmc=True, consumed=True)
DATA: Raw = {"spec": {"hardware": {"nics": NICS}}}


def free(version: str = "v1alpha1") -> Raw:
    return {
        "apiVersion": f"metal3.io/{version}",
        "kind": "BareMetalHost",
        "metadata": {"name": "n0", "namespace": "metal3", "uid": "u"},
        "spec": {"online" if version == "v1alpha1" else "poweredOn": True, "bootMACAddress": MAC},
        "status": {"operationalStatus": "OK", "provisioning": {"state": "available", "ID": "i", "image": {"url": ""}}},
    }


def hardware(host: Raw, options: HostOptions = ALL) -> Raw | None:
    made = convert_to_hardware(
        host, Findings(SOURCE), lambda kind, *_: DATA if kind == "HardwareData" else None, options
    )
    return made[0] if made else None


def netboots(host: Raw, options: HostOptions = ALL) -> list[str]:
    made = hardware(host, options)
    interfaces = made["spec"]["networkInterfaces"] if made else {}
    return [mac for mac, each in interfaces.items() if each.get("disableNetboot") is not True]


def put(*path: str, value: Any) -> Callable[[Raw], None]:
    def change(host: Raw) -> None:
        at = host
        for key in path[:-1]:
            if not isinstance(at.get(key), dict):
                at[key] = {}
            at = at[key]
        at[path[-1]] = value

    return change


STATES = (
    "", "unmanaged", "registering", "match profile", "preparing", "provisioning", "provisioned",
    "externally provisioned", "deprovisioning", "inspecting", "powering off before delete", "deleting", "Available",
    "available ", "servicing", "a state of next year",
)  # fmt: skip
PAUSED, DETACHED = "baremetalhost.metal3.io/paused", "baremetalhost.metal3.io/detached"
UNSAFE: dict[str, Callable[[Raw], None]] = {
    **{f"state {state!r}": put("status", "provisioning", "state", value=state) for state in STATES},
    **{
        f"odd state {odd!r}": put("status", "provisioning", "state", value=odd) for odd in (1, True, [], ["available"])
    },
    "no status": put("status", value=None),
    "odd status": put("status", value="available"),
    "odd provisioning": put("status", "provisioning", value=["available"]),
    "no provisioning": put("status", "provisioning", value=None),
    "an image is on it": put("status", "provisioning", "image", value={"url": "http://x/y"}),
    "an odd image is on it": put("status", "provisioning", "image", value="http://x/y"),
    "a custom deploy is on it": put("status", "provisioning", "customDeploy", value={"method": "x"}),
    "detached as observed": put("status", "operationalStatus", value="detached"),
    "servicing": put("status", "operationalStatus", value="servicing"),
    "odd operation": put("status", "operationalStatus", value={}),
    "lost touch": put("status", "errorType", value="provisioned registration error"),
    "off": put("spec", "online", value=False),
    "off in the other version": put("spec", "poweredOn", value=False),
    "power not said": put("spec", "online", value=None),
    "odd power": put("spec", "online", value="true"),
    "power as a number": put("spec", "online", value=1),
    "externally provisioned": put("spec", "externallyProvisioned", value=True),
    "oddly externally provisioned": put("spec", "externallyProvisioned", value="false"),
    "used by Cluster API": put(
        "spec", "consumerRef",
        value={"kind": "Metal3Machine", "name": "m", "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1"},
    ),
    "used by somebody": put("spec", "consumerRef", value={"kind": "Machine", "name": "m"}),
    "oddly used": put("spec", "consumerRef", value="somebody"),
    "paused": put("metadata", "annotations", PAUSED, value=""),
    "paused by Cluster API": put("metadata", "annotations", PAUSED, value="metal3.io/capm3"),
    "paused by null": put("metadata", "annotations", PAUSED, value=None),
    "detached": put("metadata", "annotations", DETACHED, value='{"deleteAction": "delay"}'),
    "odd annotations": put("metadata", "annotations", value=[PAUSED]),
    "being deleted": put("metadata", "deletionTimestamp", value="2026-01-01T00:00:00Z"),
    "unknown version": put("apiVersion", value="metal3.io/v2"),
}  # fmt: skip


WITHOUT_A_STATE = {"state ''", "state 'unmanaged'", "no status", "no provisioning"}


@pytest.mark.parametrize("version", ["v1alpha1", "v1beta1"])
@pytest.mark.parametrize("state", ["available", "ready"])
def test_free_host_netboots_in_either_version(version: str, state: str) -> None:
    host = free(version)
    host["status"]["provisioning"]["state"] = state
    assert netboots(host) == [MAC, "52:54:00:00:00:02"]
    assert refusals(host) == []


@pytest.mark.parametrize("what", UNSAFE)
def test_host_that_may_run_something_never_netboots(what: str) -> None:
    host = free()
    UNSAFE[what](host)
    assert netboots(host) == []
    said = refusals(host)
    assert said
    assert all(each.path and each.reason for each in said)
    made = hardware(host)
    if made is not None:
        assert len(made["spec"]["networkInterfaces"]) == 3
        assert made["metadata"]["annotations"][REFUSED_ANNOTATION]


def test_powered_off_in_v1beta1_is_powered_off() -> None:
    host = free("v1beta1")
    host["spec"]["poweredOn"] = False
    assert netboots(host) == []
    host["spec"] = {"online": True, "bootMACAddress": MAC}  # the other version's word says nothing here
    assert netboots(host) == []


def test_host_nobody_manages_netboots_only_if_the_operator_says_so() -> None:
    said = HostOptions(unmanaged=True)
    for status in (None, {}, {"provisioning": {}}, {"provisioning": {"state": "unmanaged"}}):
        host = free()
        host["status"] = status
        assert netboots(host, HostOptions()) == []
        assert netboots(host, said)
    for change in (
        put("spec", "image", value={"url": "http://x/y"}),
        put("spec", "customDeploy", value={"method": "x"}),
        put("spec", "online", value=False),
        put("metadata", "annotations", "baremetalhost.metal3.io/status", value="{}"),
        put("metadata", "annotations", PAUSED, value=""),
        put("status", "provisioning", "state", value="provisioned"),
        put("status", "provisioning", "state", value="inspecting"),
    ):
        host = free()
        host["status"] = {}
        change(host)
        assert netboots(host, said) == []


def test_provisioned_host_netboots_again_when_it_is_free_again() -> None:
    host = free()
    seen = []
    for state in ("available", "provisioning", "provisioned", "deprovisioning", "available"):
        host["status"]["provisioning"]["state"] = state
        seen.append(bool(netboots(host)))
    assert seen == [True, False, False, False, True]


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5000)
    | st.sampled_from(["", "available", "true", "x", MAC, "detached"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["state", "url", "mac", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)
PATHS = [
    ("metadata",), ("metadata", "annotations"), ("metadata", "labels"), ("metadata", "annotations", "x/y"),
    ("spec",), ("spec", "online"), ("spec", "poweredOn"), ("spec", "bootMACAddress"), ("spec", "bmc"),
    ("spec", "image"), ("spec", "raid"), ("spec", "rootDeviceHints"), ("spec", "userData"), ("spec", "networkData"),
    ("spec", "metaData"),
    ("spec", "consumerRef"), ("spec", "externallyProvisioned"), ("spec", "architecture"), ("spec", "bootMode"),
    ("spec", "unknown"), ("status",), ("status", "hardware"), ("status", "provisioning"),
    ("status", "provisioning", "state"), ("status", "provisioning", "image"), ("status", "operationalStatus"),
    ("status", "errorType"), ("apiVersion",),
]  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(["v1alpha1", "v1beta1"]),
    st.lists(st.sampled_from(sorted(UNSAFE)), min_size=1, max_size=3),
    st.lists(
        st.tuples(st.sampled_from([path for path in PATHS if path[0] == "spec" and len(path) == 2]), JSON), max_size=4
    ),
    st.booleans(),
)
def test_whatever_else_an_unsafe_host_says_it_does_not_netboot(
    version: str, unsafe: list[str], others: list[tuple[tuple[str, ...], Any]], unmanaged: bool
) -> None:
    host = free(version)
    for path, value in others:
        put(*path, value=value)(host)
    for what in unsafe:
        UNSAFE[what](host)
    if unsafe[-1] in WITHOUT_A_STATE:
        unmanaged = False  # else it may netboot: see above
    assert netboots(host, HostOptions(bmc=True, consumed=True, unmanaged=unmanaged)) == []


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(["v1alpha1", "v1beta1"]), st.lists(st.tuples(st.sampled_from(PATHS), JSON), max_size=5), JSON)
@example("v1alpha1", [(("status", "provisioning", "image"), {"url": [None]})], None)
@example("v1beta1", [(("status", "provisioning", "customDeploy"), {"method": {"a": ""}})], None)
@example("v1beta1", [(("spec", "consumerRef"), {"name": [None]})], None)
def test_odd_host_is_converted_or_refused_and_netboots_only_if_all_it_says_is_known(
    version: str, changes: list[tuple[tuple[str, ...], Any]], secret: Any
) -> None:
    host = free(version)
    for path, value in changes:
        put(*path, value=copy.deepcopy(value))(host)
    before = copy.deepcopy(host)
    findings = Findings(SOURCE)
    made = convert_to_hardware(host, findings, lambda kind, *_: secret if kind == "Secret" else DATA, ALL)
    assert host == before, "a converter changes nothing in what it reads"
    assert made or findings.failed
    if made and any(each.get("disableNetboot") is not True for each in made[0]["spec"]["networkInterfaces"].values()):
        status, spec = host["status"], host["spec"]
        assert status["provisioning"]["state"] in ("available", "ready")
        assert spec["online" if host["apiVersion"] == "metal3.io/v1alpha1" else "poweredOn"] is True
        assert spec.get("online", True) is True
        assert spec.get("poweredOn", True) is True
        assert not spec.get("externallyProvisioned")
        assert status.get("operationalStatus") in (None, "", "OK", "discovered", "error", "delayed")
        assert not (status["provisioning"].get("image") or {}).get("url")
        assert not (status["provisioning"].get("customDeploy") or {}).get("method")
        assert not any((spec.get("consumerRef") or {}).values())
