"""Match conditions: CEL expressions that must all be true before a webhook is asked.

The variables are `object`, `oldObject` (null when there is none), `request` (the AdmissionRequest without its objects)
and `namespaceObject` (always null for webhooks). What an expression may cost is bounded as in Kubernetes
(k8s.io/apiserver, pkg/admission/plugin/cel and plugin/webhook/matchconditions). There is no `authorizer`: this API
server has one user.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from tink.kubeapi import cel
from tink.kubeapi.cel import text_of

MAX_COST = 2_500_000
"""All conditions of a webhook together may cost so much (RuntimeCELCostBudgetMatchConditions)."""
MAX_EACH = 1_000_000
"""One condition may cost so much (PerCallLimit)."""


class ConditionError(Exception):
    """Conditions could not be decided. The message is Kubernetes'."""


@cache
def _variables() -> Mapping[str, cel.Type]:
    def of(name: str, fields: Mapping[str, cel.Type]) -> cel.Type:
        return cel.ObjectType(name, {key: cel.Field(kind, key) for key, kind in fields.items()})

    text, texts = cel.STRING, cel.ListType(cel.STRING)
    kind = of("kubernetes.GroupVersionKind", dict.fromkeys(("group", "version", "kind"), text))
    resource = of("kubernetes.GroupVersionResource", dict.fromkeys(("group", "version", "resource"), text))
    user = of(
        "kubernetes.UserInfo",
        {"username": text, "uid": text, "groups": texts, "extra": cel.MapType(text, texts)},
    )
    names = ("subResource", "requestSubResource", "name", "namespace", "operation")
    request = of(
        "kubernetes.AdmissionRequest",
        {
            **dict.fromkeys(names, text),
            "kind": kind,
            "resource": resource,
            "requestKind": kind,
            "requestResource": resource,
            "userInfo": user,
            "dryRun": cel.BOOL,
            "options": cel.DYN,
        },
    )
    return {"object": cel.DYN, "oldObject": cel.DYN, "namespaceObject": cel.DYN, "request": request}


def compile_condition(expression: str) -> cel.Program:
    """Compile one expression. Raises cel.CelError with Kubernetes' words."""
    try:
        program = cel.compile_expression(expression, _variables())
    except cel.CelError as error:
        raise cel.CelError(f"compilation failed: {error}") from error
    if program.type != cel.BOOL:
        raise cel.CelError(f"must evaluate to bool but got {text_of(program.type)}")
    return program


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions of one webhook: (expression, program, or why it does not compile)."""

    items: tuple[tuple[str, cel.Program | str], ...]

    @staticmethod
    def of(conditions: Sequence[Mapping[str, Any]]) -> Conditions | None:
        """Compile the matchConditions of a webhook. None when there are none."""
        if not conditions:
            return None
        items: list[tuple[str, cel.Program | str]] = []
        for condition in conditions:
            expression = condition.get("expression", "")
            try:
                items.append((expression, compile_condition(expression)))
            except cel.CelError as error:
                items.append((expression, f"compilation error: {error}"))
        return Conditions(tuple(items))

    def hold(self, bindings: Mapping[str, Any]) -> bool:
        """Whether all are true. One that is false decides; else one that fails raises ConditionError."""
        spent = 0
        wrong: list[str] = []
        for expression, program in self.items:
            if isinstance(program, str):
                wrong.append(program)
                continue
            budget = cel.Budget(MAX_EACH)
            holds = True
            try:
                holds = program(bindings, budget) is True
            except (cel.EvaluationError, cel.BudgetExceededError) as error:
                wrong.append(f"expression '{expression}' resulted in error: {error}")
            spent += budget.used
            if spent > MAX_COST:
                raise ConditionError(
                    "validation failed due to running out of cost budget, no further validation rules will be run"
                )
            if not holds:
                return False
        if wrong:
            unique = list(dict.fromkeys(wrong))
            raise ConditionError(unique[0] if len(unique) == 1 else f"[{', '.join(unique)}]")
        return True
