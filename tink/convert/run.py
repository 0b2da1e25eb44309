"""Documents to results: calls the converter of each object and gathers what they made and found.

The order of the result is stable: OSIEs first, because Hardware refers to them, then the order of the input.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tink.api.v1alpha2 import Raw, as_mapping
from tink.convert.documents import DEFAULT_NAMESPACE, Converted, Document
from tink.convert.findings import Finding, Findings, Kind
from tink.convert.metal3 import ConversionSettings, HostOptions
from tink.convert.registry import Context, converter_of


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
    image_registry: str = "",
) -> Result:
    """Convert all objects. `to` is one of `registry.TARGETS`, for Metal3's hosts; `hosts` is what is said of these if
    they become Hardware, `versions` if they change their version. `image_registry` is put before images of v1alpha1's
    Templates that name none. Findings of the reading are passed on.
    """
    run = _Run(to, hosts or HostOptions(), versions or ConversionSettings(), image_registry)
    for document in documents:
        if isinstance(document, Finding):
            run.findings.append(document)
        else:
            run.documents.append(document)
    return run.result()


class _Run:
    """One conversion of many objects: what they share, and what they may look up in one another."""

    def __init__(self, to: str | None, hosts: HostOptions, versions: ConversionSettings, image_registry: str) -> None:
        self.documents: list[Document] = []
        self.findings: list[Finding] = []
        self._context = Context(self._lookup, to, hosts, versions, image_registry)
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
            return converter_of(obj["apiVersion"], obj["kind"], self._context.to)(obj, findings, self._context)
        except Exception as error:
            findings.error("", f"the converter failed ({type(error).__name__}: {error}): please report this object")
            return []

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


def _identity(obj: Raw) -> tuple[str, str, str, str]:
    """Group, kind, namespace, name: the same for the versions of one object."""
    metadata = as_mapping(obj.get("metadata"))
    namespace = metadata.get("namespace") or DEFAULT_NAMESPACE
    return (obj["apiVersion"].rpartition("/")[0], obj["kind"], str(namespace), str(metadata.get("name") or ""))
