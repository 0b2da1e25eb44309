"""The controller's shell: informers wake Workflows up, workers reconcile them, the API takes the patches.

A Workflow is looked at when it changes, when a Hardware or Template appears or changes that it waits for, and when a
deadline of it has come. Every write carries the resourceVersion that the decision was made from; if the object has
changed since, the write fails, and the Workflow is looked at again when the informer has the change.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from tink.api.v1alpha2 import Raw
from tink.controller.reconcile import Outcome, Patch, Reference, Render, reconcile, references
from tink.controller.settings import ControllerSettings
from tink.kube.client import ApiError, ConflictError, KubeClient, NotFoundError
from tink.kube.informer import Informer
from tink.kube.resources import WORKFLOW
from tink.kube.workqueue import WorkQueue
from tink.template.fields import render_actions
from tink.workflow.status import InvalidStatusError, status_of

log = logging.getLogger(__name__)

Key = tuple[str, str]
"""Namespace and name of a Workflow."""


class Controller:
    """Reconciles the Workflows of three informers, which somebody else runs."""

    def __init__(
        self,
        client: KubeClient,
        *,
        workflows: Informer,
        hardware: Informer,
        templates: Informer,
        settings: ControllerSettings | None = None,
        render: Render = render_actions,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._workflows = workflows
        self._hardware = hardware
        self._templates = templates
        self._settings = settings or ControllerSettings()
        self._render = render
        self._clock = clock
        self._queue: WorkQueue[Key] = WorkQueue(self._settings.retry_first, self._settings.retry_longest)
        self._waiters: dict[Reference, set[Key]] = {}
        self._waits_for: dict[Key, tuple[Reference, ...]] = {}
        workflows.on_change(lambda new, _: self._queue.add(_key(new)))
        workflows.on_delete(self._gone)
        hardware.on_change(lambda new, _: self._wake("Hardware", new))
        templates.on_change(lambda new, _: self._wake("Template", new))

    async def run(self) -> None:
        """Work until cancelled."""
        for informer in (self._hardware, self._templates, self._workflows):
            # A Hardware that has not been listed yet is not missing.
            await informer.wait_synced()
        log.info("controller: %d workflows, %d workers", len(self._workflows), self._settings.workers)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._settings.workers):
                    group.create_task(self._work())
        finally:
            self._queue.close()

    def _gone(self, old: Raw) -> None:
        key = _key(old)
        self._queue.forget(key)
        self._wait_for(key, ())

    def _wake(self, kind: str, obj: Raw) -> None:
        for key in self._waiters.get(Reference(kind, *_key(obj)), ()):
            self._queue.add(key)

    def _wait_for(self, key: Key, new: tuple[Reference, ...]) -> None:
        for reference in self._waits_for.pop(key, ()):
            waiters = self._waiters[reference]
            waiters.discard(key)
            if not waiters:
                del self._waiters[reference]
        if new:
            self._waits_for[key] = new
        for reference in new:
            self._waiters.setdefault(reference, set()).add(key)

    async def _work(self) -> None:
        while True:
            key = await self._queue.take()
            try:
                await self._look_at(key)
            except Exception:
                # A mistake of ours about one Workflow must not stop the work on all others.
                log.exception("Workflow %s/%s: trying again in %.1f s", *key, self._queue.retry(key))
            finally:
                self._queue.done(key)

    async def _look_at(self, key: Key) -> None:
        workflow = self._workflows.get(*key)
        if workflow is None:
            return
        try:
            outcome = self._decide(workflow)
        except InvalidStatusError as error:
            log.error("%s; it is left alone until that is mended", error)
            return
        self._wait_for(key, outcome.waits_for)
        # Before the writes: they change the object, and that may already set the next timer.
        if outcome.requeue_after is not None:
            self._queue.add_after(key, outcome.requeue_after)
        try:
            await self._write(workflow, outcome)
        except NotFoundError:
            return  # it went meanwhile; the informer will say so
        except ConflictError:
            delay = self._queue.retry(key)
            log.debug("Workflow %s/%s changed meanwhile, looking again within %.2f s", *key, delay)
        except ApiError as error:
            log.warning("Workflow %s/%s: %s; trying again in %.1f s", *key, error, self._queue.retry(key))
        else:
            self._queue.settle(key)

    def _decide(self, workflow: Raw) -> Outcome:
        named = references(workflow)
        hardware = template = None
        if named is not None:
            hardware = self._hardware.get(named[0].namespace, named[0].name)
            template = self._templates.get(named[1].namespace, named[1].name)
        return reconcile(workflow, hardware, template, self._settings, self._clock(), self._render)

    async def _write(self, workflow: Raw, outcome: Outcome) -> None:
        """Apply the patches, each on top of the version that the one before made."""
        current = workflow
        for patch in outcome.patches:
            before = status_of(current).get("state")
            namespace, name = _key(current)
            body = {**patch.body, "metadata": {**patch.body["metadata"], "resourceVersion": _version(current)}}
            current = await self._client.patch(WORKFLOW, name, namespace, body, subresource=patch.subresource)
            _log(current, patch, before)


def _log(workflow: Raw, patch: Patch, before: str | None) -> None:
    status = status_of(workflow)
    after = status.get("state")
    if patch.subresource != "status":
        return
    if after != before:
        log.info("Workflow %s/%s: %s -> %s%s", *_key(workflow), before or "(new)", after, _why(status))
    elif not after:
        log.info("Workflow %s/%s is not prepared yet%s", *_key(workflow), _why(status))


def _why(status: object) -> str:
    """The reason and message of the condition that speaks of a failure, if one does."""
    conditions = status.get("conditions", []) if isinstance(status, dict) else []
    for condition in conditions:
        if condition.get("reason") and condition.get("type") in ("Succeeded", "Prepared"):
            return f": {condition['reason']}: {condition.get('message', '')}"
    return ""


def _key(obj: Raw) -> Key:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


def _version(obj: Raw) -> str:
    version: str = obj["metadata"]["resourceVersion"]
    return version
