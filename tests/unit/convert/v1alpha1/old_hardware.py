"""Hardware of v1alpha1 for tests, and what its conversion gives."""

from __future__ import annotations

import copy
from typing import Any

from tink.api.v1alpha2 import Raw
from tink.convert.findings import Findings, Source
from tink.convert.v1alpha1 import hardware

MAC = "52:54:00:12:34:56"
OTHER_MAC = "52:54:00:12:34:57"
SOURCE = Source("in.yaml", 1, "Hardware", "", "node-1")


def machine(spec: Any = None, **metadata: Any) -> Raw:
    spec = {"interfaces": [interface()]} if spec is None else spec
    metadata = {"name": "node-1", **metadata}
    return {"apiVersion": "tinkerbell.org/v1alpha1", "kind": "Hardware", "metadata": metadata, "spec": spec}


def interface(mac: Any = MAC, *, netboot: Any = None, dhcp: Raw | None = None, **more: Any) -> Raw:
    netboot = {"allowPXE": True, "allowWorkflow": True} if netboot is None else netboot
    return {"dhcp": {"mac": mac, **(dhcp or {})}, "netboot": netboot, **more}


def convert(obj: Raw) -> tuple[list[Raw], list[tuple[str, str]], dict[str, str]]:
    """The result, (kind, path) of the findings, and their reasons by path."""
    before = copy.deepcopy(obj)
    findings = Findings(SOURCE)
    result = hardware.convert_hardware(obj, findings)
    assert obj == before, "a converter changes nothing in what it reads"
    return result, [(str(each.kind), each.path) for each in findings], {each.path: each.reason for each in findings}


def spec_of(obj: Raw) -> Raw:
    result, _, _ = convert(obj)
    spec: Raw = result[0]["spec"]
    return spec
