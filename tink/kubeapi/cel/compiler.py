"""The compiler: turns a checked tree into closures over a frame (see `frame`), and the evaluation of the result.

The types from the checker choose the fast form of each operation. Each kind of loop runs as a plain Python loop, and
charges the cost of Kubernetes' generic loop: reading the accumulator costs 1, testing it 2 (`all`) or 3 (`exists`) in
each round, a list of one element 10 and its addition 1. The macros in `parser` show what a round consists of.
"""

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tink.kubeapi.cel import operators
from tink.kubeapi.cel.checker import check
from tink.kubeapi.cel.costs import LIST_BASE, MAP_BASE, Charge, Cost, pattern_cost
from tink.kubeapi.cel.errors import BudgetExceededError, CelError, EvaluationError
from tink.kubeapi.cel.estimate import estimate_tree
from tink.kubeapi.cel.frame import (
    ABSORBED,
    SLICE,
    VARIABLES,
    Code,
    CostBudget,
    Frame,
    Traversal,
    as_error,
    charged,
    constant,
    end_slice,
)
from tink.kubeapi.cel.library import functions
from tink.kubeapi.cel.library.conversions import span
from tink.kubeapi.cel.library.functions import OVERLOADS, Overload, charge_for
from tink.kubeapi.cel.library.regex import PatternError, find_all, pattern_tester
from tink.kubeapi.cel.parser import MAX_DEPTH, parse
from tink.kubeapi.cel.tree import (
    Call,
    Comprehension,
    Expr,
    Ident,
    ListNode,
    Literal,
    MapNode,
    Select,
    Visitor,
    qualified,
)
from tink.kubeapi.cel.types import DURATION, TIMESTAMP, CelType, Opaque, declared_field, runtime_name
from tink.kubeapi.cel.values import MAX_INT, Duration, Optional, TypeValue, cost_of, no_overload, type_name

_Rounds = Callable[[Frame], Iterable[None]]


def _rounds(over: Code, slots: list[int]) -> _Rounds:
    """Return a generator function that sets the one or two variables of a loop for each element."""
    get, slot, slot2 = over.run, slots[0], slots[-1]

    def single(frame: Frame) -> Iterable[None]:
        items = get(frame)
        if not isinstance(items, list | dict):
            raise EvaluationError(f"got '{type_name(items)}', expected iterable type")
        for item in items:
            frame[slot] = item
            yield

    def double(frame: Frame) -> Iterable[None]:
        items = get(frame)
        if not isinstance(items, list | dict):
            raise EvaluationError(f"unsupported comprehension range type: {type_name(items)}")
        for key, value in items.items() if type(items) is dict else enumerate(items):
            frame[slot], frame[slot2] = key, value
            yield

    return single if len(slots) == 1 else double


def _quantifier(over: Code, slots: list[int], predicate: Code, *, every: bool) -> Code:
    """Compile `all` (`every` is True) or `exists`.

    The loop stops at the first element that decides. An error counts only if no element decides.
    """
    per_round = (3 if every else 4) + predicate.cost
    per_test = per_round - 1 - predicate.cost
    test, loop, stop = predicate.run, _rounds(over, slots), not every

    def run(frame: Frame) -> bool:
        failed: BaseException | None = None
        decided = False
        for _ in loop(frame):
            if decided:
                frame[0] -= per_test
                break
            frame[0] -= per_round
            if frame[0] < 0:
                end_slice(frame)
            try:
                value = test(frame)
                if value is stop:
                    decided = True
                elif value is not every:
                    raise no_overload()
            except ABSORBED as error:
                failed = failed or error
        if decided:
            return stop
        if failed is not None:
            raise as_error(failed)
        return every

    return Code(run, over.cost + 1)


