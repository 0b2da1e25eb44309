"""The checks after the type check: constants that functions can never take, and literals of mixed types.

Kubernetes asks these of every expression: duration and timestamp texts, patterns, format strings.
"""

from collections.abc import Iterator

from tink.kubeapi.cel.errors import EvaluationError, Issue
from tink.kubeapi.cel.library.functions import OVERLOADS
from tink.kubeapi.cel.library.regex import PatternError, compiled
from tink.kubeapi.cel.library.stringformat import ClauseError, allowed, clauses
from tink.kubeapi.cel.syntax.tree import Call, Comprehension, ListNode, Literal, MapNode, Node, Select
from tink.kubeapi.cel.types import Type, same, text_of

_RUNTIME_NAMES = {"duration": "google.protobuf.Duration", "timestamp": "google.protobuf.Timestamp", "null": "null_type"}


def _children(node: Node) -> Iterator[Node]:
    if isinstance(node, Select):
        yield node.operand
    elif isinstance(node, Call):
        if node.target:
            yield node.target
        yield from node.args
    elif isinstance(node, ListNode):
        yield from node.elements
    elif isinstance(node, MapNode):
        for entry in node.entries:
            yield entry.key
            yield entry.value
    elif isinstance(node, Comprehension):
        yield from (node.range, node.initial, node.condition, node.step, node.result)


def _mismatch(node: Node, expected: Type) -> Issue:
    return Issue(node.offset, f"expected type '{text_of(expected)}' but found '{text_of(node.type)}'")


class _Validator:
    def __init__(self) -> None:
        self.issues: list[Issue] = []

    def traversal(self, node: Node, *, mixed: bool) -> None:
        """Checks a node and all below; `mixed` where format() allows literals of mixed types."""
        if isinstance(node, Call):
            self.call(node)
            mixed = mixed or node.function == "format"
        elif not mixed and isinstance(node, ListNode):
            self.list_literal(node)
        elif not mixed and isinstance(node, MapNode):
            self.map_literal(node)
        for child in _children(node):
            self.traversal(child, mixed=mixed)

    def call(self, node: Call) -> None:
        first = node.args[0] if node.args else None
        if node.function in ("duration", "timestamp") and isinstance(first, Literal):
            try:
                OVERLOADS[node.overloads[0]](first.value)
            except (EvaluationError, TypeError):
                self.issues.append(Issue(first.offset, f"invalid {node.function} argument"))
        elif node.function == "matches" and isinstance(first, Literal) and first.kind == "string":
            try:
                compiled(first.value)
            except PatternError:
                self.issues.append(Issue(first.offset, "invalid matches argument"))
        elif node.function == "format" and isinstance(node.target, Literal) and isinstance(first, ListNode):
            self.format(node, node.target.value, first.elements)

    def format(self, node: Call, text: str, args: list[Node]) -> None:
        try:
            used = [clause for _, _, clause in clauses(text, len(args)) if clause]
        except ClauseError as error:
            self.issues.append(Issue(node.offset, str(error)))
            return
        for clause, arg in zip(used, args, strict=False):
            problem, where = self.clause(clause, arg)
            if problem:
                self.issues.append(Issue(where, problem))
                return
        if len(args) > len(used):
            message = f"too many arguments supplied to string.format (expected {len(used)}, got {len(args)})"
            self.issues.append(Issue(node.offset, message))

    def clause(self, clause: str, arg: Node) -> tuple[str, int]:
        name = _RUNTIME_NAMES.get(arg.type.shape) or str(getattr(arg.type, "name", arg.type.shape))
        problem = allowed(clause, name)
        if problem:
            return problem, arg.offset
        if clause == "s":
            parts = list(_children(arg)) if isinstance(arg, ListNode | MapNode) else []
            for part in parts:
                problem, where = self.clause("s", part)
                if problem:
                    return problem, where
        return "", arg.offset

    def list_literal(self, node: ListNode) -> None:
        expected: Type | None = None
        for at, element in enumerate(node.elements):
            t = element.type.params[0] if at in node.optionals and element.type.params else element.type
            if expected is None:
                expected = t
            elif not same(expected, t):
                self.issues.append(_mismatch(element, expected))
                return

    def map_literal(self, node: MapNode) -> None:
        keys: Type | None = None
        values: Type | None = None
        for entry in node.entries:
            t = entry.value.type.params[0] if entry.optional and entry.value.type.params else entry.value.type
            if keys is None or values is None:
                keys, values = entry.key.type, t
                continue
            if not same(keys, entry.key.type):
                self.issues.append(_mismatch(entry.key, keys))
            if not same(values, t):
                self.issues.append(_mismatch(entry.value, values))


def validate(tree: Node) -> list[Issue]:
    """What is wrong with a checked tree's constants and literals."""
    validator = _Validator()
    validator.traversal(tree, mixed=False)
    return validator.issues
