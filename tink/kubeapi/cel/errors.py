"""The errors of the CEL engine, and the text that shows the place of a compile error in the source.

`CelError` is a compile error in the text that users of Kubernetes know: one block for each error with the place, the
message, the line and a caret. The logical operators absorb an `EvaluationError`, as CEL defines it. They never absorb
a `BudgetExceededError`.
"""

from bisect import bisect_right
from dataclasses import dataclass

from tink.errors import TinkedgeError

MAX_REPORTED = 100
"""Maximum number of errors in the text for one expression. Further errors are only counted (cel-go's limit)."""

MAX_SNIPPET = 16384
"""Maximum length in bytes of a source line that is shown below an error."""


class CelError(TinkedgeError):
    """The expression does not compile. `str()` returns Kubernetes' text."""


class EvaluationError(TinkedgeError):
    """The evaluation has no value, for example because of a missing key, an overflow or a wrong type."""


class BudgetExceededError(TinkedgeError):
    """The evaluation costs too much. `exhausted` is True if the budget of the object is spent, not only that of the
    call.
    """

    def __init__(self, *, exhausted: bool = False) -> None:
        super().__init__("operation cancelled: actual cost limit exceeded")
        self.exhausted = exhausted


@dataclass(frozen=True)
class Issue:
    """One compile error. `offset` counts code points from the start of the source; -1 means that the error has no
    place.
    """

    offset: int
    message: str


def report(source: str, issues: list[Issue]) -> str:
    """Return the text of all errors in an expression, sorted by place."""
    starts = [0, *(at + 1 for at, char in enumerate(source) if char == "\n")]

    def place(issue: Issue) -> tuple[int, int]:
        """Return the line (from 1) and column (from 0), or (-1, -1) if the error has no place."""
        line = bisect_right(starts, issue.offset)
        return (-1, -1) if issue.offset < 0 else (line, issue.offset - starts[line - 1])

    shown = sorted(issues[:MAX_REPORTED], key=place)
    blocks = [_show(source, starts, issue, *place(issue)) for issue in shown]
    if len(issues) > MAX_REPORTED:
        blocks.append(f"{len(issues) - MAX_REPORTED} more errors were truncated")
    return "\n".join(blocks)


def _show(source: str, starts: list[int], issue: Issue, line: int, column: int) -> str:
    if not source:
        line, column = 1, -1  # an empty source has no first column
    head = f"ERROR: <input>:{line}:{column + 1}: {issue.message}"
    if line < 1 or not source:
        return head
    snippet = source[starts[line - 1] :].partition("\n")[0].replace("\t", " ")
    if len(snippet.encode("utf-8", "surrogatepass")) > MAX_SNIPPET:
        return head
    # A wide dot stands under each character of more than one byte, so that the caret stays in its column.
    marks = "".join("." if c < "\x80" else "\uff0e" for c in snippet[:column])
    caret = "^" if snippet[column : column + 1] < "\x80" else "\uff3e"
    return f"{head}\n | {snippet}\n | {marks}{caret}"