def _exactly_one(over: Code, slots: list[int], predicate: Code) -> Code:
    """Compile `exists_one`. The loop visits every element, and any error counts."""
    test, loop, per_round = predicate.run, _rounds(over, slots), predicate.cost

    def run(frame: Frame) -> bool:
        count = 0
        failed: BaseException | None = None
        for _ in loop(frame):
            frame[0] -= per_round
            end_slice(frame)
            try:
                value = test(frame)
                if value is True:
                    frame[0] -= 2
                    count = min(count + 1, MAX_INT)
                elif value is not False:
                    raise no_overload()
            except ABSORBED as error:
                failed = error if failed is None else failed
        if failed is not None:
            raise as_error(failed)
        return count == 1

    return Code(run, over.cost + 2)


def _collect(over: Code, slots: list[int], element: Code, predicate: Code | None) -> Code:
    """Compile `map`, `filter` and `transformList`: a list of the results of `element` where `predicate` holds."""
    body = 2 + (0 if element.constant else LIST_BASE) + element.cost
    loop, make = _rounds(over, slots), element.run
    test = predicate.run if predicate else None
    per_round = predicate.cost if predicate else body

    def run(frame: Frame) -> list[Any]:
        out: list[Any] = []
        for _ in loop(frame):
            frame[0] -= per_round
            end_slice(frame)
            if test is not None:
                value = test(frame)
                if value is False:
                    continue
                if value is not True:
                    raise no_overload()
                frame[0] -= body
            out.append(make(frame))
        return out

    return Code(run, over.cost + 1)


def _insert(over: Code, slots: list[int], value: Code, predicate: Code | None, *, entry: bool) -> Code:
    """Compile `transformMap`, or `transformMapEntry` if `value` is an `entry`."""
    loop, get, slot = _rounds(over, slots), value.run, slots[0]
    body = value.cost + (2 if entry else 3)
    test = predicate.run if predicate else None
    per_round = predicate.cost if predicate else body

    def run(frame: Frame) -> dict[Any, Any]:
        out: dict[Any, Any] = {}
        for _ in loop(frame):
            frame[0] -= per_round
            end_slice(frame)
            if test is not None:
                value = test(frame)
                if value is False:
                    continue
                if value is not True:
                    raise no_overload()
                frame[0] -= body
            if entry:
                functions.insert_all(out, get(frame))
            else:
                functions.insert_entry(out, frame[slot], get(frame))
        return out

    return Code(run, over.cost + 1)


_CONVERSIONS = frozenset(("bool", "bytes", "double", "duration", "dyn", "int", "string", "timestamp", "type", "uint"))
_RECEIVERS = frozenset(("string", runtime_name(TIMESTAMP), runtime_name(DURATION)))
_NUMBERS = frozenset(("int", "uint", "double"))
_OPERANDS = {
    "_-_": _RECEIVERS | _NUMBERS,
    "_+_": _RECEIVERS | _NUMBERS | {"bytes", "list"},
    "_*_": _RECEIVERS | _NUMBERS,
    "_/_": _RECEIVERS | _NUMBERS,
    "_%_": _RECEIVERS | {"int", "uint"},
    "-_": _RECEIVERS | {"int", "double", "bool"},
    "size": _RECEIVERS | {"bytes", "list", "map"},
}
"""Functions whose error message contains only their name if no overload takes the first operand."""


_PLAIN = frozenset(("contains", "startsWith", "endsWith", "matches", "@in"))
"""Functions whose error message never contains the types of the arguments."""


def _accepts(overload: Overload, names: tuple[str, ...]) -> bool:
    """Return True if an overload takes values of types with these names. Only the outermost types are compared."""
    pairs = zip(overload.args, names, strict=False)
    return all(wanted.shape in ("dyn", "typevar") or name == runtime_name(wanted) for wanted, name in pairs)


def _is_dyn(node: Expr) -> bool:
    # The check accepts null as an object or time, so the types of values are compared for null as well.
    return node.type.shape in ("dyn", "null", "typevar", "!error!")


