"""What a bundle consists of, as CycloneDX 1.6 (ECMA-424): Debian's packages, Python's, images, files, with hashes."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson

from edge.bundle.manifest import PACKAGES, WHEELS, Image
from edge.bundle.sources.shell import run

_NAMESPACE = uuid.UUID("1f6f4c8e-3b0f-4c7b-9a57-0f3f7c2b6a11")
_DISTRIBUTION = re.compile(r"/([A-Za-z0-9_.]+)-([^/-]+)\.dist-info/$", re.MULTILINE)
_PACKAGE = re.compile(r"([^_]+)_([^_]+)_([^_]+)\.deb")
_WHEEL = re.compile(r"([A-Za-z0-9_.]+)-([^-]+)-.*\.whl")


def sbom(files: Iterable[tuple[str, str]], images: Iterable[Image], deb: Path | None, created: datetime) -> bytes:
    """The list of (name in the bundle, SHA-256 in hex), images, and what is in the package. Raises BundleError."""
    components = [*_files(files), *(_image(image) for image in images), *(_inside(deb) if deb is not None else ())]
    said = orjson.dumps(components)
    return orjson.dumps(
        {
            "bomFormat": "CycloneDX",
            "specVersion": "1.6",
            "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, said.decode())}",
            "version": 1,
            "metadata": {"timestamp": created.isoformat(), "component": {"type": "data", "name": "tinkedge bundle"}},
            "components": components,
        },
        option=orjson.OPT_INDENT_2,
    )


def _files(files: Iterable[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    for name, digest in files:
        hashes = [{"alg": "SHA-256", "content": digest}]
        last = name.rpartition("/")[2]
        if name.startswith(PACKAGES) and (found := _PACKAGE.fullmatch(last)):
            package, version, architecture = found[1], found[2].replace("%3a", ":"), found[3]
            purl = f"pkg:deb/debian/{quote(package)}@{quote(version)}?arch={architecture}"
            yield {**_library(package, version, purl), "hashes": hashes}
        elif name.startswith(WHEELS) and (found := _WHEEL.fullmatch(last)):
            package = found[1].lower().replace("_", "-")
            yield {**_library(package, found[2], f"pkg:pypi/{package}@{quote(found[2])}"), "hashes": hashes}
        elif not name.startswith("images/blobs/"):  # these are the images, named by their digests
            yield {"type": "file", "bom-ref": name, "name": name, "hashes": hashes}


def _image(image: Image) -> dict[str, Any]:
    last = image.name.rpartition("/")[2]
    purl = f"pkg:oci/{quote(last)}@{quote(image.digest, safe='')}?tag={quote(image.tag)}"
    component = {"type": "container", "bom-ref": f"image:{image.name}:{image.tag}", "name": image.name}
    return {**component, "version": image.tag, "purl": purl}


def _inside(deb: Path) -> Iterator[dict[str, Any]]:
    """The Python packages of the environment that the Debian package brings."""
    listed = run(["dpkg-deb", "--contents", deb], what=f"{deb}", package="dpkg")
    for name, version in sorted(set(_DISTRIBUTION.findall(listed))):
        package = name.lower().replace("_", "-")
        yield _library(package, version, f"pkg:pypi/{package}@{quote(version)}")


def _library(name: str, version: str, purl: str) -> dict[str, Any]:
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
