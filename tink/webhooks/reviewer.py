"""Decides about one write: an AdmissionRequest in, a verdict out (admission.k8s.io/v1).

    Hardware   create, update   rejected if another Hardware has one of its MAC or IP addresses or its agent id, or if
                                machines of another namespace use one of its IP addresses as gateway and the like, or
                                if the write gives it from one TinkerbellMachine (Cluster API) to another; a
                                warning for each of the mistakes that can be stored (`tink.api.mistakes`), for an OSIE
                                or a Secret that is missing, and for what nothing uses
               delete           a warning if Workflows that have not ended refer to it
    OSIE       create, update   a warning if a URL leads to an address that edges do not fetch from, or to no file of
                                the edge in this process, or an annotation is no checksum
               delete           a warning if Hardware refer to it
    Template   create, update   rejected if a field is no Go template, with field, line and column, or if Linux can't
                                start an action with it (`tink.exec_limits`); a warning if an image has a name that no
                                registry has
               delete           a warning if Workflows that have not ended refer to it
    Workflow   create, update   a warning if its Hardware or its Template does not exist, or its machine
                                netboots nothing
    any        create, update   rejected if it was written in v1alpha1, and its annotations as v1alpha2 are larger than
                                Kubernetes permits

The indexes answer at once. Before a write is rejected or warned about, the other object is read from the API: the
informers behind the indexes are a moment late, and an address that was just released must not count.

A review judges the changes of a write, whatever the state of the object is. An object that has a conflict already can
still be labelled, corrected in steps and deleted. A Hardware that is being deleted blocks no other one, and it may gain
no address that another one has.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any
from urllib.parse import urlsplit

from tink.api.annotations import (
    AGENT_ID_ANNOTATION,
    MAX_ANNOTATIONS_BYTES,
    OWNER_NAME_LABEL,
    OWNER_NAMESPACE_LABEL,
    USERDATA_SECRET_ANNOTATION,
    VENDORDATA_SECRET_ANNOTATION,
    annotations_size,
)
from tink.api.mistakes import (
    ELSEWHERE,
    Reason,
    Site,
    misspelled_annotations,
    osie_mistakes,
    unused_fields,
    user_data_mistakes,
)
from tink.api.v1alpha2 import Raw, as_mapping
from tink.exec_limits import text_count, unstartable_template
from tink.kube.objects import NamespacedName, ObjectReference
from tink.mistakes import hardware_mistakes
from tink.net.addresses import carried, parsed, special
from tink.offload import YAML_WEIGHT, offload
from tink.registry.names import RegistryError
from tink.registry.names import parse as parse_image
from tink.template import TemplateError, TemplateSyntaxError, parse_fields
from tink.template_process import BusyError
from tink.webhooks.claims import (
    Claim,
    ClaimKind,
    Claims,
    Conflict,
    References,
    Use,
    UsedAddress,
    claims_of,
    ended,
    is_terminating,
    targets_of,
    uses_of,
)

log = logging.getLogger(__name__)

Lookup = Callable[[str, str, str], Awaitable[Raw | None]]
"""`lookup(kind, namespace, name)` reads a Hardware or Template from the API; None if there is none."""
Cached = Callable[[str, str, str], Raw | None]
"""`cached(kind, namespace, name)` returns a Hardware, OSIE or Template from the informers, or None."""
Examine = Callable[[str, Raw], Awaitable[Sequence[str]]]
"""`examine(kind, object)` returns what the edge in this process can't do with an object, in sentences that begin with
the field.
"""

Parse = Callable[[str, Raw], Awaitable[list[TemplateSyntaxError]]]
"""`parse(namespace, template)` returns syntax errors. Raises TemplateError, and BusyError if it can't parse now."""

