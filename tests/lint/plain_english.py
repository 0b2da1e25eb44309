"""Check the English of docstrings, comments and docs: `python -m tests.lint.plain_english [--list] [PATH ...]`.

The words counted here are signs of sentences that a stranger has to read twice (CONTRIBUTING.md, "Plain English").
Every kind has a maximum over the whole repository. Without PATH, the check fails if one is exceeded. With PATH, it
prints the counts of those files only. `--list` prints each place.
"""

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]

WORDS: Final = {
    "told": re.compile(r"\btold\b"),
    "said": re.compile(r"\bsaid\b"),
    "nobody, somebody, whoever": re.compile(r"\b(?:nobody|somebody|whoever)\b"),
    "mend, anew, for ever": re.compile(r"\b(?:mend(?:s|ed|ing)?|anew|for ever)\b"),
}
OPENING: Final = "docstring that begins with Of, What, Whether, Who, None: or Have the"
_INLINE_CODE: Final = re.compile(r"`[^`]*`")
_OPENING: Final = re.compile(r"(?:Of|What|Whether|Who)\b|None:|Have the\b")

MAXIMUM: Final = {
    "told": 20,
    "said": 20,
    "nobody, somebody, whoever": 30,
    "mend, anew, for ever": 0,
    OPENING: 0,
}
"""Maximum number of places of each kind in the whole repository."""


@dataclass(frozen=True)
class Place:
    """A word or an opening that the check counts.

    path: relative to the repository.
    line: from 1.
    text: the line or the docstring's first line.
    """

    kind: str
    path: str
    line: int
    text: str


def python_places(path: str, source: str) -> Iterator[Place]:
    """Find the places in the docstrings and comments of a Python file; docstrings of attributes count, too."""
    for node in ast.walk(ast.parse(source)):
        for statement in getattr(node, "body", None) or [] if not isinstance(node, ast.Lambda | ast.IfExp) else []:
            match statement:
                case ast.Expr(value=ast.Constant(value=str() as docstring)):
                    first = docstring.lstrip().partition("\n")[0]
                    if _OPENING.match(first):
                        yield Place(OPENING, path, statement.lineno, first)
                    yield from _words(path, statement.lineno, docstring)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield from _words(path, token.start[0], token.string)


def markdown_places(path: str, text: str) -> Iterator[Place]:
    """Find the places in a page of Markdown, without its code blocks and inline code."""
    fenced = False
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and not line.startswith("    "):
            yield from _words(path, number, _INLINE_CODE.sub("", line))


def _words(path: str, line: int, text: str) -> Iterator[Place]:
    for offset, part in enumerate(text.split("\n")):
        lowered = part.lower()
        for kind, pattern in WORDS.items():
            for _ in pattern.findall(lowered):
                yield Place(kind, path, line + offset, part.strip())


def places(paths: list[str]) -> Iterator[Place]:
    """Find all places in the files that git knows below `paths`, or in the whole repository if there are none."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *paths],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for path in filter(None, listed.stdout.split("\0")):
        file = ROOT / path
        if path.endswith((".py", ".md")) and "_pb2" not in path and path != "CHANGELOG.md" and file.exists():
            read = python_places if path.endswith(".py") else markdown_places
            yield from read(path, file.read_text())


def main(arguments: list[str]) -> int:
    """Print the counts, and return 1 if a maximum of the whole repository is exceeded."""
    parser = argparse.ArgumentParser(prog="plain_english", description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--list", action="store_true", help="print each place")
    parser.add_argument("path", nargs="*", help="files or directories; without any, the whole repository")
    options = parser.parse_args(arguments)
    found = list(places(options.path))
    if options.list:
        for place in found:
            print(f"{place.path}:{place.line}: {place.kind}: {place.text}")
    counts = Counter(place.kind for place in found)
    exceeded = []
    for kind, maximum in MAXIMUM.items():
        print(f"{counts[kind]:6d}  {kind} (at most {maximum})")
        if counts[kind] > maximum and not options.path:
            exceeded.append(kind)
    for kind in exceeded:
        print(f"plain English: too often: {kind}; 'python -m tests.lint.plain_english --list' prints the places")
    return 1 if exceeded else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
