"""What annotations of a Hardware say to the metadata service, and a line in the log for those that say it wrongly.

A bad annotation never costs a machine its metadata: what stands in its place is what it would have replaced.
"""

from __future__ import annotations

import logging

from hegel.secret import SecretReference, SecretUnusableError
from hegel.sshkeys import ssh_keys
from tink.api.annotations import INSTANCE_ID_ANNOTATION, SSH_PUBLIC_KEYS_ANNOTATION
from tink.api.v1alpha2 import Hardware

log = logging.getLogger(__name__)

_LINES_NAMED = 10


def instance_id(hardware: Hardware) -> str:
    """Names this installation of the machine: cloud-init runs its per-instance modules again when it changes.

    The annotation `tinkerbell.org/instance-id`, else the Hardware's name.
    """
    name = hardware.metadata.name
    given = hardware.metadata.annotations.get(INSTANCE_ID_ANNOTATION)
    if given is None:
        return name
    identity = given.strip()
    # In braces, cloud-init would read it as JSON.
    if identity and identity.isprintable() and " " not in identity and identity[0] != "{":
        return identity
    complain(hardware, INSTANCE_ID_ANNOTATION, f"is ignored: it must be one word; the instance id is {name}")
    return name


def public_keys(hardware: Hardware) -> list[str]:
    """The SSH keys for the machine's default user, as in authorized_keys: the annotation's lines that are keys."""
    given = hardware.metadata.annotations.get(SSH_PUBLIC_KEYS_ANNOTATION)
    if given is None:
        return []
    keys, bad = ssh_keys(given)
    if bad:
        lines = ", ".join(map(str, bad[:_LINES_NAMED])) + (", ..." if len(bad) > _LINES_NAMED else "")
        complain(
            hardware,
            SSH_PUBLIC_KEYS_ANNOTATION,
            f"has no SSH key in line {lines}: left out; write a key as in authorized_keys, e.g. ssh-ed25519 AAAA...",
        )
    return keys


def secret_reference(
    hardware: Hardware, annotation: str, *, replaces: str | None, field: str
) -> SecretReference | None:
    """The Secret that `annotation` names, if any; it wins over `replaces`, the value of the Hardware's `field`."""
    given = hardware.metadata.annotations.get(annotation)
    if given is None:
        return None
    try:
        reference = SecretReference.parse(given)
    except SecretUnusableError as error:
        complain(hardware, annotation, f"is ignored, and {field} is served: it {error}")
        return None
    if replaces is not None:
        log.warning(
            "Hardware %s/%s: %s is not served, because annotation %s names a Secret: remove one of them",
            hardware.metadata.namespace,
            hardware.metadata.name,
            field,
            annotation,
        )
    return reference


def complain(hardware: Hardware, annotation: str, what: str) -> None:
    """Log what is wrong with an annotation."""
    log.error("Hardware %s/%s: annotation %s %s", hardware.metadata.namespace, hardware.metadata.name, annotation, what)