class _Compiler(Visitor[Code]):
    """Compiles one expression with `visit`. `slots` are the places of variables in the frame; `size` is its length."""

    def __init__(self, slots: dict[str, int], types: Mapping[str, CelType]) -> None:
        self.types = types
        self.size = VARIABLES + len(slots)
        self.names: dict[str, list[int]] = {name: [slot] for name, slot in slots.items()}
        self.globals = frozenset(slots.values())

    def push(self, name: str) -> int:
        """Return a new place in the frame for a loop's variable."""
        slot = self.size
        self.size += 1
        self.names.setdefault(name, []).append(slot)
        return slot

    def literal(self, node: Literal) -> Code:
        return constant(node.value)

    def ident(self, node: Ident) -> Code:
        if node.names_type:
            return constant(TypeValue(node.name))
        slot = self.names[node.name][-1]
        return operators.read_slot(slot, self.types[node.name] if slot in self.globals else None)

    # fields and indexes

    def base(self, node: Expr) -> Code:
        """Compile the operand of a selection. An operand that is not a variable costs 1 more, as in cel-go."""
        code = self.visit(node)
        free = code.attribute or (isinstance(node, Call) and node.function == "_?_:_")
        return code if free else Code(code.run, code.cost + 1)

    def select(self, node: Select) -> Code:
        """Compile `a.b`, and the test `has(a.b)`."""
        if node.named:
            return constant(TypeValue(qualified(node) or ""))
        operand = self.base(node.operand)
        target = node.operand.type
        declared = declared_field(target, node.field)
        if node.test:
            if declared:
                read, key = operand.run, declared.name_in_json
                return Code(lambda frame: read(frame).get(key) is not None, operand.cost)
            return Code(operators.has_key(operand.run, node.field), operand.cost)
        if isinstance(target, Opaque):
            return self.optional_field(operand, target, node.field)
        if declared is None:
            return Code(operators.read_string_key(operand.run, node.field), operand.cost + 1, attribute=True)
        name = declared.name_in_json
        run = operators.read_field(operand.run, name, declared.type, node.field)
        return Code(run, operand.cost + 1, attribute=True)

    def optional_field(self, operand: Code, target: CelType, name: str) -> Code:
        """Compile `a.?b`, or `a.b` of an optional."""
        inner = target.params[0] if isinstance(target, Opaque) else target
        declared = declared_field(inner, name)
        key, t = (declared.name_in_json, declared.type) if declared else (name, inner)
        run = operators.read_optional_field(operand.run, key, inner, t)
        return Code(run, operand.cost, attribute=True)

    def index(self, node: Call) -> Code:
        operand, at = self.base(node.args[0]), self.visit(node.args[1])
        if at.constant:
            try:
                operators.checked_key(at.value)
            except EvaluationError as error:
                raise CelError(f"program instantiation failed: {error}") from None
        # An index that is a variable costs nothing to read, as in cel-go.
        fixed = operand.cost + at.cost - (1 if at.attribute else 0)
        if node.function == "_[?_]" or isinstance(node.args[0].type, Opaque):
            return Code(operators.read_optional_index(operand.run, at.run), fixed, attribute=True)
        return Code(operators.read_index(operand.run, at.run), fixed + 1, attribute=True)

    # literals

    def list_literal(self, node: ListNode) -> Code:
        parts = [self.visit(element) for element in node.elements]
        runs = [part.run for part in parts]
        optionals = node.optionals

        def run(frame: Frame) -> list[Any]:
            return [part(frame) for part in runs]

        def run_optional(frame: Frame) -> list[Any]:
            out = []
            for at, part in enumerate(runs):
                value = part(frame)
                if at in optionals:
                    if type(value) is not Optional:
                        raise EvaluationError("cannot initialize optional list element from non-optional value")
                    if not value.present:
                        continue
                    value = value.value
                out.append(value)
            return out

        if all(part.constant for part in parts) and not optionals:
            return constant([part.value for part in parts])
        return Code(run_optional if optionals else run, sum(part.cost for part in parts) + LIST_BASE)

    def map_literal(self, node: MapNode) -> Code:
        parts = [(self.visit(e.key), self.visit(e.value), e.optional) for e in node.entries]
        runs = [(key.run, value.run, optional) for key, value, optional in parts]

        def run(frame: Frame) -> dict[Any, Any]:
            out: dict[Any, Any] = {}
            for get_key, get_value, optional in runs:
                key, value = get_key(frame), get_value(frame)
                if optional:
                    if type(value) is not Optional:
                        raise EvaluationError("cannot initialize optional entry from non-optional value")
                    if not value.present:
                        out.pop(key, None)
                        continue
                    value = value.value
                out[key] = value
            return out

        if all(k.constant and v.constant and not optional for k, v, optional in parts):
            try:
                return constant(run([]))
            except TypeError:
                pass
        return Code(run, sum(k.cost + v.cost for k, v, _ in parts) + MAP_BASE)

    # calls

    def call(self, node: Call) -> Code:
        function = node.function
        if function in ("_[_]", "_[?_]"):
            return self.index(node)
        if function == "_?._":
            name = node.args[1]
            assert isinstance(name, Literal)  # noqa: S101 - the parser makes no other
            return self.optional_field(self.base(node.args[0]), node.args[0].type, name.value)
        given = [node.target, *node.args] if node.target else node.args
        args = [self.visit(arg) for arg in given]
        if function in ("_&&_", "_||_"):
            return operators.logical(args, stop=function == "_||_")
        special = self.operator(node, given, args)
        return special if special is not None else self.function(node, given, args)

    def operator(self, node: Call, given: list[Expr], args: list[Code]) -> Code | None:
        """Compile an operator that has its own rules. Return None for plain functions."""
        function = node.function
        if function == "_?_:_":
            return operators.conditional(*args)
        if function in ("_==_", "_!=_"):
            return operators.equals(args[0], args[1], given[0].type, given[1].type, wanted=function == "_==_")
        if function == "!_":
            return operators.negation(args[0])
        if function in ("_<_", "_<=_", "_>_", "_>=_"):
            return operators.ordered(function, args[0], args[1], given[0].type, given[1].type, node.overloads)
        if function == "or" and len(args) == 2:
            return self.alternative(args, whole=True)
        if function == "orValue":
            return self.alternative(args, whole=False)
        if function == "@in" and node.overloads == ["in_list"] and args[1].constant:
            return operators.member_of_constant(args[0], args[1].value)
        if not any(map(_is_dyn, given)) and len(args) == 2 and len(node.overloads) == 1:
            return operators.integer_arithmetic(node.overloads[0], *args)
        return None

    def alternative(self, args: list[Code], *, whole: bool) -> Code:
        """Compile `a.or(b)` (`whole` is True) and `a.orValue(b)`."""
        left, right = args[0].run, charged(args[1])

        def run(frame: Frame) -> Any:
            value = left(frame)
            if type(value) is not Optional:
                raise no_overload()
            if value.present:
                return value if whole else value.value
            return right(frame)

        return Code(run, args[0].cost)

    def function(self, node: Call, given: list[Expr], args: list[Code]) -> Code:
        pattern = self.pattern(node, given, args)
        if pattern is not None:
            return pattern
        implementation = self.implementation(node, given)
        if node.function in _CONVERSIONS and len(args) == 1 and args[0].constant:
            try:
                return constant(implementation(args[0].value))
            except EvaluationError as error:
                raise CelError(f"program instantiation failed: {error}") from None
        walks = any(OVERLOADS[ident].walks for ident in node.overloads)
        return _function_call(implementation, args, charge_for(node.function, node.overloads), walks=walks)

    def implementation(self, node: Call, given: list[Expr]) -> Any:
        """Return the Python function for a call.

        If several overloads are possible, the function chooses one by the types of the values. It takes a `Traversal`
        before the arguments if one of the overloads does.
        """
        ids = node.overloads
        if len(ids) == 1 and not any(map(_is_dyn, given)):
            return OVERLOADS[ids[0]].run
        operands, name = _OPERANDS.get(node.function), node.function
        overloads = [OVERLOADS[ident] for ident in ids]

        @functools.cache  # there are about twenty names of types
        def find(*names: str) -> Overload | None:
            return next((each for each in overloads if each.run and _accepts(each, names)), None)

        def choose_walking(traversal: Traversal, *values: Any) -> Any:
            return choose(*values, traversal=traversal)

        def choose(*values: Any, traversal: Traversal | None = None) -> Any:
            names = list(map(type_name, values))
            found = find(*names)
            if found is not None and found.run is not None:
                return found.run(traversal, *values) if found.walks else found.run(*values)
            if name == "-_" and type(values[0]) is Duration:
                return span(-values[0].ns)  # not declared, but cel-go evaluates it
            if operands is None and name not in _PLAIN:
                raise EvaluationError(f"no such overload: {name}({', '.join(names)})")
            if operands is not None and names[0] not in operands:
                raise EvaluationError(f"no such overload: {name}")
            raise no_overload()

        return choose_walking if any(each.walks for each in overloads) else choose

    def pattern(self, node: Call, given: list[Expr], args: list[Code]) -> Code | None:
        """Compile `matches`, `find` and `findAll` with a constant pattern, so that RE2 compiles the pattern once."""
        if node.function not in ("matches", "find", "findAll") or not args[1].constant or _is_dyn(given[0]):
            return None
        source, text = args[1].value, args[0].run
        try:
            test = pattern_tester(source)
        except PatternError as error:
            raise CelError(f"program instantiation failed: {error}") from None
        size = len(source)
        if node.function == "matches":
            fixed = 1 if node.overloads == ["matches"] else 0
            unit = 0 if fixed else pattern_cost("", size)

            def run(frame: Frame) -> bool:
                value = text(frame)
                frame[0] -= unit if len(value) < 10 else unit * cost_of(len(value) + 1)
                return test(value)

            return Code(run, args[0].cost + fixed)
        limit = args[2].run if len(args) > 2 else None
        single = node.function == "find"

        def find(frame: Frame) -> Any:
            value = text(frame)
            found = find_all(source, value, 1 if single else limit(frame) if limit else -1)
            frame[0] -= pattern_cost(value, size)
            return found if not single else found[0] if found else ""

        return Code(find, sum(arg.cost for arg in args))

    # loops

    def comprehension(self, node: Comprehension) -> Code:
        if node.macro == "bind":
            compute = charged(self.visit(node.initial))
            at = self.push(node.accumulator)
            result = self.visit(node.result)
            self.names[node.accumulator].pop()
            inner = result.run

            def run(frame: Frame) -> Any:
                frame[at] = compute(frame)
                return inner(frame)

            return Code(run, result.cost)
        over = self.visit(node.range)
        names = [name for name in (node.variable, node.variable2) if name]
        code = self.loop(node, over, list(map(self.push, names)))
        for name in names:
            self.names[name].pop()
        return code

    def loop(self, node: Comprehension, over: Code, slots: list[int]) -> Code:
        """Compile the loop of a macro over compiled elements. `slots` are the places of its variables."""
        step = node.step
        assert isinstance(step, Call)  # noqa: S101 - every macro's step is a call
        if node.macro in ("all", "exists"):
            return _quantifier(over, slots, self.visit(step.args[1]), every=node.macro == "all")
        if node.macro == "exists_one":
            return _exactly_one(over, slots, self.visit(step.args[0]))
        predicate = None
        if step.function == "_?_:_":
            predicate = self.visit(step.args[0])
            inner = step.args[1]
            assert isinstance(inner, Call)  # noqa: S101 - as above
            step = inner
        if node.macro == "map":
            element = step.args[1]
            assert isinstance(element, ListNode)  # noqa: S101 - the macro makes it so
            return _collect(over, slots, self.visit(element.elements[0]), predicate)
        return _insert(over, slots, self.visit(step.args[-1]), predicate, entry=len(step.args) == 2)


