"""Where the webhooks are, as an operator may set it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from tink.api.bounds import MAX_NAME_CHARACTERS

_LABEL = "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_SERVICE = re.compile(f"{_LABEL}/{_LABEL}(:[1-9][0-9]{{0,4}})?")


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """Where the API server reaches the webhooks; without `url` and `service` on loopback of this machine."""

    url: str = ""
    """https://HOST:PORT, for an API server outside of a cluster's network."""
    service: str = ""
    """NAMESPACE/NAME or NAMESPACE/NAME:PORT (else 443) of a Kubernetes Service in front of all replicas.

    The replicas share a certificate authority in the Secret NAME-ca.
    """
    port: int = 0
    """Where to listen; 0: any free port on loopback, 9443 for a url or a service."""
    configuration: str = "tinkedge"
    """Name of the ValidatingWebhookConfiguration; of several installations in one cluster each has its own."""
    failure_policy: str = "Fail"
    """Failure policy of a Hardware that claims something and can't be reviewed: Ignore admits it, Fail rejects it."""

    def __post_init__(self) -> None:
        if self.url and self.service:
            raise ValueError("give a URL or a Service of the webhooks, not both")
        if self.url and (urlsplit(self.url).scheme != "https" or not urlsplit(self.url).hostname):
            raise ValueError(f"the URL of the webhooks must be https://HOST:PORT, not {self.url}")
        if self.service and _SERVICE.fullmatch(self.service) is None:
            raise ValueError(
                f"the Service of the webhooks must be NAMESPACE/NAME or NAMESPACE/NAME:PORT, not {self.service}"
            )
        if _NAME.fullmatch(self.configuration) is None or len(self.configuration) > MAX_NAME_CHARACTERS:
            raise ValueError(
                f"the name of the webhooks' configuration must be one of Kubernetes', not {self.configuration}"
            )
        if self.failure_policy not in ("Ignore", "Fail"):
            raise ValueError(f"the failure policy of the webhooks must be Ignore or Fail, not {self.failure_policy}")

    @property
    def namespace(self) -> str:
        """Of the Service."""
        return self.service.partition("/")[0]

    @property
    def name(self) -> str:
        """Of the Service."""
        return self.service.partition("/")[2].partition(":")[0]

    @property
    def service_port(self) -> int:
        """Of the Service."""
        return int(self.service.partition(":")[2] or 443)
