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

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from json.encoder import encode_basestring

from hegel.ec2 import ec2_tree, facts_of, legacy_metadata
from hegel.instance import (
    SecretReference,
    SecretUnusableError,
    instance_id,
    instance_tree,
    public_keys,
    secret_reference,
    storage_of,
)
from hegel.network import links, network_config
from tink.api.annotations import USERDATA_SECRET_ANNOTATION, VENDORDATA_SECRET_ANNOTATION
from tink.api.v1alpha2 import Hardware, Raw, as_mapping

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


def quoted(value: str) -> str:
    """Return a YAML scalar that stays a string, as "123", "on", or a MAC of digits, which YAML 1.1 reads in base 60.

    It is in double quotes (YAML 1.1, section 5.7): JSON's escapes mean the same, and all others are `\\U`. A general
    YAML writer takes a hundred times as long, and there may be 100,000 Hardware.
    """
    text = encode_basestring(value)
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else f"\\U{ord(char):08x}" for char in text)


def _nocloud_metadata(facts: Mapping[str, str], keys: list[str]) -> bytes:
    """Return NoCloud's `meta-data`, YAML."""
    lines = [f"{name}: {quoted(facts[name])}\n" for name in ("instance-id", "local-hostname")]
    if keys:
        lines += ["public-keys:\n", *(f"- {quoted(key)}\n" for key in keys)]
    return "".join(lines).encode()


# --- user-data and vendor-data, from the Hardware or a Secret --------------------------------------------------------
#
# A document is served byte for byte: a script, a `#cloud-config` and a MIME multi-part are text, which a Hardware holds
# unchanged. gzip is not text, so a Hardware holds it as base64, which is decoded: NoCloud would take the base64 itself
# for the document. No other base64 is decoded, because it may be intended.

_GZIP_MAGIC = b"\x1f\x8b"
_BASE64_WHITESPACE = b" \t\r\n"


def document(text: str) -> bytes:
    """Return the bytes to serve for `userdata` or `vendordata` of a Hardware."""
    return _unwrapped(text.encode(errors="replace"))


def document_of_secret(reference: SecretReference, secret: Raw) -> bytes:
    """Return the bytes to serve for user-data or vendor-data from a Secret, as the Kubernetes API returned it.

    Raises SecretUnusableError, which names the Secret, its keys and the remedy, and never contains a value.
    """
    values = as_mapping(secret.get("data"))
    key = next((key for key in reference.keys if values.get(key) is not None), None)
    if key is None:
        raise SecretUnusableError(f"Secret {reference.name} has no key {' or '.join(reference.keys)}: add it")
    try:
        return _unwrapped(base64.b64decode(values[key], validate=True))
    except (TypeError, ValueError):
        # "from None": the error's text would quote the value.
        raise SecretUnusableError(f"Secret {reference.name}: the value of {key} is not base64: replace it") from None


def _unwrapped(content: bytes) -> bytes:
    """Return `content`, decoded if it is the base64 of gzip data."""
    # In base64 the magic begins with "H4": no text needs more than this check.
    if not content.lstrip(_BASE64_WHITESPACE).startswith(b"H4"):
        return content
    try:
        decoded = binascii.a2b_base64(content.translate(None, _BASE64_WHITESPACE), strict_mode=True)
    except binascii.Error:
        return content
    return decoded if decoded.startswith(_GZIP_MAGIC) else content
