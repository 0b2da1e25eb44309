"""The estimator: the cost of an expression before any data are seen.

Kubernetes limits the estimated cost of each rule of a CustomResourceDefinition. The estimator walks the tree and tracks
the path in the data that each node comes from, so that the sizes declared in the schema limit its cost (cel-go,
checker/cost.go).
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from tink.kubeapi.cel.costs import EMPTY, LIST_BASE, MAP_BASE, NOTHING, ONE, UNKNOWN, Argument, Cost, Estimate, fixed
from tink.kubeapi.cel.library.functions import OVERLOADS
from tink.kubeapi.cel.tree import Call, Comprehension, Expr, Ident, ListNode, Literal, MapNode, Select, Visitor
from tink.kubeapi.cel.types import CelType, ListType, MapType, ObjectType, Opaque, Scalar, StringType, max_elements
from tink.kubeapi.cel.values import TRAVERSAL_COST

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Entries:
    """The sizes of the keys and values of a list or map."""

    shape: str
    key: Cost
    value: Cost

    def union(self, other: "Entries") -> "Entries":
        """Return the sizes that cover both."""
        return Entries(self.shape, self.key.union(other.key), self.value.union(other.value))


@dataclass(slots=True)
class Facts:
    """The known facts about a node or a loop's variable: the path in the data that it comes from, and its sizes."""

    path: Path | None = None
    size: Cost | None = None
    entries: Entries | None = None


_KEY = StringType(0)
"""The type of a map's keys. They count as empty in Kubernetes as well."""

_SCALARS = frozenset(("bool", "double", "duration", "int", "timestamp", "uint"))


def _scalar(t: CelType) -> bool:
    if isinstance(t, Opaque) and t.name == "optional_type":
        return _scalar(t.params[0])
    return t.shape in _SCALARS


