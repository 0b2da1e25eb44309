"""Detects Tinkerbell on the API of tinkedge: changed CustomResourceDefinitions, and Leases of its controllers.

At its start, Tinkerbell writes its own definitions (tinkerbell/tinkerbell, crd/crd.go, MigrateAndReady): by a
server-side apply and, after a conflict, by an update, both with the field manager TINKERBELL_MANAGER. The API server
refuses its Hardware, Templates and Workflows, because a version in `status.storedVersions` must not leave
`spec.versions`. It accepts the definitions of BMCs, and a definition that was deleted before. These lack fields of
tinkedge, which the API server then removes from every object that is written.

Tinkerbell's controller renders Workflows and boots their machines, as tinkedge's does, so only one of them may run.

`conflict_of` and `holder_of` decide (pure). `UpstreamWatch` follows the API for a controller, and `edge.doctor` asks
once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from prometheus_client.core import Metric

from tink.api.v1alpha2 import Raw, as_mapping
from tink.kube.client import ApiError, KubeClient, NotFoundError
from tink.kube.resources import CRD, LEASE
from tink.metrics.families import gauge
from tink.printable import printable
from tink.workflow.status import parse_timestamp

log = logging.getLogger(__name__)

TINKERBELL_MANAGER: Final = "Tinkerbell CLI"
"""The field manager of Tinkerbell's definitions, in the program and in its command line alike."""
LEASE_NAMES: Final = ("tink-controller.tinkerbell.org", "tink.tinkerbell.org")
"""The Leases of Tinkerbell's Workflow controller: of tinkerbell/tinkerbell, and of tinkerbell/tink before it."""
LIVE_SECONDS: Final = 60.0
"""Tinkerbell renews its Lease every two seconds. One that was not renewed for this time is left over."""
LOOK_SECONDS: Final = 60.0
"""Time between two looks at Leases, and at a definition that can't be watched."""
_WATCH_SECONDS: Final = 300
_BOOKMARK: Final = b'{"type":"BOOKMARK"'
_LEASES: Final = "the Leases of Tinkerbell's controllers"
_PAUSE_SECONDS: Final = 1.0
"""Minimum time between two readings of a definition that changes all the time."""
_MAX_NAMED: Final = 5
"""Maximum number of fields that a message names."""
_SHOWN: Final = 128
"""Characters of another program's name in a message."""
_NO_MIGRATION: Final = (
    "stop Tinkerbell, or start it with --enable-crd-migrations=false (in its chart: "
    "deployment.envs.globals.enableCRDMigrations)"
)


# --- definitions ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ExpectedDefinition:
    """A CustomResourceDefinition of this release."""

    name: str
    versions: Mapping[str, frozenset[str]]
    """The served versions, each with the paths of its fields, such as `spec.connection.host`."""
    stored: str
    """The version in which objects are stored."""
    has_webhook: bool
    """True if a webhook converts the objects between versions."""
    command: str
    """How the definition is applied again, as a clause."""


class Conflict(NamedTuple):
    """A problem with an object, and its remedy. Both are clauses."""

    problem: str
    remedy: str


def followed_definitions(*, is_embedded: bool, serves_v1alpha1: bool, has_bmc: bool) -> list[ExpectedDefinition]:
    """Return the definitions of this release that Tinkerbell has, too: of Hardware, Templates and Workflows.

    `serves_v1alpha1`: they have v1alpha1 beside v1alpha2, which a webhook converts unless the API is the embedded one.
    `has_bmc`: with those of Machines, Jobs and Tasks.
    """
    from tink.api.crds import generate, generate_bmc  # most controllers of a cluster do not need the schemas
    from tink.versions import DEFINITIONS

    own = [each for each in generate(serve_v1alpha1=serves_v1alpha1) if each["metadata"]["name"] in DEFINITIONS]
    option = "--v1alpha1 " if serves_v1alpha1 else ""
    found = [_expected(each, option, is_embedded, serves_v1alpha1 and not is_embedded) for each in own]
    if has_bmc:
        found += [_expected(each, "--bmc ", is_embedded, has_webhook=False) for each in generate_bmc()]
    return found


def _expected(definition: Raw, option: str, is_embedded: bool, has_webhook: bool) -> ExpectedDefinition:
    versions = definition["spec"]["versions"]
    command = f"tinkedge crds {option}| kubectl apply --server-side --force-conflicts -f -"
    return ExpectedDefinition(
        definition["metadata"]["name"],
        {version["name"]: frozenset(_fields_of(version)) for version in versions},
        next(version["name"] for version in versions if version["storage"]),
        has_webhook,
        "restart tinkedge, which applies its own definitions"
        if is_embedded
        else f"apply the definitions of this release: helm upgrade, or {command}",
    )


