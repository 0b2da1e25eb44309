"""Decides about one write: an AdmissionRequest in, a verdict out (admission.k8s.io/v1).

    Hardware   create, update   refused if another Hardware has one of its MAC or IP addresses; a warning for each of
                                the mistakes that can be stored (`tink.api.mistakes`)
               delete           a warning if Workflows that have not ended refer to it
    OSIE       create, update   a warning if a URL leads to an address that edges fetch nothing from, or an annotation
                                is no checksum
               delete           a warning if Hardware refer to it
    Template   create, update   refused if a field is no Go template, with field, line and column
               delete           a warning if Workflows that have not ended refer to it
    Workflow   create, update   a warning if its Hardware or its Template does not exist

The indexes answer at once; before a write is refused or warned about, the object in question is read from the API, for
the informers behind the indexes are a moment late: what was released or created just now must not count.

Only what a write changes is looked at. An object that has a conflict already can still be labelled, mended in steps and
deleted, and one that is being deleted is never in anybody's way.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any
from urllib.parse import urlsplit

from tink.api.mistakes import ELSEWHERE, Reason, Site, hardware_mistakes, osie_mistakes, user_data_mistakes
from tink.api.v1alpha2 import Raw, as_mapping
from tink.kube.objects import NamespacedName, ObjectReference
from tink.net.special_addresses import carried, parsed, special
from tink.offload import YAML_WEIGHT, offload
from tink.template import TemplateError, TemplateSyntaxError, parse_fields
from tink.template_process import BusyError
from tink.webhooks.claims import Claims, Conflict, claims_of
from tink.webhooks.references import References, ended, targets_of

log = logging.getLogger(__name__)

Lookup = Callable[[str, str, str], Awaitable[Raw | None]]
"""`lookup(kind, namespace, name)`: the Hardware or Template as the API has it now; None if there is none."""
Cached = Callable[[str, str, str], bool]
"""`cached(kind, namespace, name)`: whether the informers know that Hardware or Template."""

Parse = Callable[[str, Raw], Awaitable[list[TemplateSyntaxError]]]
"""`parse(namespace, template)`: its syntax errors. Raises TemplateError, and BusyError if it can't be parsed now."""

NAMED_REFERRERS = 3
MOST_CAUSES = 20
_LOOKUP_SECONDS = 1.0
_CARD_WEIGHT = 512
"""What to look at a network interface costs, in bytes of JSON: each is compared with all networks of the site."""


async def parse_here(_namespace: str, template: Raw) -> list[TemplateSyntaxError]:
    """Parse a Template on the event loop, for tests and small tools."""
    return parse_fields(template)


@dataclass(frozen=True, slots=True)
class Cause:
    """What is wrong with one field: `reason` is one of Kubernetes' causes."""

    field: str
    message: str
    reason: str = "FieldValueInvalid"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Refused if there are causes or if `busy`; `warnings` are shown to whoever writes, either way."""

    causes: tuple[Cause, ...] = ()
    warnings: tuple[str, ...] = ()
    busy: str = ""
    """Why the write can't be reviewed now, and what to do: it is refused, and may be tried again (429)."""
    release: Callable[[], None] | None = field(default=None, compare=False)
    """Ends what an admitted write holds; call it when the write has been stored or has failed."""

    @property
    def outcome(self) -> str:
        """In one word, for metrics."""
        return "busy" if self.busy else "refused" if self.causes else "warned" if self.warnings else "allowed"


ALLOWED = Verdict()


@dataclass(frozen=True, slots=True)
class Request:
    """The part of an AdmissionRequest that is decided from."""

    kind: str
    operation: str
    key: NamespacedName
    new: Any = None
    old: Any = None
    dry_run: bool = False

    @classmethod
    def read(cls, request: Mapping[str, Any]) -> Request:
        """From JSON; whatever is missing or odd is read as absent."""
        new, old = request.get("object"), request.get("oldObject")
        name = request.get("name") or _metadata(new).get("name") or _metadata(old).get("name") or ""
        return cls(
            kind=str(as_mapping(request.get("kind")).get("kind", "")),
            operation=str(request.get("operation", "")),
            key=NamespacedName(str(request.get("namespace") or ""), str(name)),
            new=new,
            old=old,
            dry_run=request.get("dryRun") is True,
        )


