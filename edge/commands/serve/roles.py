"""Which services a command runs, by its options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from edge.run.settings import EDGE, ON_REQUEST, Service

ALWAYS: Final = frozenset(Service) - ON_REQUEST
"""What `tinkedge up` runs unless told otherwise."""

_ROLES: Final[Mapping[str, frozenset[Service]]] = {
    "up": ALWAYS,
    "edge": EDGE,
    "controller": frozenset({Service.CONTROLLER, Service.WEBHOOKS}),
    "server": frozenset({Service.SERVER}),
    "apiserver": frozenset({Service.APISERVER}),
    "metal3-webhook": frozenset({Service.CONVERSION}),
    "metal3": frozenset(),
}

ROLES: Final = tuple(_ROLES)
"""Commands whose settings are looked at together."""


def services_of(command: str, options: Mapping[str, Any]) -> frozenset[Service]:
    """`options` by the names that click gives them. Raises KeyError: it serves nothing."""
    services = _ROLES[command] - {Service(name) for name in options.get("disable") or ()}
    if command == "up" and options.get("metal3"):
        services |= ON_REQUEST
    if options.get("kubeconfig") is not None:
        services -= {Service.APISERVER}
    return services