_SECRETS = {USERDATA_SECRET_ANNOTATION: "user-data", VENDORDATA_SECRET_ANNOTATION: "vendor-data"}
_AFTER_DELETION = {
    "Hardware": "apply it again soon, or what an agent has of them fails (--hardware-gone-timeout)",
    "OSIE": "they netboot nothing until there is one of that name again",
    "Template": "those that are not prepared yet wait for one of that name",
}
"""The consequence of a deletion for the objects that refer to the deleted one, by its kind."""
NAMED_REFERRERS = 3
MAX_CAUSES = 20
_LOOKUP_SECONDS = 1.0
_TWO_SCRIPTS = "spec.ipxe has both inline and url: the machine gets neither until one of them is removed"
_APART = "agents are told apart by address, token or certificate only; give one of them another id"
_TEXT_WEIGHT = 64
"""Cost of measuring an argument or a variable, in bytes of JSON."""
_CARD_WEIGHT = 512
"""Cost of checking a network interface, in bytes of JSON: each is compared with all networks of the site."""


async def parse_here(_namespace: str, template: Raw) -> list[TemplateSyntaxError]:
    """Parse a Template on the event loop, for tests and small tools."""
    return parse_fields(template)


@dataclass(frozen=True, slots=True)
class FieldCause:
    """A problem of one field. `reason` is one of Kubernetes' cause types."""

    field: str
    message: str
    reason: str = "FieldValueInvalid"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a review: a rejection if there are causes or if `busy`. The user always receives `warnings`."""

    causes: tuple[FieldCause, ...] = ()
    warnings: tuple[str, ...] = ()
    busy: str = ""
    """The reason why the write can't be reviewed now, with the remedy. It is rejected and may be tried again (429)."""
    release: Callable[[], None] | None = field(default=None, compare=False)
    """Releases the reserved claims of an admitted write; call it when the write has been stored or has failed."""

    @property
    def outcome(self) -> str:
        """The outcome in one word, for metrics."""
        return "busy" if self.busy else "refused" if self.causes else "warned" if self.warnings else "allowed"


ALLOWED = Verdict()


@dataclass(frozen=True, slots=True)
class ReviewRequest:
    """The parts of an AdmissionRequest that the decision depends on."""

    kind: str
    operation: str
    key: NamespacedName
    new: Any = None
    old: Any = None
    dry_run: bool = False

    @classmethod
    def read(cls, request: Mapping[str, Any]) -> ReviewRequest:
        """Parse the JSON; missing or malformed parts count as absent."""
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

    @property
    def is_harmless(self) -> bool:
        """Return True if a missing review of this write can only lose warnings.

        That holds for a deletion, and for an update that changes neither the spec nor the agent id, such as the removal
        of a finalizer.
        """
        if self.operation != "UPDATE":
            return self.operation == "DELETE"
        new, old = (
            (_spec(obj), as_mapping(_metadata(obj).get("annotations")).get(AGENT_ID_ANNOTATION))
            for obj in (self.new, self.old)
        )
        return bool(new == old)


