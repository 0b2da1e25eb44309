r"""CEL, the language of validation rules and match conditions, as Kubernetes 1.36 offers it.

A caller compiles an expression once, over variables of declared types, and evaluates it many times over plain JSON
values within a budget of cost:

    parser (with macros) -> checker -> compiler -> closures
                                   \-> estimate (the cost before any data are seen)

An expression cannot reach anything of Python. Its values are JSON values and a few classes of our own (`values`,
`library`), its names are the declared variables and the functions of `library.functions`.

Sources: the CEL specification (cel-spec), and the behaviour of Kubernetes' own environment, recorded in
`tests/unit/kubeapi/cel`.
"""

from tink.kubeapi.cel import types
from tink.kubeapi.cel.compiler import CompiledExpression, compile_expression
from tink.kubeapi.cel.errors import BudgetExceededError, CelError, EvaluationError
from tink.kubeapi.cel.frame import PER_OBJECT_LIMIT, CostBudget
from tink.kubeapi.cel.library.named_formats import FORMATS as NAMED_FORMATS
from tink.kubeapi.cel.library.regex import PatternError, compile_pattern, pattern_tester
from tink.kubeapi.cel.values import ABSENT, Optional

__all__ = [
    "ABSENT",
    "NAMED_FORMATS",
    "PER_OBJECT_LIMIT",
    "BudgetExceededError",
    "CelError",
    "CompiledExpression",
    "CostBudget",
    "EvaluationError",
    "Optional",
    "PatternError",
    "compile_expression",
    "compile_pattern",
    "pattern_tester",
    "types",
]
