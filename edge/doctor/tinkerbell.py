"""A Tinkerbell on the same API: definitions that it has changed, and its Workflow controller (`tink.controller`)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from edge.doctor.findings import Finding, note, problem

# The packages of the services are imported in the functions, so that `tinkedge doctor --help` does not load them.
if TYPE_CHECKING:
    from tink.controller import Conflict

_API_TIMEOUT_SECONDS: Final = 10.0
_NAME: Final = "Tinkerbell on the same API"


def check_tinkerbell(kubeconfig: Path, *, is_embedded: bool, serves_v1alpha1: bool, has_bmc: bool) -> Iterator[Finding]:
    """Find definitions that lack what this release needs, and a running Workflow controller of Tinkerbell.

    `is_embedded`: the API is that of `tinkedge up`. `serves_v1alpha1`, `has_bmc`: what this process serves. No finding
    without a conflict, or without a kubeconfig.
    """
    from tink.kube.client import UnreachableError

    if not kubeconfig.exists():
        return
    try:
        found = asyncio.run(
            _conflicts(kubeconfig, is_embedded=is_embedded, serves_v1alpha1=serves_v1alpha1, has_bmc=has_bmc)
        )
    except UnreachableError:
        return  # `check_osies` has reported it
    except Exception as error:  # An API fails in many ways, and the other checks go on.
        yield note(_NAME, f"not examined with {kubeconfig}: {error or type(error).__name__}")
        return
    for name, conflict in found.items():
        if conflict is not None:
            yield problem(f"{_NAME}: {name}", conflict.problem, conflict.remedy)


async def _conflicts(
    kubeconfig: Path, *, is_embedded: bool, serves_v1alpha1: bool, has_bmc: bool
) -> Mapping[str, Conflict | None]:
    from tink.controller import find_conflicts, followed_definitions
    from tink.kube.client import KubeClient

    definitions = followed_definitions(is_embedded=is_embedded, serves_v1alpha1=serves_v1alpha1, has_bmc=has_bmc)
    async with await KubeClient.connect(kubeconfig) as client, asyncio.timeout(_API_TIMEOUT_SECONDS):
        return await find_conflicts(client, definitions, time.time())
