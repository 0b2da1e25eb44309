"""`tinkedge convert`: input from files and live clusters, output, exit codes."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from click.testing import CliRunner, Result

from edge.cli import main
from tests.support.api import InProcessApi
from tink.api.crds import generate
from tink.api.v1alpha2 import Raw
from tink.convert import cluster
from tink.convert.cluster import apply_all, read_cluster
from tink.convert.documents import Converted, InputDocument
from tink.convert.findings import ConversionFinding
from tink.kube.client import ApiError, KubeClient, NotFoundError, UnreachableError, each_list_item
from tink.kube.resources import CRD, HARDWARE, NAMESPACE, ResourceType
from tink.kubeapi.apiserver.server import ApiServer

CORPORA = Path(__file__).parent / "corpora" / "hardware"
MACHINE = """\
apiVersion: tinkerbell.org/v1alpha1
kind: Hardware
metadata: {name: %s}
spec:
  interfaces: [{dhcp: {mac: "52:54:00:00:00:%02d"}, netboot: {allowPXE: true}}]
"""


@pytest.fixture(autouse=True)
def _no_options_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("TINKEDGE_", "KUBECONFIG"))]:
        monkeypatch.delenv(name)


def run(*arguments: str | Path, stdin: str | bytes | None = None) -> Result:
    result = CliRunner().invoke(main, ["convert", *map(str, arguments)], input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def names(result: Result) -> list[str]:
    return [obj["metadata"]["name"] for obj in yaml.safe_load_all(result.stdout)]


BOTH = MACHINE % ("a", 1) + "---\n" + MACHINE % ("b", 2)
LOSSY = MACHINE % ("a", 1) + "  tinkVersion: 3\n"


@pytest.mark.parametrize(
    ("options", "stdin", "code", "written", "said"),
    [
        ((), MACHINE % ("a", 1), 0, ["a"], "1 object written; 0 errors, 0 fields dropped, 0 changed\n"),
        ((), LOSSY, 2, ["a"], "spec.tinkVersion"),
        (("--allow-loss",), LOSSY, 0, ["a"], "spec.tinkVersion"),
        (("--allow-loss",), BOTH.replace("---\n", "---\na: [\n---\n"), 1, ["a", "b"], "(-, document 2)"),
    ],
    ids=["whole", "lossy", "loss-allowed", "broken"],
)
def test_exit_code_shows_losses(options: tuple[str, ...], stdin: str, code: int, written: list[str], said: str) -> None:
    result = run("-f", "-", *options, stdin=stdin)
    assert (result.exit_code, names(result)) == (code, written)
    assert said in result.stderr


def test_directory_is_read_with_all_below_it_in_order_and_links_in_circles_do_no_harm(tmp_path: Path) -> None:
    for index, path in enumerate(("b.yaml", "a/z.yml", "a/b/y.json", "notes.txt", ".git/x.yaml", "a.yaml")):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        machine = MACHINE % (Path(path).stem, index)
        (tmp_path / path).write_text(json.dumps(yaml.safe_load(machine)) if path.endswith("json") else machine)
    (tmp_path / "a/loop").symlink_to(tmp_path)
    (tmp_path / "a/self.yaml").symlink_to(tmp_path / "a/self.yaml")
    (tmp_path / "again.yaml").symlink_to(tmp_path / "b.yaml")
    (tmp_path / "gone.yaml").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe")
    result = run("-f", tmp_path, "-f", tmp_path / "b.yaml")
    assert names(result) == ["a", "b", "z", "y"]
    assert result.exit_code == 1
    assert result.stderr.count("can't be read") == 2
    (tmp_path / "pipes").mkdir()
    os.mkfifo(tmp_path / "pipes/x.yaml")
    result = run("-f", tmp_path / "pipes")
    assert (result.exit_code, "no regular file" in result.stderr) == (1, True), "it waits for no writer"
    result = run("-f", "/nowhere/x.yaml")
    assert (result.exit_code, "/nowhere/x.yaml" in result.stderr) == (1, True)
    assert "No such file" in " ".join(result.stderr.split())


def test_converting_again_changes_nothing_in_a_stream_or_a_directory_with_a_file_for_each_object(
    tmp_path: Path,
) -> None:
    listed = json.loads(run("-f", "-", "-o", "json", stdin=BOTH).stdout)
    assert (listed["kind"], [item["metadata"]["name"] for item in listed["items"]]) == ("List", ["a", "b"])
    assert json.loads(run("-f", "-", "-o", "json", stdin="").stdout)["items"] == []
    once = run("-f", CORPORA)
    twice = run("-f", "-", stdin=once.stdout)
    assert (twice.stdout, twice.exit_code) == (once.stdout, 0)
    run("-f", CORPORA, "--output-dir", tmp_path / "one")
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert len(files) == 7
    again = run("-f", tmp_path / "one", "--output-dir", tmp_path / "two")
    assert again.exit_code == 0, again.stderr
    assert [(path.name, path.read_text()) for path in sorted((tmp_path / "two").iterdir())] == [
        (name, (tmp_path / "one" / name).read_text()) for name in files
    ]


def test_dash_is_standard_output_and_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert names(run("-f", "-", "--out", "-", stdin=MACHINE % ("a", 1))) == ["a"]
    report = run("-f", "-", "--out", "x", "--report", "json", "--report-file", "-", stdin=MACHINE % ("a", 1))
    assert json.loads(report.stdout) == {"objects": 1, "findings": []}
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_output_may_be_the_input_a_link_or_a_device_none_of_which_is_replaced(tmp_path: Path) -> None:
    """`--report-file /dev/stderr` or /dev/null, even run by root."""
    path, link, pipe = (tmp_path / name for name in ("rack.yaml", "link", "pipe"))
    path.write_text(MACHINE % ("a", 1))
    result = run("-f", path, "--out", path)
    assert (result.exit_code, result.stdout) == (0, "")
    assert "v1alpha2" in path.read_text()
    assert list(tmp_path.iterdir()) == [path]
    path.unlink()
    link.symlink_to(path.name)
    for _ in range(2):
        assert run("-f", "-", "--out", link, stdin=MACHINE % ("a", 1)).exit_code == 0
        assert link.is_symlink()
        assert "name: a" in path.read_text()
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert run("-f", "-", "--out", pipe, stdin=MACHINE % ("a", 1)).exit_code == 0
        assert b"name: a" in os.read(reader, 10_000)
        assert pipe.is_fifo()
    finally:
        os.close(reader)


def test_what_cannot_be_written_is_named_and_costs_no_other_object(tmp_path: Path) -> None:
    result = run("-f", "-", "--out", tmp_path / "nowhere" / "x", "--report", "json", stdin=MACHINE % ("a", 1))
    report = json.loads(result.stderr)
    (finding,) = report["findings"]
    assert (result.exit_code, report["objects"], finding["file"]) == (1, 0, str(tmp_path / "nowhere" / "x"))
    assert finding["reason"] == "not written: No such file or directory"
    result = run("-f", "-", "--out", "/dev/full", stdin=MACHINE % ("a", 1))
    assert result.exit_code == 1
    assert "not written: No space left on device" in " ".join(result.stderr.split())
    (tmp_path / "hardware-default-a.yaml").mkdir()
    result = run("-f", "-", "--output-dir", tmp_path, stdin=BOTH)
    assert (result.exit_code, (tmp_path / "hardware-default-b.yaml").is_file()) == (1, True)
    assert "hardware-default-a.yaml" in result.stderr
    assert "1 of 2 objects written; 1 error" in result.stderr


@pytest.mark.parametrize("to_file", [True, False])
def test_report_as_json_has_every_finding(tmp_path: Path, to_file: bool) -> None:
    path = tmp_path / "report.json"
    arguments: list[Any] = ["-f", CORPORA / "eksa.yaml", "--report", "json"]
    result = run(*arguments, *(["--report-file", path] if to_file else []))
    found = orjson.loads(path.read_bytes() if to_file else result.stderr)
    assert len(found["findings"]) == 4
    assert {each["file"] for each in found["findings"]} == {str(CORPORA / "eksa.yaml")}
    assert {each["name"] for each in found["findings"]} == {"eksa-a01"}


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["-f", "-", "--from-cluster", "-A"],
        ["--from-cluster"],
        ["--from-cluster", "-A", "-n", "x"],
        ["-f", "-", "--out", "x", "--output-dir", "y"],
        ["-f", "-", "--out", "x", "--apply"],
        ["-f", "-", "--force-conflicts"],
        ["-f", "-", "--report-file", "-"],
        ["-f", "-", "--report-file", "-", "--out", "-"],
        ["-f", "-", "--to", "v1"],
    ],
)
def test_options_that_do_not_go_together_are_refused(arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert "Usage:" in result.stderr


def test_kubeconfig_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    for arguments in (["--from-cluster", "-A"], ["-f", CORPORA / "eksa.yaml", "--apply"]):
        result = run(*arguments, "--kubeconfig", tmp_path / "none")
        assert result.exit_code == 1
        assert "no such file" in result.stderr


OLD = ResourceType("tinkerbell.org", "v1alpha1", "hardware", "Hardware")
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
    metadata = {"name": name, "namespace": namespace, "annotations": {"a": "b"}}
    interface = {"dhcp": {"mac": f"52:54:00:00:00:{index:02x}"}, "netboot": {"allowPXE": True}}
    kind = {"apiVersion": "tinkerbell.org/v1alpha1", "kind": "Hardware"}
    return {**kind, "metadata": metadata, "spec": {"interfaces": [interface]}}


def new(name: str, number: int = 1, **spec: Any) -> Raw:
    """Return a v1alpha2 Hardware as a user writes it, without server fields."""
    spec = {"networkInterfaces": {f"52:54:00:00:00:{number:02x}": {}}, **spec}
    return {"apiVersion": HARDWARE.api_version, "kind": "Hardware", "metadata": {"name": name}, "spec": spec}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    server = ApiServer(tmp_path / "old", port=0)
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
def client() -> InProcessApi:
    return InProcessApi(definitions=())


@pytest.fixture
def current() -> InProcessApi:
    """Return an API with today's definitions."""
    return InProcessApi()


