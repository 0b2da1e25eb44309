"""Warnings of `kubectl apply` about objects that this edge can't serve. The review calls this (`tink.webhooks`).

Each warning comes from the code that would fail later, and names the field and the remedy:

- files and upstreams of OSIEs (`edge.artifacts`, `tink.net.outbound`)
- words of kernel command lines (`ipxe.scripts`, `ipxe.parameters`)
- annotations (`hegel`)
- images that actions pull from the edge itself

No name is resolved and nothing is fetched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import orjson
from pydantic import ValidationError

from edge.artifacts.artifact import ArtifactError, NotFoundError, StorageError, open_file
from edge.artifacts.layout import ImageLayout, LayoutError
from edge.settings.model import Service, StackSettings
from hegel.instance import ssh_keys
from ipxe.parameters import MAX_CHARACTERS, check_places, kernel_words
from ipxe.scripts import BootSettings, EdgeOrigin, ScriptError, Scripts
from tink.api.annotations import (
    KERNEL_PARAMETERS_ANNOTATION,
    METADATA_ANNOTATION,
    SSH_PUBLIC_KEYS_ANNOTATION,
    STORAGE_ANNOTATION,
    UKI_URL_ANNOTATION,
)
from tink.api.v1alpha2 import Hardware, Raw, as_mapping
from tink.net.addresses import parsed
from tink.net.outbound import Reach, RefusedAddressError
from tink.net.urls import shown
from tink.registry.names import RegistryError, parse

_EDGE: Final = "192.0.2.1"  # stands for the edge's address in scripts that are rendered as a test
_PORTS: Final = {"http": 80, "https": 443}


class Examination:
    """Examines objects for an edge with these settings. Belongs to one event loop."""

    def __init__(self, settings: StackSettings, reach: Reach) -> None:
        """`reach` limits the addresses of the edge's downloads."""
        edge = settings.edge
        self._serves = bool(settings.services & {Service.HTTP, Service.TFTP})
        self._root = edge.osie_dir or settings.data_dir / "osie"
        self._images = settings.data_dir / "images" if not edge.upstream_edge else None
        self._port = edge.http_port
        self._reach = reach
        self._scripts = Scripts(BootSettings())
        self._is_reading = False

    async def __call__(self, kind: str, obj: Raw) -> list[str]:
        """Return a sentence for each field that can't work here; it begins with the field."""
        match kind:
            case "Hardware":
                return [*self._hardware(obj)]
            case "OSIE":
                return [*_osie_words(obj), *self._upstreams(obj), *(await self._read(lambda: self._files(obj)))]
            case "Template":
                return await self._read(lambda: self._own_images(obj))
        return []

    async def _read(self, look: Callable[[], Iterator[str]]) -> list[str]:
        """Run `look` in a thread, because it reads files. While one hangs on a dead file server, no other starts."""
        if not self._serves or self._is_reading:
            return []

        def whole() -> list[str]:
            try:
                return [*look()]
            finally:
                self._is_reading = False

        self._is_reading = True
        return await asyncio.to_thread(whole)

    # --- OSIEs ----------------------------------------------------------------------------------------------------

    def _upstreams(self, osie: Raw) -> Iterator[str]:
        """Yield the URLs that an edge can't fetch. Without an edge in this process, its own addresses are unknown."""
        for field, url in _urls(osie):
            try:
                parts = urlsplit(url)
                host, port = parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 0)
            except ValueError:
                continue  # the schema reports it
            address = parsed("127.0.0.1" if host.lower() == "localhost" else host)
            if address is None or parts.scheme not in _PORTS:
                continue
            try:
                (self._reach if self._serves else Reach()).check(str(address), port)
            except RefusedAddressError as error:
                put = f"put the file into {self._root} and write {self._named(parts.path)}"
                if not self._serves:
                    put = "put the file into the edge's --osie-dir and write file:///PATH"
                allow = f", or start the edge with --allow-upstream {error.allowable}" if error.allowable else ""
                yield f"{field}: {error}: an edge fetches nothing from there: {put}{allow}"

    def _files(self, osie: Raw) -> Iterator[str]:
        for field, url in _urls(osie):
            if url.startswith("file:") and (problem := self._file(url)):
                yield f"{field}: {problem}"

    def _file(self, url: str) -> str:
        try:
            with open_file(url, self._root):
                return ""
        except NotFoundError as error:
            return f"{error}: put it there, or correct the path: until then no machine boots this OSIE"
        except StorageError as error:
            return f"{error}: let the user that runs the edge read it"
        except ArtifactError as error:
            return f"{error}: put a file into {self._root} and write {self._named(urlsplit(url).path)}"

    def _named(self, path: str) -> str:
        return shown(f"file://{self._root / (Path(path).name or 'NAME')}")

    # --- Templates ------------------------------------------------------------------------------------------------

    def _own_images(self, template: Raw) -> Iterator[str]:
        """Yield the images that actions pull from this edge, and that it does not have."""
        actions = as_mapping(template.get("spec")).get("actions")
        names: dict[str, Any] | None = None
        for index, action in enumerate(actions if isinstance(actions, list) else ()):
            image = as_mapping(action).get("image")
            if self._images is None or not isinstance(image, str) or "{{" in image:
                continue
            try:
                reference = parse(image)
            except RegistryError:
                continue  # the reviewer reports it
            if reference.digest or not self._is_own_registry(reference.host):
                continue
            try:
                names = ImageLayout(self._images).entries() if names is None else names
            except (LayoutError, OSError):
                return
            name = f"{reference.path}:{reference.tag}"
            if name not in names:
                yield (
                    f"spec.actions[{index}].image: this edge is that registry, and {self._images} has no image {name}: "
                    f"'skopeo copy docker://REGISTRY/IMAGE oci:{self._images}:{name}' or 'tinkedge bundle load' adds"
                    " it"
                )

    def _is_own_registry(self, host: str) -> bool:
        address, _, port = host.rpartition(":")
        found = parsed(address.strip("[]"))
        if found is None or port != str(self._port):
            return False
        try:
            return self._reach.is_own(found)
        except OSError:
            return False

    # --- Hardware -------------------------------------------------------------------------------------------------

    def _hardware(self, obj: Raw) -> Iterator[str]:
        annotations = _annotations(obj)
        for name in (METADATA_ANNOTATION, STORAGE_ANNOTATION):
            found: object = None
            with suppress(orjson.JSONDecodeError):
                found = orjson.loads(str(annotations.get(name, "{}")))
            if not isinstance(found, dict):
                yield f"metadata.annotations[{name}]: is no JSON object, and nothing of it is served"
        _, bad = ssh_keys(str(annotations.get(SSH_PUBLIC_KEYS_ANNOTATION, "")))
        if bad:
            lines = ", ".join(map(str, bad[:5])) + (", ..." if len(bad) > 5 else "")
            yield f"metadata.annotations[{SSH_PUBLIC_KEYS_ANNOTATION}]: line {lines} is no SSH key, and is left out"
        try:
            hardware = Hardware.model_validate(obj)
        except ValidationError:
            return  # the schema reports it
        problems = set()
        for mac, card in hardware.spec.network_interfaces.items():
            if card.disable_dhcp or card.disable_netboot:
                continue
            try:
                self._scripts.plan(mac, hardware, EdgeOrigin(_EDGE), "")
            except ScriptError as error:
                problems.add(str(error).partition(": ")[2])
        yield from (f"{each}: the machine netboots nothing until that is corrected" for each in sorted(problems))


