"""Convert Workflows of v1alpha1 that have not begun; leave out Workflows that have begun or ended.

Workflows are ephemeral, and the proposal asks users to recreate them. A waiting Workflow is nothing but its spec, which
is converted. A running Workflow can't be moved to another stack, and a restart would install the machine a second time.
An ended Workflow has nothing left to do.
"""

from __future__ import annotations

from typing import Any

from tink.api.annotations import HOLD_ANNOTATION
from tink.api.v1alpha2 import API_VERSION, Raw, as_mapping
from tink.convert import constraints
from tink.convert.documents import Lookup
from tink.convert.fields import Fields, carried, check_params, param_text, says_nothing
from tink.convert.findings import Findings

_WAITING = ("", "PENDING")
_DISABLED = "spec.disabled was true in v1alpha1"
_ENDED = ("SUCCESS", "FAILED", "TIMEOUT")
_BOOT = (
    "v1alpha2 does not drive BMCs and does not switch netbooting by itself: power the machine on, and set "
    "disableNetboot when it is installed"
)


def convert_workflow(obj: Raw, findings: Findings, lookup: Lookup) -> list[Raw]:
    """Return the Workflow if it waits for its machine; else nothing, and a finding.

    `lookup` finds its Template, whose text has the timeout of its Workflows.
    """
    return _Conversion(obj, findings, lookup).result()


class _Conversion:
    """The conversion of one Workflow."""

    def __init__(self, obj: Raw, findings: Findings, lookup: Lookup) -> None:
        self._top = Fields(obj, findings)
        self._findings = findings
        self._lookup = lookup

    def result(self) -> list[Raw]:
        top = self._top
        top.ignore("apiVersion", "kind")
        status = top.take("status")
        if self._is_over(status):
            return []
        metadata = carried(top, self._findings)
        spec = top.fields("spec")
        result: Raw = {}
        self._reference(spec, "hardwareRef", "Hardware", result)
        self._reference(spec, "templateRef", "Template", result)
        params: dict[str, str] = {}
        for at, key, value in spec.mapping("hardwareMap"):
            if (text := param_text(value, at, self._findings)) is not None:
                params[key] = text
        check_params(params, spec.at("hardwareMap"), self._findings)
        spec.moved("hardwareMap", "spec.templateParams")
        if params:
            result["templateParams"] = params
        if seconds := self._timeout(status, metadata, result):
            result["timeout"] = seconds
        if spec.flag("disabled"):
            metadata["annotations"] = {HOLD_ANNOTATION: _DISABLED, **as_mapping(metadata.get("annotations"))}
            spec.changed("disabled", f"the annotation {HOLD_ANNOTATION} holds it: remove that to let it run")
        options = spec.fields("bootOptions")
        for key in ("toggleAllowNetboot", "isoURL", "bootMode", "custombootConfig"):
            options.drop(key, _BOOT)
        options.rest()
        spec.rest()
        top.rest()
        if self._findings.failed:
            return []
        if not says_nothing(status):
            self._findings.changed("status", "the Workflow starts again, as Pending")
        return [{"apiVersion": API_VERSION, "kind": "Workflow", "metadata": metadata, "spec": result}]

    def _is_over(self, status: Any) -> bool:
        state = as_mapping(status).get("state")
        name = str(state or "").removeprefix("STATE_")
        if name in _WAITING:
            return False
        if name in _ENDED:
            self._findings.dropped("", f"the Workflow has ended ({name}): it has nothing left to do and is left out")
        else:
            self._findings.dropped(
                "",
                f"the Workflow has begun ({name}): let it end where it runs. It is left out, because it would begin "
                "with its first action again",
            )
        return True

    def _reference(self, spec: Fields, key: str, kind: str, result: Raw) -> None:
        name = spec.text(key)
        if not name:
            spec.error(key, f"v1alpha2 needs the name of the {kind}: fill it in")
        elif refusal := constraints.object_name(name):
            spec.error(key, refusal)
        else:
            result[key] = {"name": name}
            spec.moved(key, f"spec.{key}.name")

    def _timeout(self, status: Any, metadata: Raw, result: Raw) -> int | None:
        """Return the Template's `global_timeout`, from its text or from the status that the old controller wrote."""
        noted = as_mapping(status).get("globalTimeout")
        if isinstance(noted, int) and not isinstance(noted, bool) and noted > 0:
            return noted
        name = result.get("templateRef", {}).get("name")
        if not name:
            return None
        template = self._lookup("Template", metadata.get("namespace") or "", name)
        if template is None:
            return None
        from tink.convert.v1alpha1.template import global_timeout  # imported here for the reason in __init__

        return global_timeout(template)