@dataclass(slots=True)
class Reviewer:
    """`claims` and `references` are fed by informers; `clock` is monotonic; `site()` is asked for each Hardware."""

    lookup: Lookup
    cached: Cached
    clock: Callable[[], float] = time.monotonic
    site: Callable[[], Site] = lambda: ELSEWHERE
    """The site that gives machines their addresses; known in the same process, elsewhere unknown."""
    claims: Claims = field(default_factory=Claims)
    references: References = field(default_factory=References)
    exact: bool = False
    """True if `claims` follows the store itself: then it is never late, and an admitted write reserves its claims."""
    parse: Parse = parse_here
    examine: Examine | None = None
    """The check by an edge in this process; None if there is none."""

    async def review(self, request: ReviewRequest) -> Verdict:
        """Decide about a write. Raises any error that prevents the decision: the caller rejects the write then."""
        if request.operation == "DELETE":
            return self._deletion(request)
        if request.operation not in ("CREATE", "UPDATE"):
            return ALLOWED
        if cause := _too_large_annotations(request):
            return Verdict((cause,))
        verdict = await self._written(request)
        before = [*misspelled_annotations(request.old)]
        slips = [each for each in misspelled_annotations(request.new) if each not in before][:MAX_CAUSES]
        return replace(verdict, warnings=(*verdict.warnings, *slips)) if slips and not verdict.causes else verdict

    async def _written(self, request: ReviewRequest) -> Verdict:
        match request.kind:
            case "Hardware":
                return await self._hardware(request)
            case "OSIE":
                known = osie_mistakes(request.old)
                new = [str(one) for one in osie_mistakes(request.new) if one not in known]
                examined = await self._examined(request)
                # The edge in this process knows what it was allowed to fetch.
                said = examined if examined is not None else _unreachable(request.new, request.old)
                return Verdict(warnings=(*said, *new))
            case "Template":
                return await self._template(request)
            case "Workflow":
                return await self._workflow(request)
        return ALLOWED

    # --- Hardware -------------------------------------------------------------------------------------------------

    async def _hardware(self, request: ReviewRequest) -> Verdict:
        had = claims_of(request.old)
        wanted = {claim: path for claim, path in claims_of(request.new).items() if claim not in had}
        terminating = is_terminating(request.new)
        suspected: Sequence[Conflict] = ()
        if not self.exact:
            suspected = self.claims.conflicts(request.key, wanted, self.clock(), terminating=terminating)
        found = [(each.held, each.holder, await self._holds(each, terminating=terminating)) for each in suspected]
        mistakes = await self._mistakes(request)
        # Check again: other writes may have been admitted meanwhile. There is no await between this and the end.
        now = self.clock()
        conflicts = self.claims.conflicts(request.key, wanted, now, terminating=terminating)
        used = self.claims.used(request.key, wanted)
        released = {(held, holder) for held, holder, holds in found if holds is False}
        stored = {(held, holder) for held, holder, holds in found if holds is True}
        lasting = [each for each in conflicts if each.arriving or (each.held, each.holder) not in released]
        first = {each.claim: each for each in reversed(lasting)}
        causes = [
            _conflict(each, arriving=each.arriving and (each.held, each.holder) not in stored)
            for each in lasting
            if first[each.claim] is each
        ]
        text = "IP address {} is the {} of machines of another namespace: reserve another address"
        causes += [
            FieldCause(each.field, text.format(each.claim[1], each.use), "FieldValueDuplicate")
            for each in used
            if each.is_foreign
        ]
        causes += _changed_owner(request)
        if causes:
            return Verdict(tuple(causes[:MAX_CAUSES]))
        advice = [_own_use(each) for each in used] + self._names(request, wanted)
        ipxe = as_mapping(as_mapping(_spec(request.new)).get("ipxe"))
        scripts = [_TWO_SCRIPTS] if ipxe.get("inline") and ipxe.get("url") else []
        warnings = (*scripts, *advice[:MAX_CAUSES], *mistakes)
        if request.dry_run or terminating or not wanted:
            return Verdict(warnings=warnings)
        if self.exact:
            return Verdict(warnings=warnings, release=self.claims.reserve(request.key, wanted))
        self.claims.admitted(request.key, wanted, now)
        return Verdict(warnings=warnings)

    def _names(self, request: ReviewRequest, wanted: Mapping[Claim, str]) -> list[str]:
        """Return warnings about addresses and agent ids that this write names and another Hardware has."""
        before = uses_of(request.old)
        uses = {use: path for use, path in uses_of(request.new).items() if use not in before}
        found = [
            f"{each.field}: {each.claim[1]}, the {each.use} here, is reserved for a machine of another namespace: "
            "correct one of them, unless that machine serves this one"
            for each in self.claims.reserved(request.key.namespace, uses)
        ]
        namespace, name = request.key
        for (kind, value), path in wanted.items():
            if kind is ClaimKind.AGENT_ID and value != name and self.cached("Hardware", namespace, value) is not None:
                found.append(f"{path}: {value} is also the name of Hardware {namespace}/{value}: {_APART}")
            elif kind is ClaimKind.MAC and self.claims.holds((ClaimKind.AGENT_ID, value), request.key):
                found.append(f"{path}: another Hardware has {value} as its agent id: this machine's agent goes first")
        if request.operation == "CREATE" and self.claims.holds((ClaimKind.AGENT_ID, name), request.key):
            found.append(f"metadata.name: another Hardware has {name} as its agent id: {_APART}")
        return found

    async def _mistakes(self, request: ReviewRequest) -> list[str]:
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
            texts = [as_mapping(instance).get(name) for name in ("userdata", "vendordata")]
            size = sum(len(text) for text in texts if isinstance(text, str)) * YAML_WEIGHT
            new += await offload(size, lambda: [*user_data_mistakes(request.new)])
        told = [str(one) for one in new if one.reason is not Reason.GATEWAY_OUTSIDE_NETWORK]  # refused anyhow
        unused = [*unused_fields(request.old)]
        told += [one for one in unused_fields(request.new) if one not in unused]
        told += await self._examined(request) or ()
        told += await self._missing_secrets(request)
        metadata = {"namespace": request.key.namespace}
        before = targets_of({"kind": "Hardware", "metadata": metadata, "spec": _spec(request.old)})
        for target in targets_of({"kind": "Hardware", "metadata": metadata, "spec": _spec(request.new)}):
            if target not in before and await self._find(target) is None:
                told.append(f"spec.osie.name: there is no {target} yet: the machine netboots nothing until there is")
        return told[:MAX_CAUSES]

    async def _missing_secrets(self, request: ReviewRequest) -> list[str]:
        """Return a warning for each Secret that an annotation names and that the API of this process does not have.

        On a cluster the reviewer has no right to read Secrets, so there are no such warnings.
        """
        found = []
        for annotation, field_name in _SECRETS.items():
            old, new = (
                as_mapping(_metadata(each).get("annotations")).get(annotation) for each in (request.old, request.new)
            )
            name = str(new or "").strip().partition("/")[0]
            if not self.exact or not name or new == old:
                continue
            if await self._find(ObjectReference("Secret", request.key.namespace, name)) is None:
                what = f"there is no Secret {request.key.namespace}/{name} yet: the machine gets no {field_name} until"
                found.append(f"metadata.annotations[{annotation}]: {what} there is")
        return found

    async def _examined(self, request: ReviewRequest) -> list[str] | None:
        """Return what the edge in this process can't do with what this write changes; None if it can't be asked."""
        if self.examine is None or not isinstance(request.new, dict):
            return None
        new, old = ((_spec(obj), _metadata(obj).get("annotations")) for obj in (request.new, request.old))
        if new == old:
            return []
        try:
            async with asyncio.timeout(_LOOKUP_SECONDS):
                found = await self.examine(request.kind, request.new)
                known = await self.examine(request.kind, request.old) if found and isinstance(request.old, dict) else ()
        except Exception as error:
            log.warning("%s %s can't be examined, so nothing is said of it: %r", request.kind, request.key, error)
            return None
        return [one for one in found if one not in known][:MAX_CAUSES]

    async def _holds(self, conflict: Conflict, *, terminating: bool) -> bool | None:
        """Return True if the holder still has its claim, by a fresh read, and None if that can't be read.

        `terminating`: the question of a Hardware that is being deleted itself.
        """
        try:
            holder = await self._look_up("Hardware", *conflict.holder)
        except Exception as error:
            log.warning("Hardware %s can't be read, so it may have changed: %s", conflict.holder, error)
            return None
        if holder is None or (is_terminating(holder) and not terminating):
            return False
        return conflict.held in claims_of(holder)

    # --- Templates and Workflows ----------------------------------------------------------------------------------

    async def _template(self, request: ReviewRequest) -> Verdict:
        template = request.new
        if not isinstance(template, dict) or _spec(template) == _spec(request.old):
            return ALLOWED
        try:
            errors = await self.parse(request.key.namespace, template)
        except TemplateError:
            return ALLOWED  # of a wrong type, which the schema has to say
        except BusyError as error:
            return Verdict(busy=str(error))
        size = text_count(template) * _TEXT_WEIGHT
        known, found = await offload(size, lambda: [unstartable_template(each) for each in (request.old, template)])
        # Go's own sentence begins with the field and the line, which stand beside it here.
        causes = [
            FieldCause(
                error.name,
                f"is no Go template: {f'line {error.line}, column {error.column}: ' if error.line else ''}"
                + str(error).removeprefix(f"template: {error.name}:{error.line}: "),
            )
            for error in errors
        ]
        causes += [FieldCause(one.field, one.message) for one in found if one not in known]
        if causes:
            return Verdict(tuple(causes[:MAX_CAUSES]))
        before = _wrong_images(request.old)
        warnings = [one for one in _wrong_images(template) if one not in before]
        return Verdict(warnings=(*warnings, *(await self._examined(request) or ()))[:MAX_CAUSES])

    async def _workflow(self, request: ReviewRequest) -> Verdict:
        workflow = request.new
        if not isinstance(workflow, dict) or ended(workflow):
            return ALLOWED
        # An odd object may lack what the request says anyway.
        targets = targets_of({**workflow, "kind": "Workflow", "metadata": {"namespace": request.key.namespace}})
        if isinstance(request.old, dict):
            before = targets_of({**request.old, "kind": "Workflow", "metadata": {"namespace": request.key.namespace}})
            targets = [target for target in targets if target not in before]
        warnings = []
        for target in targets:
            where, found = f"spec.{target.kind.lower()}Ref.name", await self._find(target)
            if found is None:
                warnings.append(f"{where}: there is no {target} yet; the Workflow waits for it")
            elif target.kind == "Hardware" and (why := _boots_nothing(found, as_mapping(_spec(workflow)))):
                warnings.append(f"{where}: {target} {why}")
        return Verdict(warnings=tuple(warnings))

    async def _find(self, target: ObjectReference) -> Raw | None:
        """Return an object, {} where that can't be known, and None if there is none."""
        if (found := self.cached(*target)) is not None:
            return found
        try:
            return await self._look_up(*target)
        except Exception as error:
            log.debug("%s can't be read, so nothing is said of it: %s", target, error)
            return {}

    def _deletion(self, request: ReviewRequest) -> Verdict:
        if request.kind not in ("Hardware", "OSIE", "Template"):
            return ALLOWED
        target = ObjectReference(request.kind, *request.key)
        referrers = self.references.referrers(target)
        if not referrers:
            return ALLOWED
        named = list(islice(referrers, NAMED_REFERRERS))
        more = f" and {len(referrers) - len(named)} more" if len(referrers) > len(named) else ""
        still = " (not ended)" if named[0].kind == "Workflow" else ""
        then = _AFTER_DELETION[request.kind]
        text = f"{target} is still referred to by {', '.join(map(str, named))}{more}{still}: {then}"
        return Verdict(warnings=(text,))

    async def _look_up(self, kind: str, namespace: str, name: str) -> Raw | None:
        async with asyncio.timeout(_LOOKUP_SECONDS):
            return await self.lookup(kind, namespace, name)


