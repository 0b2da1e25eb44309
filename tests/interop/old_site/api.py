"""The API of a site that has v1alpha1: `python -m tests.interop.old_site.api DIRECTORY PORT`, until it is ended.

Its definitions take anything: what stands in the objects is the old stack's affair.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tink.api.v1alpha2 import Raw
from tink.kube.client import KubeClient
from tink.kube.resources import CRD
from tink.kubeapi import ApiServer

GROUP = "tinkerbell.org"
KINDS = {"hardware": "Hardware", "templates": "Template", "workflows": "Workflow"}


def definition(plural: str, kind: str) -> Raw:
    """Return the CustomResourceDefinition of one kind."""
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": "v1alpha1", "served": True, "storage": True, "schema": schema}
    names = {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"}
    spec = {"group": GROUP, "names": names, "scope": "Namespaced", "versions": [version]}
    metadata = {"name": f"{plural}.{GROUP}"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": metadata,
        "spec": spec,
    }


async def main(directory: Path, port: int) -> None:
    """Serve."""
    server = ApiServer(directory, port=port)
    await server.start()
    async with await KubeClient.connect(server.kubeconfig) as client:
        for plural, kind in KINDS.items():
            await client.create(CRD, definition(plural, kind))
    print("ready", flush=True)
    try:
        await asyncio.Event().wait()
    finally:
        await server.stop()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
