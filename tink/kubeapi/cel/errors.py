"""The errors of the CEL engine, and how a compile error shows its place in the source.

Compile errors leave through `CelError` with the text that users of Kubernetes know: one block for each
error with the place, the message, the line and a caret. Evaluation errors are `EvaluationError`; the
logical operators absorb them as CEL's definition says. `BudgetExceededError` is never absorbed.
"""

from bisect import bisect_right
from dataclasses import dataclass

MAX_REPORTED = 100
"""Errors shown for one expression; the rest is only counted (cel-go's limit)."""

MAX_SNIPPET = 16384
"""Bytes of a source line that are still shown below an error."""


class CelError(Exception):
    """An expression that cannot be compiled. `str()` is the text Kubernetes gives."""


class EvaluationError(Exception):
    """An evaluation that has no value: missing key, overflow, wrong type, and so on."""


class BudgetExceededError(Exception):
    """The evaluation cost more than it may. `exhausted` tells that the object's budget is gone, not the call's."""

    def __init__(self, *, exhausted: bool = False) -> None:
        super().__init__("operation cancelled: actual cost limit exceeded")
        self.exhausted = exhausted


@dataclass(frozen=True)
class Issue:
    """One compile error. `offset` counts code points from the start of the source; -1 is 'nowhere'."""

    offset: int
    message: str


class Source:
    """An expression's text with the offsets of its lines."""

    __slots__ = ("starts", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.starts = [0, *(at + 1 for at, char in enumerate(text) if char == "\n")]

    def place(self, offset: int) -> tuple[int, int]:
        """Line (from 1) and column (from 0) of an offset; (-1, -1) for nowhere."""
        if offset < 0:
            return -1, -1
        line = bisect_right(self.starts, offset)
        return line, offset - self.starts[line - 1]

    def _show(self, issue: Issue) -> str:
        line, column = self.place(issue.offset)
        if not self.text:
            line, column = 1, -1  # an empty source has no first column
        head = f"ERROR: <input>:{line}:{column + 1}: {issue.message}"
        if line < 1 or not self.text:
            return head
        end = self.text.find("\n", self.starts[line - 1])
        snippet = self.text[self.starts[line - 1] : end if end >= 0 else len(self.text)].replace("\t", " ")
        if len(snippet.encode("utf-8", "surrogatepass")) > MAX_SNIPPET:
            return head
        # A wide dot stands under each character of more than one byte, so that the caret stays in its column.
        marks = "".join("." if c < "\x80" else "\uff0e" for c in snippet[:column])
        caret = "^" if snippet[column : column + 1] < "\x80" else "\uff3e"
        return f"{head}\n | {snippet}\n | {marks}{caret}"

    def report(self, issues: list[Issue]) -> str:
        """The text of all errors, in the order of their places."""
        shown = sorted(issues[:MAX_REPORTED], key=lambda issue: self.place(issue.offset))
        blocks = [self._show(issue) for issue in shown]
        if len(issues) > MAX_REPORTED:
            blocks.append(f"{len(issues) - MAX_REPORTED} more errors were truncated")
        return "\n".join(blocks)