def _boots_nothing(hardware: Raw, workflow_spec: Raw) -> str:
    """Return why the machine of a Hardware can't boot for a Workflow, with the remedy; empty if it may boot."""
    spec, options = as_mapping(hardware.get("spec")), as_mapping(workflow_spec.get("bootOptions"))
    if not hardware:
        return ""
    if options.get("bootMode") and not as_mapping(spec.get("bmcRef")).get("name"):
        return "has no spec.bmcRef, which spec.bootOptions.bootMode needs: set it, or the Workflow waits"
    if options.get("bootMode") in ("isoboot", "customboot"):
        return ""
    cards = as_mapping(spec.get("networkInterfaces"))
    if not cards:
        return ""
    fields = ("disableDhcp",) if options.get("toggleAllowNetboot") is True else ("disableDhcp", "disableNetboot")
    if all(any(as_mapping(card).get(field) for field in fields) for card in cards.values()):
        return (
            "netboots with none of its network interfaces (disableNetboot, disableDhcp): the Workflow waits until its "
            "machine starts the agent by other means"
        )
    if not as_mapping(spec.get("osie")).get("name") and not as_mapping(spec.get("ipxe")):
        return "has no spec.osie: set it, or the Workflow waits until its machine starts the agent by other means"
    return ""


def _wrong_images(template: Any) -> list[str]:
    """Return a warning for each image whose name no registry has; names are known where they hold no `{{`."""
    actions = as_mapping(_spec(template)).get("actions")
    found = []
    for index, action in enumerate(actions if isinstance(actions, list) else ()):
        image = as_mapping(action).get("image")
        if not isinstance(image, str) or not image or "{{" in image:
            continue
        try:
            parse_image(image)
        except RegistryError as error:
            found.append(f"spec.actions[{index}].image: {error}: the agent can't pull it")
    return found


