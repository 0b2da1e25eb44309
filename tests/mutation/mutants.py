"""The mutants of a package: mutmut's operators, applied at every place of its files except for annotations, decorators
and imports.

mutmut's own runner is not used: it leaves out module level and decorated functions (properties, most of a table), and
it draws no sample.
"""

from __future__ import annotations

import ast
import io
import random
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import libcst
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators


@dataclass(frozen=True)
class Mutant:
    """One change of one file. Two commits have the same mutant where everything but `line` and `lines` is equal."""

    file: str
    operator: str
    statement: str
    before: str
    after: str
    nth: int
    """Its number among the mutants of its file that are otherwise equal."""
    line: int = field(compare=False)
    lines: tuple[int, int] = field(compare=False)
    """The first and the last line of the statement, or of a compound statement's header."""


class Source:
    """A file of the product, and its mutants."""

    def __init__(self, root: Path, file: str) -> None:
        self._text = (root / file).read_text()
        self._file = file
        wrapper = MetadataWrapper(libcst.parse_module(self._text))
        self._module = wrapper.module
        self._spans = dict(_statement_spans(self._text))
        self._lines = self._text.splitlines()
        visitor = _Visitor()
        wrapper.visit(visitor)
        self._replacements: dict[Mutant, tuple[libcst.CSTNode, libcst.CSTNode]] = {}
        counts = Counter[tuple[str, ...]]()
        for line, operator, node, mutated in visitor.found:
            mutant = self._mutant(line, operator, node, mutated, counts)
            self._replacements[mutant] = (node, mutated)

    def _mutant(
        self, line: int, operator: str, node: libcst.CSTNode, mutated: libcst.CSTNode, counts: Counter[tuple[str, ...]]
    ) -> Mutant:
        lines = self._spans.get(line, (line, line))
        statement = _on_one_line("\n".join(self._lines[lines[0] - 1 : lines[1]]))
        before, after = (_on_one_line(self._module.code_for_node(each)) for each in (node, mutated))
        key = (operator, statement, before, after)
        counts[key] += 1
        return Mutant(self._file, operator, statement, before, after, counts[key], line, lines)

    @property
    def mutants(self) -> Iterable[Mutant]:
        return self._replacements.keys()

    def mutated(self, mutant: Mutant) -> str | None:
        """Return the mutated file, or None if it does not compile or is the same program."""
        code = self._module.deep_replace(*self._replacements[mutant]).code  # type: ignore[attr-defined]
        try:
            is_same = ast.dump(ast.parse(code)) == ast.dump(ast.parse(self._text))
            compile(code, self._file, "exec")
        except (SyntaxError, ValueError):
            return None
        return None if is_same else code


def sources(root: Path, package: str) -> dict[str, Source]:
    """Return the files of a package by their names, relative to `root`."""
    files = sorted((root / package).rglob("*.py"))
    return {name: Source(root, name) for name in (file.relative_to(root).as_posix() for file in files)}


def sample(files: dict[str, Source], size: int, seed: str) -> dict[Mutant, str]:
    """Draw mutants and return the text of the mutated file for each. A smaller sample is the start of a larger one."""
    every = [mutant for source in files.values() for mutant in source.mutants]
    random.Random(seed).shuffle(every)
    drawn: dict[Mutant, str] = {}
    for mutant in every:
        if len(drawn) == size:
            break
        if (code := files[mutant.file].mutated(mutant)) is not None:
            drawn[mutant] = code
    return drawn


class _Visitor(libcst.CSTVisitor):
    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[int, str, libcst.CSTNode, libcst.CSTNode]] = []

    def on_visit(self, node: libcst.CSTNode) -> bool:
        if isinstance(node, libcst.Annotation | libcst.Decorator | libcst.Import | libcst.ImportFrom) or _is_all(node):
            return False
        position = self.get_metadata(PositionProvider, node, None)
        for kind, operator in mutation_operators:
            if position is not None and isinstance(node, kind):
                name = operator.__name__.removeprefix("operator_")
                self.found += [(position.start.line, name, node, mutated) for mutated in operator(node)]
        return True


def _is_all(node: libcst.CSTNode) -> bool:
    """Return True for `__all__ = ...`, which no test can see."""
    if not isinstance(node, libcst.Assign):
        return False
    target = node.targets[0].target
    return isinstance(target, libcst.Name) and target.value == "__all__"


def _statement_spans(text: str) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield each line with the first and the last line of its statement, as the tokenizer sees them."""
    first = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.NL, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT):
            continue
        first = first or token.start[0]
        if token.type == tokenize.NEWLINE:
            yield from ((line, (first, token.end[0])) for line in range(first, token.end[0] + 1))
            first = 0


def _on_one_line(text: str) -> str:
    return " ".join(text.split())
