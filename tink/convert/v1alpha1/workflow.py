"""Convert Workflows of v1alpha1 that have not begun; leave out Workflows that have begun or ended.

Workflows are ephemeral, and the proposal asks users to recreate them. A waiting Workflow is nothing but its spec, which
is converted. A running Workflow can't be moved to another stack, and a restart would install the machine a second time.
An ended Workflow has nothing left to do.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from tink.api import bounds, rules
from tink.api.annotations import HOLD_ANNOTATION
from tink.api.v1alpha2 import API_VERSION, BOOT_DEVICES, POWER_ACTIONS, BootMode, Raw, as_mapping
from tink.convert import constraints
from tink.convert.documents import Lookup
from tink.convert.fields import Fields, carried, check_params, param_text, says_nothing, shown
from tink.convert.findings import Findings

_WAITING = ("", "PENDING")
_DISABLED = "spec.disabled was true in v1alpha1"
_ENDED = ("SUCCESS", "FAILED", "TIMEOUT")
_ISO = "iso"
"""The old name of isoboot in v1alpha1."""
_SMEE_ISO = re.compile(r"/iso/[^/]+/[^/]+\.iso\Z")
_SMEE = "its path is that of Smee's ISO of HookOS, which tinkedge does not serve"
_OWN_MEDIUM = f"{_SMEE}: without isoURL, the BMC boots the machine's own boot medium from the edge"
_OTHER_MEDIUM = f"{_SMEE}: use bootMode isoboot without isoURL, which boots the machine's own boot medium"
_POST = "they are executed after every end of the Workflow: v1alpha1 executed them after a success only"
_NO_ACTION = f"{rules.NAMES_ACTION.message}. v1alpha2 has no others, and the rest would run without this one"


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
    if options := _boot_options(spec.fields("bootOptions"), findings):
        result["bootOptions"] = options
    spec.rest()
    top.rest()
    if findings.failed:
        return []
    if not says_nothing(stated):
        findings.changed("status", "the Workflow starts again, as Pending")
    return [{"apiVersion": API_VERSION, "kind": "Workflow", "metadata": metadata, "spec": result}]


def _boot_options(options: Fields, findings: Findings) -> Raw:
    """Return bootOptions, whose fields have the same names and places in v1alpha2."""
    found: Raw = {}
    if options.flag("toggleAllowNetboot"):
        found["toggleAllowNetboot"] = True
    mode = options.text("bootMode")
    mode = BootMode.ISOBOOT if mode == _ISO else mode
    if mode in list(BootMode):
        found["bootMode"] = str(mode)
    elif mode:
        options.dropped("bootMode", f"must be {', '.join(BootMode)}, is {shown(mode)}")
    if url := _url(options, "isoURL"):
        if _SMEE_ISO.search(url):
            options.changed("isoURL", _OWN_MEDIUM)
        else:
            found["isoURL"] = url
    custom = options.fields("custombootConfig")
    config = {key: made for key in ("preparingActions", "postActions") if (made := _actions(custom, key, findings))}
    if "postActions" in config:
        custom.changed("postActions", _POST)
    if config:
        found["custombootConfig"] = config
    if mode == BootMode.CUSTOMBOOT and "preparingActions" not in config:
        custom.error("preparingActions", rules.NAMES_PREPARING_ACTIONS.message)
    custom.rest()
    options.rest()
    return found


def _actions(custom: Fields, key: str, findings: Findings) -> list[Raw]:
    """Return a list of BMC actions. An action that can't be converted is an error: later ones may depend on it."""
    given = custom.array(key)
    if len(given) > bounds.MAX_BMC_TASKS:
        custom.error(key, f"v1alpha2 takes {bounds.MAX_BMC_TASKS} of them, here are {len(given)}")
    found = []
    for path, value in given:
        action = Fields(value, findings, path)
        made = _action(action)
        action.rest()
        if len(made) != 1:
            findings.error(path, "there are several actions in one: write one after the other" if made else _NO_ACTION)
        found.append(made)
    return found


def _action(action: Fields) -> Raw:
    """Return one action of a BMC; an empty mapping if v1alpha2 does not know the action."""
    found: Raw = {}
    if (power := action.text("powerAction")) is not None:
        found["powerAction"] = _one_of(action, "powerAction", power, POWER_ACTIONS)
    if "oneTimeBootDeviceAction" in action and (once := action.fields("oneTimeBootDeviceAction")):
        devices = once.texts("device")
        # Its first device alone counts, in both versions.
        device = _one_of(once, "device", devices[0][1] if devices else "", BOOT_DEVICES)
        found["oneTimeBootDeviceAction"] = {"device": [device]} | _flags(once, "efiBoot")
        once.rest()
    if "bootDevice" in action and (boot := action.fields("bootDevice")):
        device = _one_of(boot, "device", boot.text("device") or "", BOOT_DEVICES)
        found["bootDevice"] = {"device": device} | _flags(boot, "persistent", "efiBoot")
        boot.rest()
    if "virtualMediaAction" in action and (media := action.fields("virtualMediaAction")):
        made = found["virtualMediaAction"] = {"kind": media.text("kind") or "CD"}
        if url := _url(media, "mediaURL"):
            made["mediaURL"] = url
            if _SMEE_ISO.search(url):
                media.changed("mediaURL", _OTHER_MEDIUM)
        media.rest()
    return found


def _flags(fields: Fields, *keys: str) -> Raw:
    return {key: True for key in keys if fields.flag(key)}


def _one_of(fields: Fields, key: str, value: str, allowed: Collection[str]) -> str:
    if value not in allowed:
        fields.error(key, f"must be one of {', '.join(allowed)}, is {shown(value)}")
    return value


def _url(fields: Fields, key: str) -> str:
    """Return the URL of an image, in which expressions are rewritten; empty if there is none."""
    url = fields.text(key) or ""
    if "{{" not in url:
        if url and constraints.http_url(url):
            fields.error(key, f"{rules.ISO_URL.message} (at most {bounds.MAX_URL_CHARACTERS} characters)")
        return url
    from tink.convert.v1alpha1.expressions import rewrite  # imported here for the reason in __init__

    rewritten = rewrite(url)
    for error in rewritten.errors:
        fields.error(key, error)
    for notice in rewritten.notices:
        fields.changed(key, notice)
    if not rewritten.errors and len(rewritten.text) > bounds.MAX_URL_CHARACTERS:
        fields.error(key, f"longer than {bounds.MAX_URL_CHARACTERS} characters, the most that v1alpha2 takes")
    return rewritten.text


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