def _conflict(conflict: Conflict, *, arriving: bool) -> FieldCause:
    kind, value = conflict.claim
    holder = f"Hardware {conflict.holder}"
    if conflict.held != conflict.claim:
        what = f"{kind} {value} is the MAC address of {holder}"
    elif kind is ClaimKind.MAC and conflict.field.endswith(".address"):
        what = f"the address is made of the MAC address {value} (SLAAC), which is that of {holder}"
    else:
        what = f"{kind} {value} is that of {holder}"
    when = ", which is written at this moment" if arriving else " already"
    return FieldCause(conflict.field, f"{what}{when} ({conflict.held_in})", "FieldValueDuplicate")


def _changed_owner(request: ReviewRequest) -> list[FieldCause]:
    """Return the cause if a Hardware changes its TinkerbellMachine.

    Cluster API's provider takes a Hardware by a patch without a resourceVersion. Two machines that choose one Hardware
    at the same time would both take it (cluster-api-provider-tinkerbell#330).
    """
    labels = (as_mapping(_metadata(each).get("labels")) for each in (request.old, request.new))
    old, new = ((each.get(OWNER_NAMESPACE_LABEL) or "", each.get(OWNER_NAME_LABEL)) for each in labels)
    if old == new or not old[1] or not new[1]:
        return []
    holder = "/".join(map(str, old)).strip("/")
    message = f"the Hardware belongs to TinkerbellMachine {holder}: choose another one, or remove this label first"
    return [FieldCause(f"metadata.labels[{OWNER_NAME_LABEL}]", message, "FieldValueForbidden")]


