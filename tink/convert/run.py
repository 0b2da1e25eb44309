"""Convert documents: find the converter of each object, call it, and collect the results and the findings.

Two tables list the converters: one by apiVersion and kind, and one for Metal3's hosts by their target. A converter does
not modify its object and raises nothing for odd input. Its result starts with the converted object; other objects that
this one needs (an OSIE) follow. An object with an error finding may have no result. Objects that can't be converted
have a converter that reports why.

The order of the result is stable: OSIEs first, because Hardware refers to them, then the order of the input.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache

import orjson

from tink.api import metal3 as metal3_api
from tink.api.v1alpha2 import API_VERSION, RUFIO_GROUP, Raw, as_mapping
from tink.convert import v1alpha1, v1alpha2
from tink.convert.documents import DEFAULT_NAMESPACE, Converted, InputDocument, Lookup
from tink.convert.fields import Fields, carried
from tink.convert.findings import ConversionFinding, FindingKind, Findings, ObjectPlace
from tink.convert.metal3.to_hardware import HostOptions, convert_to_hardware
from tink.convert.metal3.versions import ConversionSettings, convert_version, wrongly_md5
from tink.printable import printable

TO_HARDWARE = "hardware"
TARGETS = (TO_HARDWARE, *metal3_api.HOST_VERSIONS)
"""The values of `--to`: Hardware, or a version of Metal3's hosts."""

_HOST, _HARDWARE_DATA = "BareMetalHost", "HardwareData"
_SECRET = ("v1", "Secret")


@dataclass(frozen=True, slots=True)
class ConversionContext:
    """The settings and the look-up that converters share."""

    lookup: Lookup
    to: str | None = None
    """One of TARGETS."""
    hosts: HostOptions = field(default_factory=HostOptions)
    versions: ConversionSettings = field(default_factory=ConversionSettings)
    image_registry: str = ""
    """The registry of images in v1alpha1 Templates that name none."""


Converter = Callable[[Raw, Findings, ConversionContext], list[Raw]]


def converter_of(api_version: str, kind: str, to: str | None) -> Converter:
    """Return the converter for an apiVersion and a kind. `to` is one of TARGETS or None."""
    if (converter := _CONVERTERS.get((api_version, kind))) is not None:
        return converter
    group = api_version.rpartition("/")[0]
    if group == metal3_api.GROUP and kind in (_HOST, _HARDWARE_DATA):
        return _HOST_CONVERTERS[to, kind]
    if (api_version, kind) == _SECRET and to == TO_HARDWARE:
        return _lookup_only
    if group == RUFIO_GROUP or (api_version, kind) == _SECRET:
        return _pass_through
    return _refused(f"{api_version} {kind} can't be converted: remove it from the input")


def _without_context(convert: Callable[[Raw, Findings], list[Raw]]) -> Converter:
    return lambda obj, findings, _context: convert(obj, findings)


def _to_version(version: str) -> Converter:
    """Return the converter to another version. It reports what a conversion back would lose."""

    def convert(obj: Raw, findings: Findings, context: ConversionContext) -> list[Raw]:
        settings = context.versions
        made = convert_version(obj, f"{metal3_api.GROUP}/{version}", settings)
        if obj["apiVersion"] != made["apiVersion"] and made["apiVersion"] != metal3_api.V1ALPHA1:
            if settings.empty_checksum_type == "md5":
                for path in wrongly_md5(obj):
                    reason = (
                        "empty means md5, and this checksum is not MD5: set its type, or use --empty-checksum-type auto"
                    )
                    findings.changed(f"{path}.checksumType", reason)
            back = convert_version(made, obj["apiVersion"], settings)
            if as_mapping(back.get("status")).get("hardware") != as_mapping(obj.get("status")).get("hardware"):
                reason = "too large for the annotation that keeps it; a HardwareData of the host's name is to hold it"
                findings.dropped("status.hardware", reason)
        return [made]

    return convert


def _lookup_only(_obj: Raw, _findings: Findings, _context: ConversionContext) -> list[Raw]:
    """Return nothing: the object is only looked up by others (a Secret, a HardwareData)."""
    return []


def _pass_through(obj: Raw, findings: Findings, _context: ConversionContext) -> list[Raw]:
    """Return an object that needs no conversion, without the metadata that its API server wrote.

    Another API server refuses to create an object with a uid, and deletes an object whose owner does not exist there.
    """
    return [{**obj, "metadata": carried(Fields(obj, findings), findings)}]


def _refused(reason: str) -> Converter:
    def refuse(_obj: Raw, findings: Findings, _context: ConversionContext) -> list[Raw]:
        findings.error("", reason)
        return []

    return refuse


