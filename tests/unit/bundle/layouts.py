"""An OCI image layout, as skopeo and umoci make them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"


def blob(layout: Path, content: bytes | dict[str, Any], media_type: str = "application/octet-stream") -> dict[str, Any]:
    """Put it there; its descriptor."""
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    name = hashlib.sha256(data).hexdigest()
    path = layout / "blobs/sha256" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return {"mediaType": media_type, "digest": f"sha256:{name}", "size": len(data)}


def image(layout: Path, layer: bytes, architecture: str = "amd64") -> dict[str, Any]:
    config = blob(layout, {"os": "linux", "architecture": architecture})
    manifest = {"schemaVersion": 2, "config": config, "layers": [blob(layout, layer)]}
    return blob(layout, manifest, MANIFEST_TYPE)


def index(layout: Path, **images: dict[str, Any]) -> None:
    """index.json with these names; `_` in them is `/`, and the tag is 1."""
    entries = []
    for name, descriptor in images.items():
        notes = {"org.opencontainers.image.ref.name": f"{name.replace('_', '/')}:1"}
        entries.append(descriptor | {"annotations": notes})
    (layout / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": entries}))
