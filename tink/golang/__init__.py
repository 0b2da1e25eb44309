"""Go's values, and how Go writes them: the one formatter of the house, a port of the packages `strconv` and `fmt`.

`strconv` writes and reads strings and numbers (`quote` is %q, `format_float(value, "g")` is %v of a float64), `fmt`
whole values (`text_of` is %v, `sprintf` takes every verb), `values` says which values there are. Real Go is the oracle
(tests/interop/test_template_tables.py).
"""

from tink.golang import fmt, strconv, values

__all__ = ["fmt", "strconv", "values"]
