"""Shared by tests of the controller: Workflows, a renderer, the contents of outcomes, and a running controller."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from typing import Any

from tests.support import objects
from tests.support.api import InProcessApi
from tests.waiting import until
from tink.api.v1alpha2 import FINALIZER, Raw
from tink.controller.controller import WorkflowController
from tink.controller.reconcile import Decision, reconcile
from tink.controller.settings import ControllerSettings
from tink.kube.resources import HARDWARE, TEMPLATE, WORKFLOW
from tink.template import RenderedTemplate
from tink.workflow.status import summary

CREATED = 1_800_000_000.0
STAMP = "2027-01-15T08:00:00.000Z"
SETTINGS = ControllerSettings()
QUICK = ControllerSettings(retry_first=0.005, retry_longest=0.02)
Rendered = Callable[..., list[Raw]]
hardware = objects.hardware("h", namespace="d")
template = objects.template(namespace="d")


def make_workflow(
    state: str | None = None,
    *,
    name: str = "w",
    deleted: bool = False,
    finalizer: bool | None = None,
    spec: Mapping[str, Any] | None = None,
    **status: Any,
) -> Raw:
    """Return a Workflow of Hardware d/h and Template d/t, as the controller has left it in `state`."""
    has_finalizer = state is not None if finalizer is None else finalizer
    finalizers = ["other/one", FINALIZER] if has_finalizer else []
    if state is not None:
        status = {"lastTransitioned": objects.CREATED, **status}
        status.setdefault("message", summary({"state": state, **status}))
    spec = {"timeout": 0, **(spec or {})}  # the default, without which the first write would change the spec
    made: Raw = {"namespace": "d", "hardware": "h", "spec": spec, "deleted": deleted, "finalizers": finalizers}
    made["metadata"] = {"resourceVersion": "7"}
    return objects.workflow(name, state, **made, **status)


def render(template: Raw, hardware: Raw, params: Mapping[str, str]) -> RenderedTemplate:
    """Return two actions that show what they were made of."""
    tag = ",".join(f"{k}={v}" for k, v in params.items())
    first = {"name": "first", "image": f"{template['metadata']['name']}/{hardware['metadata']['name']}:{tag}"}
    return RenderedTemplate([first, {"name": "second", "image": "i", "timeout": 30}])


def never(*_: Any) -> RenderedTemplate:
    raise AssertionError("rendered without need")


def look(workflow: Raw, now: float, settings: ControllerSettings = SETTINGS) -> Decision:
    """Reconcile a Workflow that has been prepared: its Template does not matter any more."""
    return reconcile(workflow, hardware, None, settings, now, never)


def status_in(outcome: Decision) -> Raw:
    bodies = [patch.body["status"] for patch in outcome.patches if patch.subresource == "status"]
    assert len(bodies) == 1, outcome
    status: Raw = bodies[0]
    return status


def condition(status: Raw, kind: str) -> Raw:
    """Return a condition of a status, without its time."""
    found = next(c for c in status["conditions"] if c["type"] == kind)
    return {field: value for field, value in found.items() if field != "lastTransitionTime"}


def finalizers_in(outcome: Decision) -> list[str] | None:
    lists = [patch.body["metadata"].get("finalizers") for patch in outcome.patches if patch.subresource is None]
    return lists[0] if lists else None


class Rig:
    """A controller over the API in this process, which has these objects."""

    def __init__(
        self,
        *there: Raw,
        settings: ControllerSettings = QUICK,
        render: Any = render,
        elector: Any = None,
        now: float = CREATED + 1,
        hardware_selector: str = "",
    ) -> None:
        self.api = InProcessApi(*there)
        self.put = self.api.put
        self.now = now
        self.elapsed = 0.0
        self.elector = elector
        self.hardware = self.api.informer(HARDWARE, label_selector=hardware_selector)
        self.controller = WorkflowController(
            self.api,
            workflows=self.api.informer(WORKFLOW),
            hardware=self.hardware,
            templates=self.api.informer(TEMPLATE),
            settings=replace(settings, event_settle=0.0),
            render=render,
            clock=lambda: self.now,
            elapsed=lambda: self.elapsed,
            elector=elector,
        )

    @property
    def patched(self) -> list[str | None]:
        """The subresources of the patches, in their order: None (the object) or "status"."""
        return [call.subresource for call in self.api.calls if call.verb == "patch"]

    def read(self, name: str = "w") -> Raw:
        found = self.api.read(WORKFLOW, name, "d")
        assert found is not None
        return found

    def state(self, name: str = "w") -> str | None:
        workflow = self.api.read(WORKFLOW, name, "d")
        return workflow.get("status", {}).get("state") if workflow is not None else "gone"

    async def until(self, state: str | None, name: str = "w") -> None:
        await until(lambda: self.state(name) == state)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.controller.run())
        try:
            yield
        finally:
            assert not task.done(), task.exception()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
