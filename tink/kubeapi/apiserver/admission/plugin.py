"""Reviews of writes in this process instead of by a validating webhook (Kubernetes: admission plugin).

A plugin receives the same AdmissionRequest as a webhook, and its answer is reported in the same words. There are two
differences. No call can get lost, so a review that fails rejects the write. And the plugin sees every commit of the
resource that it follows, in order, so an answer may reserve something, such as an address, until the write is settled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tink.kubeapi.schema import Raw

Release = Callable[[], None]
"""Called once, when the write has been stored or has failed."""


class AdmissionPlugin(Protocol):
    """A reviewer of writes. All methods are called on the event loop of the API server."""

    @property
    def webhooks(self) -> Sequence[Raw]:
        """The rules, as entries of a ValidatingWebhookConfiguration without a clientConfig."""

    @property
    def followed(self) -> str:
        """The resource whose objects `apply` and `remove` are called for, such as `tinkerbell.org/hardware`."""

    def apply(self, obj: Raw) -> None:
        """Add or update a stored object. Before the first call of `synced` these are the objects from before the
        start."""

    def remove(self, obj: Raw) -> None:
        """Remove an object that is no longer stored."""

    def synced(self) -> None:
        """Start to review. Called once, after `apply` has received every object that was stored before the start."""

    async def answer(self, request: Raw) -> tuple[Raw, Release | None]:
        """Return an AdmissionResponse (admission.k8s.io/v1) without its uid, and a release function.

        The release function ends the reservations of this review; None if there are none. It is called when the write
        is settled. An exception rejects the write (500).
        """