async def old_rack(client: Any) -> None:
    await client.create(CRD, definition(OLD))
    machines = [*(machine(f"n{index}", index) for index in range(3)), machine("far", 200, "other")]
    for namespace in ("rack", "other"):
        await client.create(NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    for each in machines:
        await client.create(OLD, each)


async def test_cluster_is_read_page_by_page_one_namespace_or_all(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "each_list_item", partial(each_list_item, page_size=2))
    await old_rack(client)
    seen: list[int] = []
    found = await read_cluster(client, None, metal3=False, on_read=seen.append)
    assert [each.source.name for each in found] == ["far", "n0", "n1", "n2"]
    assert seen == [1, 2, 3, 4]
    found = await read_cluster(client, "rack", metal3=False, on_read=seen.append)
    assert [(each.source.file, each.source.document, each.source.name) for each in found] == [
        ("cluster", index + 1, f"n{index}") for index in range(3)
    ]


async def test_cluster_without_v1alpha1_is_an_error(client: Any) -> None:
    with pytest.raises(NotFoundError, match=r"does not serve tinkerbell[.]org/v1alpha1"):
        await read_cluster(client, None, metal3=False, on_read=lambda _: None)


async def test_only_the_network_secrets_of_hosts_are_read(client: Any) -> None:
    await client.create(CRD, definition(HOSTS))
    for name in ("net", "bmc"):
        client.put({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "metal3"}})
    for name, spec in (("a", {"networkData": {"name": "net"}}), ("b", {"networkData": {"name": "none"}}), ("c", {})):
        metadata = {"name": name, "namespace": "metal3"}
        host = {"apiVersion": HOSTS.api_version, "kind": HOSTS.kind, "metadata": metadata, "spec": spec}
        client.put(host)
    found = await read_cluster(client, None, metal3=True, on_read=lambda _: None)
    assert [each.source.name for each in found if isinstance(each, InputDocument)] == ["a", "b", "c", "net"]
    assert [each.path for each in found if isinstance(each, ConversionFinding)] == ["spec.networkData"]