@dataclass(slots=True)
class Reviewer:
    """`claims` and `references` are fed by informers; `clock` is monotonic; `site()` is asked for each Hardware."""

    lookup: Lookup
    cached: Cached
    clock: Callable[[], float] = time.monotonic
    site: Callable[[], Site] = lambda: ELSEWHERE
    """What gives machines their addresses; in the same process it is known, elsewhere nothing is said of it."""
    claims: Claims = field(default_factory=Claims)
    references: References = field(default_factory=References)
    exact: bool = False
    """Whether `claims` follows the store itself: it is never late, and an admitted write holds its claims until it is
    settled."""
    parse: Parse = parse_here

    async def review(self, request: Request) -> Verdict:
        """Decide about a write. Raises whatever keeps it from being decided: the caller refuses the write then."""
        if request.operation == "DELETE":
            return self._deletion(request)
        if request.operation not in ("CREATE", "UPDATE") or _metadata(request.new).get("deletionTimestamp"):
            return ALLOWED
        match request.kind:
            case "Hardware":
                return await self._hardware(request)
            case "OSIE":
                known = osie_mistakes(request.old)
                new = [str(one) for one in osie_mistakes(request.new) if one not in known]
                return Verdict(warnings=(*_unreachable(request.new, request.old), *new))
            case "Template":
                return await self._template(request)
            case "Workflow":
                return await self._workflow(request)
        return ALLOWED

    # --- Hardware -------------------------------------------------------------------------------------------------

    async def _hardware(self, request: Request) -> Verdict:
        had = claims_of(request.old)
        wanted = {claim: path for claim, path in claims_of(request.new).items() if claim not in had}
        suspected = () if self.exact else self.claims.conflicts(request.key, wanted, self.clock())
        found = [(conflict.claim, conflict.holder, await self._holds(conflict)) for conflict in suspected]
        warnings = (*_two_scripts(request.new), *await self._mistakes(request))
        # Asked again: others may have been admitted meanwhile. Nothing is awaited between this and the end.
        now = self.clock()
        conflicts = self.claims.conflicts(request.key, wanted, now)
        released = {(claim, holder) for claim, holder, holds in found if holds is False}
        stored = {(claim, holder) for claim, holder, holds in found if holds is True}
        causes = [
            _conflict(conflict, arriving=conflict.arriving and (conflict.claim, conflict.holder) not in stored)
            for conflict in conflicts
            if conflict.arriving or (conflict.claim, conflict.holder) not in released
        ]
        if causes:
            return Verdict(tuple(causes[:MOST_CAUSES]))
        if request.dry_run or not wanted:
            return Verdict(warnings=warnings)
        if self.exact:
            return Verdict(warnings=warnings, release=self.claims.reserve(request.key, wanted))
        self.claims.admitted(request.key, wanted, now)
        return Verdict(warnings=warnings)

    async def _mistakes(self, request: Request) -> list[str]:
        """Those that this write makes."""
        site = self.site()
        cards = max(
            len(as_mapping(as_mapping(_spec(each)).get("networkInterfaces"))) for each in (request.new, request.old)
        )
        known, found = await offload(
            cards * _CARD_WEIGHT, lambda: [hardware_mistakes(each, site) for each in (request.old, request.new)]
        )
        new = [one for one in found if one not in known]
        if (instance := as_mapping(_spec(request.new)).get("instance")) != as_mapping(_spec(request.old)).get(
            "instance"
        ):
            userdata = as_mapping(instance).get("userdata")
            size = len(userdata) * YAML_WEIGHT if isinstance(userdata, str) else 0
            new += await offload(size, lambda: [*user_data_mistakes(request.new)])
        told = [str(one) for one in new if one.reason is not Reason.GATEWAY_OUTSIDE_NETWORK]  # refused anyhow
        metadata = {"namespace": request.key.namespace}
        before = targets_of({"kind": "Hardware", "metadata": metadata, "spec": _spec(request.old)})
        for target in targets_of({"kind": "Hardware", "metadata": metadata, "spec": _spec(request.new)}):
            if target not in before and await self._missing(target):
                told.append(f"spec.osie.name: there is no {target} yet: the machine netboots nothing until there is")
        return told[:MOST_CAUSES]

    async def _holds(self, conflict: Conflict) -> bool | None:
        """Whether the holder has the address now, after what the informer knows; None if nobody can tell."""
        try:
            holder = await self._look_up("Hardware", *conflict.holder)
        except Exception as error:
            log.warning("Hardware %s can't be read, so it may have changed: %s", conflict.holder, error)
            return None
        return holder is not None and conflict.claim in claims_of(holder)

    # --- Templates and Workflows ----------------------------------------------------------------------------------

    async def _template(self, request: Request) -> Verdict:
        template = request.new
        if not isinstance(template, dict) or _spec(template) == _spec(request.old):
            return ALLOWED
        try:
            errors = await self.parse(request.key.namespace, template)
        except TemplateError:
            return ALLOWED  # of a wrong type, which the schema has to say
        except BusyError as error:
            return Verdict(busy=str(error))
        return Verdict(tuple(_syntax(error) for error in errors[:MOST_CAUSES]))

    async def _workflow(self, request: Request) -> Verdict:
        workflow = request.new
        if not isinstance(workflow, dict) or ended(workflow):
            return ALLOWED
        # An odd object may lack what the request says anyway.
        targets = targets_of({**workflow, "kind": "Workflow", "metadata": {"namespace": request.key.namespace}})
        if isinstance(request.old, dict):
            before = targets_of({**request.old, "kind": "Workflow", "metadata": {"namespace": request.key.namespace}})
            targets = [target for target in targets if target not in before]
        missing = [target for target in targets if await self._missing(target)]
        return Verdict(
            warnings=tuple(
                f"spec.{target.kind.lower()}Ref.name: there is no {target} yet; the Workflow waits for it"
                for target in missing
            )
        )

    async def _missing(self, target: ObjectReference) -> bool:
        if self.cached(*target):
            return False
        try:
            return await self._look_up(*target) is None
        except Exception as error:
            log.debug("%s can't be read, so nothing is said of it: %s", target, error)
            return False

    def _deletion(self, request: Request) -> Verdict:
        if request.kind not in ("Hardware", "OSIE", "Template"):
            return ALLOWED
        target = ObjectReference(request.kind, *request.key)
        referrers = self.references.referrers(target)
        if not referrers:
            return ALLOWED
        named = list(islice(referrers, NAMED_REFERRERS))
        more = f" and {len(referrers) - len(named)} more" if len(referrers) > len(named) else ""
        still = " (not ended)" if named[0].kind == "Workflow" else ""
        return Verdict(warnings=(f"{target} is still referred to by {', '.join(map(str, named))}{more}{still}",))

    async def _look_up(self, kind: str, namespace: str, name: str) -> Raw | None:
        async with asyncio.timeout(_LOOKUP_SECONDS):
            return await self.lookup(kind, namespace, name)


