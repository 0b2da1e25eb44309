"""The requests by which Terraform's provider hashicorp/kubernetes (3.2.1) plans, applies and destroys our resources.

Recorded from the provider itself, which `tests/interop/test_terraform.py` runs where Terraform is installed. The user
is one with the role edit in one namespace.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.unit.kubeapi.apiserver.conftest import CRDS, Answer, Client
from tink.kubeapi.apiserver.access import issue_token

APPLY = "application/apply-patch+yaml"
NAMESPACE = "/apis/tinkerbell.org/v1alpha2/namespaces/default"
MAC = "00:00:5e:00:53:61"
SPECS: dict[str, tuple[str, dict[str, Any]]] = {
    "osies": ("OSIE", {"kernelUrl": "file:///osie/kernel", "initrdUrl": "file:///osie/initrd"}),
    "templates": ("Template", {"actions": [{"name": "write-disk", "image": "{{ .Params.registry }}/image2disk:1"}]}),
    "hardware": ("Hardware", {"networkInterfaces": {MAC: {"dhcp": {"ip": "192.0.2.5", "netmask": "255.255.255.0"}}}}),
    "workflows": ("Workflow", {"hardwareRef": {"name": "m"}, "templateRef": {"name": "m"}, "timeout": 1800}),
}
Provider = Callable[..., Awaitable[Answer]]


@pytest.fixture
def provider(api: Client, tmp_path: Path) -> Provider:
    _, token = issue_token(tmp_path / "state", "alice", "edit", ("default",), datetime.now(UTC), None)

    async def send(verb: str, path: str, body: Any = None, **query: str) -> Answer:
        content = APPLY if verb == "PATCH" else "application/json"
        return await api(verb, path, body, content=content, token=token, **query)

    return send


async def test_definitions_and_openapi_have_the_types_that_a_plan_needs(provider: Provider) -> None:
    """A type is that of the definition, with the metadata of OpenAPI v2."""
    assert (await provider("GET", "/apis")).status == 200
    listed = await provider("GET", CRDS)
    assert listed.status == 200, listed.text
    kinds = {}
    for definition in listed.json["items"]:
        for version in definition["spec"]["versions"]:
            kinds[definition["spec"]["names"]["kind"]] = version["schema"]["openAPIV3Schema"]["properties"]
    assert {"spec", "status"} <= kinds["Workflow"].keys()
    assert {kind for kind, _ in SPECS.values()} <= kinds.keys()
    found = (await provider("GET", "/openapi/v2", timeout="30s")).json["definitions"]
    metadata = found["io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"]["properties"]
    assert {"annotations", "labels", "name", "namespace", "finalizers"} <= metadata.keys()


@pytest.mark.parametrize("plural", SPECS)
async def test_object_is_applied_read_without_a_difference_changed_and_deleted(provider: Provider, plural: str) -> None:
    kind, spec = SPECS[plural]
    path = f"{NAMESPACE}/{plural}/m"
    body: dict[str, Any] = {
        "apiVersion": "tinkerbell.org/v1alpha2",
        "kind": kind,
        "metadata": {"name": "m", "namespace": "default"},
        "spec": spec,
    }
    manager = {"fieldManager": "Terraform", "force": "false"}
    assert (await provider("GET", path)).status == 404
    made = await provider("PATCH", path, body, **manager)
    assert made.status == 201, made.text
    read = (await provider("GET", path)).json
    assert read["spec"].items() >= spec.items() if plural != "hardware" else MAC in read["spec"]["networkInterfaces"]
    again = await provider("PATCH", path, body, **manager)
    assert again.status == 200
    assert again.json["metadata"]["resourceVersion"] == read["metadata"]["resourceVersion"]
    body["metadata"]["labels"] = {"rack": "a"}
    assert (await provider("PATCH", path, body, **manager)).json["metadata"]["labels"] == {"rack": "a"}
    # As the provider does when labels leave the configuration.
    del body["metadata"]["labels"]
    assert "labels" not in (await provider("PATCH", path, body, **manager)).json["metadata"]
    assert (await provider("DELETE", path, {"propagationPolicy": "Background"})).status == 200
    assert (await provider("GET", path)).status == 404


async def test_field_changed_by_kubectl_is_a_conflict_that_names_it(api: Client, provider: Provider) -> None:
    path = f"{NAMESPACE}/osies/m"
    manager = {"fieldManager": "Terraform", "force": "false"}
    body = {
        "apiVersion": "tinkerbell.org/v1alpha2",
        "kind": "OSIE",
        "metadata": {"name": "m"},
        "spec": SPECS["osies"][1],
    }
    await provider("PATCH", path, body, **manager)
    await api.merge(path, {"spec": {"kernelUrl": "file:///other"}}, fieldManager="kubectl-patch")
    conflict = await provider("PATCH", path, body, **manager)
    assert (conflict.status, conflict.json["reason"]) == (409, "Conflict")
    assert 'conflict with "kubectl-patch" using tinkerbell.org/v1alpha2: .spec.kernelUrl' in conflict.json["message"]
    forced = await provider("PATCH", path, body, **(manager | {"force": "true"}))
    assert forced.json["spec"]["kernelUrl"] == "file:///osie/kernel"