async def test_rack_moves_from_one_cluster_to_another(server: ApiServer, tmp_path: Path) -> None:
    async with await KubeClient.connect(server.kubeconfig) as client:
        await old_rack(client)
    newer = ApiServer(tmp_path / "new", port=0)
    await newer.start()
    there = await KubeClient.connect(newer.kubeconfig)
    try:
        for each in generate():
            await there.create(CRD, each)
        await there.create(NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "rack"}})
        dumped = await asyncio.to_thread(run, "--from-cluster", "-n", "rack", "--kubeconfig", server.kubeconfig)
        assert dumped.exit_code == 0, dumped.stderr
        assert [obj["metadata"] for obj in yaml.safe_load_all(dumped.stdout)] == [
            {"name": f"n{index}", "namespace": "rack", "annotations": {"a": "b"}} for index in range(3)
        ]
        path = tmp_path / "rack.yaml"
        path.write_text(dumped.stdout)
        arguments = ["-f", path, "--apply", "--kubeconfig", newer.kubeconfig]
        for _ in range(2):
            applied = await asyncio.to_thread(run, *arguments)
            assert (applied.exit_code, applied.stdout) == (0, ""), applied.stderr
        items = (await there.list(HARDWARE))["items"]
        assert [item["metadata"]["name"] for item in items] == ["n0", "n1", "n2"]
        assert {item["metadata"]["generation"] for item in items} == {1}, "the second time changed nothing"
        assert {item["metadata"]["managedFields"][0]["manager"] for item in items} == {"tinkedge-convert"}
    finally:
        await there.close()
        await newer.stop()


