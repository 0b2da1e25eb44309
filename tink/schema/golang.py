"""Values as Go writes them: Kubernetes repeats bad values in its messages, and people and tools compare those.

Source: k8s.io/apimachinery, pkg/util/validation/field (Error.ErrorBody); Go's packages strconv and encoding/json.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from tink.cel import go_quote
from tink.schema.field_errors import FieldError

_ESCAPED_IN_JSON = re.compile("[<>&\u2028\u2029]")


def number(value: float) -> str:
    """Write a float as %v and encoding/json do, nearly: the shortest form, exponents from 1e21 on."""
    if math.isinf(value) or math.isnan(value):
        return {True: "+Inf", False: "-Inf"}[value > 0] if math.isinf(value) else "NaN"
    if value.is_integer() and abs(value) < 1e21:
        return str(int(value))
    text = repr(value)
    mantissa, exponent, power = text.partition("e")
    if not exponent:
        return text
    sign, digits = power[0] if power[0] in "+-" else "+", power.lstrip("+-")
    return f"{mantissa.removesuffix('.0')}e{sign}{digits.zfill(2)}"


def as_json(value: Any) -> str:
    """Write a value as encoding/json does: no spaces, keys of maps sorted, and <, > and & escaped.

    Dictionaries are written in their order: structures of Go have a fixed one, maps are to be sorted by the caller.
    """
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return _ESCAPED_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    if isinstance(value, list):
        return [_sorted(item) for item in value]
    return value


def shown(value: Any) -> str:
    """Write a bad value into a message."""
    if isinstance(value, str):
        return go_quote(value)
    if isinstance(value, float):
        return number(value)
    return as_json(_sorted(value))


def invalid(field: str, value: Any, detail: str) -> FieldError:
    """Report that a field holds a value that is not allowed; the value is repeated whatever its size."""
    return wrong(field, shown(value), detail)


def wrong(field: str, text: str, detail: str) -> FieldError:
    """Report that a field holds a value that is not allowed; `text` is how the message shows the value."""
    return FieldError(field, "FieldValueInvalid", f"Invalid value: {text}: {detail}")
