"""Documents to results: picks the converter of each object and gathers what they made and found.

A converter is a function `convert(obj, findings) -> list[Raw]` in a module of this package; it changes nothing in
`obj`, raises nothing for odd input, and an object with an error finding may have no result at all. What it makes of
one object starts with the object itself; others that it needs (an OSIE) follow.

The order of the result is stable: OSIEs first, because Hardware refers to them, then the order of the input.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from tink.api import metal3
from tink.api.v1alpha2 import API_VERSION, RUFIO_GROUP, Raw
from tink.convert.documents import Document
from tink.convert.fields import Fields
from tink.convert.metadata import carried
from tink.convert.report import Finding, Findings, Kind

if TYPE_CHECKING:
    from tink.convert.baremetalhost import ConversionSettings
    from tink.convert.comments import Comment
    from tink.convert.to_hardware import HostOptions

V1ALPHA1 = "tinkerbell.org/v1alpha1"
DEFAULT_NAMESPACE = "default"
TO_HARDWARE = "hardware"
TARGETS = (TO_HARDWARE, *metal3.HOST_VERSIONS)
"""What `--to` takes: Hardware of Metal3's hosts, or these hosts in their other version."""

_TODAYS_KINDS = ("Hardware", "OSIE", "Template", "Workflow")
_METAL3_KINDS = ("BareMetalHost", "HardwareData")

Converter = Callable[[Raw, Findings], list[Raw]]


class Lookup(Protocol):
    """Finds another object of the same input, as it was read: `lookup("HardwareData", "metal3", "node-1")`."""

    def __call__(self, kind: str, namespace: str, name: str) -> Raw | None: ...


_CONVERTERS = {
    (V1ALPHA1, "Hardware"): "hardware",
    (V1ALPHA1, "Template"): "template",
}
"""(apiVersion, kind) -> module of this package. Imported when first met: a rack of Hardware needs no templates."""


@dataclass(frozen=True, slots=True)
class Converted:
    """One object of the result."""

    obj: Raw
    document: Document | None = None
    """What it was made from; None for objects that several share."""
    moves: dict[str, str] = field(default_factory=dict)
    """Path in the document -> path in `obj` (`Findings.moved`)."""
    comments: list[Comment] = field(default_factory=list)
    """Those that stood inside of a field's text (`Findings.comments`)."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a run made, and what it could not carry over."""

    converted: list[Converted]
    findings: list[Finding]
    lost: int = 0
    """How many of `converted` could not be written or applied; findings say why."""

    @property
    def objects(self) -> list[Raw]:
        """The objects alone."""
        return [each.obj for each in self.converted]

    def exit_code(self, *, allow_loss: bool = False) -> int:
        """0: all came through; 2: something was dropped (unless that is allowed); 1: something could not be read."""
        kinds = {finding.kind for finding in self.findings}
        if Kind.ERROR in kinds:
            return 1
        return 2 if Kind.DROPPED in kinds and not allow_loss else 0


def convert_documents(
    documents: Iterable[Document | Finding],
    *,
    to: str | None = None,
    hosts: HostOptions | None = None,
    versions: ConversionSettings | None = None,
) -> Result:
    """Convert all objects. `to` is one of TARGETS, for Metal3's hosts; `hosts` is what is said of these if it is
    TO_HARDWARE, `versions` if it is one of their versions. Findings of the reading are passed on.
    """
    run = _Run(to, hosts, versions)
    for document in documents:
        if isinstance(document, Finding):
            run.findings.append(document)
        else:
            run.documents.append(document)
    return run.result()


