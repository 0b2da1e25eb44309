"""Versions: from the version in which an object is stored to the one in which it is asked for, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import orjson

from tink.apiserver import meta
from tink.apiserver.registry import Raw, Resource


class Item(Protocol):
    """A stored object, or a change of one: its text and the resourceVersion at which it was written."""

    @property
    def version(self) -> int:
        """The resourceVersion."""

    @property
    def body(self) -> bytes:
        """The object as JSON text."""


async def as_served(resource: Resource, items: Sequence[Item]) -> list[bytes]:
    """Give stored objects as text in the version of the resource. Raises StatusError when conversion fails."""
    return [_renamed(resource, item.body) for item in items]


async def as_stored(resource: Resource, obj: Raw) -> Raw:
    """Give an object of a request in the version in which the resource is stored: the same object when that is one.

    Raises StatusError when conversion fails.
    """
    wanted = resource.stored_api_version
    return obj if obj["apiVersion"] == wanted else {**obj, "apiVersion": wanted}


def is_current(resource: Resource, item: Item) -> bool:
    """Whether a stored object is in the version in which it would be stored today."""
    return item.body.startswith(_head(resource.stored_api_version))


def with_version(obj: Raw, version: int) -> bytes:
    """Write an object that is to be stored at a resourceVersion, as text in its own version."""
    obj["metadata"] = {**obj["metadata"], "resourceVersion": str(version)}
    return text(obj, obj["apiVersion"])


def text(obj: Raw, api_version: str) -> bytes:
    """Write an object: apiVersion, kind and metadata first, metadata in the order in which a reader looks."""
    head = {"apiVersion": api_version, "kind": obj["kind"], "metadata": meta.ordered(obj["metadata"])}
    return orjson.dumps(head | {key: value for key, value in obj.items() if key not in head})


def _head(api_version: str) -> bytes:
    return b'{"apiVersion":"' + api_version.encode() + b'"'


def _renamed(resource: Resource, body: bytes) -> bytes:
    head = _head(resource.api_version)
    if body.startswith(head):
        return body
    return b"".join((head, body[body.index(b',"kind"') :]))
