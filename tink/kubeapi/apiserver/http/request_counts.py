"""How many requests there were, for which resource, how each ended, and how long the answer took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from tink.kubeapi.apiserver.requests import Target
from tink.kubeapi.apiserver.resources import Resource
from tink.metrics import Histograms

_BUCKETS = (
    *(0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5),
    *(2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0),
)
"""Bounds in seconds, those of kube-apiserver."""

Routed = tuple[str, str, str, str, str, str]
"""Verb, group, version, resource, subresource and scope. Only what is defined has a name."""

_NOWHERE = ("", "", "", "", "")
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"})


def routed(method: str, resource: Resource, target: Target, *, watch: bool, apply: bool) -> Routed:
    """What a request is about, in Kubernetes' words."""
    verb = _known(method)
    if method in ("GET", "HEAD"):
        verb = "WATCH" if watch and not target.name else "GET" if target.name else "LIST"
    elif apply:
        verb = "APPLY"
    elif method == "DELETE" and not target.name:
        verb = "DELETECOLLECTION"
    scope = "resource" if target.name else "namespace" if target.namespace else "cluster"
    return verb, resource.group, resource.version, resource.plural, target.subresource, scope


class RequestCounts:
    """`clock` gives monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.ended: Counter[tuple[str, ...]] = Counter()
        """By what they were about, and code."""
        self.aborted: Counter[Routed] = Counter()
        """Of these, the client went before the answer came."""
        self.seconds = Histograms(_BUCKETS)
        """Of those that are not watches."""
        self.watches: Counter[Routed] = Counter()
        """That are open now."""
        self.in_flight = 0
        """All others that are being answered."""

    def end(self, method: str, about: Routed | None, status: int, seconds: float) -> None:
        """A request has ended. `status` 0: nobody waited for the answer."""
        if about is None:  # documents, probes, and what is nowhere: by nothing that the client could choose
            about = (_known(method), *_NOWHERE)
        if about[0] == "WATCH":
            status = status or 200
        elif status:
            self.seconds[about].observe(seconds)
        else:
            self.aborted[about] += 1
            return
        self.ended[(*about, str(status))] += 1


def _known(method: str) -> str:
    return method if method in _METHODS else "OTHER"
