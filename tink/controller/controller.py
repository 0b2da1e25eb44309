"""The controller's shell: informers wake Workflows up, workers reconcile them, the API takes the patches.

A Workflow is looked at when it changes, when a Hardware or Template appears or changes that it waits for, and when a
deadline of it has come. Every write carries the resourceVersion that the decision was made from; if the object has
changed since, the write fails, and the Workflow is looked at again when the informer has the change.

Workflows are what tenants write: in the queue and for rendering, which may take seconds, their namespaces take turns.

With a `Leader`, of several replicas one works. The others keep everything ready: they follow the informers, know what
is to be looked at, and begin with that when it is their turn.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial

from tink.api.v1alpha2 import Raw, WorkflowState
from tink.controller.announcements import COMPONENT, announcement
from tink.controller.reconcile import (
    Outcome,
    Patch,
    Reference,
    Render,
    reconcile,
    references,
    refused,
    timestamps,
    to_be_rendered,
)
from tink.controller.settings import ControllerSettings
from tink.controller.sightings import Sightings
from tink.kube.announcer import Announcement, Announcer
from tink.kube.client import ApiError, ConflictError, KubeClient, NotFoundError
from tink.kube.informer import Informer
from tink.kube.leader import DeposedError, Leader, steady, while_leading
from tink.kube.resources import WORKFLOW
from tink.kube.rounds import FairSemaphore
from tink.kube.workqueue import WorkQueue
from tink.limits.log import LimitedLog
from tink.template.fields import render_actions
from tink.workflow.machine import UnknownActionError
from tink.workflow.status import InvalidStatusError, state_of, status_of

log = logging.getLogger(__name__)

Key = tuple[str, str]
"""Namespace and name of a Workflow."""

_LOOKS = 4
"""Workflows that are looked at in one turn of the event loop, however many workers there are."""

_RENDERS = 2
"""Workflows that are rendered at once, each in a thread: one more, and the event loop gets a smaller share of time."""

_FOR_BOTH = 3
"""Workers that look at what has been in trouble, too."""

_NEVER_ACCEPTED = (400, 413, 422)
"""Bad Request, Request Entity Too Large, Unprocessable Entity: the same write will not do another time, either."""


class _RefusedError(Exception):
    """The API will never take what a Workflow was prepared to."""

    def __init__(self, workflow: Raw, error: ApiError) -> None:
        super().__init__(str(error))
        self.workflow = workflow
        """As it is after the writes that went well."""


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
        elapsed: Callable[[], float] = steady,
        leader: Leader | None = None,
    ) -> None:
        """`clock` gives seconds since the epoch, `elapsed` those of a clock that nobody sets; without a `leader` this
        is the only replica."""
        self._client = client
        self._workflows = workflows
        self._hardware = hardware
        self._templates = templates
        self._settings = settings or ControllerSettings()
        self._render = render
        self._clock = clock
        self._queue: WorkQueue[Key] = WorkQueue(
            self._settings.retry_first, self._settings.retry_longest, whose=_namespace_of
        )
        self._leader = leader
        self._sightings = Sightings(clock, elapsed)
        self._limited_log = LimitedLog(log, elapsed, capacity=20, interval=10.0, share=5)
        self._announcer = Announcer(client, COMPONENT, now=clock, clock=elapsed)
        self._looks = asyncio.Semaphore(_LOOKS)
        self._renders = FairSemaphore(_RENDERS)
        self._following = False
        self._waiters: dict[Reference, set[Key]] = {}
        self._waits_for: dict[Key, tuple[Reference, ...]] = {}
        workflows.on_change(self._changed)
        workflows.on_delete(self._gone)
        hardware.on_change(lambda new, _: self._wake("Hardware", new))
        templates.on_change(lambda new, _: self._wake("Template", new))

    async def run(self) -> None:
        """Work until cancelled."""
        for informer in (self._hardware, self._templates, self._workflows):
            # A Hardware that has not been listed yet is not missing.
            await informer.wait_synced()
        self._following = True
        log.info("controller: %d workflows, %d workers", len(self._workflows), self._settings.workers)
        try:
            if self._leader is None:
                await self._act()
            else:
                await self._leader.run(self._act)
        finally:
            self._queue.close()

    async def _act(self) -> None:
        async with asyncio.TaskGroup() as group:
            if self._settings.events:
                group.create_task(self._announcer.run())
            for index in range(self._settings.workers):
                # Most for what has just happened, while some may be busy with what has been in trouble for long.
                group.create_task(self._work(reserved=index >= _FOR_BOTH))

    # --- what wakes a Workflow up -----------------------------------------------------------------------------------

    def _changed(self, new: Raw, old: Raw | None) -> None:
        key = _key(new)
        self._queue.add(key)
        if (told := announcement(new, old)) is not None:
            self._announcer.tell(new, WORKFLOW, told)
        try:
            state = state_of(new)
            if state is not None and state.terminal:
                self._sightings.forget(key)
            else:
                self._sightings.see(key, str(new["metadata"].get("uid")), timestamps(new), live=self._following)
        except InvalidStatusError:
            self._sightings.forget(key)  # who looks at it says so

    def _gone(self, old: Raw) -> None:
        key = _key(old)
        self._queue.forget(key)
        self._sightings.forget(key)
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

    # --- looking at one ---------------------------------------------------------------------------------------------

    async def _work(self, *, reserved: bool) -> None:
        while True:
            key = await self._queue.take(reserved=reserved)
            try:
                await self._look_at(key)
            except asyncio.CancelledError:
                self._queue.add(key)  # for the next time that this replica leads
                raise
            except Exception:
                # A mistake of ours about one Workflow must not stop the work on all others.
                delay = self._queue.retry(key)
                text = "Workflow %s/%s: trying again in %.1f s"
                self._limited_log.log(logging.ERROR, text, *key, delay, exc_info=True, owner=key[0])
            finally:
                self._queue.done(key)

    async def _look_at(self, key: Key) -> None:
        async with self._looks:
            # Most looks find nothing to write; thousands of them must not keep the event loop.
            await asyncio.sleep(0)
        workflow = self._workflows.get(*key)
        if workflow is None:
            return
        try:
            outcome = await self._decide(workflow)
        except (InvalidStatusError, UnknownActionError) as error:
            text = "%s; it is left alone until that is mended"
            self._limited_log.log(logging.ERROR, text, error, owner=key[0])
            self._announcer.tell(workflow, WORKFLOW, Announcement("InvalidStatus", str(error), warning=True))
            return
        self._wait_for(key, outcome.waits_for)
        if outcome.patient and outcome.patches and self._queue.postpone(key):
            return
        # Before the writes: they change the object, and that may already set the next timer.
        if outcome.requeue_after is not None:
            self._queue.add_after(key, outcome.requeue_after)
        try:
            await self._carry_out(workflow, outcome)
        except NotFoundError:
            return  # it went meanwhile; the informer will say so
        except DeposedError:
            self._queue.retry(key)  # for the next time that it leads
        except ConflictError:
            delay = self._queue.retry(key)
            log.debug("Workflow %s/%s changed meanwhile, looking again within %.2f s", *key, delay)
        except ApiError as error:
            text, delay = "Workflow %s/%s: %s; trying again in %.1f s", self._queue.retry(key)
            self._limited_log.warning(text, *key, error, delay, owner=key[0])
        else:
            self._queue.settle(key)

    async def _decide(self, workflow: Raw) -> Outcome:
        named = references(workflow)
        hardware = template = None
        if named is not None:
            hardware = self._hardware.get(named[0].namespace, named[0].name)
            template = self._templates.get(named[1].namespace, named[1].name)
        age = partial(self._sightings.age, _key(workflow))
        decide = partial(reconcile, workflow, hardware, template, self._settings, self._clock(), self._render, age)
        if hardware is None or template is None or not to_be_rendered(workflow):
            return decide()
        async with self._renders.entered(_namespace_of(_key(workflow))):
            # A template may take seconds; the event loop, which all of this process share, must not wait for it.
            return await asyncio.to_thread(decide)

    async def _carry_out(self, workflow: Raw, outcome: Outcome) -> None:
        try:
            await self._write(workflow, outcome)
        except _RefusedError as error:
            await self._write(error.workflow, refused(error.workflow, str(error), self._clock()))

    async def _write(self, workflow: Raw, outcome: Outcome) -> None:
        """Apply the patches, each on top of the version that the one before made."""
        current = workflow
        for patch in outcome.patches:
            before = status_of(current).get("state")
            namespace, name = _key(current)
            body = {**patch.body, "metadata": {**patch.body["metadata"], "resourceVersion": _version(current)}}
            try:
                current = await while_leading(
                    self._leader,
                    partial(self._client.patch, WORKFLOW, name, namespace, body, subresource=patch.subresource),
                )
            except ApiError as error:
                preparing = body.get("status", {}).get("state") == WorkflowState.PENDING
                if preparing and error.status in _NEVER_ACCEPTED:
                    raise _RefusedError(current, error) from error
                raise
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


def _namespace_of(key: Key) -> str:
    return key[0]


def _version(obj: Raw) -> str:
    version: str = obj["metadata"]["resourceVersion"]
    return version
