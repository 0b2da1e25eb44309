"""The loops that macros make. Each kind runs as a plain Python loop and charges what Kubernetes' generic loop would.

Reading the accumulator costs 1, testing it 2 (`all`) or 3 (`exists`) for each round; a list of one element
that is appended costs 10 and the addition 1, and so on; see `macros` for what the rounds consist of.
"""

from collections.abc import Callable, Iterable
from typing import Any

from tink.kubeapi.cel.code import ABSORBED, Code, Frame, as_error, charged, overdrawn
from tink.kubeapi.cel.cost.charges import LIST_BASE
from tink.kubeapi.cel.errors import EvaluationError
from tink.kubeapi.cel.values import MAX_INT, no_overload, type_name


def _elements(value: Any) -> Iterable[Any]:
    if isinstance(value, list):
        return value
    if type(value) is dict:
        return list(value)
    raise EvaluationError(f"got '{type_name(value)}', expected iterable type")


def _pairs(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, list):
        return enumerate(value)
    if type(value) is dict:
        return list(value.items())
    raise EvaluationError(f"unsupported comprehension range type: {type_name(value)}")


Rounds = Callable[[Frame], Iterable[None]]


def rounds(over: Code, slot: int, slot2: int) -> Rounds:
    """Runs over the range, setting the loop's variables; with `slot2` negative only one."""
    get = over.run
    if slot2 < 0:

        def single(frame: Frame) -> Iterable[None]:
            for item in _elements(get(frame)):
                frame[slot] = item
                yield

        return single

    def double(frame: Frame) -> Iterable[None]:
        for key, value in _pairs(get(frame)):
            frame[slot], frame[slot2] = key, value
            yield

    return double


def quantifier(over: Code, slots: tuple[int, int], predicate: Code, *, every: bool) -> Code:
    """`all` (`every`) or `exists`: ends at the first round that decides; errors count only if none does."""
    per_round = (3 if every else 4) + predicate.cost
    per_test = per_round - 1 - predicate.cost
    test, loop, stop = predicate.run, rounds(over, *slots), not every

    def run(frame: Frame) -> bool:
        failed: BaseException | None = None
        decided = False
        for _ in loop(frame):
            if decided:
                frame[0] -= per_test
                break
            frame[0] -= per_round
            if frame[0] < 0:
                overdrawn(frame)
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


def exactly_one(over: Code, slots: tuple[int, int], predicate: Code) -> Code:
    """`exists_one`: goes through everything; errors count."""
    test, loop, per_round = predicate.run, rounds(over, *slots), predicate.cost

    def run(frame: Frame) -> bool:
        count = 0
        failed: BaseException | None = None
        for _ in loop(frame):
            frame[0] -= per_round
            overdrawn(frame)
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


def collect(over: Code, slots: tuple[int, int], element: Code, predicate: Code | None) -> Code:
    """`map`, `filter`, `transformList`: a list of what `element` gives, where `predicate` holds."""
    body = 2 + (0 if element.constant else LIST_BASE) + element.cost
    loop, make = rounds(over, *slots), element.run
    test = predicate.run if predicate else None
    per_round = predicate.cost if predicate else body

    def run(frame: Frame) -> list[Any]:
        out: list[Any] = []
        for _ in loop(frame):
            frame[0] -= per_round
            overdrawn(frame)
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


def insert(
    over: Code, slots: tuple[int, int], step: Callable[[Frame, dict[Any, Any]], None], costs: tuple[int, Code | None]
) -> Code:
    """`transformMap` and `transformMapEntry`: a map that `step` adds to; `costs` are the step's and the predicate."""
    body, predicate = costs
    loop = rounds(over, *slots)
    test = predicate.run if predicate else None
    per_round = predicate.cost if predicate else body

    def run(frame: Frame) -> dict[Any, Any]:
        out: dict[Any, Any] = {}
        for _ in loop(frame):
            frame[0] -= per_round
            overdrawn(frame)
            if test is not None:
                value = test(frame)
                if value is False:
                    continue
                if value is not True:
                    raise no_overload()
                frame[0] -= body
            step(frame, out)
        return out

    return Code(run, over.cost + 1)


def bind(slot: int, value: Code, result: Code) -> Code:
    """A result with a variable bound to a value, computed when it is first read."""
    compute = charged(value)
    inner = result.run

    def run(frame: Frame) -> Any:
        frame[slot] = compute(frame)
        return inner(frame)

    return Code(run, result.cost)
