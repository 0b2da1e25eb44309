"""What can go wrong with a template, worded as Go words it.

Everything that this package raises for a bad template, bad values or an exceeded bound is a `TemplateError`; its text
is the line that Go's text/template would have printed (`template: NAME:LINE:COLUMN: executing "NAME" at <EXPR>: ...`),
so that what operators know, and what they find when they search for it, still holds. The parts are attributes, for
status conditions and for pointing at the place. For a field of a Template resource, NAME is the path of the field.
"""

from __future__ import annotations

from typing import Final


class TemplateError(Exception):
    """A template that cannot be parsed or executed.

    Attributes: `name` of the template (or path of the field), `line` (from 1; 0 where there is no place) and `column`
    (bytes from the start of the line, from 0, as Go counts).
    """

    def __init__(self, message: str, *, name: str = "", line: int = 0, column: int = 0) -> None:
        super().__init__(message)
        self.name = name
        self.line = line
        self.column = column


class TemplateSyntaxError(TemplateError):
    """The text is no Go template, or calls a function that does not exist."""


class TemplateExecutionError(TemplateError):
    """The template is well-formed, but not for these values, or it exceeds a bound."""


_LONGEST_SHOWN: Final = 200


def shortened(text: str) -> str:
    """Text for a message: what is long would fill the status that the message ends up in."""
    return text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "..."


def place(text: str, position: int) -> tuple[int, int]:
    """Line (from 1) and column (bytes, from 0) of a character position, as Go's ErrorContext counts them."""
    start = text.rfind("\n", 0, position) + 1
    line = text.count("\n", 0, position) + 1
    return line, len(text[start:position].encode("utf-8", "replace"))
