"""Calls of admission webhooks: mutating ones one after the other, validating ones all at once.

`Webhooks.set_configuration` receives each change of a configuration, so a write reads nothing but memory. Order,
reinvocation, failures and refusals are those of k8s.io/apiserver, pkg/admission/plugin/webhook. If a webhook wants
another version of a resource, the object is converted for it, and its patch is converted back.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from tink.errors import TinkedgeError
from tink.golang import json_kind
from tink.kubeapi.apiserver import conversion, errors, patch
from tink.kubeapi.apiserver.admission import review
from tink.kubeapi.apiserver.errors import StatusError
from tink.kubeapi.apiserver.media import not_an_object
from tink.kubeapi.apiserver.options import Match
from tink.kubeapi.apiserver.resources.registry import Resource
from tink.kubeapi.apiserver.serializer import BodyError, load_json
from tink.kubeapi.apiserver.webhooks import CallWebhook, TrustError, WebhookCallError
from tink.kubeapi.schema.field_errors import TooMuchAddedError, WalkResult, quote
from tink.kubeapi.schema.shapes import Raw
from tink.kubeapi.schema.webhooks import ClientConfig, ConditionError, Conditions


@dataclass(frozen=True, slots=True, eq=False)
class Hook:
    """One compiled webhook. Selectors and conditions are None if they select everything."""

    name: str
    mutating: bool
    rules: tuple[review.HookRule, ...]
    equivalent: bool  # True if the webhook is also called for other versions of the resources in its rules
    namespaces: Match | None
    objects: Match | None
    conditions: Conditions | None
    fails: bool  # True if a failed call rejects the write
    timeout_s: int
    dry_runs: bool  # True if the webhook may be called for a dry run
    again: bool  # True if the webhook is called again when a later one has changed the object
    client: ClientConfig
    version: str  # Version of the AdmissionReview to send; empty if the webhook accepts none of ours

    def target(
        self, operation: str, resource: Resource, subresource: str, versions: Callable[[Resource], Sequence[Resource]]
    ) -> Resource | None:
        """Return the resource in the version that this webhook wants. Return None if no rule matches. `versions`
        returns all served versions of a resource, under all its names."""
        if any(rule.asks(operation, resource, subresource) for rule in self.rules):
            return resource
        if not self.equivalent:
            return None
        others = versions(resource)
        candidates = (other for rule in self.rules for other in others if rule.asks(operation, other, subresource))
        return next(candidates, None)


def compile_hooks(configuration: Mapping[str, Any]) -> tuple[Hook, ...]:
    """Compile the webhooks of a stored configuration, in their order."""
    mutating = configuration.get("kind") == "MutatingWebhookConfiguration"
    return tuple(
        Hook(
            name=item.get("name", ""),
            mutating=mutating,
            rules=tuple(review.HookRule.of(rule) for rule in item.get("rules") or ()),
            equivalent=item.get("matchPolicy", "Equivalent") == "Equivalent",
            namespaces=review.compile_selector(item.get("namespaceSelector")),
            objects=review.compile_selector(item.get("objectSelector")),
            conditions=Conditions.of(item.get("matchConditions") or ()),
            fails=item.get("failurePolicy", "Fail") != "Ignore",
            timeout_s=item.get("timeoutSeconds") or 10,
            dry_runs=item.get("sideEffects") in ("None", "NoneOnDryRun"),
            again=item.get("reinvocationPolicy") == "IfNeeded",
            client=ClientConfig.of(item.get("clientConfig") or {}),
            version=next((each for each in item.get("admissionReviewVersions") or () if each in review.VERSIONS), ""),
        )
        for item in configuration.get("webhooks") or ()
    )


log = logging.getLogger(__name__)

GROUP = "admissionregistration.k8s.io"
MUTATING = f"{GROUP}/mutatingwebhookconfigurations"
VALIDATING = f"{GROUP}/validatingwebhookconfigurations"
KEYS = (MUTATING, VALIDATING)
"""Keys of the two resources in the store. Each change of them is passed to `Webhooks.set_configuration`."""

MAX_MATCHED = 1000  # Maximum number of kinds of write whose matching webhooks are cached


class FailedCallError(TinkedgeError):
    """A webhook call failed, or its answer is invalid. The webhook's failurePolicy decides about the write."""

    def __init__(self, hook: str, why: str) -> None:
        super().__init__(f"failed calling webhook {quote(hook)}: {why}")


