"""One rule of x-kubernetes-validations: compiled, and what it says when an object breaks it.

Source: k8s.io/apiextensions-apiserver, pkg/apiserver/schema/cel (compilation.go, validation.go).
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tink.golang import bad_value
from tink.kubeapi.cel import (
    BOOL,
    Budget,
    BudgetExceededError,
    CelError,
    EvaluationError,
    Program,
    Type,
    compile_expression,
    optional_of,
)
from tink.kubeapi.schema.field_errors import FieldError, invalid_whole
from tink.kubeapi.schema.validations.paths import FieldPathError, field_path

log = logging.getLogger(__name__)

Schema = Mapping[str, Any]

OBJECT_BUDGET = 10_000_000
"""What all rules together may cost for one object, in CEL's units of cost."""
MAX_MESSAGE = 5 * 1024
"""Longest message that an expression may make, in bytes."""

_LINE_BREAK = re.compile(r"[\n]+")
NO_BUDGET = "validation failed due to running out of cost budget, no further validation rules will be run"


class StopRulesError(Exception):
    """The budget is gone: no further rule is to be run."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule, compiled. `error` or `message_error` say why one of its expressions could not be; costs are estimates.

    `kind` is the type of the schema; `nested` means that failures do not repeat the value.
    """

    source: str
    kind: str
    message: str
    message_source: str
    reason: str
    field_path: str
    optional: bool
    program: Program | None = None
    message_program: Program | None = None
    uses_old: bool = False
    error: str = ""
    message_error: str = ""
    cost: int = 0
    message_cost: int = 0

    @property
    def nested(self) -> bool:
        """Whether failures do not repeat the value."""
        return self.kind in ("object", "array")

    @property
    def called(self) -> str:
        """How errors name the rule."""
        return self.message.strip() if self.message else self.source.strip()

    def fault(self, error: BudgetExceededError | EvaluationError, budget: Budget) -> str:
        """Say why the rule could not be evaluated."""
        if isinstance(error, BudgetExceededError):
            if not budget.remaining:
                return NO_BUDGET
            why = "no further validation rules will be run due to call cost exceeds limit for rule"
            return f"'{error}': {why}: {self.called}"
        text = str(error)
        if text.startswith("no such overload"):
            why = "call arguments did not match a supported operator, function or macro signature for rule"
            return f"'{text}': {why}: {self.called}"
        return f"{text} evaluating rule: {self.called}"

    def wrong(self, at: str, why: str) -> FieldError:
        """Report a value that a rule cannot be evaluated for."""
        return invalid_whole(at or "<nil>", self.kind, why)

    def failure(self, value: Any, bindings: Mapping[str, Any], budget: Budget, at: str) -> FieldError:
        """Say that a value breaks the rule. Raises StopRulesError when making the message costs too much."""
        path = at
        if self.field_path:
            path = f"{at}.{self.field_path}" if at else self.field_path
        path = path or "<nil>"
        detail = self._made_message(bindings, budget, path)
        if not detail:
            detail = self.message.strip() if self.message else f"failed rule: {self.called}"
        match self.reason:
            case "FieldValueForbidden":
                return FieldError(path, self.reason, f"Forbidden: {detail}")
            case "FieldValueRequired":
                return FieldError(path, self.reason, f"Required value: {detail}")
            case "FieldValueDuplicate":
                return FieldError(
                    path, self.reason, "Duplicate value" + ("" if self.nested else f": {bad_value(value)}")
                )
        return invalid_whole(path, value, detail) if not self.nested else _omitted(path, detail)

    def _made_message(self, bindings: Mapping[str, Any], budget: Budget, path: str) -> str:
        """Evaluate messageExpression; "" when it gives nothing that can be used."""
        if self.message_program is None:
            return ""
        try:
            made = self.message_program(bindings, budget)
        except BudgetExceededError as error:
            why = (
                "messageExpression evaluation failed due to running out of cost budget, no further validation rules "
                "will be run"
                if not budget.remaining
                else "no further validation rules will be run due to call cost exceeds limit for messageExpression: "
                + bad_value(self.message_source)
            )
            raise StopRulesError(self.wrong(path, why)) from error
        except EvaluationError as error:
            log.debug("messageExpression evaluation failed due to: %s", error)
            return ""
        text = made.strip() if isinstance(made, str) else ""
        return "" if len(text.encode()) > MAX_MESSAGE or _LINE_BREAK.search(text) else text


def _omitted(path: str, detail: str) -> FieldError:
    return FieldError(path, "FieldValueInvalid", f"Invalid value: {detail}")


def compile_rule(raw: Mapping[str, Any], kind: Type, schema: Schema) -> Rule:
    """Compile a rule at a schema whose CEL type is `kind`. Errors stand in the rule."""
    source, message_source = raw.get("rule") or "", raw.get("messageExpression") or ""
    optional = bool(raw.get("optionalOldSelf"))
    parts: dict[str, Any] = {
        "source": source,
        "kind": schema.get("type") or "",
        "message": raw.get("message") or "",
        "message_source": message_source,
        "reason": raw.get("reason") or "",
        "field_path": "",
        "optional": optional,
    }
    if not source.strip():
        return Rule(**parts)
    variables = {"self": kind, "oldSelf": optional_of(kind) if optional else kind}
    try:
        program = compile_expression(source, variables)
    except CelError as error:
        return Rule(**parts, error=f"compilation failed: {error}")
    if program.type is not BOOL and program.type != BOOL:
        return Rule(**parts, error="cel expression must evaluate to a bool")
    parts |= {"program": program, "uses_old": program.uses("oldSelf"), "cost": program.estimate().max}
    if message_source:
        parts |= _compile_message(message_source, variables)
    if raw.get("fieldPath") and "message_error" not in parts:
        # A wrong path was refused when the definition was written; Kubernetes then names the value itself.
        with contextlib.suppress(FieldPathError):
            parts["field_path"] = field_path(raw["fieldPath"], schema).text
    return Rule(**parts)


def _compile_message(source: str, variables: Mapping[str, Type]) -> dict[str, Any]:
    try:
        program = compile_expression(source, variables)
    except CelError as error:
        return {"message_error": f"messageExpression compilation failed: {error}"}
    if program.type.shape != "string":
        return {"message_error": "messageExpression must evaluate to a string"}
    return {"message_program": program, "message_cost": program.estimate().max}
