"""An image as a file: an OCI image layout (image-spec 1.0) in a tar archive, as podman, skopeo and containerd read it.

The same root gives the same bytes: files in the order of their names, owners by number, all times that of the sources.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

LEVEL = 6
"""The default gzip level of layers, 1 to 9."""


@dataclass(frozen=True, slots=True)
class Config:
    """How an image runs (image-spec, config.md), but for its files."""

    architecture: str
    user: str
    entrypoint: tuple[str, ...]
    command: tuple[str, ...]
    labels: Mapping[str, str] = field(default_factory=dict)
    ports: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()


def write(root: Path, config: Config, reference: str, epoch: int, out: Path, level: int = LEVEL) -> str:
    """Write the image with the files of `root` as its one layer, named `reference`; gives the manifest's digest.

    `level`: how well the layer is compressed, 1 to 9 (gzip's).
    """
    plain, layer = _layer(root, epoch, level)
    created = datetime.fromtimestamp(epoch, UTC).isoformat().replace("+00:00", "Z")
    settings: dict[str, Any] = {
        "User": config.user,
        "Entrypoint": list(config.entrypoint),
        "Cmd": list(config.command),
        "Env": list(config.environment),
        "Labels": dict(config.labels),
        "ExposedPorts": {port: {} for port in config.ports},
        "Volumes": {volume: {} for volume in config.volumes},
        "WorkingDir": "/",
    }
    image = _json(
        {
            "created": created,
            "architecture": config.architecture,
            "os": "linux",
            "config": settings,
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{plain}"]},
            "history": [{"created": created, "created_by": "make image"}],
        }
    )
    kind = "application/vnd.oci.image"
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": f"{kind}.manifest.v1+json",
            "config": _descriptor(f"{kind}.config.v1+json", image),
            "layers": [_descriptor(f"{kind}.layer.v1.tar+gzip", layer)],
        }
    )
    named = {"annotations": {"org.opencontainers.image.ref.name": reference}}
    index = _json({"schemaVersion": 2, "manifests": [_descriptor(f"{kind}.manifest.v1+json", manifest) | named]})
    files = {f"blobs/sha256/{_digest(blob)}": blob for blob in (image, layer, manifest)}
    files |= {"index.json": index, "oci-layout": b'{"imageLayoutVersion":"1.0.0"}'}
    with tarfile.open(out, "w", format=tarfile.GNU_FORMAT) as archive:
        for name, data in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.mode = len(data), epoch, 0o644
            archive.addfile(entry, io.BytesIO(data))
    return f"sha256:{_digest(manifest)}"


def _layer(root: Path, epoch: int, level: int) -> tuple[str, bytes]:
    """The digest of the files as a tar archive, and that archive compressed."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(_under(root), key=os.fsencode):
            entry = tar.gettarinfo(path, str(path.relative_to(root)))
            if entry is None:  # a socket
                continue
            entry.mtime, entry.uname, entry.gname = min(int(entry.mtime), epoch), "", ""
            if entry.isreg():
                with path.open("rb") as file:
                    tar.addfile(entry, file)
            else:
                tar.addfile(entry)
    data = archive.getvalue()
    return _digest(data), gzip.compress(data, level, mtime=0)


def _under(root: Path) -> list[Path]:
    return [Path(where) / name for where, directories, files in os.walk(root) for name in (*directories, *files)]


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _descriptor(kind: str, data: bytes) -> dict[str, Any]:
    return {"mediaType": kind, "digest": f"sha256:{_digest(data)}", "size": len(data)}