def _too_large_annotations(request: ReviewRequest) -> FieldCause | None:
    """Return the cause if the annotations are larger than Kubernetes permits, and larger than before.

    The embedded API checks the annotations in the version of the write. The conversion from v1alpha1 adds to them,
    after that check. Every later write in v1alpha2 would be rejected, even the removal of a finalizer. On a cluster,
    the conversion webhook fails before this review.
    """
    old, new = (as_mapping(_metadata(each).get("annotations")) for each in (request.old, request.new))
    size = annotations_size(new)
    if size <= MAX_ANNOTATIONS_BYTES or size <= annotations_size(old):
        return None
    # Imported here, because the conversion takes time to import, and few sites need it.
    from tink import versions

    return FieldCause("metadata.annotations", versions.too_large(new), "FieldValueTooLong")


def _own_use(used: UsedAddress) -> str:
    what = f"{used.field}: {used.claim[1]} is the {used.use} of other machines of this namespace"
    if used.use in (Use.NETWORK, Use.BROADCAST):
        return f"{what}: reserve another address, or correct their netmask"
    return f"{what}: reserve another address, unless this machine is that {used.use}"


def _unreachable(osie: Any, old: Any) -> tuple[str, ...]:
    """Return a warning for each new URL that contains a special address. Names are not resolved."""
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
                f"--allow-upstream {carried(address) or address}; a file of the edge's own host is file:///PATH, below "
                "its --osie-dir"
            )
    return tuple(warnings)


def _metadata(obj: Any) -> Mapping[str, Any]:
    return as_mapping(as_mapping(obj).get("metadata"))


def _spec(obj: Any) -> Any:
    return as_mapping(obj).get("spec")