def _urls(osie: Raw) -> Iterator[tuple[str, str]]:
    """Yield the URLs of an OSIE, each with its field."""
    spec, annotations = as_mapping(osie.get("spec")), _annotations(osie)
    found = {f"spec.{name}": spec.get(name) for name in ("kernelUrl", "initrdUrl")}
    found[f"metadata.annotations[{UKI_URL_ANNOTATION}]"] = annotations.get(UKI_URL_ANNOTATION)
    yield from ((field, url.strip()) for field, url in found.items() if isinstance(url, str))


def _osie_words(osie: Raw) -> Iterator[str]:
    given = _annotations(osie).get(KERNEL_PARAMETERS_ANNOTATION)
    if not isinstance(given, str):
        return
    try:
        check_places(kernel_words(given))
    except ValueError as error:
        problem = str(error)
    else:
        problem = f"has more than {MAX_CHARACTERS} characters" if len(given) > MAX_CHARACTERS else ""
    if problem:
        where = f"metadata.annotations[{KERNEL_PARAMETERS_ANNOTATION}]"
        yield f"{where}: {problem}: no machine boots this OSIE until that is corrected"


def _annotations(obj: Raw) -> dict[str, Any]:
    return as_mapping(as_mapping(obj.get("metadata")).get("annotations"))
