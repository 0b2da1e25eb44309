"""A live cluster as the source, and as the place where results go: the embedded API, over its network interface."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from edge.cli import main
from tink.api.crds import generate
from tink.api.v1alpha2 import Raw
from tink.apiserver.server import ApiServer
from tink.convert.cluster import apply_all, read_cluster
from tink.convert.documents import Converted, Document
from tink.convert.findings import Finding
from tink.kube import pager
from tink.kube.client import ApiError, KubeClient, NotFoundError, UnreachableError
from tink.kube.resources import CRD, HARDWARE, SECRET, ResourceType

OLD = ResourceType("tinkerbell.org", "v1alpha1", "hardware", "Hardware")
NEW: Raw = {"apiVersion": "tinkerbell.org/v1alpha2", "kind": "Hardware"}
HOSTS = ResourceType("metal3.io", "v1alpha1", "baremetalhosts", "BareMetalHost")


def definition(resource: ResourceType) -> Raw:
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{resource.plural}.{resource.group}"},
        "spec": {
            "group": resource.group,
            "names": {"plural": resource.plural, "kind": resource.kind},
            "scope": "Namespaced",
            "versions": [{"name": resource.version, "served": True, "storage": True, "schema": schema}],
        },
    }


def machine(name: str, index: int, namespace: str = "rack") -> Raw:
    return {
        "apiVersion": "tinkerbell.org/v1alpha1",
        "kind": "Hardware",
        "metadata": {"name": name, "namespace": namespace, "annotations": {"a": "b"}},
        "spec": {"interfaces": [{"dhcp": {"mac": f"52:54:00:00:00:{index:02x}"}, "netboot": {"allowPXE": True}}]},
    }


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    server = ApiServer(tmp_path / "old", port=0)
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def client(server: ApiServer) -> AsyncIterator[KubeClient]:
    client = await KubeClient.connect(server.kubeconfig)
    yield client
    await client.close()


async def namespaces(client: KubeClient, *names: str) -> None:
    resource = ResourceType("", "v1", "namespaces", "Namespace", namespaced=False)
    for name in names:
        await client.create(resource, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})


async def old_rack(client: KubeClient, count: int = 3) -> None:
    await client.create(CRD, definition(OLD))
    await namespaces(client, "rack", "other")
    for index in range(count):
        await client.create(OLD, machine(f"n{index}", index))
    await client.create(OLD, machine("far", 200, "other"))


def run(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(main, ["convert", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


async def test_cluster_is_read_page_by_page_one_namespace_or_all(
    client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pager, "each_list_item", partial(pager.each_list_item, page_size=2))
    await old_rack(client)
    seen: list[int] = []
    found = await read_cluster(client, None, metal3=False, seen=seen.append)
    assert [each.source.name for each in found] == ["far", "n0", "n1", "n2"]
    assert seen == [1, 2, 3, 4]
    found = await read_cluster(client, "rack", metal3=False, seen=seen.append)
    assert [(each.source.file, each.source.document, each.source.name) for each in found] == [
        ("cluster", index + 1, f"n{index}") for index in range(3)
    ]


async def test_cluster_that_does_not_serve_v1alpha1_is_told_so(client: KubeClient) -> None:
    with pytest.raises(NotFoundError, match=r"does not serve tinkerbell[.]org/v1alpha1"):
        await read_cluster(client, None, metal3=False, seen=lambda _: None)


async def test_only_the_network_secrets_of_hosts_are_read(client: KubeClient) -> None:
    await client.create(CRD, definition(HOSTS))
    await namespaces(client, "metal3")
    for name in ("net", "bmc"):
        metadata = {"name": name, "namespace": "metal3"}
        await client.create(SECRET, {"apiVersion": "v1", "kind": "Secret", "metadata": metadata})
    for name, spec in (("a", {"networkData": {"name": "net"}}), ("b", {"networkData": {"name": "none"}}), ("c", {})):
        metadata = {"name": name, "namespace": "metal3"}
        await client.create(
            HOSTS, {"apiVersion": "metal3.io/v1alpha1", "kind": HOSTS.kind, "metadata": metadata, "spec": spec}
        )
    found = await read_cluster(client, None, metal3=True, seen=lambda _: None)
    assert [each.source.name for each in found if isinstance(each, Document)] == ["a", "b", "c", "net"]
    assert [each.path for each in found if isinstance(each, Finding)] == ["spec.networkData"]


async def test_rack_moves_from_one_cluster_to_another(server: ApiServer, client: KubeClient, tmp_path: Path) -> None:
    await old_rack(client)
    new = ApiServer(tmp_path / "new", port=0)
    await new.start()
    there = await KubeClient.connect(new.kubeconfig)
    try:
        for each in generate():
            await there.create(CRD, each)
        await namespaces(there, "rack")
        dumped = await asyncio.to_thread(run, "--from-cluster", "-n", "rack", "--kubeconfig", server.kubeconfig)
        assert dumped.exit_code == 0, dumped.stderr
        assert [obj["metadata"] for obj in yaml.safe_load_all(dumped.stdout)] == [
            {"name": f"n{index}", "namespace": "rack", "annotations": {"a": "b"}} for index in range(3)
        ]
        path = tmp_path / "rack.yaml"
        path.write_text(dumped.stdout)
        arguments = ["-f", path, "--apply", "--kubeconfig", new.kubeconfig]
        for _ in range(2):
            applied = await asyncio.to_thread(run, *arguments)
            assert (applied.exit_code, applied.stdout) == (0, ""), applied.stderr
        items = (await there.list(HARDWARE))["items"]
        assert [item["metadata"]["name"] for item in items] == ["n0", "n1", "n2"]
        assert {item["metadata"]["generation"] for item in items} == {1}, "the second time changed nothing"
        assert {item["metadata"]["managedFields"][0]["manager"] for item in items} == {"tinkedge-convert"}
    finally:
        await there.close()
        await new.stop()


async def test_refused_object_is_named_and_the_others_are_applied(client: KubeClient) -> None:
    for each in generate():
        await client.create(CRD, each)
    good: dict[str, Any] = {
        "apiVersion": "tinkerbell.org/v1alpha2",
        "kind": "Hardware",
        "metadata": {"name": "good"},
        "spec": {"networkInterfaces": {"52:54:00:00:00:01": {}}},
    }
    bad = {**good, "metadata": {"name": "bad"}, "spec": {"networkInterfaces": {"x": {}}}}
    other = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "map"}}
    done: list[int] = []
    objects = [Converted(obj) for obj in (bad, other, good)]
    applied = await apply_all(client, objects, None, force=False, done=done.append)
    refused = applied.refused
    assert applied.count == 1
    assert [each.source.name for each in refused] == ["bad", "map"]
    assert "must be MAC addresses" in refused[0].reason
    assert done[-1] == 3
    assert (await client.get(HARDWARE, "good", "default"))["metadata"]["name"] == "good"


async def test_kind_that_may_not_be_read_costs_no_other(client: KubeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    await old_rack(client)
    each = pager.each_list_item

    async def limited(client: KubeClient, resource: ResourceType, *arguments: Any) -> AsyncIterator[Raw]:
        if resource.kind in denied:
            raise ApiError(403, "Forbidden", f"{resource.plural} is forbidden")
        async for found in each(client, resource, *arguments):
            yield found

    monkeypatch.setattr(pager, "each_list_item", limited)
    denied = {"Template"}
    found = await read_cluster(client, "rack", metal3=False, seen=lambda _: None)
    (refused,) = [each for each in found if isinstance(each, Finding)]
    assert (refused.kind, refused.source.kind, len(found)) == ("error", "Template", 4)
    assert "templates is forbidden" in refused.reason
    denied = {"Hardware", "Template", "Workflow"}
    with pytest.raises(ApiError, match="forbidden"):
        await read_cluster(client, None, metal3=False, seen=lambda _: None)


async def test_api_that_stops_answering_costs_no_report_and_says_how_much_was_applied(
    server: ApiServer, client: KubeClient, tmp_path: Path
) -> None:
    for each in generate():
        await client.create(CRD, each)
    objects = []
    for index in range(20):
        spec = {"networkInterfaces": {f"52:54:00:00:00:{index:02x}": {}}}
        objects.append({**NEW, "metadata": {"name": f"n{index}"}, "spec": spec})
    made = [Converted(obj) for obj in objects]

    async def stopping(*arguments: Any, **named: Any) -> Raw:
        if arguments[1] == "n10":
            raise UnreachableError("gone")
        return await KubeClient.apply(client, *arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client, "apply", stopping)
        applied = await apply_all(client, made, None, force=False, done=lambda _: None)
    assert (applied.count, len(applied.refused)) == (15, 1)
    assert "15 of 20 objects were applied" in applied.refused[0].reason
    path = tmp_path / "rack.json"
    path.write_text("\n".join(map(json.dumps, [*objects, machine("lossy", 99) | {"x": 1}])))
    await server.stop()
    arguments = ["-f", path, "--apply", "--kubeconfig", server.kubeconfig, "--report", "json"]
    result = await asyncio.to_thread(run, *arguments)
    report = json.loads(result.stderr)
    assert (result.exit_code, report["objects"]) == (1, 0)
    assert [each["finding"] for each in report["findings"]] == ["dropped", "error"]


async def test_field_of_another_owner_is_taken_only_by_force(client: KubeClient) -> None:
    for each in generate():
        await client.create(CRD, each)
    spec = {"networkInterfaces": {"52:54:00:00:00:01": {}}, "storageDevices": ["/dev/sda"]}
    obj = {"apiVersion": "tinkerbell.org/v1alpha2", "kind": "Hardware", "metadata": {"name": "a"}, "spec": spec}
    await client.apply(HARDWARE, "a", "default", obj, manager="operator")
    mine = [Converted({**obj, "spec": {**spec, "storageDevices": ["/dev/sdb"]}})]
    (refused,) = (await apply_all(client, mine, None, force=False, done=lambda _: None)).refused
    assert "operator" in refused.reason
    assert "--force-conflicts" in refused.reason
    forced = await apply_all(client, mine, None, force=True, done=lambda _: None)
    assert (forced.count, forced.refused) == (1, [])
    assert (await client.get(HARDWARE, "a", "default"))["spec"]["storageDevices"] == ["/dev/sdb"]
