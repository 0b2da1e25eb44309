"""Conversion webhooks: ConversionReviews in, converted objects out, and the registration in `spec.conversion`.

A `ConversionHook` converts the objects of some CustomResourceDefinitions. `tink.metal3.webhook` has the one for hosts,
`served_v1alpha1` makes the one for the v1alpha1 of Hardware, Templates and Workflows. `tink.webhooks.server` serves
them.

A registration is never removed. Without it the API server would only change the apiVersion and drop every field that
the other version does not know. While no webhook answers, objects can be read and written in their stored version only.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from aiohttp import web

from tink.api.v1alpha2 import Raw
from tink.errors import TinkedgeError
from tink.kube.client import ApiError, ConflictError, KubeClient, NotFoundError
from tink.kube.resources import CRD
from tink.offload import offload
from tink.webhooks.registration import Address, RegistrationError, holds

log = logging.getLogger(__name__)

API_VERSION = "apiextensions.k8s.io/v1"
KIND = "ConversionReview"

_READ_SECONDS = 30.0
"""The API server waits this long for its answer."""
_TRIES = 3
"""Number of attempts before the last one, whose conflict is reported."""
_MANAGER = "tinkedge-webhooks"
"""The field manager of registrations that another program has prepared."""
_SHOWN = 200
"""Characters of a value in a message."""

# --- Reviews ---


class ReviewError(TinkedgeError, ValueError):
    """The request is no ConversionReview; the message says why."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """A conversion between versions.

    `kinds` are the kinds, for messages; `api_versions` all versions. `convert` returns an object in a version. It is
    pure, and must accept any object: one that can't be converted would make all objects of its kind unreadable, and
    none of them could be deleted. It raises TinkedgeError if the object is not of these kinds and versions. `weight`
    returns the time that the conversion of a review takes, in bytes of JSON (`tink.offload`).
    """

    kinds: str
    api_versions: Sequence[str]
    convert: Callable[[Raw, str], Raw]
    weight: Callable[[bytes], int] = len


def answer(body: bytes, conversion: Conversion) -> bytes:
    """Convert the objects of a ConversionReview (apiextensions.k8s.io/v1); return the review to answer with.

    The answer has the same number of objects in the same order, whatever their versions. The API server accepts changed
    labels and annotations only, and refuses objects without metadata. Pure and deterministic. Raises ReviewError.
    """
    request = _request(body)
    desired, objects = request["desiredAPIVersion"], request.get("objects") or []
    try:
        response = _response(desired, objects, conversion)
        return orjson.dumps({"apiVersion": API_VERSION, "kind": KIND, "response": {"uid": request["uid"], **response}})
    except orjson.JSONEncodeError as error:  # orjson reads more levels than it writes
        raise ReviewError(f"an object is nested too deeply: {error}") from error


def _response(desired: str, objects: list[Any], conversion: Conversion) -> Raw:
    if desired not in conversion.api_versions:
        versions = " and ".join(conversion.api_versions)
        return _failure(f"{conversion.kinds} has the versions {versions}, not {desired[:_SHOWN]}")
    try:
        converted = [_converted(obj, desired, conversion.convert) for obj in objects]
    except TinkedgeError as error:
        return _failure(str(error))
    return {"convertedObjects": converted, "result": {"status": "Success"}}


def _failure(message: str) -> Raw:
    return {"result": {"status": "Failure", "message": message}}


def _request(body: bytes) -> Raw:
    """Return the request of a review, with fields of the right types. Raises ReviewError."""
    try:
        review = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ReviewError(f"it is not JSON: {error}") from error
    if not isinstance(review, dict):
        raise ReviewError("it is not an object")
    for field, wanted in (("apiVersion", API_VERSION), ("kind", KIND)):
        if review.get(field) != wanted:
            raise ReviewError(f"{field} must be {wanted}, not {_shown(review.get(field))}")
    request = review.get("request")
    if not isinstance(request, dict):
        raise ReviewError("request is missing")
    for field in ("uid", "desiredAPIVersion"):
        if not isinstance(request.get(field), str) or not request[field]:
            raise ReviewError(f"request.{field} must be a string, not {_shown(request.get(field))}")
    objects = request.get("objects")
    if objects is not None and not isinstance(objects, list):
        raise ReviewError(f"request.objects must be a list, not {_shown(objects)}")
    return request


def _converted(obj: Any, desired: str, convert: Callable[[Raw, str], Raw]) -> Any:
    if not isinstance(obj, dict):
        return obj
    made = convert(obj, desired)
    # The API server sends partial objects, made from managed fields, without metadata (kubernetes issue 117356).
    return made if isinstance(made.get("metadata"), dict) else {**made, "metadata": {}}


def _shown(value: Any) -> str:
    return json.dumps(value)[:_SHOWN] if isinstance(value, str | int | float | None) else f"a {type(value).__name__}"


# --- Patches of definitions (RFC 7386) ---


def conversion(address: Address, bundle: bytes) -> Raw:
    """Return `spec.conversion` with a webhook at `address`."""
    webhook = {"clientConfig": address.client_config(bundle), "conversionReviewVersions": ["v1"]}
    return {"strategy": "Webhook", "webhook": webhook}


def _without_bundle(rule: Raw) -> Raw:
    """Return `spec.conversion` without the certificate authority."""
    config = {key: value for key, value in rule["webhook"]["clientConfig"].items() if key != "caBundle"}
    return {**rule, "webhook": {**rule["webhook"], "clientConfig": config}}


def conversion_patch(wanted: Raw) -> Raw:
    """Return the patch that sets `spec.conversion` to `wanted`, even if the other kind of address was set."""
    webhook = wanted["webhook"]
    config = {"url": None, "service": None, **webhook["clientConfig"]}
    return {"spec": {"conversion": {**wanted, "webhook": {**webhook, "clientConfig": config}}}}


def updated(found: Raw, wanted: Raw) -> Raw:
    """Return the patch that updates a definition, but not which versions are served and stored.

    Versions that are not in `wanted` stay unchanged. The patch replaces the list of versions whole, so it carries the
    resourceVersion that it was made from.
    """
    now = {version["name"]: version for version in found["spec"]["versions"]}
    kept = {name: {key: version[key] for key in ("served", "storage")} for name, version in now.items()}
    new = {"served": True, "storage": False}
    versions = [{**version, **kept.get(version["name"], new)} for version in wanted["spec"]["versions"]]
    versions += [version for name, version in now.items() if name not in {each["name"] for each in versions}]
    metadata = {"resourceVersion": found["metadata"]["resourceVersion"]}
    spec = {key: value for key, value in wanted["spec"].items() if key != "conversion"}
    return {"metadata": metadata, "spec": {**spec, "versions": versions}}


# --- The hook ---


class ConversionHook:
    """The conversion webhook of some definitions (`tink.webhooks.server.Hook`)."""

    notes = ()

    def __init__(
        self,
        conversion: Conversion,
        names: Sequence[str],
        *,
        path: str,
        missed: str,
        command: str,
        install: Callable[[Raw], list[Raw]] | None = None,
        add: Mapping[str, Raw] | None = None,
        stored: str = "",
    ) -> None:
        """Serve `conversion` at `path`, registered in the definitions called `names`.

        `missed` is the consequence of a missing registration, and `command` prints the definitions; both are for the
        log. `install` returns the definitions for a `spec.conversion`. They are installed once, and updated if the
        API's differ. `add` has versions by the name of their definition. Each is added to its definition with the
        registration, in one write, and again if another program removes it. `stored` is the version in which such a
        definition must store its objects.
        """
        self.path = path
        self.missed = missed
        self._conversion = conversion
        self._names = tuple(names)
        self._command = command
        self._install = install
        self._add = dict(add or {})
        self._stored = stored
        self._absent: set[str] = set()
        self._added: set[str] = set()
        """Definitions that had the version to add, with its present schema, at some time."""

    async def ready(self) -> None:
        """Return at once: a conversion needs no other data."""

    async def answer(self, request: web.Request) -> web.Response:
        """Convert. Status 200: a review, 400: any other body, 413: a too large one, 408: a too slow one."""
        try:
            async with asyncio.timeout(_READ_SECONDS):
                body = await request.read()
        except TimeoutError:
            return web.Response(status=408, text=f"no ConversionReview within {_READ_SECONDS:.0f} s\n")
        try:
            made = await offload(self._conversion.weight(body), answer, body, self._conversion)
        except ReviewError as error:
            return web.Response(status=400, text=f"no ConversionReview: {error}\n")
        return web.Response(body=made, content_type="application/json")

    async def register(self, client: KubeClient, address: Address, bundle: bytes) -> bool:
        """Write `spec.conversion`, the definitions to install and the versions to add.

        Returns True if anything was written. Raises RegistrationError, ApiError.
        """
        wanted = conversion(address, bundle)
        written = False
        for definition in self._install(wanted) if self._install is not None else ():
            written |= await _install(client, definition)
        self._install = None
        for name in self._names:
            for _ in range(_TRIES):
                try:
                    written |= await self._register(client, name, wanted)
                    break
                except ConflictError:
                    continue  # another replica wrote the same versions
            else:
                written |= await self._register(client, name, wanted)
        return written

    async def unregister(self, client: KubeClient) -> None:
        """Keep the registration (see the module's docstring)."""

    async def _register(self, client: KubeClient, name: str, wanted: Raw) -> bool:
        try:
            found = await client.get(CRD, name, None)
        except NotFoundError:
            if name not in self._absent:
                log.warning("%s: there is no CustomResourceDefinition %s; see %s", self.missed, name, self._command)
            self._absent.add(name)
            return False
        self._absent.discard(name)
        patch = self._with_version(found, wanted) if name in self._add else None
        current = found["spec"].get("conversion")
        if patch is None and holds(current, wanted):
            return False
        if patch is None and holds(current, _without_bundle(wanted)):
            # Own the address, too: an API server accepts no definition that has only the caBundle left when its other
            # owner, such as Helm, applies one without v1alpha1.
            own = {"apiVersion": CRD.api_version, "kind": CRD.kind, "metadata": {"name": name}}
            await client.apply(CRD, name, None, own | {"spec": {"conversion": wanted}}, manager=_MANAGER, force=True)
        else:
            await client.patch(CRD, name, None, patch or conversion_patch(wanted))
        return True

    def _with_version(self, found: Raw, wanted: Raw) -> Raw | None:
        """Return the patch that adds the version of a definition; None if it is as wanted. Raises RegistrationError."""
        name = found["metadata"]["name"]
        versions = {version["name"]: version for version in found["spec"]["versions"]}
        storage = next(version["name"] for version in versions.values() if version["storage"])
        if storage != self._stored:
            raise RegistrationError(
                f"the CustomResourceDefinition {name} stores {storage}, not {self._stored}: it is not tinkedge's, and "
                "its objects have to be converted first (docs/migrating.md)"
            )
        added = {**self._add[name], "served": True, "storage": False}
        # Once only: during an update, replicas of two releases would replace each other's schemas every minute.
        expected = {"served": True} if name in self._added else added
        self._added.add(name)
        if holds(versions.get(added["name"]), expected):
            return None
        spec = {"versions": list((versions | {added["name"]: added}).values()), **conversion_patch(wanted)["spec"]}
        return {"metadata": {"resourceVersion": found["metadata"]["resourceVersion"]}, "spec": spec}


async def _install(client: KubeClient, wanted: Raw) -> bool:
    name = wanted["metadata"]["name"]
    try:
        found = await client.get(CRD, name, None)
    except NotFoundError:
        try:
            await client.create(CRD, wanted)
        except ConflictError as error:
            raise ApiError(error.status, error.reason, f"{name} was created by another client just now") from error
        return True
    patch = updated(found, wanted)
    if holds(found["spec"], patch["spec"]):
        return False
    await client.patch(CRD, name, None, patch)
    return True


# --- v1alpha1 of Hardware, Templates and Workflows ---


_V1ALPHA1_PATH = "/convert-v1alpha1"


def served_v1alpha1() -> ConversionHook:
    """Return the hook that serves Hardware, Templates and Workflows as tinkerbell.org/v1alpha1, too.

    The API server sends only the new object of a write. A client that replaces an object in v1alpha1, without the
    annotation that it has read, removes the fields that v1alpha2 alone has. The embedded API restores them.
    """
    # Few clusters need them, and the schemas of v1alpha1 take a tenth of a second.
    from tink.api.crds import generate
    from tink.versions import DEFINITIONS, NEW, OLD, convert_within_limits, weight

    versions = {each["metadata"]["name"]: each["spec"]["versions"] for each in generate(serve_v1alpha1=True)}
    old = OLD.rpartition("/")[2]
    return ConversionHook(
        Conversion("A Hardware, Template or Workflow", (OLD, NEW), convert_within_limits, weight),
        DEFINITIONS,
        path=_V1ALPHA1_PATH,
        missed="v1alpha1 is not served",
        command="tinkedge crds --v1alpha1",
        add={name: next(each for each in versions[name] if each["name"] == old) for name in DEFINITIONS},
        stored=NEW.rpartition("/")[2],
    )


def definitions_with_v1alpha1(namespace: str, name: str, port: int = 443) -> list[Raw]:
    """Return the definitions of tinkerbell.org with v1alpha1, converted by the webhook behind a Service.

    Without the webhook's certificate authority, which the webhook registers, the API server rejects requests for
    v1alpha1. It never converts objects by their apiVersion alone.
    """
    from tink.api.crds import generate
    from tink.versions import DEFINITIONS

    definitions = generate(serve_v1alpha1=True)
    for each in definitions:
        if each["metadata"]["name"] in DEFINITIONS:
            address = Address(_V1ALPHA1_PATH, namespace=namespace, name=name, port=port)
            each["spec"]["conversion"] = _without_bundle(conversion(address, b""))
    return definitions
