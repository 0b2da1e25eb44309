"""CEL, the language of validation rules and match conditions, as Kubernetes 1.36 offers it.

An expression is compiled once over variables of declared types and then evaluated over plain JSON values,
within a budget of cost:

    parser -> macros -> checker -> validate -> compiler -> closures
                              \\-> estimate (cost before any data are seen)

Nothing of Python can be reached from an expression: values are JSON's and the few classes of `values` and of
the functions' rooms, names are the declared variables and the functions of `signatures`. Sources: the CEL
specification (cel-spec), and the behaviour of Kubernetes' own environment, recorded in `tests/unit/kubeapi/cel`.
"""

from tink.kubeapi.cel.errors import BudgetExceededError, CelError, EvaluationError
from tink.kubeapi.cel.library.named_formats import FORMATS as NAMED_FORMATS
from tink.kubeapi.cel.library.regex import PatternError, check_pattern, pattern_tester
from tink.kubeapi.cel.program import PER_OBJECT_LIMIT, Budget, Program, compile_expression
from tink.kubeapi.cel.types import (
    BOOL,
    DATE,
    DOUBLE,
    DURATION,
    DYN,
    INT,
    KEYWORDS,
    MAX_REQUEST_BYTES,
    STRING,
    TIMESTAMP,
    BytesType,
    DynType,
    Field,
    ListType,
    MapType,
    ObjectType,
    StringType,
    Type,
    min_json_size,
    optional_of,
    text_of,
)
from tink.kubeapi.cel.values import ABSENT, Optional

__all__ = [
    "ABSENT",
    "BOOL",
    "DATE",
    "DOUBLE",
    "DURATION",
    "DYN",
    "INT",
    "KEYWORDS",
    "MAX_REQUEST_BYTES",
    "NAMED_FORMATS",
    "PER_OBJECT_LIMIT",
    "STRING",
    "TIMESTAMP",
    "Budget",
    "BudgetExceededError",
    "BytesType",
    "CelError",
    "DynType",
    "EvaluationError",
    "Field",
    "ListType",
    "MapType",
    "ObjectType",
    "Optional",
    "PatternError",
    "Program",
    "StringType",
    "Type",
    "check_pattern",
    "compile_expression",
    "min_json_size",
    "optional_of",
    "pattern_tester",
    "text_of",
]
