"""The EC2 metadata tree, and the metadata of Hegel's older API."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import orjson

from hegel.instance import entries, names
from hegel.network import InterfaceFacts, primary
from tink.api.v1alpha2 import DHCP
from tink.limits import shrink_to_fit


def legacy_metadata(
    facts: Mapping[str, str], all_links: list[InterfaceFacts], ssh_keys: list[str], storage: object
) -> bytes:
    """Return Hegel's old `/metadata` as JSON, which actions of v1alpha1 (such as rootio) still read.

    Fields have the names of v1alpha1's Hardware, `spec.metadata.instance`. `facts` are those of the EC2 tree. v1alpha2
    has no partitions and no filesystems: `storage` is from `hegel.instance.storage_of`.
    """
    instance: dict[str, object] = {"id": facts["instance-id"], "hostname": facts["hostname"]}
    instance["ips"] = [_ip(link.dhcp) for link in all_links if link.dhcp.ip is not None]
    instance["ssh_keys"] = ssh_keys
    instance["storage"] = storage
    return shrink_to_fit(orjson.dumps({"metadata": {"instance": instance}}))


def _ip(dhcp: DHCP) -> dict[str, object]:
    known = {"address": dhcp.ip, "netmask": dhcp.netmask, "gateway": dhcp.gateway}
    return {name: value for name, value in known.items() if value is not None} | {"family": 4}


# --- EC2 ---
#
# `network/` describes interfaces as AWS does. cloud-init then uses DHCP on each listed interface, found by its MAC
# address, with the metrics 100, 200, ... in the order of `device-number`. Without `network/`, cloud-init uses DHCP on
# one interface of its choice, and warns, so that `cloud-init status` ends with 2, "degraded". So `network/` exists only
# for a Hardware that it describes completely: each interface with an address gets it by DHCP, untagged. Otherwise (a
# VLAN, DHCP disabled) it could remove the connection that cloud-init's choice has, or make the boot wait for an answer
# that never arrives. An interface without an address is not listed, for the same reason.

_MACS = "meta-data/network/interfaces/macs"
_KEYS = "meta-data/public-keys"


def ec2_tree(
    facts: Mapping[str, str],
    namespace: str,
    all_links: list[InterfaceFacts],
    keys: list[str],
    documents: Mapping[str, bytes],
    elsewhere: Iterable[str],
    more: Mapping[str, bytes],
) -> dict[str, bytes]:
    """Return all answers by path: values are one line, listings are sorted and name directories with a slash.

    `facts` are the values right below `meta-data/`, and `more` further ones by their path below it. `documents` are
    beside `meta-data`, and `elsewhere` names documents that are listed, but served from elsewhere.
    """
    tree = {f"meta-data/{name}": value.encode() for name, value in facts.items()}
    network = _network(namespace, all_links)
    public_keys = _public_keys(keys)
    tree |= network | public_keys | {f"meta-data/{path}": value for path, value in more.items()}
    tree.update(documents)
    listed = [*facts, *(["network/"] if network else ()), *(["public-keys/"] if public_keys else ())]
    listed += entries(more)
    tree["meta-data"] = _listing(listed)
    tree[""] = _listing(["meta-data/", *documents, *elsewhere])
    return tree


def facts_of(instance_id: str, name: str, all_links: list[InterfaceFacts]) -> dict[str, str]:
    """Return the names and addresses of a machine, by EC2's names.

    The hostname is `name`, the Hardware's, if no link has one: cloudbase-init takes metadata without `local-hostname`
    as no metadata at all (cloudbaseinit/metadata/services/ec2service.py).
    """
    facts = {"instance-id": instance_id}
    first = primary(all_links)
    hostname = name
    if first is not None:
        facts["mac"] = first.mac
        hostname = next((link.dhcp.hostname for link in (first, *all_links) if link.dhcp.hostname is not None), name)
    facts["hostname"] = facts["local-hostname"] = hostname
    if first is not None:
        if first.dhcp.ip is not None:
            facts["local-ipv4"] = first.dhcp.ip
        if first.dhcp.ipv6 is not None:
            facts["ipv6"] = first.dhcp.ipv6.address
    return facts


def _public_keys(keys: list[str]) -> dict[str, bytes]:
    """Return the listing of public keys, which has `NUMBER=NAME` for the directory `NUMBER/`."""
    if not keys:
        return {}
    tree = {_KEYS: "\n".join(f"{number}={name}" for number, name in enumerate(names(keys))).encode()}
    for number, key in enumerate(keys):
        tree[f"{_KEYS}/{number}"] = b"openssh-key"
        tree[f"{_KEYS}/{number}/openssh-key"] = key.encode()
    return tree


def _network(namespace: str, all_links: list[InterfaceFacts]) -> dict[str, bytes]:
    addressed = [link for link in all_links if link.is_addressed]
    if not addressed or not all(link.by_dhcp and link.dhcp.vlan_id is None for link in addressed):
        return {}
    # Without this, cloud-init takes the machine for EC2-Classic and writes its network configuration at every boot.
    vpc = (namespace or "default").encode()
    tree = {"meta-data/network": b"interfaces/", "meta-data/network/interfaces": b"macs/"}
    tree[_MACS] = _listing(f"{link.mac}/" for link in addressed)
    for number, link in enumerate(addressed):
        directory = f"{_MACS}/{link.mac}"
        mac = link.mac.encode()
        # cloud-init before 21.2 fails without the number. It gets no subnet-ipv4-cidr-block: from 24.2 on, it would ask
        # for a lease on each further interface for the sake of policy routing, and fail if that has no router.
        values = {"device-number": b"%d" % number, "mac": mac, "vpc-id": vpc}
        if link.dhcp.ip is not None:
            values["local-ipv4s"] = link.dhcp.ip.encode()
        if link.dhcp.ipv6 is not None:  # cloud-init asks DHCPv6 then, too
            values["ipv6s"] = link.dhcp.ipv6.address.encode()
        tree[directory] = _listing(values)
        tree |= {f"{directory}/{name}": value for name, value in values.items()}
    return tree


def _listing(names_: Iterable[str]) -> bytes:
    return "\n".join(sorted(names_)).encode()