async def test_refused_object_is_named_and_the_others_are_applied(current: Any) -> None:
    bad = new("bad", networkInterfaces={"x": {}})
    other = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "map"}}
    done: list[int] = []
    objects = [Converted(obj) for obj in (bad, other, new("good"))]
    applied = await apply_all(current, objects, None, force=False, on_applied=done.append)
    refused = applied.refused
    assert applied.count == 1
    assert [each.source.name for each in refused] == ["bad", "map"]
    assert "must be MAC addresses" in refused[0].reason
    assert done[-1] == 3
    assert (await current.get(HARDWARE, "good", "default"))["metadata"]["name"] == "good"


async def test_kind_that_may_not_be_read_costs_no_other(client: Any) -> None:
    await old_rack(client)
    forbidden = ApiError(403, "Forbidden", "templates is forbidden")
    client.fail("list", forbidden, of=ResourceType("tinkerbell.org", "v1alpha1", "templates", "Template"))
    found = await read_cluster(client, "rack", metal3=False, on_read=lambda _: None)
    (refused,) = [each for each in found if isinstance(each, ConversionFinding)]
    assert (refused.kind, refused.source.kind, len(found)) == ("error", "Template", 4)
    assert "templates is forbidden" in refused.reason
    client.fail("list", *[forbidden] * 3)
    with pytest.raises(ApiError, match="forbidden"):
        await read_cluster(client, None, metal3=False, on_read=lambda _: None)


async def test_report_survives_an_api_that_stops_answering_and_counts_applied_objects(
    server: ApiServer, current: Any, tmp_path: Path
) -> None:
    objects = [new(f"n{index}", index) for index in range(20)]
    current.fail("apply", UnreachableError("gone"), done=False)
    applied = await apply_all(
        current, [Converted(obj) for obj in objects], None, force=False, on_applied=lambda _: None
    )
    count, (refused,) = applied.count, applied.refused
    assert count < 20
    assert f"{count} of 20 objects were applied" in refused.reason
    path = tmp_path / "rack.json"
    path.write_text("\n".join(map(json.dumps, [*objects, machine("lossy", 99) | {"x": 1}])))
    await server.stop()
    arguments = ["-f", path, "--apply", "--kubeconfig", server.kubeconfig, "--report", "json"]
    result = await asyncio.to_thread(run, *arguments)
    report = json.loads(result.stderr)
    assert (result.exit_code, report["objects"]) == (1, 0)
    assert [each["finding"] for each in report["findings"]] == ["dropped", "error"]


async def test_field_of_another_owner_is_taken_only_by_force(current: Any) -> None:
    await current.apply(HARDWARE, "a", "default", new("a", storageDevices=["/dev/sda"]), manager="operator")
    mine = [Converted(new("a", storageDevices=["/dev/sdb"]))]
    (refused,) = (await apply_all(current, mine, None, force=False, on_applied=lambda _: None)).refused
    assert "operator" in refused.reason
    assert "--force-conflicts" in refused.reason
    forced = await apply_all(current, mine, None, force=True, on_applied=lambda _: None)
    assert (forced.count, forced.refused) == (1, [])
    assert (await current.get(HARDWARE, "a", "default"))["spec"]["storageDevices"] == ["/dev/sdb"]
