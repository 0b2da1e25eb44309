"""The old `/metadata` of Hegel: what actions of v1alpha1 (such as rootio) still read, as far as v1alpha2 holds it.

v1alpha2 has no partitions and no filesystems: `storage` is that of an annotation (`hegel.instance`). Fields have the
names of v1alpha1's Hardware, `spec.metadata.instance`.
"""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from hegel.interfaces import Link
from tink.api.v1alpha2 import DHCP
from tink.shrink import shrink_to_fit


def legacy_metadata(facts: Mapping[str, str], all_links: list[Link], ssh_keys: list[str], storage: object) -> bytes:
    """The document, JSON; `facts` are those of the EC2 tree, `storage` is `hegel.instance.storage_of`."""
    instance: dict[str, object] = {"id": facts["instance-id"], "hostname": facts["hostname"]}
    instance["ips"] = [_ip(link.dhcp) for link in all_links if link.dhcp.ip is not None]
    instance["ssh_keys"] = ssh_keys
    instance["storage"] = storage
    return shrink_to_fit(orjson.dumps({"metadata": {"instance": instance}}))


def _ip(dhcp: DHCP) -> dict[str, object]:
    known = {"address": dhcp.ip, "netmask": dhcp.netmask, "gateway": dhcp.gateway}
    return {name: value for name, value in known.items() if value is not None} | {"family": 4}
