"""What an operator may set of the controller."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

_LABEL = "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_SERVICE = re.compile(f"{_LABEL}/{_LABEL}(:[1-9][0-9]{{0,4}})?")


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """All times in seconds. `action_timeout` is for actions that give none; None: they may take for ever."""

    scheduled_timeout: float = 300.0
    """How long a Workflow may be Scheduled: the agent has it and does not start."""
    cancelling_timeout: float = 300.0
    """How long an agent has to report that it stopped."""
    action_timeout: float | None = None
    reference_timeout: float = 60.0
    """How long after its creation a Workflow waits for its Hardware and Template: `kubectl apply` gives no order."""
    reference_note_after: float = 1.0
    """How long it waits before it says so in its conditions: mostly the next object of the same file is the one."""
    events: bool = True
    """Whether changes of state are told as Kubernetes Events, too."""
    workers: int = 32
    """Workflows that are looked at at once. Each waits for its writes, so of hundreds that are made together so many at
    a time are stored: with four it was the controller that they waited for."""
    retry_first: float = 0.05
    retry_longest: float = 30.0
    """Delays before a Workflow is looked at again after the API refused a write."""

    def __post_init__(self) -> None:
        for name in ("scheduled_timeout", "cancelling_timeout", "reference_timeout", "retry_first", "retry_longest"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be a number of seconds above 0, not {getattr(self, name)}")
        if self.action_timeout is not None and not self.action_timeout > 0:
            raise ValueError(f"action_timeout must be a number of seconds above 0, or None, not {self.action_timeout}")
        if self.workers < 1:
            raise ValueError(f"workers must be at least 1, not {self.workers}")


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """Where the API server reaches the webhooks; without `url` and `service` on loopback of this machine."""

    url: str = ""
    """https://HOST:PORT, for an API server outside of a cluster's network."""
    service: str = ""
    """NAMESPACE/NAME or NAMESPACE/NAME:PORT (else 443) of a Kubernetes Service in front of all replicas."""
    port: int = 0
    """Where to listen; 0: any free port on loopback, 9443 for a url or a service."""
    failure_policy: str = "Ignore"
    """What becomes of a write that can't be reviewed: Ignore lets it in, Fail refuses it."""

    def __post_init__(self) -> None:
        if self.url and self.service:
            raise ValueError("give a URL or a Service of the webhooks, not both")
        if self.url and (urlsplit(self.url).scheme != "https" or not urlsplit(self.url).hostname):
            raise ValueError(f"the URL of the webhooks must be https://HOST:PORT, not {self.url}")
        if self.service and _SERVICE.fullmatch(self.service) is None:
            raise ValueError(
                f"the Service of the webhooks must be NAMESPACE/NAME or NAMESPACE/NAME:PORT, not {self.service}"
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
