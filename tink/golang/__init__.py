"""Go's values, and how Go writes them: a port of the packages `strconv` and `fmt`.

`strconv` writes and reads strings and numbers (`quote` is %q, `format_float(value, "g")` is %v of a float64), `fmt`
whole values (`text_of` is %v, `sprintf` takes every verb), `values` says which values there are. Real Go is the oracle
(tests/interop/test_template_go.py). `durations` reads durations; `json_values` writes JSON into the messages of
Kubernetes.
"""

from tink.golang import fmt, strconv, values
from tink.golang.json_values import MAX_SHOWN, bad_value, cut, json_kind, marshal, number, to_json
from tink.golang.strconv import quote

__all__ = [
    "MAX_SHOWN", "bad_value", "cut", "fmt", "json_kind", "marshal", "number", "quote", "strconv", "to_json", "values",
]  # fmt: skip
