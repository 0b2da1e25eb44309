"""Warnings of `kubectl apply` about objects that the edge in the same process can't serve."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edge.run.examination import Examination
from edge.settings.model import EDGE, EdgeSettings, Service, StackSettings
from tests.support import objects
from tests.support.objects import MAC
from tink.api.v1alpha2 import Raw
from tink.net.outbound import Reach

OWN = "192.0.2.2"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "osie").mkdir()
    (tmp_path / "osie" / "vmlinuz").write_bytes(b"kernel")
    return tmp_path


def examination(directory: Path, *, serves: bool = True, allowed: str = "", **edge: Any) -> Examination:
    """Return that of an edge at OWN, port 7080, whose data directory this is."""
    settings = StackSettings(
        services=EDGE if serves else frozenset({Service.CONTROLLER}), data_dir=directory, edge=EdgeSettings(**edge)
    )
    networks = Reach(is_own=lambda address: str(address) == OWN, own_ports=frozenset({7080}))
    return Examination(settings, networks)


def osie(kernel: str, **annotations: str) -> Raw:
    return objects.osie("o", kernelUrl=kernel, metadata={"annotations": annotations})


async def test_osie_at_the_edges_own_address_gets_the_advice_to_use_a_file(directory: Path) -> None:
    examine = examination(directory)
    root = directory / "osie"
    assert await examine("OSIE", osie(f"http://{OWN}:7080/files/vmlinuz")) == [
        f"spec.kernelUrl: {OWN} is this host, where port 7080 is tinkedge's own: an edge fetches nothing from there: "
        f"put the file into {root} and write file://{root}/vmlinuz"
    ]
    assert await examine("OSIE", osie(f"http://{OWN}:8080/vmlinuz?token=secret")) == [
        f"spec.kernelUrl: {OWN} is an address of this host: an edge fetches nothing from there: put the file into "
        f"{root} and write file://{root}/vmlinuz, or start the edge with --allow-upstream {OWN}"
    ]
    (localhost,) = await examine("OSIE", osie("http://localhost/vmlinuz"))
    assert localhost.startswith("spec.kernelUrl: 127.0.0.1 is a loopback address: an edge fetches nothing from there")
    uki = osie("http://192.0.2.9/k") | {"metadata": {"annotations": {"tinkerbell.org/uki-url": f"http://{OWN}/u.efi"}}}
    (reported,) = await examine("OSIE", uki)
    assert reported.startswith(f"metadata.annotations[tinkerbell.org/uki-url]: {OWN} is an address of this host")


@pytest.mark.parametrize("url", ["http://192.0.2.9/k", "https://kernels.example/k", "http://[::1/k", "http://a:b/k"])
async def test_allowed_upstream_has_no_warning(directory: Path, url: str) -> None:
    assert await examination(directory)("OSIE", osie(url)) == []


async def test_file_of_an_osie_must_be_there_below_the_directory_and_readable(directory: Path) -> None:
    examine, root = examination(directory), directory / "osie"
    assert await examine("OSIE", osie(f"file://{root}/vmlinuz")) == []
    assert await examine("OSIE", osie(f"file://{root}/missing")) == [
        f"spec.kernelUrl: file://{root}/missing: no such file on the edge's machine: put it there, or correct the "
        "path: until then no machine boots this OSIE"
    ]
    assert await examine("OSIE", osie("file:///srv/boot/vmlinuz")) == [
        f"spec.kernelUrl: file:///srv/boot/vmlinuz: a file URL must name a file below {root} (see --osie-dir): put a "
        f"file into {root} and write file://{root}/vmlinuz"
    ]
    (root / "empty").touch()
    (reported,) = await examine("OSIE", osie(f"file://{root}/empty"))
    assert "an empty file" in reported
    (root / "loop").symlink_to(root / "loop")
    (reported,) = await examine("OSIE", osie(f"file://{root}/loop"))
    assert "spec.kernelUrl" in reported


async def test_process_without_an_edge_knows_special_addresses_and_no_files(directory: Path) -> None:
    examine = examination(directory, serves=False)
    assert await examine("OSIE", osie(f"http://{OWN}:7080/vmlinuz")) == []
    assert await examine("OSIE", osie("file:///srv/boot/vmlinuz")) == []
    assert await examine("OSIE", osie("http://169.254.169.254/k")) == [
        "spec.kernelUrl: 169.254.169.254 is a link-local address: an edge fetches nothing from there: put the file "
        "into the edge's --osie-dir and write file:///PATH, or start the edge with --allow-upstream 169.254.169.254"
    ]


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        ('console=ttyS0 x="a b', "has a quotation mark without its pair"),
        ("ip={{.Ip}}", "has {{.Ip}}, and there are {{.MAC}}"),
        ("a && b", "has the word &&, which ends a command in iPXE"),
        ("console=ttyS0 mac={{.MAC}}", ""),
    ],
)
async def test_words_of_an_osie_that_keep_machines_from_booting(directory: Path, words: str, reported: str) -> None:
    found = await examination(directory)(
        "OSIE", osie("http://192.0.2.9/k", **{"tinkerbell.org/kernel-parameters": words})
    )
    assert len(found) == bool(reported)
    for each in found:
        assert each.startswith(f"metadata.annotations[tinkerbell.org/kernel-parameters]: {reported}")
        assert each.endswith(": no machine boots this OSIE until that is corrected")


@pytest.mark.parametrize(
    ("annotations", "spec", "reported"),
    [
        ({}, {"kernelParams": ['x="a', 'b"']}, ""),
        ({}, {"kernelParams": ["ok", 'x="a b']}, "spec.kernelParams has a quotation mark without its pair"),
        ({"tinkerbell.org/agent-id": "two words"}, {}, "metadata.annotations[tinkerbell.org/agent-id]"),
        ({"tinkerbell.org/metadata": "[1]"}, {}, "metadata.annotations[tinkerbell.org/metadata]: is no JSON object"),
        ({"tinkerbell.org/storage": "{"}, {}, "metadata.annotations[tinkerbell.org/storage]: is no JSON object"),
        ({"tinkerbell.org/ssh-public-keys": "# mine\nssh AAAA"}, {}, "metadata.annotations[tinkerbell.org/ssh-public-"),
        ({"tinkerbell.org/metadata": "{}"}, {}, ""),
    ],
)
async def test_hardware_that_can_not_boot_as_it_is(
    directory: Path, annotations: dict[str, str], spec: dict[str, Any], reported: str
) -> None:
    found = await examination(directory)("Hardware", objects.hardware(annotations=annotations, **spec))
    assert len(found) == bool(reported)
    for each in found:
        assert each.startswith(reported)
    off = objects.hardware(interfaces={MAC: {"disableNetboot": True}}, annotations=annotations, **spec)
    if "kernelParams" in spec:
        assert await examination(directory)("Hardware", off) == [], "it boots nothing anyway"


@pytest.mark.parametrize("odd", [{}, {"spec": []}, {"spec": {"networkInterfaces": {"m": 7}}}, {"metadata": []}])
@pytest.mark.parametrize("kind", ["Hardware", "OSIE", "Template", "Workflow"])
async def test_odd_objects_are_left_to_the_schema(directory: Path, kind: str, odd: Raw) -> None:
    assert await examination(directory)(kind, odd) == []


async def test_image_that_the_edges_own_registry_lacks(directory: Path) -> None:
    def template(image: str) -> Raw:
        return objects.template({"name": "a", "image": image})

    examine, images = examination(directory), directory / "images"
    (reported,) = await examine("Template", template(f"{OWN}:7080/actions/image2disk:1"))
    assert reported == (
        f"spec.actions[0].image: this edge is that registry, and {images} has no image actions/image2disk:1: 'skopeo "
        f"copy docker://REGISTRY/IMAGE oci:{images}:actions/image2disk:1' or 'tinkedge bundle load' adds it"
    )
    elsewhere = ("192.0.2.9:7080/a:1", f"{OWN}:5000/a:1", "{{ .Params.registry }}/a:1", "registry.example/a:1", "a")
    for image in elsewhere:
        assert await examine("Template", template(image)) == []
    beyond = examination(directory, upstream_edge="192.0.2.77:7080")
    assert await beyond("Template", template(f"{OWN}:7080/a:1")) == [], "another edge may have it"
    images.mkdir()
    digest = {"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": "sha256:" + "0" * 64, "size": 1}
    entry = digest | {"annotations": {"org.opencontainers.image.ref.name": "actions/image2disk:1"}}
    (images / "index.json").write_text(json.dumps({"manifests": [entry]}))
    assert await examine("Template", template(f"{OWN}:7080/actions/image2disk:1")) == []
