"""A machine with all it needs to have been installed, as manifests; its one action does what `script` says."""

from __future__ import annotations

from typing import Final

import yaml

MAC: Final = "52:54:00:12:34:56"
_API = {"apiVersion": "tinkerbell.org/v1alpha2"}
OSIE_DIR: Final = "/var/lib/tinkedge/osie"


def machine(address: str = "172.31.78.50") -> str:
    """An OSIE of this host's own files, a Template, and the Hardware of `MAC`, which gets `address`."""
    urls = {f"{part}Url": f"file://{OSIE_DIR}/{part}" for part in ("kernel", "initrd")}
    dhcp = {"ip": address, "netmask": "255.255.255.0"}
    script = {"name": "install", "image": "none", "cmd": "/bin/sh", "args": ["-c", "{{ .Params.script }}"]}
    return _text(
        _object("OSIE", "osie", urls),
        _object("Template", "install", {"actions": [script]}),
        _object("Hardware", "machine", {"osie": {"name": "osie"}, "networkInterfaces": {MAC: {"dhcp": dhcp}}}),
    )


def workflow(name: str, script: str = "echo installed") -> str:
    """It is installed, by a shell script."""
    references = {"hardwareRef": {"name": "machine"}, "templateRef": {"name": "install"}}
    return _text(_object("Workflow", name, references | {"templateParams": {"script": script}}))


def _object(kind: str, name: str, spec: object) -> dict[str, object]:
    return {**_API, "kind": kind, "metadata": {"name": name}, "spec": spec}


def _text(*objects: object) -> str:
    return yaml.safe_dump_all(objects, sort_keys=False, explicit_start=True)