def _conflict(conflict: Conflict, *, arriving: bool) -> Cause:
    kind, value = conflict.claim
    holder = conflict.holder
    message = f"{kind} {value} is that of Hardware {holder} already ({conflict.held_in})"
    if arriving:
        message = f"{kind} {value} is that of Hardware {holder}, which is written at this moment ({conflict.held_in})"
    elif conflict.terminating:
        message += ", which is being deleted: wait until it is gone"
    return Cause(conflict.field, message, "FieldValueDuplicate")


def _syntax(error: TemplateSyntaxError) -> Cause:
    where = f"line {error.line}, column {error.column}: " if error.line else ""
    # Go's own sentence begins with the field and the line, which stand beside it here.
    said = str(error).removeprefix(f"template: {error.name}:{error.line}: ")
    return Cause(error.name, f"is no Go template: {where}{said}")


def _two_scripts(hardware: Any) -> tuple[str, ...]:
    ipxe = as_mapping(as_mapping(_spec(hardware)).get("ipxe"))
    if ipxe.get("inline") and ipxe.get("url"):
        return ("spec.ipxe has both inline and url: the machine gets neither until one of them is removed",)
    return ()


def _unreachable(osie: Any, old: Any) -> tuple[str, ...]:
    """Of the URLs that are new, those that name a special address themselves; names are not looked up here."""
    warnings = []
    specs = [as_mapping(_spec(each)) for each in (osie, old)]
    for field_name in ("kernelUrl", "initrdUrl"):
        url, before = (spec.get(field_name) for spec in specs)
        if not isinstance(url, str) or url == before:
            continue
        try:
            host = urlsplit(url).hostname or ""
        except ValueError:
            continue  # which the schema has to say
        address = parsed("127.0.0.1" if host == "localhost" else host)
        kind = special(address) if address is not None else ""
        if address is not None and kind:
            warnings.append(
                f"spec.{field_name}: {host} is {kind}: an edge fetches nothing from there, unless it was started with "
                f"--allow-upstream {carried(address) or address}"
            )
    return tuple(warnings)


def _metadata(obj: Any) -> Mapping[str, Any]:
    return as_mapping(as_mapping(obj).get("metadata"))


def _spec(obj: Any) -> Any:
    return as_mapping(obj).get("spec")
