"""What a machine's installed operating system may know about itself, compiled from its Hardware.

`compile_tree` turns one Hardware into two dictionaries of bytes, the EC2 tree and the NoCloud files; serving is a
look-up (`edge.http.metadata` does it, and knows who is asking). Nothing here does I/O.

The shapes are those that released versions of cloud-init accept, which is less than their documentation suggests:
  * a name in a listing that answers 404 makes cloud-init throw all metadata away, so only what exists is listed;
  * a value with a trailing newline becomes a list, and cloud-init has no instance id then, so values have none;
  * DataSourceEc2 asks for `meta-data/` with the slash, other clients without it: both mean the same;
  * the NoCloud files must all be there, even if empty: a 404 costs ten tries, one second each.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from hegel.network import network_config
from hegel.yamltext import to_yaml
from tink.api.v1alpha2 import INSTANCE_ID_ANNOTATION, Hardware

log = logging.getLogger(__name__)

EC2_VERSIONS = ("2009-04-04", "latest")
"""The first path segments under which the EC2 tree stands. All others must be 404: cloud-init probes for newer ones."""

NOCLOUD_FILES = ("meta-data", "user-data", "vendor-data", "network-config")


@dataclass(frozen=True, slots=True)
class MetadataTree:
    """The answers for one Hardware.

    `ec2` by path below the version, without slashes at its ends ("" is the root, "meta-data/instance-id" a value);
    `nocloud` by file name.
    """

    instance_id: str
    ec2: Mapping[str, bytes]
    nocloud: Mapping[str, bytes]


def compile_tree(hardware: Hardware) -> MetadataTree:
    """Everything that can be asked about `hardware`."""
    identity = instance_id(hardware)
    facts = {"instance-id": identity} | _addresses(hardware)
    instance = hardware.spec.instance
    userdata = instance.userdata if instance is not None else None
    vendordata = instance.vendordata if instance is not None else None

    ec2 = {f"meta-data/{name}": value.encode() for name, value in facts.items()}
    if userdata is not None:
        ec2["user-data"] = userdata.encode()
    if vendordata is not None:
        ec2["vendor-data"] = vendordata.encode()
    ec2 |= _listings(ec2)

    nocloud_facts: dict[str, object] = {
        name: facts[name] for name in ("instance-id", "local-hostname") if name in facts
    }
    nocloud = {
        "meta-data": to_yaml(nocloud_facts),
        "user-data": (userdata or "").encode(),
        "vendor-data": (vendordata or "").encode(),
        "network-config": network_config(hardware),
    }
    return MetadataTree(instance_id=identity, ec2=ec2, nocloud=nocloud)


def instance_id(hardware: Hardware) -> str:
    """Names this installation of the machine: cloud-init runs its per-instance modules again when it changes.

    The annotation `tinkerbell.org/instance-id`, else the Hardware's name.
    """
    name = hardware.metadata.name
    given = hardware.metadata.annotations.get(INSTANCE_ID_ANNOTATION)
    if given is None:
        return name
    identity = given.strip()
    if identity and identity.isprintable() and " " not in identity:
        return identity
    log.error(
        "Hardware %s/%s: annotation %s is ignored: it must be one word; the instance id is %s",
        hardware.metadata.namespace,
        name,
        INSTANCE_ID_ANNOTATION,
        name,
    )
    return name


def _addresses(hardware: Hardware) -> dict[str, str]:
    """Names and addresses: of the first interface that has an address, as EC2 does it."""
    interfaces = hardware.spec.network_interfaces
    mac = next((mac for mac, one in interfaces.items() if one.dhcp is not None and one.dhcp.ip is not None), None)
    if mac is None:
        mac = next(iter(interfaces), None)
    if mac is None:
        return {}
    facts = {"mac": mac}
    dhcp = interfaces[mac].dhcp
    if dhcp is not None:
        if dhcp.hostname is not None:
            facts |= {"hostname": dhcp.hostname, "local-hostname": dhcp.hostname}
        if dhcp.ip is not None:
            facts["local-ipv4"] = dhcp.ip
    return facts


def _listings(leaves: Mapping[str, bytes]) -> dict[str, bytes]:
    """A listing for each directory above `leaves`: sorted names, directories with a slash, no newline at the end."""
    children: dict[str, set[str]] = {"": set()}
    for path in leaves:
        parent, _, name = path.rpartition("/")
        children.setdefault(parent, set()).add(name)
        while parent:
            above, _, name = parent.rpartition("/")
            children.setdefault(above, set()).add(f"{name}/")
            parent = above
    return {directory: "\n".join(sorted(names)).encode() for directory, names in children.items()}