def _function_call(implementation: Any, args: list[Code], charge: Charge | None, *, walks: bool) -> Code:
    """Compile a call of a Python function, whose cost is 1 if `charge` is None. It gets a Traversal if it `walks`."""
    runs = [arg.run for arg in args]
    fixed = sum(arg.cost for arg in args)
    first = runs[0] if runs else None

    def walking(frame: Frame) -> Any:
        values = tuple([run(frame) for run in runs])
        result = implementation(Traversal(frame, values), *values)
        if charge is not None:
            frame[0] -= charge(values, result)
            if frame[0] < 0:
                end_slice(frame)
        return result

    def charging(frame: Frame) -> Any:
        values = tuple([run(frame) for run in runs])
        result = implementation(*values)
        frame[0] -= charge(values, result)  # type: ignore[misc]  # not used if it is None
        if frame[0] < 0:
            end_slice(frame)
        return result

    if walks:
        return Code(walking, fixed + (charge is None))
    if charge is not None:
        return Code(charging, fixed)
    if len(runs) == 1 and first is not None:
        return Code(lambda frame: implementation(first(frame)), fixed + 1)
    return Code(lambda frame: implementation(*[run(frame) for run in runs]), fixed + 1)


PER_CALL_LIMIT = 1_000_000
"""Maximum cost of one evaluation (Kubernetes' PerCallLimit)."""


