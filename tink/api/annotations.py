"""Annotations of the four resources: what has no field in their specs (docs/resources.md)."""

from __future__ import annotations

INSTANCE_ID_ANNOTATION = "tinkerbell.org/instance-id"
"""Overrides the instance id that the metadata service gives for a Hardware (default: the Hardware's name)."""

SSH_PUBLIC_KEYS_ANNOTATION = "tinkerbell.org/ssh-public-keys"
"""SSH keys that the metadata service gives for a Hardware: one a line, as in OpenSSH's authorized_keys."""

USERDATA_SECRET_ANNOTATION = "tinkerbell.org/userdata-secret"  # noqa: S105 - the name of an annotation
"""The Secret that holds a Hardware's user-data, in the Hardware's namespace: `NAME` or `NAME/KEY`."""

VENDORDATA_SECRET_ANNOTATION = "tinkerbell.org/vendordata-secret"  # noqa: S105 - the name of an annotation
"""The Secret that holds a Hardware's vendor-data, in the Hardware's namespace: `NAME` or `NAME/KEY`."""

METADATA_ANNOTATION = "tinkerbell.org/metadata"
"""What the metadata service gives for a Hardware besides what its spec says, JSON: facility, plan, tags, iqn,
public-ipv4, public-ipv6, operating-system."""

STORAGE_ANNOTATION = "tinkerbell.org/storage"
"""Partitions and filesystems of a Hardware, for actions that read them from `/metadata` (rootio): JSON, as in
`spec.metadata.instance.storage` of v1alpha1."""

AGENT_ID_ANNOTATION = "tinkerbell.org/agent-id"
"""What the agent of a Hardware's machine calls itself (`worker_id=` on the kernel's command line), where that is not
the MAC that it booted from: the agentID of v1alpha1."""

AGENT_ATTRIBUTES_ANNOTATION = "tinkerbell.org/agent-attributes"
"""Of a Hardware: what the agent says of its machine (processor, memory, disks, cards, chassis), JSON. Written by the
server, under Tinkerbell's own name for it."""

KERNEL_PARAMETERS_ANNOTATION = "tinkerbell.org/kernel-parameters"
"""Of an OSIE: words for the command line of its kernel, for every machine that boots it."""

BOOT_PATH_ANNOTATION = "tinkerbell.org/boot-path"
"""Of a Hardware: `ipxe`, `grub`, `auto` or `uki`, by which program its machine gets from its firmware to the kernel."""

UKI_URL_ANNOTATION = "tinkerbell.org/uki-url"
"""Of an OSIE: where its kernel, initrd and command line are as one program for UEFI (a unified kernel image)."""

UKI_SHA256_ANNOTATION = "tinkerbell.org/uki-sha256"
"""SHA-256 of that, in hex: what is fetched from there must have it to be served."""

KERNEL_SHA256_ANNOTATION = "tinkerbell.org/kernel-sha256"
"""SHA-256 of an OSIE's kernel, in hex: what is fetched from `kernelUrl` must have it to be served."""

INITRD_SHA256_ANNOTATION = "tinkerbell.org/initrd-sha256"
"""SHA-256 of an OSIE's initrd, in hex: what is fetched from `initrdUrl` must have it to be served."""

HOLD_ANNOTATION = "tinkerbell.org/hold"
"""Keeps a Workflow that has not begun from being prepared and given to an agent; the value says why. `tinkedge restore`
puts it on what may have run since the backup was made; whoever takes it away says that it may run."""

PAUSED_ANNOTATION = "tinkerbell.org/paused"
"""No component of tinkedge changes a Workflow that has it; the value says why. `tinkedge move` puts it on what it takes
to another API."""

ORIGIN_ANNOTATION = "tinkerbell.org/moved-from"
"""Of what `tinkedge move` has brought: the uid of the namespace kube-system of the API that it is from, and its uid
there."""

ANNOTATIONS = frozenset(
    {
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
    }
)
"""All of them."""