class _Run:
    """One conversion of many objects: what they share, and what they may look up in one another."""

    def __init__(self, to: str | None, hosts: HostOptions | None, versions: ConversionSettings | None) -> None:
        self.documents: list[Document] = []
        self.findings: list[Finding] = []
        self._to = to
        self._hosts = hosts
        self._versions = versions
        self._made: dict[tuple[str, str, str, str], Converted] = {}
        self._index: dict[tuple[str, str, str], Raw] | None = None

    def result(self) -> Result:
        for document in self.documents:
            findings = Findings(document.source, document.prefix)
            for position, obj in enumerate(self._convert(document.obj, findings)):
                first = position == 0
                made = Converted(obj, document, findings.moves, findings.comments) if first else Converted(obj)
                self._keep(made, findings)
            self.findings.extend(findings)
        osies = [each for each in self._made.values() if each.obj["kind"] == "OSIE"]
        others = [each for each in self._made.values() if each.obj["kind"] != "OSIE"]
        return Result(osies + others, self.findings)

    def _convert(self, obj: Raw, findings: Findings) -> list[Raw]:
        """What the right converter makes of an object. A fault of ours costs this object alone."""
        try:
            converter = self._converter(obj, findings)
            return converter(obj, findings) if converter is not None else []
        except Exception as error:
            findings.error("", f"the converter failed ({type(error).__name__}: {error}): please report this object")
            return []

    def _converter(self, obj: Raw, findings: Findings) -> Converter | None:
        """None for what makes no object of its own; an error says why if that is not as it should be."""
        api_version, kind = obj["apiVersion"], obj["kind"]
        group = api_version.rpartition("/")[0]
        if (api_version, kind) == (V1ALPHA1, "Workflow"):
            return self._workflow
        if module := _CONVERTERS.get((api_version, kind)):
            return _converter_in(module)
        if api_version == API_VERSION and kind in _TODAYS_KINDS:
            return _converter_in("todays")
        if group == metal3.GROUP and kind in _METAL3_KINDS:
            return self._of_metal3(obj, findings)
        if self._to == TO_HARDWARE and (api_version, kind) == ("v1", "Secret"):
            return None
        if group == RUFIO_GROUP or (api_version, kind) == ("v1", "Secret"):
            return _passed_on
        if (
            api_version == API_VERSION
            and kind in (todays := importlib.import_module("tink.convert.todays")).FOREIGN_KINDS
        ):
            findings.error("", todays.FOREIGN)
            return None
        findings.error("", f"{api_version} {kind} is nothing that can be converted: take it out of the input")
        return None

    def _workflow(self, obj: Raw, findings: Findings) -> list[Raw]:
        """A Workflow's Template says how long it may take."""
        workflow = importlib.import_module("tink.convert.workflow")
        converted: list[Raw] = workflow.convert(obj, findings, self._lookup)
        return converted

    def _of_metal3(self, obj: Raw, findings: Findings) -> Converter | None:
        host = obj["kind"] == "BareMetalHost"
        if self._to == TO_HARDWARE:
            return self._to_hardware if host else None
        if self._to is None:
            findings.error("", f"{obj['kind']} of Metal3: say what to make of it: --to {', --to '.join(TARGETS)}")
            return None
        return self._to_other_version if host else _unchanged

    def _to_hardware(self, obj: Raw, findings: Findings) -> list[Raw]:
        to_hardware = importlib.import_module("tink.convert.to_hardware")
        converted: list[Raw] = to_hardware.convert(obj, findings, self._lookup, self._hosts)
        return converted

    def _to_other_version(self, obj: Raw, findings: Findings) -> list[Raw]:
        baremetalhost = importlib.import_module("tink.convert.baremetalhost")
        settings = self._versions or baremetalhost.ConversionSettings()
        converted = baremetalhost.convert(obj, f"{metal3.GROUP}/{self._to}", settings)
        if obj["apiVersion"] != converted["apiVersion"] and self._to != "v1alpha1":
            if settings.empty_checksum_type == "md5":
                for path in baremetalhost.wrongly_md5(obj):
                    reason = "empty means md5, and this checksum is none: say its type, or --empty-checksum-type auto"
                    findings.changed(f"{path}.checksumType", reason)
            if _hardware(baremetalhost.convert(converted, obj["apiVersion"], settings)) != _hardware(obj):
                reason = "too large for the annotation that keeps it; a HardwareData of the host's name is to hold it"
                findings.dropped("status.hardware", reason)
        return [converted]

    def _lookup(self, kind: str, namespace: str, name: str) -> Raw | None:
        if self._index is None:
            self._index = {_identity(document.obj)[1:]: document.obj for document in self.documents}
        return self._index.get((kind, namespace or DEFAULT_NAMESPACE, name))

    def _keep(self, converted: Converted, findings: Findings) -> None:
        """Equal objects become one (an OSIE that several Hardware need); unequal ones of one name can't both be."""
        identity = _identity(converted.obj)
        there = self._made.setdefault(identity, converted)
        if there is not converted and there.obj != converted.obj:
            _, kind, namespace, name = identity
            where = f" ({there.document.source})" if there.document is not None else ""
            findings.error("metadata.name", f"there is another {kind} {namespace}/{name}{where}: the first is kept")


def _converter_in(module: str) -> Converter:
    converter: Converter = importlib.import_module(f"tink.convert.{module}").convert
    return converter


def _hardware(host: Raw) -> object:
    """What inspection found, which v1beta1 has no place for."""
    status = host.get("status")
    return status.get("hardware") if isinstance(status, dict) else None


def _unchanged(obj: Raw, findings: Findings) -> list[Raw]:
    return [obj]


def _passed_on(obj: Raw, findings: Findings) -> list[Raw]:
    """What is no affair of ours, without what the API server has written that it was read from: another one refuses to
    create an object with a uid, and deletes one whose owner it does not have.
    """
    return [{**obj, "metadata": carried(Fields(obj, findings), findings)}]


def _identity(obj: Raw) -> tuple[str, str, str, str]:
    """Group, kind, namespace, name: the same for the versions of one object."""
    metadata = obj.get("metadata")
    if not isinstance(metadata, dict):
        metadata = {}
    namespace = metadata.get("namespace") or DEFAULT_NAMESPACE
    return (obj["apiVersion"].rpartition("/")[0], obj["kind"], str(namespace), str(metadata.get("name") or ""))
