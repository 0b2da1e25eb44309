"""The old `/metadata` of Hegel: what actions of v1alpha1 (such as rootio) still read, as far as v1alpha2 holds it.

v1alpha2 knows the disks by name only; partitions and filesystems are those of an annotation (`hegel.instance`). Fields
have the names of v1alpha1's Hardware, `spec.metadata.instance`.
"""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from hegel.instance import storage_of
from hegel.interfaces import Link
from tink.api.v1alpha2 import DHCP, Hardware
from tink.shrink import shrink_to_fit


def legacy_metadata(hardware: Hardware, facts: Mapping[str, str], all_links: list[Link], ssh_keys: list[str]) -> bytes:
    """The document, JSON; `facts` are those of the EC2 tree."""
    disks: list[dict[str, object]] = [
        {"device": device, "partitions": [], "wipe_table": False} for device in hardware.spec.storage_devices or ()
    ]
    instance: dict[str, object] = {"id": facts["instance-id"]}
    if "hostname" in facts:
        instance["hostname"] = facts["hostname"]
    instance["ips"] = [_ip(link.dhcp) for link in all_links if link.dhcp.ip is not None]
    instance["ssh_keys"] = ssh_keys
    instance["storage"] = storage_of(hardware, disks)
    return shrink_to_fit(orjson.dumps({"metadata": {"instance": instance}}))


def _ip(dhcp: DHCP) -> dict[str, object]:
    known = {"address": dhcp.ip, "netmask": dhcp.netmask, "gateway": dhcp.gateway}
    return {name: value for name, value in known.items() if value is not None} | {"family": 4}