def conflict_of(expected: ExpectedDefinition, found: Raw | None) -> Conflict | None:
    """Return what a definition lacks, who wrote it, and the remedy; None if it has all that tinkedge needs.

    `found` is the definition as the API has it, or None. The definition of a newer release has more, which is fine.
    """
    if found is None:
        return Conflict("it does not exist", expected.command)
    lacks = next(_lacks(expected, as_mapping(found.get("spec"))), "")
    if not lacks:
        return None
    manager, when = _writer_of(found)
    if manager == TINKERBELL_MANAGER:
        return Conflict(
            f"{lacks}; Tinkerbell wrote it at its start (field manager {manager}, {when})",
            f"{_NO_MIGRATION}, then {expected.command}",
        )
    writer = f"; the field manager {manager} wrote it ({when})" if manager else ""
    return Conflict(f"{lacks}{writer}", expected.command)


def _lacks(expected: ExpectedDefinition, spec: Raw) -> Iterator[str]:
    versions = {str(each.get("name")): each for each in map(as_mapping, _items(spec.get("versions")))}
    for name in expected.versions:
        if name not in versions:
            yield f"it has no version {name}, but {', '.join(sorted(versions))[:_SHOWN] or 'none'}"
        elif versions[name].get("served") is not True:
            yield f"it does not serve its version {name}"
    if versions.get(expected.stored, {}).get("storage") is not True:
        yield f"it does not store {expected.stored}"
    if expected.has_webhook and as_mapping(spec.get("conversion")).get("strategy") != "Webhook":
        yield "spec.conversion.strategy is not Webhook, so its objects lose fields from one version to the other"
    for name, fields in expected.versions.items():
        missing = sorted(fields - set(_fields_of(versions[name])))
        top = [each for each in missing if not any(each.startswith((f"{other}.", f"{other}[")) for other in missing)]
        if top:
            more = f" and {len(top) - _MAX_NAMED} more" if len(top) > _MAX_NAMED else ""
            named = ", ".join(top[:_MAX_NAMED])
            yield f"its {name} lacks {named}{more}, which the API removes from objects"


def _fields_of(version: Raw) -> Iterator[str]:
    """Yield the paths of the fields of a version's schema."""
    pending = [("", as_mapping(as_mapping(version.get("schema")).get("openAPIV3Schema")))]
    while pending:
        path, schema = pending.pop()
        for name, field in as_mapping(schema.get("properties")).items():
            below = f"{path}.{name}" if path else name
            yield below
            pending.append((below, as_mapping(field)))
        inner = (schema.get(key) for key in ("items", "additionalProperties"))
        pending += [(f"{path}[]", each) for each in inner if isinstance(each, dict)]


def _writer_of(found: Raw) -> tuple[str, str]:
    """Return the field manager of `spec.versions` and the time of its last write; ("", "") if the API does not tell."""
    owners = [
        (str(each.get("time") or ""), str(each.get("manager") or ""))
        for each in map(as_mapping, _items(as_mapping(found.get("metadata")).get("managedFields")))
        if "f:versions" in as_mapping(as_mapping(each.get("fieldsV1")).get("f:spec"))
    ]
    when, manager = max(owners, default=("", ""))
    return printable(manager)[:_SHOWN], printable(when)[:_SHOWN]


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


# --- Leases -----------------------------------------------------------------------------------------------------------


def _controller_conflict(holder: str) -> Conflict:
    """Return the conflict with the Workflow controller of Tinkerbell that `holder_of` has found."""
    return Conflict(
        f"the Workflow controller of Tinkerbell, {holder}, runs on this API, too: both prepare the same Workflows and "
        "boot their machines",
        f"stop it, such as with kubectl -n {holder.partition('/')[0]} scale deployment tinkerbell --replicas=0",
    )


def holder_of(lease: Raw, now: float) -> str:
    """Return the program that holds a Lease at the time `now` (Unix seconds), as NAMESPACE/HOLDER; empty if none does.

    A Lease that was not renewed for LIVE_SECONDS is left over.
    """
    spec = as_mapping(lease.get("spec"))
    holder, renewed = spec.get("holderIdentity"), parse_timestamp(spec.get("renewTime"))
    if not isinstance(holder, str) or not holder or renewed is None or abs(now - renewed) > LIVE_SECONDS:
        return ""
    return printable(f"{as_mapping(lease.get('metadata')).get('namespace')}/{holder}")[:_SHOWN]


async def _controllers(client: KubeClient, now: float) -> dict[str, str]:
    """Return the Workflow controller of Tinkerbell that holds each Lease; empty if none does. Raises ApiError."""
    found = {}
    for name in LEASE_NAMES:
        # By name, because the account of a controller may list no other Leases.
        leases = await client.list(LEASE, field_selector=f"metadata.name={name}")
        holders = (holder_of(each, now) for each in leases.get("items") or () if isinstance(each, dict))
        found[name] = next(filter(None, holders), "")
    return found


