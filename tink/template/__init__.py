"""Render Go text/template in the fields of Template resources, as Go executes it, over JSON-like values.

The path of a text: `lexer` makes tokens, `parser` makes trees of `nodes`, `compile` makes closures, caches
and runs them.
Templates can call the functions in `functions` and `sprig`, which `signatures` declares. `errors` has the exceptions.
`tink.golang` has the values and their Go representation. `fields` builds
the data from a Hardware and renders a whole Template: the rest of the program uses it. `v1alpha1` renders the texts of
older Templates.

No Python library renders Go templates correctly, so this package is our own. Tests compare it with real Go
(tests/interop).
"""

from tink.template.errors import TemplateError, TemplateSyntaxError
from tink.template.fields import MAX_RESULT_BYTES, RenderedTemplate, parse_fields, render_actions, render_text
from tink.template.v1alpha1 import NO_REFERENCES, render_v1alpha1

__all__ = [
    "MAX_RESULT_BYTES",
    "NO_REFERENCES",
    "RenderedTemplate",
    "TemplateError",
    "TemplateSyntaxError",
    "parse_fields",
    "render_actions",
    "render_text",
    "render_v1alpha1",
]