class CompiledExpression:
    """A compiled expression. It holds no state of its evaluations, so tasks can share it.

    `source` is the expression, `type` the type of its result, `variables` are the variables that it uses.
    """

    __slots__ = ("_rest", "_run", "_slots", "_tree", "_types", "cost", "source", "type", "variables")

    def __init__(self, source: str, variables: Mapping[str, CelType]) -> None:
        tree = parse(source)
        self.type, self.variables = check(tree, source, variables)
        self.source = source
        self._types = {name: variables[name] for name in sorted(self.variables)}
        slots = {name: at for at, name in enumerate(self._types, VARIABLES)}
        self._slots = tuple(slots.items())
        compiler = _Compiler(slots, self._types)
        code = compiler.visit(tree)
        self._run, self.cost = code.run, code.cost
        self._rest = (None,) * (compiler.size - VARIABLES)
        self._tree = tree

    def __call__(self, bindings: Mapping[str, Any], budget: CostBudget) -> Any:
        """Evaluate the expression. `bindings` are the variables' values in plain JSON.

        Raises EvaluationError if the expression has no value, and BudgetExceededError if it costs more than one
        evaluation may, or more than the rest of the budget.
        """
        used = budget.used
        if used >= budget.due:
            budget.look()
            budget.due = used + SLICE
        limit, now = budget.limit - used, budget.due - used
        if limit > PER_CALL_LIMIT:
            limit = PER_CALL_LIMIT
        if now > limit:
            now = limit
        frame: Frame = [now - self.cost, limit - now, budget, *self._rest]
        for name, slot in self._slots:
            if name not in bindings:
                raise EvaluationError(f"no such attribute(s): {name}")
            frame[slot] = bindings[name]
        try:
            result = self._run(frame)
        except ABSORBED as error:
            raise as_error(error) from None
        except BudgetExceededError as error:
            raise BudgetExceededError(exhausted=error.exhausted or limit < PER_CALL_LIMIT) from None
        finally:
            left = frame[0] + frame[1]
            budget.used = used + limit - left
        if left < 0:
            raise BudgetExceededError(exhausted=limit < PER_CALL_LIMIT)
        return result

    def estimate(self) -> Cost:
        """Return the range of costs that the declared sizes allow."""
        return estimate_tree(self._tree, self._types)


def compile_expression(source: str, variables: Mapping[str, CelType]) -> CompiledExpression:
    """Compile an expression over variables of declared types. Raises CelError if it does not compile."""
    try:
        return CompiledExpression(source, variables)
    except RecursionError:
        text = f"ERROR: <input>:-1:0: expression recursion limit exceeded: {MAX_DEPTH}"
        raise CelError(text) from None
