"""Values that older Workflows give their Templates, as `spec.templateParams`, which are strings."""

from __future__ import annotations

import json
from typing import Any

from tink.api import bounds
from tink.convert.fields import type_name
from tink.convert.findings import Findings


def param_text(value: Any, at: str, findings: Findings) -> str | None:
    """A value as a templateParam, which is a string; None for null."""
    if value is None or isinstance(value, str):
        return value
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if isinstance(value, dict | list):
        findings.changed(at, f"is {type_name(value)}, and a string of JSON now: use it as (fromJson .Params.NAME)")
    else:
        findings.changed(at, f"is {type_name(value)}, and the string {text} now")
    return text


def check_params(params: dict[str, str], at: str, findings: Findings) -> None:
    """Report what v1alpha2 takes no more of."""
    if len(params) > bounds.MAX_TEMPLATE_PARAMS:
        findings.error(at, f"v1alpha2 takes {bounds.MAX_TEMPLATE_PARAMS} parameters, here are {len(params)}")
    for key, text in params.items():
        if len(text) > bounds.MAX_TEXT_CHARACTERS:
            findings.error(
                f"{at}.{key}", f"longer than {bounds.MAX_TEXT_CHARACTERS} characters, the most that v1alpha2 takes"
            )
