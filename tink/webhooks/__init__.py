"""Admission webhooks: what one object cannot decide about itself, said when it is written.

    informers -> `claims`, `references` (indexes) -> `reviewer` (decides) -> `admission` (answers)
    API server -> `server` (HTTPS) -> `admission`; `certificates` (own authority) -> `server`
    `server` -> `registration` (tells the API server where to ask, and whom to trust)

`server` serves other hooks beside `admission`: `tink.metal3.webhook` converts Metal3's hosts.

Two Hardware must not have one MAC, one IP address or one agent id, and none may have an address that another tenant's
machines use as their gateway, name server and the like. A Template must parse. Whoever deletes what others refer to, or
refers to what is not there, is warned. Everything else is in the schemas (`tink.api.rules`).

The webhooks are advice, given where it is cheapest to take. What they guard holds without them: the edge serves nobody
an address that two Hardware claim, and the controller fails a Workflow whose Template does not parse. So a review that
can't be held lets the write through (failurePolicy Ignore unless told otherwise), and reviewing never raises.
"""

from tink.webhooks.admission import Admission
from tink.webhooks.claims import (
    REMEMBERED_SECONDS,
    Claim,
    ClaimKind,
    Claims,
    Conflict,
    UsedAddress,
    canonical,
    claims_of,
    is_terminating,
)
from tink.webhooks.references import References
from tink.webhooks.registration import Address, holds, unregister
from tink.webhooks.server import SERVICE_PORT, Hook, Webhooks
from tink.webhooks.settings import WebhookSettings

__all__ = [
    "REMEMBERED_SECONDS",
    "SERVICE_PORT",
    "Address",
    "Admission",
    "Claim",
    "ClaimKind",
    "Claims",
    "Conflict",
    "Hook",
    "References",
    "UsedAddress",
    "WebhookSettings",
    "Webhooks",
    "canonical",
    "claims_of",
    "holds",
    "is_terminating",
    "unregister",
]
