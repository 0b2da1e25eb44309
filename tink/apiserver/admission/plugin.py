"""Reviews of writes in this process, where others would ask a validating webhook (Kubernetes: admission plugin).

A plugin is asked as a webhook is, with the same AdmissionRequest, and its answer is shown in the same words. It differs
in two ways. No call can get lost, so a review that fails refuses the write. And the plugin sees every commit of the
resource that it follows, in order: an answer may hold something, such as an address, until the write is settled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tink.schema import Raw

Release = Callable[[], None]
"""Called once, when the write has been stored or has failed."""


class AdmissionPlugin(Protocol):
    """Reviews writes. All methods are called on the event loop of the API server."""

    @property
    def webhooks(self) -> Sequence[Raw]:
        """The rules, as entries of a ValidatingWebhookConfiguration without a clientConfig."""

    @property
    def followed(self) -> str:
        """The resource whose objects `apply` and `remove` are called for, such as `tinkerbell.org/hardware`."""

    def apply(self, obj: Raw) -> None:
        """Take in an object that is stored. Before the first call of `synced`, what was stored before the start."""

    def remove(self, obj: Raw) -> None:
        """Take in that an object is gone."""

    def synced(self) -> None:
        """Called once, when every object that was stored before the start has been given to `apply`."""

    async def answer(self, request: Raw) -> tuple[Raw, Release | None]:
        """Review an AdmissionRequest. Gives an AdmissionResponse (admission.k8s.io/v1) without its uid, and what to
        call when the write is settled, if something is held for it until then. An exception refuses the write (500)."""