def _without_target(kind: str) -> Converter:
    return _refused(f"{kind} of Metal3: choose a target: --to {', --to '.join(TARGETS)}")


_CONVERTERS: dict[tuple[str, str], Converter] = {
    (v1alpha1.API_VERSION, "Hardware"): _without_context(v1alpha1.convert_hardware),
    (v1alpha1.API_VERSION, "Template"): lambda obj, findings, around: v1alpha1.convert_template(
        obj, findings, around.image_registry
    ),
    # A Workflow's Template says how long it may take.
    (v1alpha1.API_VERSION, "Workflow"): lambda obj, findings, around: v1alpha1.convert_workflow(
        obj, findings, around.lookup
    ),
    (API_VERSION, "Hardware"): _without_context(v1alpha2.convert),
    (API_VERSION, "OSIE"): _without_context(v1alpha2.convert),
    (API_VERSION, "Template"): _without_context(v1alpha2.convert),
    (API_VERSION, "Workflow"): _without_context(v1alpha2.convert),
    **{(API_VERSION, kind): _refused(v1alpha2.UPSTREAM) for kind in v1alpha2.UPSTREAM_KINDS},
}

_HOST_CONVERTERS: dict[tuple[str | None, str], Converter] = {
    (TO_HARDWARE, _HOST): lambda obj, findings, around: convert_to_hardware(obj, findings, around.lookup, around.hosts),
    (TO_HARDWARE, _HARDWARE_DATA): _lookup_only,
    (None, _HOST): _without_target(_HOST),
    (None, _HARDWARE_DATA): _without_target(_HARDWARE_DATA),
    **{(version, _HOST): _to_version(version) for version in metal3_api.HOST_VERSIONS},
    **{(version, _HARDWARE_DATA): lambda obj, _findings, _context: [obj] for version in metal3_api.HOST_VERSIONS},
}
"""(target, kind) -> converter, for all versions of Metal3's kinds."""


@dataclass(frozen=True, slots=True)
class ConversionResult:
    """The objects that a run converted, and its findings."""

    converted: list[Converted]
    findings: list[ConversionFinding]
    lost: int = 0
    """The number of `converted` objects that could not be written or applied; findings say why."""

    @property
    def objects(self) -> list[Raw]:
        """The converted objects, without their source documents."""
        return [each.obj for each in self.converted]

    def exit_code(self, *, allow_loss: bool = False) -> int:
        """Return 0 if everything was converted, 2 if a field was dropped and that is not allowed, 1 for an error."""
        kinds = {finding.kind for finding in self.findings}
        if FindingKind.ERROR in kinds:
            return 1
        return 2 if FindingKind.DROPPED in kinds and not allow_loss else 0


def convert_documents(
    documents: Iterable[InputDocument | ConversionFinding],
    *,
    to: str | None = None,
    hosts: HostOptions | None = None,
    versions: ConversionSettings | None = None,
    image_registry: str = "",
) -> ConversionResult:
    """Convert all objects.

    `to` is one of TARGETS, for Metal3's hosts. `hosts` are the options for hosts that become Hardware, `versions` those
    for hosts that change their version. `image_registry` is put before images of v1alpha1 Templates that name no
    registry. Findings among `documents` are passed on.
    """
    inputs: list[InputDocument] = []
    found: list[ConversionFinding] = []
    for document in documents:
        if isinstance(document, ConversionFinding):
            found.append(document)
        else:
            inputs.append(document)

    @cache
    def index() -> dict[tuple[str, str, str], Raw]:
        return {_identity(document.obj)[1:]: document.obj for document in inputs}

    def lookup(kind: str, namespace: str, name: str) -> Raw | None:
        return index().get((kind, namespace or DEFAULT_NAMESPACE, name))

    context = ConversionContext(
        lookup, to, hosts or HostOptions(), versions or ConversionSettings(), image_registry=image_registry
    )
    results: dict[tuple[str, str, str, str], Converted] = {}
    for document in inputs:
        findings = Findings(document.source, document.prefix)
        try:
            converter = converter_of(document.obj["apiVersion"], document.obj["kind"], to)
            objects = converter(document.obj, findings, context)
        except Exception as error:  # loses this object alone
            findings.error("", f"the converter failed ({type(error).__name__}: {error}): please report this object")
            objects = []
        for position, obj in enumerate(objects):
            first = position == 0
            made = Converted(obj, document, findings.moves, findings.comments) if first else Converted(obj)
            # Equal objects are added once (an OSIE that several Hardware need).
            identity = _identity(made.obj)
            existing = results.setdefault(identity, made)
            if existing is not made and existing.obj != made.obj:
                _, kind, namespace, name = identity
                where = f" ({existing.document.source})" if existing.document is not None else ""
                findings.error("metadata.name", f"there is another {kind} {namespace}/{name}{where}: the first is kept")
        found.extend(findings)
    # OSIEs first; sorting keeps the order of the others.
    return ConversionResult(sorted(results.values(), key=lambda each: each.obj["kind"] != "OSIE"), found)


