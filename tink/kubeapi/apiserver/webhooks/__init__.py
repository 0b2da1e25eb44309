"""Calls to webhooks, for admission and for conversion."""

from tink.kubeapi.apiserver.webhooks.client import (
    MAX_ANSWER,
    CallWebhook,
    TrustError,
    WebhookCallError,
    WebhookClient,
    check_review,
    group_version_kind,
)

__all__ = [
    "MAX_ANSWER",
    "CallWebhook",
    "TrustError",
    "WebhookCallError",
    "WebhookClient",
    "check_review",
    "group_version_kind",
]
