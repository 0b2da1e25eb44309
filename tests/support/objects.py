"""Builders of the objects that tests put into an API, an informer or an inventory.

Each builder returns a complete, valid object, so that a test names only the fields it is about. Every builder accepts
`namespace`, and further fields of the metadata as `metadata={...}`. Other keywords become fields of the spec (of a
Workflow: of the status).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tink.api.v1alpha2 import API_VERSION, FINALIZER, Raw

MAC = "52:54:00:00:00:01"
OTHER_MAC = "52:54:00:00:00:02"
IP = "192.0.2.1"
CREATED = "2027-01-15T08:00:00Z"


def hardware(
    name: str = "m1",
    mac: str = MAC,
    ip: str | None = IP,
    *,
    namespace: str = "default",
    dhcp: Mapping[str, Any] | None = None,
    interface: Mapping[str, Any] | None = None,
    interfaces: Mapping[str, Any] | None = None,
    annotations: Mapping[str, str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    **spec: Any,
) -> Raw:
    """Return a Hardware with one interface, `mac` with the reservation `ip`; None: without a reservation.

    `dhcp` and `interface` add fields to the reservation and to the interface; `interfaces` replaces all of them.
    """
    if interfaces is None:
        reservation = {**({} if ip is None else {"ip": ip}), **(dhcp or {})}
        interfaces = {mac: {**({"dhcp": reservation} if reservation else {}), **(interface or {})}}
    return _object("Hardware", name, namespace, metadata, annotations) | {
        "spec": {"networkInterfaces": dict(interfaces), **spec}
    }


def osie(
    name: str = "lab", *, namespace: str = "default", metadata: Mapping[str, Any] | None = None, **spec: Any
) -> Raw:
    """Return an OSIE whose files an upstream server has."""
    files = {"kernelUrl": "http://192.0.2.9/vmlinuz", "initrdUrl": "http://192.0.2.9/initrd"}
    return _object("OSIE", name, namespace, metadata) | {"spec": {**files, **spec}}


def template(
    *actions: Mapping[str, Any],
    name: str = "t",
    namespace: str = "default",
    metadata: Mapping[str, Any] | None = None,
    **spec: Any,
) -> Raw:
    """Return a Template; without actions, one with a single action."""
    chosen = [dict(each) for each in actions] or [{"name": "first", "image": "i"}]
    return _object("Template", name, namespace, metadata) | {"spec": {"actions": chosen, **spec}}


def workflow(
    name: str = "w",
    state: str | None = None,
    *,
    namespace: str = "default",
    hardware: str = "m1",
    template: str = "t",
    finalizers: Iterable[str] | None = None,
    deleted: bool = False,
    annotations: Mapping[str, str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    spec: Mapping[str, Any] | None = None,
    **status: Any,
) -> Raw:
    """Return a Workflow in `state`; None: without a status, as a user creates it.

    One with a state has our finalizer, as the controller leaves it, unless `finalizers` says otherwise.
    """
    chosen = [*(finalizers if finalizers is not None else [FINALIZER] if state is not None else [])]
    more = {**({"finalizers": chosen} if chosen else {}), **({"deletionTimestamp": CREATED} if deleted else {})}
    references = {"hardwareRef": {"name": hardware}, "templateRef": {"name": template}}
    made = _object("Workflow", name, namespace, {**more, **(metadata or {})}, annotations)
    made["spec"] = {**references, **(spec or {})}
    if state is not None:
        made["status"] = {"state": state, **status}
    return made


def action(id: str = "a0", state: str = "Pending", **rendered: Any) -> Raw:  # noqa: A002 - the field's name
    """Return an action of a Workflow's status."""
    return {"id": id, "state": state, "rendered": {"name": "first", "image": "i", **rendered}}


def _object(
    kind: str,
    name: str,
    namespace: str,
    metadata: Mapping[str, Any] | None,
    annotations: Mapping[str, str] | None = None,
) -> Raw:
    more = {**({"annotations": dict(annotations)} if annotations else {}), **(metadata or {})}
    return {
        "apiVersion": API_VERSION,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{name}",
            "creationTimestamp": CREATED,
            **more,
        },
    }
