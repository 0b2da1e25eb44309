"""Convert Tinkerbell's v1alpha1 to v1alpha2: Hardware, Template and Workflow.

A Template is a text of YAML with Go expressions in it: `template_text` reads the text, `expressions` rewrites each
expression, and `template` puts the fields in their new places.
"""

from __future__ import annotations

from tink.api.v1alpha2 import Raw
from tink.convert.findings import Findings
from tink.convert.v1alpha1.hardware import convert_hardware
from tink.convert.v1alpha1.workflow import convert_workflow

API_VERSION = "tinkerbell.org/v1alpha1"


def convert_template(obj: Raw, findings: Findings, registry: str = "") -> list[Raw]:
    """Return the Template; nothing if there is an error. `registry` is put before images that name none."""
    # Imported here, because the template engine takes 0.1 s to load, and a rack of Hardware has no Templates.
    from tink.convert.v1alpha1.template import convert_template

    return convert_template(obj, findings, registry)


def actions_of(text: str, name: str, findings: Findings, body: Raw | None = None) -> Raw | None:
    """Return the spec of the Template, without the comments of its text; None if there is an error.

    `body` is the value that PyYAML has written the text of, if that is known: to read the text takes longer.
    """
    from tink.convert.v1alpha1.template import actions_of

    return actions_of(text, name, findings, body)


__all__ = ["API_VERSION", "actions_of", "convert_hardware", "convert_template", "convert_workflow"]