async def find_conflicts(
    client: KubeClient, definitions: Sequence[ExpectedDefinition], now: float
) -> dict[str, Conflict | None]:
    """Return the conflict of each definition and each Lease by its name, or None. `now`: Unix seconds.

    Raises ApiError if one of them can't be read.
    """
    found: dict[str, Conflict | None] = {}
    for expected in definitions:
        try:
            found[expected.name] = conflict_of(expected, await client.get(CRD, expected.name, None))
        except NotFoundError:
            found[expected.name] = conflict_of(expected, None)
    holders = await _controllers(client, now)
    return found | {name: _controller_conflict(holder) if holder else None for name, holder in holders.items()}


# --- the watch of a controller ----------------------------------------------------------------------------------------


class UpstreamWatch:
    """Logs each change of a definition or a Lease that a Tinkerbell on this API has made. `run` as one task."""

    def __init__(
        self,
        client: KubeClient,
        definitions: Iterable[ExpectedDefinition],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Follow these definitions, each by its name, and the Leases of all namespaces. `clock` gives Unix seconds."""
        self._client = client
        self._definitions = tuple(definitions)
        self._clock = clock
        self._problems = dict.fromkeys((*(each.name for each in self._definitions), *LEASE_NAMES), "")
        """The problem of each object; empty if it has none."""
        self._unread: set[str] = set()

    @property
    def note(self) -> str:
        """A clause for operators; empty if there is no problem."""
        return "; ".join(f"{name}: {problem}" for name, problem in self._problems.items() if problem)

    def metrics(self) -> Iterator[Metric]:
        """Yield the metrics for one scrape."""
        text = "1: the definition lacks what this release needs, or a Tinkerbell holds the Lease; see the log."
        values = {(name,): float(bool(problem)) for name, problem in self._problems.items()}
        yield gauge("tinkedge_tinkerbell_conflict", text, ["object"], values)

    async def run(self) -> None:
        """Follow all objects until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_leases())
            for each in self._definitions:
                group.create_task(self._follow(each))

    async def _follow_leases(self) -> None:
        while True:
            try:
                found = await _controllers(self._client, self._clock())
            except ApiError as error:
                self._report_unread(_LEASES, error)
            else:
                self._unread.discard(_LEASES)
                for name, holder in found.items():
                    self._report(LEASE.kind, name, _controller_conflict(holder) if holder else None)
            await asyncio.sleep(LOOK_SECONDS)

    async def _follow(self, expected: ExpectedDefinition) -> None:
        while True:
            try:
                found: Raw | None = await self._client.get(CRD, expected.name, None)
            except NotFoundError:
                found = None
            except ApiError as error:
                self._report_unread(f"{CRD.kind} {expected.name}", error)
                await asyncio.sleep(LOOK_SECONDS)
                continue
            self._unread.discard(f"{CRD.kind} {expected.name}")
            self._report(CRD.kind, expected.name, conflict_of(expected, found))
            await self._changed(expected.name, found)

    async def _changed(self, name: str, found: Raw | None) -> None:
        """Return when a definition may have changed: after an event, at the end of a watch, or after LOOK_SECONDS."""
        if found is None:
            await asyncio.sleep(LOOK_SECONDS)
            return
        version = str(found["metadata"].get("resourceVersion", ""))
        try:
            async with self._client.watch(CRD, None, version, _WATCH_SECONDS, name=name) as stream:
                # A chunk is enough: the definition is read again, because an event may be longer than a line may be.
                async for chunk in stream.iter_any():
                    if not chunk.startswith(_BOOKMARK):
                        break
        except ApiError as error:
            log.debug("%s %s is looked at now and then, and not watched: %s", CRD.kind, name, error)
            await asyncio.sleep(LOOK_SECONDS)
        await asyncio.sleep(_PAUSE_SECONDS)

    def _report(self, kind: str, name: str, conflict: Conflict | None) -> None:
        """Log a conflict that is new, or that has ended."""
        before, problem = self._problems[name], conflict.problem if conflict is not None else ""
        self._problems[name] = problem
        if conflict is not None and problem != before:
            log.warning("%s %s: %s; %s", kind, name, problem, conflict.remedy)
        elif before and not problem:
            log.info("%s %s: the conflict has ended", kind, name)

    def _report_unread(self, what: str, error: ApiError) -> None:
        """Log once that something can't be read. Without rights or an API, nothing is known about it."""
        if what not in self._unread:
            log.warning("%s can't be read, so a Tinkerbell beside tinkedge may go unnoticed: %s", what, error)
        self._unread.add(what)
