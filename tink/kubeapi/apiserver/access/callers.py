"""Who makes a request, once that is known."""

from __future__ import annotations

from dataclasses import dataclass

from tink.kubeapi.schema import Raw

AUTHENTICATED = "system:authenticated"
MASTERS = "system:masters"


@dataclass(frozen=True, slots=True)
class Caller:
    """A user: `role` is what he may do ("" nothing but to ask who he is), in `namespaces` (none: everywhere).

    `credential` names the token that was shown; "" where it is the administrator's. `by` is who really calls, where
    somebody impersonates this one.
    """

    name: str
    groups: tuple[str, ...] = (AUTHENTICATED,)
    role: str = ""
    namespaces: tuple[str, ...] = ()
    credential: str = ""
    by: str = ""

    def user_info(self) -> Raw:
        """As reviews and webhooks have it (authentication.k8s.io/v1, UserInfo)."""
        return {"username": self.name, "groups": list(self.groups)}


ADMIN = Caller("admin", (MASTERS, AUTHENTICATED), "cluster-admin")
"""The holder of the administrator's token: who has set the server up, and its own components."""