class _Estimator(Visitor[Cost]):
    def __init__(self, variables: Mapping[str, CelType]) -> None:
        self.variables = variables
        self.locals: dict[str, list[Facts]] = {}
        self.facts: defaultdict[Expr, Facts] = defaultdict(Facts)

    # facts about a node

    def local(self, node: Expr) -> Facts | None:
        stack = self.locals.get(node.name) if isinstance(node, Ident) else None
        return stack[-1] if stack else None

    def path(self, node: Expr) -> Path | None:
        return (self.local(node) or self.facts[node]).path

    def declared(self, path: Path | None) -> Cost | None:
        """Return the size that the schema declares at a path, or None if it declares none."""
        if not path:
            return None
        # Kubernetes treats every path as one from `self`, also the paths of types and of values made by loops.
        t = self.variables.get(path[0]) or self.variables.get("self")
        if t is None:
            return None
        for step in path[1:]:
            found: CelType | None = None
            if step in ("@items", "@values"):
                found = t.element if isinstance(t, ListType) else t.value if isinstance(t, MapType) else None
            elif step == "@keys":
                found = _KEY if isinstance(t, MapType) else None
            elif isinstance(t, ObjectType) and step in t.fields:
                found = t.fields[step].type
            if found is None:
                return None
            t = found
        if isinstance(t, Scalar) and t.shape == "dyn" and t.max_size is None:
            return None
        return Cost(0, max_elements(t))

    def size(self, node: Expr) -> Cost | None:
        facts = self.facts[node]
        if facts.size is not None:
            return facts.size
        if isinstance(node, Literal):
            return fixed(len(node.value)) if node.kind in ("string", "bytes") else ONE
        if isinstance(node, ListNode):
            return fixed(len(node.elements))
        if isinstance(node, MapNode):
            return fixed(len(node.entries))
        facts.size = self.declared(self.path(node))
        if facts.size is None and _scalar(node.type):
            return ONE
        local = self.local(node)
        return local.size if local and facts.size is None else facts.size

    def entry(self, node: Expr) -> Entries | None:
        local = self.local(node)
        return self.facts[node].entries or (local.entries if local else None)

    def known(self, node: Expr) -> Cost:
        return self.size(node) or UNKNOWN

    # costs

    def literal(self, _: Literal) -> Cost:
        return NOTHING

    def ident(self, node: Ident) -> Cost:
        local = self.local(node)
        self.facts[node].path = local.path if local else (node.name,)
        return ONE

    def select(self, node: Select) -> Cost:
        if node.named:
            return ONE
        operand = self.visit(node.operand)
        if node.test:
            return operand
        if node.operand.type.shape in ("map", "object"):
            operand = operand + ONE
        self.facts[node].path = (*(self.path(node.operand) or ()), node.field)
        return operand

    def call(self, node: Call) -> Cost:
        if node.function == "dyn" and len(node.args) == 1:
            cost = self.visit(node.args[0]) + ONE
            self.copy(node, node.args[0])
            return cost
        costs = [self.visit(arg) for arg in node.args]
        total = NOTHING
        for cost in costs:
            total = total + cost
        receiver = self.visit(node.target) if node.target else NOTHING
        args = [self.argument(arg) for arg in ([node.target, *node.args] if node.target else node.args)]
        combined, size = EMPTY, None
        for overload in node.overloads:
            estimate = self.overload(node, overload, args, (costs, total))
            combined = combined.union(estimate.cost)
            if estimate.size is not None:
                size = estimate.size.union(size) if size else estimate.size
            if overload in ("index_list", "index_map"):
                entries = self.entry(node.args[0])
                size = entries.value if entries else None
                step = "@items" if overload == "index_list" else "@values"
                self.facts[node].path = (*(self.path(node.args[0]) or ()), step)
            if size is None:
                size = self.size(node)
        if size is not None:
            self.facts[node].size = size
        return receiver + combined

    def argument(self, node: Expr) -> Argument:
        path = self.path(node)
        if path and path[0].startswith("@result"):
            path = None
        element = self.declared((*path, "@items")) if path and node.type.params else None
        return Argument(node, node.type, self.size(node), element)

    def overload(self, node: Call, overload: str, args: list[Argument], given: tuple[list[Cost], Cost]) -> Estimate:
        costs, total = given
        if overload in ("logical_or", "logical_and"):
            return Estimate(Cost(costs[0].min, total.max))
        if overload == "conditional":
            _, truthy, falsy = node.args
            self.unite(node, truthy, falsy)
            return Estimate(costs[0] + costs[1].union(costs[2]), self.known(truthy).union(self.known(falsy)))
        if overload in ("add_string", "add_bytes", "add_list"):
            size = args[0].extent + args[1].extent
            self.unite(node, node.args[0], node.args[1])
            cost = ONE if overload == "add_list" else size.scaled(TRAVERSAL_COST)
            return Estimate(cost + total, size)
        estimate = OVERLOADS[overload].price.estimate(args)
        return Estimate(estimate.cost + total, estimate.size)

    def unite(self, node: Expr, a: Expr, b: Expr) -> None:
        """Set the sizes of the keys and values of a node that is one of two others, or both of them."""
        left, right = self.entry(a), self.entry(b)
        if left is not None and right is not None:
            self.facts[node].entries = left.union(right)

    def copy(self, node: Expr, source: Expr) -> None:
        facts = self.facts[node]
        facts.size, facts.entries = self.size(source) or facts.size, self.entry(source) or facts.entries

    # literals

    def list_literal(self, node: ListNode) -> Cost:
        total, item = NOTHING, EMPTY if node.elements else Cost(0, 0)
        for element in node.elements:
            total = total + self.visit(element)
            item = item.union(self.known(element))
        self.facts[node].entries = Entries("list", ONE, item)
        return total + fixed(LIST_BASE)

    def map_literal(self, node: MapNode) -> Cost:
        total = NOTHING
        key = value = EMPTY if node.entries else Cost(0, 0)
        for entry in node.entries:
            total = total + self.visit(entry.key) + self.visit(entry.value)
            key, value = key.union(self.known(entry.key)), value.union(self.known(entry.value))
        self.facts[node].entries = Entries("map", key, value)
        return total + fixed(MAP_BASE)

    # loops

    def push(self, name: str, local: Facts) -> None:
        self.locals.setdefault(name, []).append(local)

    def comprehension(self, node: Comprehension) -> Cost:
        total = self.visit(node.range) + self.visit(node.initial)
        accumulator = Facts(self.path(node.initial), self.size(node.initial), self.entry(node.initial))
        self.push(node.accumulator, accumulator)
        if node.macro == "bind":
            total = total + self.visit(node.result)
            self.locals[node.accumulator].pop()
            self.copy(node, node.result)
            return total
        names = self.loop_variables(node)
        rounds = self.visit(node.condition)
        rounds = self.visit(node.step) + rounds
        for name in names:
            self.locals[name].pop()
        total = total + self.visit(node.result)
        self.locals[node.accumulator].pop()
        count = self.known(node.range)
        if isinstance(node.initial, Literal):
            self.facts[node].size = self.known(node.initial)
        else:
            self.facts[node].size = count
            self.facts[node].entries = self.entry(node.step) or self.facts[node].entries
        return total + count * rounds

    def loop_variables(self, node: Comprehension) -> list[str]:
        entries, path = self.entry(node.range), self.path(node.range) or ()
        shape = entries.shape if entries else node.range.type.shape
        key, value = (entries.key, entries.value) if entries else (None, None)
        in_list = shape == "list"
        first = Facts((*path, "@indices" if in_list else "@keys"), key)
        second = Facts((*path, "@items" if in_list else "@values"), value)
        if node.variable2:
            variables = {node.variable: first, node.variable2: second}
        else:
            variables = {node.variable: second if in_list else first}
        for name, facts in variables.items():
            self.push(name, facts)
        return list(variables)


def estimate_tree(tree: Expr, variables: Mapping[str, CelType]) -> Cost:
    """Return the range of costs of a checked expression over variables of declared types."""
    return _Estimator(variables).visit(tree)
