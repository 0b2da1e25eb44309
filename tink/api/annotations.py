"""Annotations of our resources, for settings that have no field in their specs (docs/resources.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MAX_ANNOTATIONS_BYTES = 256 << 10
"""Maximum bytes of the keys and values of all annotations of an object (k8s.io/apimachinery, api/validation)."""

INSTANCE_ID_ANNOTATION = "tinkerbell.org/instance-id"
"""Overrides the instance id that the metadata service gives for a Hardware (default: the Hardware's name)."""

SSH_PUBLIC_KEYS_ANNOTATION = "tinkerbell.org/ssh-public-keys"
"""SSH keys that the metadata service serves for a Hardware: one a line, as in OpenSSH's authorized_keys."""

USERDATA_SECRET_ANNOTATION = "tinkerbell.org/userdata-secret"  # noqa: S105 - the name of an annotation
"""The Secret that holds a Hardware's user-data, in the Hardware's namespace: `NAME` or `NAME/KEY`."""

VENDORDATA_SECRET_ANNOTATION = "tinkerbell.org/vendordata-secret"  # noqa: S105 - the name of an annotation
"""The Secret that holds a Hardware's vendor-data, in the Hardware's namespace: `NAME` or `NAME/KEY`."""

METADATA_ANNOTATION = "tinkerbell.org/metadata"
"""Further metadata of a Hardware for the metadata service, as JSON: facility, plan, tags, iqn, public-ipv4,
public-ipv6, operating-system.
"""

STORAGE_ANNOTATION = "tinkerbell.org/storage"
"""Partitions and filesystems of a Hardware, for actions that read them from `/metadata` (rootio): JSON, as in
`spec.metadata.instance.storage` of v1alpha1."""

AGENT_ID_ANNOTATION = "tinkerbell.org/agent-id"
"""The agent id of a Hardware's machine (`worker_id=` on the kernel's command line), if it is not the MAC that it booted
from. v1alpha1 calls it agentID.
"""

AGENT_ATTRIBUTES_ANNOTATION = "tinkerbell.org/agent-attributes"
"""On a Hardware: the agent's description of its machine (processor, memory, disks, cards, chassis), as JSON. The server
writes it, under Tinkerbell's own name.
"""

KERNEL_PARAMETERS_ANNOTATION = "tinkerbell.org/kernel-parameters"
"""On an OSIE: parameters for the kernel's command line on every machine that boots it."""

BOOT_PATH_ANNOTATION = "tinkerbell.org/boot-path"
"""On a Hardware: the program that leads its machine from the firmware to the kernel: `ipxe`,
`grub`, `auto` or `uki`.
"""

UKI_URL_ANNOTATION = "tinkerbell.org/uki-url"
"""On an OSIE: the URL of its kernel, initrd and command line as one UEFI program (a unified kernel image)."""

UKI_SHA256_ANNOTATION = "tinkerbell.org/uki-sha256"
"""SHA-256 of that program, in hex. A file with another checksum is not served."""

KERNEL_SHA256_ANNOTATION = "tinkerbell.org/kernel-sha256"
"""SHA-256 of an OSIE's kernel, in hex. A file from `kernelUrl` with another checksum is not served."""

INITRD_SHA256_ANNOTATION = "tinkerbell.org/initrd-sha256"
"""SHA-256 of an OSIE's initrd, in hex. A file from `initrdUrl` with another checksum is not served."""

HOLD_ANNOTATION = "tinkerbell.org/hold"
"""Prevents a Workflow that has not begun from being prepared and given to an agent; the value says why.

`tinkedge restore` sets it on Workflows that may have run since the backup. Removing it permits the Workflow to run.
"""

PAUSED_ANNOTATION = "tinkerbell.org/paused"
"""No component of tinkedge changes a Workflow with this annotation; the value says why. `tinkedge move` sets it on the
Workflows that it takes to another API.
"""

ORIGIN_ANNOTATION = "tinkerbell.org/moved-from"
"""On objects that `tinkedge move` has copied: the uid of the namespace kube-system of their former API, and their uid
there.
"""

REFRESH_INVENTORY_ANNOTATION = "tinkerbell.org/refresh-inventory"
"""On a Machine, with the value `true`: read the inventory now. It is removed afterwards. Rufio has the same."""

DISABLE_INVENTORY_ANNOTATION = "tinkerbell.org/disable-outofband-inventory"
"""On a Hardware, with the value `true`: its inventory is not read from its BMC. Rufio has the same."""

CREDENTIALS_REFUSED_ANNOTATION = "tinkerbell.org/credentials-refused"
"""On a Machine: the BMC and the version of the Secret that it has refused, as noted by releases without `status.login`.
It is still read, so that an update repeats no refused login, and is removed after an accepted one.
"""

RETRY_LOGIN_ANNOTATION = "tinkerbell.org/retry-login"
"""On a Machine: a user's request for one more login after a refused one, or one whose result is unknown. Each new
value, such as the time, permits one.
"""

BMC_NAMESPACES_ANNOTATION = "tinkerbell.org/bmc-namespaces"
"""On a Secret: the other namespaces whose Machines may use it for their BMCs, such as `berlin,ulm`; `*` is all."""

JOB_TTL_ANNOTATION = "tinkerbell.org/ttl-seconds-after-finished"
"""On a Job: the number of seconds after its end until it is deleted. `tinkedge power` sets it."""

APPROVE_ANNOTATION = "tinkerbell.org/approve"
"""On a discovered Hardware: the name that the machine's Hardware is to have; `true` keeps the present name. An operator
sets it to approve the machine.
"""

DISCOVERY_RULE_ANNOTATION = "tinkerbell.org/discovery-rule"
"""On a discovered Hardware: the rule (`--discover`) that admitted its machine. The edge writes it."""

APPROVED_AS_ANNOTATION = "tinkerbell.org/approved-as"
"""On a discovered Hardware that is being deleted: NAMESPACE/NAME of the Hardware that replaces it. The controller
writes it before the deletion, so that it continues after a restart.
"""

DISCOVERED_AS_ANNOTATION = "tinkerbell.org/discovered-as"
"""On the Hardware of an approved machine: the name of the Hardware under which it was discovered."""

DISCOVERY_ADDRESS_ANNOTATION = "tinkerbell.org/discovery-address"
"""On the Hardware of an approved machine: the address that its machine has from its discovery and uses until its next
boot. Its agent may come from there. It is removed after that boot.
"""

DISCOVERY_BOOT_ANNOTATION = "tinkerbell.org/discovery-boot"
"""Beside the address of the discovery: the time of the boot in which the machine was approved (`status.lastBoot.at` of
the discovered Hardware; absent if it had none). It is removed with the address.
"""

V1ALPHA1_ANNOTATION = "tinkerbell.org/v1alpha1"
"""On a stored object that was written in Tinkerbell's v1alpha1: what v1alpha2 has no place for (`tink.versions`)."""
V1ALPHA2_ANNOTATION = "tinkerbell.org/v1alpha2"
"""On an object that is read as v1alpha1: what v1alpha1 has no place for. Never stored."""
OVERSIZED_LABEL = "tinkerbell.org/v1alpha2-oversized"
"""A label of an object that is read as v1alpha1 on a cluster: V1ALPHA2_ANNOTATION is left out, because an object may
have MAX_ANNOTATIONS_BYTES of annotations. Never stored."""
INCOMPLETE_ANNOTATION = "tinkerbell.org/v1alpha1-incomplete"
"""On a stored object that was written in v1alpha1: the fields that v1alpha2 requires and that were filled in."""
TEMPLATE_TEXT_ANNOTATION = "tinkerbell.org/v1alpha1-template"
"""On a Template that was written in Tinkerbell's v1alpha1: its text. The first line has the hash of the actions that
were made of it, and `gzip` if the rest is compressed, in base64. While the actions have that hash, Workflows run the
text (`tink.versions.template`).
"""

ANNOTATIONS = frozenset(
    {
        V1ALPHA1_ANNOTATION,
        V1ALPHA2_ANNOTATION,
        INCOMPLETE_ANNOTATION,
        TEMPLATE_TEXT_ANNOTATION,
        APPROVE_ANNOTATION,
        APPROVED_AS_ANNOTATION,
        DISCOVERY_RULE_ANNOTATION,
        DISCOVERED_AS_ANNOTATION,
        DISCOVERY_ADDRESS_ANNOTATION,
        DISCOVERY_BOOT_ANNOTATION,
        INSTANCE_ID_ANNOTATION,
        SSH_PUBLIC_KEYS_ANNOTATION,
        USERDATA_SECRET_ANNOTATION,
        VENDORDATA_SECRET_ANNOTATION,
        METADATA_ANNOTATION,
        STORAGE_ANNOTATION,
        AGENT_ID_ANNOTATION,
        AGENT_ATTRIBUTES_ANNOTATION,
        KERNEL_PARAMETERS_ANNOTATION,
        BOOT_PATH_ANNOTATION,
        UKI_URL_ANNOTATION,
        UKI_SHA256_ANNOTATION,
        KERNEL_SHA256_ANNOTATION,
        INITRD_SHA256_ANNOTATION,
        HOLD_ANNOTATION,
        PAUSED_ANNOTATION,
        ORIGIN_ANNOTATION,
        REFRESH_INVENTORY_ANNOTATION,
        DISABLE_INVENTORY_ANNOTATION,
        CREDENTIALS_REFUSED_ANNOTATION,
        RETRY_LOGIN_ANNOTATION,
        BMC_NAMESPACES_ANNOTATION,
        JOB_TTL_ANNOTATION,
    }
)
"""All of our annotations."""

OWNER_NAME_LABEL = "v1alpha1.tinkerbell.org/ownerName"
OWNER_NAMESPACE_LABEL = "v1alpha1.tinkerbell.org/ownerNamespace"
"""The labels with which Cluster API's provider for Tinkerbell takes a Hardware for its TinkerbellMachine."""

AUTO_DISCOVERED_LABEL = "tinkerbell.org/auto-discovered"
"""The label of a discovered Hardware, with the value `true`, until it is approved. The name is Tinkerbell's."""

EXPECTED_MACHINES_LABEL = "tinkerbell.org/expected-machines"
"""The label of a ConfigMap, with the value `true`, whose keys are lists of expected machines as CSV."""


def annotations_size(annotations: Mapping[str, Any]) -> int:
    """Return the bytes of all keys and values, as Kubernetes counts them. A value that is no text counts as 0."""
    return sum(annotation_size(name, text) for name, text in annotations.items())


def annotation_size(name: str, text: Any) -> int:
    """Return the bytes of a key and its value."""
    return sum(len(each.encode(errors="replace")) for each in (name, text) if isinstance(each, str))
