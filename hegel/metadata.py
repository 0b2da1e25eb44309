"""Compiles a Hardware into the metadata that its machine's installed operating system may read.

`compile_tree` turns one Hardware into dictionaries of bytes: the EC2 tree, the NoCloud files, and Hegel's old JSON.
Serving is a look-up, in `edge.http.metadata`, which identifies the machine. Nothing here does I/O.

The formats are those that released versions of cloud-init accept, which is less than their documentation suggests:
  * a listed name that answers 404 makes cloud-init discard all metadata, so only existing names are listed;
  * a value with a trailing newline becomes a list, and one in braces is parsed as JSON: cloud-init has no instance id
    then, so values have neither;
  * DataSourceEc2 requests `meta-data/` with the slash, other clients without it: both get the same answer;
  * the NoCloud files must all exist, even if empty: a 404 costs ten attempts, one second each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hegel.documents import document, quoted
from hegel.ec2 import ec2_tree, facts_of, legacy_metadata
from hegel.instance import SecretReference, instance_id, instance_tree, public_keys, secret_reference, storage_of
from hegel.network import links, network_config
from tink.api.annotations import USERDATA_SECRET_ANNOTATION, VENDORDATA_SECRET_ANNOTATION
from tink.api.v1alpha2 import Hardware

EC2_VERSIONS = ("2009-04-04", "2019-10-01", "2021-01-03", "latest")
"""The first path segments of the EC2 tree, used by cloud-init, Ignition, Afterburn and others.

All other versions must be 404: cloud-init tries newer ones first, and expects more of them.
"""

NOCLOUD_FILES = ("meta-data", "user-data", "vendor-data", "network-config")


@dataclass(frozen=True, slots=True)
class MetadataTree:
    """The answers for one Hardware.

    `ec2` by path below the version, without slashes at its ends ("" is the root, "meta-data/instance-id" a value);
    `nocloud` by file name; `legacy` is the JSON of the old `/metadata`. `secrets` by document name ("user-data",
    "vendor-data"): those that a Secret holds, listed in the root of `ec2`, but in neither mapping. `storage_problem`:
    why `legacy` has no partitions and filesystems; "" if it has.
    """

    instance_id: str
    ec2: Mapping[str, bytes]
    nocloud: Mapping[str, bytes]
    legacy: bytes
    secrets: Mapping[str, SecretReference]
    storage_problem: str


def compile_tree(hardware: Hardware) -> MetadataTree:
    """Compile `hardware`. Never raises: errors in annotations are logged."""
    identity = instance_id(hardware)
    keys = public_keys(hardware)
    all_links = links(hardware)
    documents, secrets = _documents(hardware)

    facts = facts_of(identity, hardware.metadata.name, all_links)
    storage = storage_of(hardware)
    nocloud = {
        "meta-data": _nocloud_metadata(facts, keys),
        "user-data": b"",
        "vendor-data": b"",
        "network-config": network_config(all_links),
    } | documents
    for name in secrets:
        del nocloud[name]
    return MetadataTree(
        instance_id=identity,
        ec2=ec2_tree(facts, hardware.metadata.namespace, all_links, keys, documents, secrets, instance_tree(hardware)),
        nocloud=nocloud,
        legacy=legacy_metadata(facts, all_links, keys, storage),
        secrets=secrets,
        storage_problem=storage if isinstance(storage, str) else "",
    )


def _documents(hardware: Hardware) -> tuple[dict[str, bytes], dict[str, SecretReference]]:
    """Return user-data and vendor-data by name: those in the Hardware, and those in a Secret."""
    instance = hardware.spec.instance
    userdata = instance.userdata if instance is not None else None
    vendordata = instance.vendordata if instance is not None else None
    documents: dict[str, bytes] = {}
    secrets: dict[str, SecretReference] = {}
    for name, text, annotation, field in (
        ("user-data", userdata, USERDATA_SECRET_ANNOTATION, "spec.instance.userdata"),
        ("vendor-data", vendordata, VENDORDATA_SECRET_ANNOTATION, "spec.instance.vendordata"),
    ):
        reference = secret_reference(hardware, annotation, replaces=text, field=field)
        if reference is not None:
            secrets[name] = reference
        elif text is not None:
            documents[name] = document(text)
    return documents, secrets


def _nocloud_metadata(facts: Mapping[str, str], keys: list[str]) -> bytes:
    """Return NoCloud's `meta-data`, YAML."""
    lines = [f"{name}: {quoted(facts[name])}\n" for name in ("instance-id", "local-hostname")]
    if keys:
        lines += ["public-keys:\n", *(f"- {quoted(key)}\n" for key in keys)]
    return "".join(lines).encode()
