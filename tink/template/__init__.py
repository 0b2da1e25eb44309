"""Go text/template for the fields of Template resources, as Go executes it; the data is JSON-like values only.

The way of a text: `lexer` (tokens) -> `parser` (trees of `nodes`) -> `compile` and `expressions` (closures) -> run with
a frame and a budget from `execution`. `functions` and `sprig` are what templates can call, declared by `signatures`;
`errors` what all of it raises. What values there are and how Go shows them: `tink.golang`. `engine` caches and renders
one text; `context` builds the data from a Hardware; `fields` renders a whole Template: it is what the rest of the
program uses.

No Python library renders Go templates rightly, so this is ours; real Go is the oracle (tests/interop).
"""

from tink.template.errors import TemplateError, TemplateSyntaxError
from tink.template.fields import parse_fields, render_actions

__all__ = ["TemplateError", "TemplateSyntaxError", "parse_fields", "render_actions"]
