"""What operators are told beside whether a process can do its work."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from edge.composition.readiness import ApiContact, Readiness
from tink.kube.cache import Informer
from tink.kube.resources import HARDWARE, WORKFLOW, ResourceType


@dataclass
class Cache:
    """An informer, as far as it is asked here."""

    resource: ResourceType
    untold: int = 0
    failing_for: float = field(default=0.0)


def test_what_is_still_to_be_read_after_a_start_is_said_until_it_is_read() -> None:
    hardware = Cache(HARDWARE, untold=43210)
    contact = ApiContact(lambda: [cast(Informer, each) for each in (hardware, Cache(WORKFLOW))])
    said = Readiness("", tuple(filter(None, contact.notes))).text
    assert said == "ok: 43,210 Hardware are still to be read: each is when its machine asks, lists lack it"
    hardware.untold = 0
    assert contact.notes == ("", "")
