"""The exceptions of this package, with Go's messages.

The package raises `TemplateError` for a bad template, bad values or an exceeded limit. Its text is the line that Go's
text/template would print (`template: NAME:LINE:COLUMN: executing "NAME" at <EXPR>: ...`), so that operators recognise
it and find it on the web. Its attributes serve status conditions. For a field of a Template resource, NAME is the path
of the field.
"""

from __future__ import annotations

from typing import Final

from tink.errors import TinkedgeError


class TemplateError(TinkedgeError):
    """A template that cannot be parsed or executed.

    Attributes: `name` of the template (or path of the field), `line` (from 1; 0 if unknown) and `column` (bytes from
    the start of the line, from 0, as Go counts).
    """

    def __init__(self, message: str, *, name: str = "", line: int = 0, column: int = 0) -> None:
        super().__init__(message)
        self.name = name
        self.line = line
        self.column = column


class TemplateSyntaxError(TemplateError):
    """The text is no Go template, or calls a function that does not exist."""


class TemplateExecutionError(TemplateError):
    """The template does not fit these values, or it exceeds a limit."""


_MAX_SHOWN: Final = 200


def shortened(text: str) -> str:
    """Return text for a message, shortened: long text would fill the status that shows the message."""
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "..."


def place(text: str, position: int) -> tuple[int, int]:
    """Return line (from 1) and column (bytes, from 0) of a character position, as Go's ErrorContext counts them."""
    start = text.rfind("\n", 0, position) + 1
    line = text.count("\n", 0, position) + 1
    return line, len(text[start:position].encode("utf-8", "replace"))