def _identity(obj: Raw) -> tuple[str, str, str, str]:
    """Return group, kind, namespace and name: the same for all versions of one object."""
    metadata = as_mapping(obj.get("metadata"))
    namespace = metadata.get("namespace") or DEFAULT_NAMESPACE
    return (obj["apiVersion"].rpartition("/")[0], obj["kind"], str(namespace), str(metadata.get("name") or ""))


# --- the report: findings as a table for people and as JSON for programs ----------------------------------------------

_INDEX = re.compile(r"\[[0-9]+\]")
_MAX_ROWS = 200
_ORDER = {FindingKind.ERROR: 0, FindingKind.DROPPED: 1, FindingKind.CHANGED: 2}
_MIN_REASON_WIDTH = 30


@dataclass(slots=True)
class _Row:
    """Equal findings of many objects: a rack of them is one row, not a screenful."""

    kind: FindingKind
    path: str
    reason: str
    first: ObjectPlace
    objects: int = 1

    def where(self) -> str:
        """Return the object in full, or the number of objects and the first of them."""
        if self.objects == 1:
            return str(self.first)
        return f"{self.objects} objects, the first {self.first.label or self.first}"


def as_table(findings: Iterable[ConversionFinding], width: int) -> Iterator[str]:
    """Yield the lines of a table for a terminal: errors first, then dropped fields, then changed fields.

    A finding that is the same for many objects appears once.
    """
    alike: dict[tuple[FindingKind, str, str], _Row] = {}
    for finding in findings:
        path = _INDEX.sub("[]", finding.path)
        row = alike.get((finding.kind, path, finding.reason))
        if row is None:
            alike[finding.kind, path, finding.reason] = _Row(finding.kind, finding.path, finding.reason, finding.source)
            continue
        row.path = path
        if finding.source != row.first:
            row.objects += 1
    rows = sorted(alike.values(), key=lambda row: _ORDER[row.kind])
    shown = rows[:_MAX_ROWS]
    if not shown:
        return
    wheres = {id(row): row.where() for row in shown}
    paths = max(len("FIELD"), *(len(_one_line(row.path)) for row in shown))
    paths = min(paths, max(20, width // 3))
    yield f"{'':8}{'FIELD':{paths}}  REASON"
    for row in shown:
        indent = " " * (8 + paths + 2)
        path = _one_line(row.path) or "-"
        start = f"{row.kind:8}{path:{paths}}  "
        if len(path) > paths:
            yield f"{row.kind:8}{path}"
            start = indent
        room = max(_MIN_REASON_WIDTH, width - len(indent))
        for line in (*textwrap.wrap(_one_line(row.reason), room), *textwrap.wrap(f"({wheres[id(row)]})", room)):
            yield f"{start}{line}"
            start = indent
    if len(rows) > len(shown):
        yield f"... and {len(rows) - len(shown)} rows more: --report json has all of them"


def summary(result: ConversionResult, done: str = "written") -> str:
    """Return one line with the counts of objects, errors, dropped and changed fields. `done` is the objects' verb."""
    counts = {kind: sum(finding.kind is kind for finding in result.findings) for kind in FindingKind}
    objects = _count(len(result.converted), "object")
    if result.lost:
        objects = f"{len(result.converted) - result.lost} of {len(result.converted)} objects"
    errors = _count(counts[FindingKind.ERROR], "error")
    dropped = _count(counts[FindingKind.DROPPED], "field")
    return f"{objects} {done}; {errors}, {dropped} dropped, {counts[FindingKind.CHANGED]} changed"


def as_json(result: ConversionResult) -> str:
    """Return all findings as JSON, one object each, in the order of the input."""
    content = {
        "objects": len(result.converted) - result.lost,
        "findings": [
            {
                "finding": finding.kind,
                "file": finding.source.file,
                "document": finding.source.document,
                "kind": finding.source.kind,
                "namespace": finding.source.namespace,
                "name": finding.source.name,
                "path": finding.path,
                "reason": finding.reason,
            }
            for finding in result.findings
        ],
    }
    return orjson.dumps(content, option=orjson.OPT_INDENT_2).decode() + "\n"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _one_line(text: str) -> str:
    """Return a text as one line without control characters: it comes from a file or an API server."""
    return printable(" ".join(text.splitlines()))
