"""How a definition says that its objects are converted: not at all, or by a webhook.

Source: k8s.io/apiextensions-apiserver, pkg/apis/apiextensions/validation; k8s.io/apiserver, pkg/util/webhook.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from cryptography import x509

from tink.kubeapi.schema import field_errors
from tink.kubeapi.schema.client_config import REVIEW_VERSIONS, check_client, check_review_versions
from tink.kubeapi.schema.field_errors import FieldError, invalid_whole

Conversion = Mapping[str, Any]

_ONLY = "should not be set when strategy is not set to Webhook"


def knows_reviews(conversion: Conversion | None) -> bool:
    """Whether a stored conversion names a review version that can be sent (or none at all)."""
    listed = ((conversion or {}).get("webhook") or {}).get("conversionReviewVersions") or ()
    return not listed or any(version in REVIEW_VERSIONS for version in listed)


def bundle_problem(conversion: Conversion | None) -> str:
    """Say what is wrong with the certificates of a conversion's webhook; "" when nothing is or there are none."""
    config = ((conversion or {}).get("webhook") or {}).get("clientConfig") or {}
    text = config.get("caBundle")
    if not text:
        return ""
    try:
        pem = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        return str(error)
    try:
        x509.load_pem_x509_certificates(pem)
    except ValueError:
        why = "unable to parse bytes as PEM block" if b"-----BEGIN " not in pem else "failed to parse certificates"
        return f"unable to load root certificates: {why}"
    return ""


def check(conversion: Conversion, at: str, *, known_reviews: bool, any_bundle: bool) -> list[FieldError]:
    """Find what is wrong with spec.conversion.

    `known_reviews` demands a review version that can be sent; `any_bundle` lets wrong certificates pass.
    """
    strategy, webhook = conversion.get("strategy", ""), conversion.get("webhook") or {}
    config, reviews = webhook.get("clientConfig"), webhook.get("conversionReviewVersions") or []
    found: list[FieldError] = []
    if not strategy:
        found.append(field_errors.required(f"{at}.strategy"))
    elif strategy not in ("None", "Webhook"):
        found.append(field_errors.not_supported(f"{at}.strategy", strategy, ("None", "Webhook")))
    if strategy != "Webhook":
        if config is not None:
            found.append(field_errors.forbidden(f"{at}.webhookClientConfig", _ONLY))
        if reviews:
            found.append(field_errors.forbidden(f"{at}.conversionReviewVersions", _ONLY))
        return found
    where = f"{at}.webhookClientConfig"
    if config is None:
        found.append(field_errors.required(where, "required when strategy is set to Webhook"))
    else:
        found += check_client(config, where)
        if not any_bundle and (why := bundle_problem(conversion)):
            found.append(invalid_whole(f"{where}.caBundle", config["caBundle"], why))
    return found + check_review_versions(reviews, f"{at}.conversionReviewVersions", known=known_reviews)
