"""Convert Workflows of v1alpha1 that have not begun; leave out Workflows that have begun or ended.

Workflows are ephemeral, and the proposal asks users to recreate them. A waiting Workflow is nothing but its spec, which
is converted. A running Workflow can't be moved to another stack, and a restart would install the machine a second time.
An ended Workflow has nothing left to do.
"""

from __future__ import annotations

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
    top = Fields(obj, findings)
    top.ignore("apiVersion", "kind")
    status = as_mapping(stated := top.take("status"))
    state = str(status.get("state") or "").removeprefix("STATE_")
    if state in _ENDED:
        findings.dropped("", f"the Workflow has ended ({state}): it has nothing left to do and is left out")
        return []
    if state not in _WAITING:
        findings.dropped(
            "",
            f"the Workflow has begun ({state}): let it end where it runs. It is left out, because it would begin with "
            "its first action again",
        )
        return []
    metadata = carried(top, findings)
    spec = top.fields("spec")
    result: Raw = {}
    for key, kind in (("hardwareRef", "Hardware"), ("templateRef", "Template")):
        name = spec.text(key)
        if not name:
            spec.error(key, f"v1alpha2 needs the name of the {kind}: fill it in")
        elif refusal := constraints.object_name(name):
            spec.error(key, refusal)
        else:
            result[key] = {"name": name}
            spec.moved(key, f"spec.{key}.name")
    params: dict[str, str] = {}
    for at, key, value in spec.mapping("hardwareMap"):
        if (text := param_text(value, at, findings)) is not None:
            params[key] = text
    check_params(params, spec.at("hardwareMap"), findings)
    spec.moved("hardwareMap", "spec.templateParams")
    if params:
        result["templateParams"] = params
    if seconds := _timeout(status, metadata, result, lookup):
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
    if findings.failed:
        return []
    if not says_nothing(stated):
        findings.changed("status", "the Workflow starts again, as Pending")
    return [{"apiVersion": API_VERSION, "kind": "Workflow", "metadata": metadata, "spec": result}]


def _timeout(status: Raw, metadata: Raw, result: Raw, lookup: Lookup) -> int | None:
    """Return the Template's `global_timeout`, from its text or from the status that the old controller wrote."""
    noted = status.get("globalTimeout")
    if isinstance(noted, int) and not isinstance(noted, bool) and noted > 0:
        return noted
    name = result.get("templateRef", {}).get("name")
    template = lookup("Template", metadata.get("namespace") or "", name) if name else None
    if template is None:
        return None
    from tink.convert.v1alpha1.template import global_timeout  # imported here for the reason in __init__

    return global_timeout(template)