@dataclass(slots=True)
class _ConvertedWrite:
    """The objects of a write in the version for a webhook."""

    resource: Resource
    object: Raw | None
    old: Raw | None
    request: Raw | None = None  # The AdmissionRequest without uid and objects; built on first use


@dataclass(slots=True)
class _Rounds:
    """The webhooks to call a second time (k8s.io/apiserver, mutating/reinvocationcontext.go)."""

    second: bool = False
    wanted: bool = False  # True if an object was changed, so that there is a second round
    before: set[Hook] = field(default_factory=set)
    """Webhooks that were called so far, and that want to be called again after a change."""
    again: set[Hook] = field(default_factory=set)


class Webhooks:
    """All admission webhooks of this API server.

    `namespace_labels` returns the labels of a namespace (StatusError 404 if there is none). `versions` returns all
    served versions of a resource. `plugin` reviews in this process, before the validating webhooks.
    """

    def __init__(
        self,
        post: CallWebhook,
        namespace_labels: Callable[[str], Awaitable[Mapping[str, str]]],
        versions: Callable[[Resource], Sequence[Resource]],
        plugin: review.AdmissionPlugin | None = None,
    ) -> None:
        self._post = post
        self._namespace_labels = namespace_labels
        self._versions = versions
        self._configurations: dict[tuple[str, str], tuple[Hook, ...]] = {}
        self._mutating: tuple[Hook, ...] = ()
        self._plugin = plugin
        self._in_process = compile_hooks({"webhooks": plugin.webhooks}) if plugin is not None else ()
        self._validating = self._in_process
        self._matched: dict[tuple[bool, Resource, str, str], tuple[tuple[Hook, Resource], ...]] = {}

    def set_configuration(self, key: str, name: str, configuration: Raw | None) -> None:
        """Replace a configuration; None removes it. `key` is one of KEYS."""
        if configuration is None:
            self._configurations.pop((key, name), None)
        else:
            self._configurations[key, name] = compile_hooks(configuration)
        self._matched.clear()
        in_order = sorted(self._configurations.items())
        self._mutating = tuple(hook for (kind, _), hooks in in_order if kind == MUTATING for hook in hooks)
        named = tuple(hook for (kind, _), hooks in in_order if kind == VALIDATING for hook in hooks)
        self._validating = self._in_process + named

    # --- mutating ---

    async def mutate(self, attributes: review.Attributes) -> None:
        """Call the mutating webhooks, which may replace `attributes.object`. Raises StatusError."""
        if not self._mutating or review.exempt(attributes.resource):
            return
        rounds = _Rounds()
        await self._round(attributes, rounds)
        if rounds.wanted:
            rounds.second = True
            await self._round(attributes, rounds)

    async def _round(self, attributes: review.Attributes, rounds: _Rounds) -> None:
        now = _ConvertedWrite(attributes.resource, attributes.object, attributes.old)
        for hook, resource in self._matching(attributes, mutating=True):
            if rounds.second and hook not in rounds.again:  # the second round calls no webhook for the first time
                continue
            if not await self._selects(hook, attributes, now.object):
                continue
            now = await self._in_version(attributes, now, resource)
            if not self._holds(hook, attributes, now):
                continue
            try:
                if self._apply_patch(hook, now, *await self._call(hook, attributes, now)):
                    rounds.wanted = True
                    rounds.again |= rounds.before
            except FailedCallError as error:
                _log_or_raise(hook, error)
            if hook.again:
                rounds.before.add(hook)
        if now.object is not attributes.object:
            attributes.object = (await self._in_version(attributes, now, attributes.resource)).object

    def _apply_patch(self, hook: Hook, now: _ConvertedWrite, changes: bytes, patch_type: str) -> bool:
        """Apply the patch of an answer. Return True if it changed the object. Raises FailedCallError, StatusError."""
        if not changes:
            return False
        try:
            operations = load_json(changes)
            if not isinstance(operations, list):
                raise BodyError(f"it must be a list, not {json_kind(operations)}")
        except BodyError as error:
            raise FailedCallError(hook.name, f"received undecodable patch in webhook response: {error}") from error
        if not operations:
            return False
        if now.object is None:
            why = (
                f"admission webhook {quote(hook.name)} attempted to modify the object, which is not supported "
                "for this operation"
            )
            raise errors.internal(why)
        if patch_type != "JSONPatch":
            raise FailedCallError(hook.name, f"unsupported patch type {quote(patch_type)}")
        try:
            made = patch.apply_operations(now.object, operations)
            text = orjson.dumps(made, option=orjson.OPT_SORT_KEYS)
        except patch.PatchError as error:
            raise errors.internal(str(error)) from error
        except orjson.JSONEncodeError as error:
            raise errors.internal(f"the patch of a webhook leaves no object that can be written: {error}") from error
        _check_patched(made, text, now.object)
        same = text == orjson.dumps(now.object, option=orjson.OPT_SORT_KEYS)
        # Add defaults again for the next webhook. Errors of the object are found after all webhooks.
        try:
            now.resource.compiled(made, None, WalkResult())
        except TooMuchAddedError as error:
            raise errors.too_much_added(now.resource.group, now.resource.plural, made, error) from error
        now.object = made
        return not same

    # --- validating ---

    async def validate(self, attributes: review.Attributes) -> None:
        """Call the validating webhooks, all at once. Raises StatusError: the first rejection in their order. The caller
        then calls `attributes.release` once the write has been stored or has failed, also after a rejection."""
        if not self._validating or review.exempt(attributes.resource):
            return
        versioned: dict[Resource, _ConvertedWrite] = {}
        targets: list[tuple[Hook, _ConvertedWrite]] = []
        start = _ConvertedWrite(attributes.resource, attributes.object, attributes.old)
        for hook, resource in self._matching(attributes, mutating=False):
            if not await self._selects(hook, attributes, attributes.object):
                continue
            if resource not in versioned:
                versioned[resource] = await self._in_version(attributes, start, resource)
            if self._holds(hook, attributes, versioned[resource]):
                targets.append((hook, versioned[resource]))
        if len(targets) == 1:
            await self._call_or_log(*targets[0], attributes)
        elif targets:
            calls = [asyncio.create_task(self._call_or_log(hook, now, attributes)) for hook, now in targets]
            try:
                await asyncio.wait(calls)
            finally:
                for call in calls:
                    call.cancel()
            if wrong := [error for call in calls if (error := call.exception()) is not None]:
                raise wrong[0]

    async def _call_or_log(self, hook: Hook, now: _ConvertedWrite, attributes: review.Attributes) -> None:
        try:
            await self._call(hook, attributes, now)
        except FailedCallError as error:
            _log_or_raise(hook, error)

    # --- what both share ---

    def _matching(self, attributes: review.Attributes, *, mutating: bool) -> tuple[tuple[Hook, Resource], ...]:
        """Return the webhooks whose rules match, each with the resource in the version that it wants. The result is
        cached until a configuration changes. A changed definition creates new `Resource` objects."""
        resource, operation, subresource = attributes.resource, attributes.operation, attributes.subresource
        key = (mutating, resource, operation, subresource)
        found = self._matched.get(key)
        if found is None:
            hooks = self._mutating if mutating else self._validating
            targets = ((hook, hook.target(operation, resource, subresource, self._versions)) for hook in hooks)
            found = tuple((hook, target) for hook, target in targets if target is not None)
            if len(self._matched) >= MAX_MATCHED:
                self._matched.clear()
            self._matched[key] = found
        return found

    async def _selects(self, hook: Hook, attributes: review.Attributes, obj: Raw | None) -> bool:
        """Return True if the selectors match. Objects of cluster scope match every namespace selector. Raises
        StatusError."""
        if hook.objects is not None and not any(
            labels is not None and hook.objects(labels)
            for labels in (review.labels_of(obj), review.labels_of(attributes.old))
        ):
            return False
        if hook.namespaces is None:
            return True
        of_itself = review.is_namespaces(attributes.resource)
        if of_itself and attributes.operation != "DELETE" and not attributes.subresource:
            return hook.namespaces(review.labels_of(obj) or {})
        name = attributes.name if of_itself else attributes.namespace
        if not name:
            return True
        if attributes.labels is None:
            attributes.labels = await self._namespace_labels(name)
        return hook.namespaces(attributes.labels)

    def _holds(self, hook: Hook, attributes: review.Attributes, now: _ConvertedWrite) -> bool:
        """Return True if the match conditions hold. Raises StatusError (403) if they cannot be evaluated."""
        if hook.conditions is None:
            return True
        if now.request is None:
            now.request = review.request(attributes, now.resource)
        bindings = {"object": now.object, "oldObject": now.old, "namespaceObject": None, "request": now.request}
        try:
            return hook.conditions.hold(bindings)
        except ConditionError as error:
            if not hook.fails:
                return False
            made = attributes.resource
            raise errors.forbidden(made.group, made.plural, attributes.name, str(error)) from error

    async def _in_version(
        self, attributes: review.Attributes, now: _ConvertedWrite, resource: Resource
    ) -> _ConvertedWrite:
        """Convert both objects of a write. Raises StatusError."""
        if now.resource is resource:
            return now
        made = attributes.resource
        try:
            obj = now.object
            if obj is not None and now.resource is not made and resource is not made:
                obj = await conversion.convert(made, obj)
            return _ConvertedWrite(
                resource,
                None if obj is None else await conversion.convert(resource, obj),
                None if attributes.old is None else await conversion.convert(resource, attributes.old),
            )
        except StatusError as error:
            raise errors.internal(error.message) from error

    async def _call(self, hook: Hook, attributes: review.Attributes, now: _ConvertedWrite) -> tuple[bytes, str]:
        """Call one webhook. Return its patch and the type of the patch. Raises FailedCallError, and StatusError if the
        webhook denies the write."""
        if attributes.dry_run and not hook.dry_runs:
            raise errors.bad_request(f"admission webhook {quote(hook.name)} does not support dry run")
        if not hook.version:
            unknown = "webhook does not accept known AdmissionReview versions (v1, v1beta1)"
            raise FailedCallError(hook.name, f"could not create admission objects: {unknown}")
        uid = str(uuid.uuid4())
        if now.request is None:
            now.request = review.request(attributes, now.resource)
        if self._plugin is not None and hook in self._in_process:
            await self._call_plugin(self._plugin, hook, attributes, now)
            return b"", ""
        text = review.review(hook.version, uid, now.request, now.object, now.old)
        try:
            answer = review.decode(await self._post(hook.client, text, hook.timeout_s), hook.version)
        except TrustError as error:
            raise FailedCallError(hook.name, f"could not get REST client: {error}") from error
        except (WebhookCallError, review.InvalidResponseError) as error:
            raise FailedCallError(hook.name, f"failed to call webhook: {error}") from error
        try:
            found = review.verify(answer, uid, hook.version, mutating=hook.mutating)
        except review.InvalidResponseError as error:
            raise FailedCallError(hook.name, f"received invalid webhook response: {error}") from error
        review.settle(attributes, hook.name, answer["response"])
        return found

    @staticmethod
    async def _call_plugin(
        plugin: review.AdmissionPlugin, hook: Hook, attributes: review.Attributes, now: _ConvertedWrite
    ) -> None:
        """Review a write in this process. Raises StatusError if it is rejected, or if the review fails (500)."""
        try:
            response, release = await plugin.answer({**(now.request or {}), "object": now.object, "oldObject": now.old})
        except Exception as error:
            log.exception("The review %s has failed; the write is refused", hook.name)
            why = f"the review {quote(hook.name)} has failed, and nothing was stored: {error or type(error).__name__}"
            raise errors.internal(why) from error
        # There is no await between the answer and this line, so a cancelled task releases its reservations, too.
        if release is not None:
            attributes.releases.append(release)
        review.settle(attributes, hook.name, response)


def _log_or_raise(hook: Hook, error: FailedCallError) -> None:
    """Log a failed call if the webhook's failurePolicy ignores it. Raises StatusError (500) if not."""
    if hook.fails:
        raise errors.internal(str(error)) from error
    log.warning("Failed calling webhook, failing open %s: %s", hook.name, error)


def _check_patched(made: Any, text: bytes, before: Raw) -> None:
    """Check that a patch left an object of the same kind. Raises StatusError (500)."""
    if not isinstance(made, dict):
        raise errors.internal(not_an_object(made))
    for name, title in (("kind", "Kind"), ("apiVersion", "apiVersion")):
        if not made.get(name):
            raise errors.internal(f"Object '{title}' is missing in '{text.decode()}'")
        if made[name] != before[name]:
            raise errors.internal(f"the patch of a webhook changes {name}")
    if not isinstance(made.get("metadata"), dict):
        raise errors.internal("the patch of a webhook leaves no metadata")
