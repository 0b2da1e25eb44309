"""What an API server makes of the definitions and of converted hosts: the embedded one, which checks as Kubernetes'."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.unit.apiserver.conftest import CRDS, Client
from tests.unit.metal3.hosts import V1ALPHA1, V1BETA1, Hosts, Raw, copied, full, hardware, view, with_auto
from tink.api.metal3.crds import generate
from tink.apiserver import ApiServer
from tink.convert.metal3 import ConversionSettings, convert_version
from tink.schema.outcome import Outcome
from tink.schema.structural.compiler import compile_schema

SETTINGS = ConversionSettings()
HOSTS = "/apis/metal3.io/v1alpha1/namespaces/metal3/baremetalhosts"
NEW_HOSTS = "/apis/metal3.io/v1beta1/namespaces/metal3/baremetalhosts"
FOUND = "/apis/metal3.io/v1alpha1/namespaces/metal3/hardwaredata"


@cache
def walk(version: str) -> Any:
    versions = {f"metal3.io/{each['name']}": each for each in generate()[0]["spec"]["versions"]}
    return compile_schema(versions[version]["schema"]["openAPIV3Schema"])


def stored(host: Raw) -> Raw:
    """A host as the API would have it: with defaults, and nothing unknown. It must be valid."""
    made, found = copied(host), Outcome()
    metadata = made.pop("metadata")
    walk(host["apiVersion"])({**made, "metadata": {}}, None, found)
    assert [str(error) for error in found.errors] == []
    assert list(found.unknown) == []
    return {**made, "metadata": metadata}


def test_converted_hosts_are_valid_and_nothing_of_them_is_pruned() -> None:
    old, new = Hosts(12, V1ALPHA1, odd=False), Hosts(13, V1BETA1, odd=False)
    for host in (stored(old.host()) for _ in range(400)):
        shown = stored(convert_version(host, V1BETA1, SETTINGS))
        assert stored(convert_version(shown, V1ALPHA1, SETTINGS)) == host
    for host in (stored(new.host()) for _ in range(400)):
        kept = stored(convert_version(host, V1ALPHA1, SETTINGS))
        assert view(stored(convert_version(kept, V1BETA1, SETTINGS))) == view(with_auto(host))


@pytest.fixture
async def bare(tmp_path: Path) -> AsyncIterator[Client]:
    """A client of a server without definitions."""
    server = ApiServer(tmp_path / "state", port=0)
    await server.start()
    client = Client(server.kubeconfig)
    assert (await client("POST", "/api/v1/namespaces", {"metadata": {"name": "metal3"}})).status == 201
    yield client
    await client.close()
    await server.stop()


async def install(client: Client, storage: str) -> Client:
    for definition in generate():
        for version in definition["spec"]["versions"]:
            version["storage"] = len(definition["spec"]["versions"]) == 1 or version["name"] == storage
        answer = await client("POST", CRDS, definition)
        assert answer.status == 201, answer.json
        conditions = {item["type"]: item["status"] for item in answer.json["status"]["conditions"]}
        assert conditions == {"NamesAccepted": "True", "Established": "True"}
    return client


@pytest.fixture
async def api(bare: Client) -> Client:
    return await install(bare, "v1alpha1")


@pytest.mark.parametrize(("path", "version"), [(HOSTS, V1ALPHA1), (NEW_HOSTS, V1BETA1)])
async def test_hosts_of_each_version_are_taken_as_they_are(bare: Client, path: str, version: str) -> None:
    api = await install(bare, version.rpartition("/")[2])
    host = full(version)
    answer = await api("POST", path, host, fieldValidation="Strict")
    assert answer.status == 201, answer.json
    assert "status" not in answer.json
    assert answer.json["spec"] == stored(host)["spec"]
    host["metadata"]["resourceVersion"] = answer.json["metadata"]["resourceVersion"]
    answer = await api("PUT", f"{path}/node-1/status", host, fieldValidation="Strict")
    assert answer.status == 200, answer.json
    assert answer.json["status"] == stored(host)["status"]


@pytest.mark.parametrize(
    ("path", "version", "spec", "field"),
    [
        (HOSTS, V1ALPHA1, {}, "spec.online"),
        (NEW_HOSTS, V1BETA1, {}, "spec.poweredOn"),
        (NEW_HOSTS, V1BETA1, {"poweredOn": "yes"}, "spec.poweredOn"),
        (NEW_HOSTS, V1BETA1, {"poweredOn": True, "bootMACAddress": "no"}, "spec.bootMACAddress"),
        (NEW_HOSTS, V1BETA1, {"poweredOn": True, "image": {"url": "u", "checksumType": "crc"}}, "checksumType"),
        (NEW_HOSTS, V1BETA1, {"poweredOn": True, "image": {}}, "spec.image.url"),
        (NEW_HOSTS, V1BETA1, {"poweredOn": True, "rootDeviceHints": {"minSizeGigabytes": -1}}, "minSizeGigabytes"),
    ],
)
async def test_mistakes_are_refused_by_the_name_of_the_field(
    api: Client, path: str, version: str, spec: Raw, field: str
) -> None:
    host = {"apiVersion": version, "kind": "BareMetalHost", "metadata": {"name": "n"}, "spec": spec}
    answer = await api("POST", path, host)
    assert answer.status == 422
    assert field in answer.json["message"]


async def test_found_hardware_is_taken_as_it_is(api: Client) -> None:
    found = {"apiVersion": V1ALPHA1, "kind": "HardwareData", "metadata": {"name": "node-1"}}
    answer = await api("POST", FOUND, {**found, "spec": {"hardware": hardware(9)}}, fieldValidation="Strict")
    assert answer.status == 201, answer.json
    assert answer.json["spec"] == {"hardware": hardware(9)}
    wrong = {"hardware": {"storage": [{"type": "TAPE"}]}}
    answer = await api("POST", FOUND, {**found, "metadata": {"name": "o"}, "spec": wrong})
    assert answer.status == 422


async def test_columns_show_the_state_of_a_host_and_v1alpha1_is_answered_with_a_warning(api: Client) -> None:
    host = full(V1ALPHA1)
    made = await api("POST", HOSTS, host)
    host["metadata"]["resourceVersion"] = made.json["metadata"]["resourceVersion"]
    assert (await api("PUT", f"{HOSTS}/node-1/status", host)).status == 200
    answer = await api("GET", HOSTS, accept="application/json;as=Table;v=v1;g=meta.k8s.io")
    assert any("use metal3.io/v1beta1" in warning for warning in answer.headers["Warning"])
    assert "Warning" not in (await api("GET", NEW_HOSTS)).headers
    names = [column["name"] for column in answer.json["columnDefinitions"]]
    cells = dict(zip(names, answer.json["rows"][0]["cells"], strict=True))
    assert cells.pop("Age")
    state = {"Name": "node-1", "Status": "OK", "State": "provisioned", "Online": "true"}
    assert cells == state | {"Consumer": None, "BMC": "redfish://192.0.2.1/1", "Error": None}
