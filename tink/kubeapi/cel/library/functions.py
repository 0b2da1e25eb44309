"""What each function does: from the id of an overload to the Python function that does it.

The compiler calls these with values whose types fit the overload's signature; `TRAVERSING` with a traversal before
them, which counts what they see of nested values. Operators that need more (logic, selection, equality) are elsewhere.
"""

from collections.abc import Callable
from typing import Any

from tink.kubeapi.cel import values
from tink.kubeapi.cel.errors import EvaluationError
from tink.kubeapi.cel.library import conversions, lists, net, quantity, semver, strings
from tink.kubeapi.cel.library.conversions import signed, unsigned
from tink.kubeapi.cel.library.named_formats import FORMATS, NamedFormat
from tink.kubeapi.cel.library.regex import PatternError, find_all, pattern_tester
from tink.kubeapi.cel.library.strings import formatted
from tink.kubeapi.cel.values import ABSENT, Duration, Optional, TypeValue, UInt

Function = Callable[..., Any]


def _identity(value: Any) -> Any:
    return value


def _no_duration(_: int) -> Duration:
    # The check allows it, evaluation does not, in Kubernetes as well.
    raise EvaluationError("type conversion error from 'int' to 'google.protobuf.Duration'")


def _divisor(b: int, what: str) -> int:
    if b == 0:
        raise EvaluationError(f"{what} by zero")
    return b


def _divided(a: int, b: int) -> int:
    whole = abs(a) // abs(_divisor(b, "division"))
    return signed(whole if (a < 0) is (b < 0) else -whole)


def _modulo(a: int, b: int) -> int:
    rest = abs(a) % abs(_divisor(b, "modulus"))
    if a == values.MIN_INT and b == -1:
        raise EvaluationError("integer overflow")
    return -rest if a < 0 else rest


def _double_divided(a: float, b: float) -> float:
    if b:
        return a / b
    if a != a or a == 0:
        return float("nan")
    negative = (a < 0) is not (str(b)[0] == "-")
    return float("-inf") if negative else float("inf")


def matches(text: str, pattern: str) -> bool:
    """Whether a text has a match of a pattern that is known only now."""
    try:
        return pattern_tester(pattern)(text)
    except PatternError as error:
        raise EvaluationError(str(error)) from None


def _found(text: str, pattern: str, limit: int = -1) -> list[str]:
    try:
        return find_all(pattern, text, limit)
    except PatternError as error:
        raise EvaluationError(f"Illegal regex: {error}") from None


def _find(text: str, pattern: str) -> str:
    found = _found(text, pattern, 1)
    return found[0] if found else ""


def _non_zero(value: Any) -> Optional:
    return ABSENT if values.is_zero(value) else Optional(value)


def _validated(fmt: NamedFormat, text: str) -> Optional:
    problems = fmt.check(text)
    return Optional(problems) if problems else ABSENT


def _named(name: str) -> Optional:
    found = FORMATS.get(name)
    return Optional(found) if found else ABSENT


def _family(ip: net.Ip) -> int:
    return 4 if ip.bits == 32 else 6


def _inserted(into: dict[Any, Any], key: Any, value: Any) -> dict[Any, Any]:
    if key in into:
        raise EvaluationError(f"insert failed: key {values.shown(key)} already exists")
    into[key] = value
    return into


def _inserted_all(into: dict[Any, Any], more: dict[Any, Any]) -> dict[Any, Any]:
    for key, value in more.items():
        _inserted(into, key, value)
    return into


def _quantity_integer(value: quantity.Quantity) -> int:
    found = value.integer()
    if found is None:
        raise EvaluationError("cannot convert value to integer")
    return found


def _in_map(value: Any, items: dict[Any, Any]) -> bool:
    try:
        return value in items
    except TypeError:
        return False


def _contains_ip_text(cidr: net.Cidr, text: str) -> bool:
    if not net.is_ip(text):
        raise values.no_overload()  # Kubernetes hides what is wrong with the address here
    return cidr.contains(net.parse_ip(text))


def _within(cidr: net.Cidr, other: net.Cidr) -> bool:
    return cidr.length <= other.length and cidr.contains(other.ip)


def _time_parts() -> dict[str, Function]:
    """The parts of timestamps, with and without a zone, and of durations."""
    table: dict[str, Function] = {}
    ids = {
        "getFullYear": "year",
        "getMonth": "month",
        "getDayOfYear": "day_of_year",
        "getDayOfMonth": "day_of_month",
        "getDate": "day_of_month_1_based",
        "getDayOfWeek": "day_of_week",
        "getHours": "hours",
        "getMinutes": "minutes",
        "getSeconds": "seconds",
        "getMilliseconds": "milliseconds",
    }
    for name, ident in ids.items():

        def part(value: Any, zone: str = "UTC", name: str = name) -> int:
            return conversions.part(name, value, zone)

        for suffix in ("", "_with_tz", "_tz"):
            table[f"timestamp_to_{ident}{suffix}"] = part
        table[f"duration_to_{ident}"] = part
    return table


def _for_elements() -> dict[str, Function]:
    """The functions that compare elements, once for each type of element."""
    table: dict[str, Function] = {}
    for name in ("int", "uint", "double", "bool", "duration", "timestamp", "string", "bytes"):
        long = f"google.protobuf.{name.title()}" if name in ("duration", "timestamp") else name
        table[f"list_{name}_is_sorted_bool"] = lists.is_sorted
        table[f"list_{name}_max_{name}"] = lambda traversal, items: lists.extreme(traversal, items, 1, "max")
        table[f"list_{name}_min_{name}"] = lambda traversal, items: lists.extreme(traversal, items, -1, "min")
        table[f"list_{long}_sort"] = lambda traversal, items: lists.sort_by(traversal, items, items)
        table[f"list_{long}_sortByAssociatedKeys"] = lists.sort_by
    return table


def _sums() -> dict[str, Function]:
    zeros: dict[str, Any] = {"int": 0, "uint": UInt(0), "double": 0.0, "duration": Duration(0)}
    return {
        f"list_{name}_sum_{name}": lambda items, zero=zero: lists.total(items, zero) for name, zero in zeros.items()
    }


_ARITHMETIC: dict[str, Function] = {
    "add_bytes": lambda a, b: a + b,
    "add_string": lambda a, b: a + b,
    "add_double": lambda a, b: a + b,
    "add_int64": lists.add_numbers,
    "add_uint64": lists.add_numbers,
    "add_duration_duration": conversions.add,
    "add_duration_timestamp": conversions.add,
    "add_timestamp_duration": conversions.add,
    "subtract_double": lambda a, b: a - b,
    "subtract_int64": lambda a, b: signed(a - b),
    "subtract_uint64": lambda a, b: unsigned(int(a) - int(b)),
    "subtract_duration_duration": conversions.subtract,
    "subtract_timestamp_duration": conversions.subtract,
    "subtract_timestamp_timestamp": conversions.subtract,
    "multiply_double": lambda a, b: a * b,
    "multiply_int64": lambda a, b: signed(a * b),
    "multiply_uint64": lambda a, b: unsigned(int(a) * int(b)),
    "divide_double": _double_divided,
    "divide_int64": _divided,
    "divide_uint64": lambda a, b: UInt(int(a) // int(_divisor(b, "division"))),
    "modulo_int64": _modulo,
    "modulo_uint64": lambda a, b: UInt(int(a) % int(_divisor(b, "modulus"))),
    "negate_double": lambda value: -value,
    "negate_int64": lambda value: signed(-value),
}

_CONVERSIONS: dict[str, Function] = {
    **{f"{name}_to_{name}": _identity for name in ("bool", "bytes", "double", "duration", "int64", "string")},
    **{f"{name}_to_{name}": _identity for name in ("timestamp", "uint64")},
    "to_dyn": _identity,
    "string_to_bool": conversions.string_to_bool,
    "string_to_bytes": lambda text: text.encode("utf-8", "surrogatepass"),
    "int64_to_double": float,
    "uint64_to_double": float,
    "string_to_double": conversions.string_to_double,
    "int64_to_duration": _no_duration,
    "string_to_duration": conversions.parse_duration,
    "double_to_int64": conversions.double_to_int,
    "duration_to_int64": lambda value: value.ns,
    "string_to_int64": conversions.string_to_int,
    "timestamp_to_int64": lambda value: value.ns // conversions.NANO,
    "uint64_to_int64": lambda value: signed(int(value)),
    "double_to_uint64": conversions.double_to_uint,
    "int64_to_uint64": unsigned,
    "string_to_uint64": conversions.string_to_uint,
    "int64_to_timestamp": conversions.int_to_timestamp,
    "string_to_timestamp": conversions.parse_timestamp,
    "bytes_to_string": conversions.bytes_to_string,
    **{
        f"{name}_to_string": conversions.to_text
        for name in ("bool", "double", "duration", "int64", "timestamp", "uint64")
    },
    "type": lambda value: TypeValue(values.type_name(value)),
    "string_to_ip": net.parse_ip,
    "string_to_cidr": net.parse_cidr,
    "ip_to_string": str,
    "cidr_to_string": str,
}  # fmt: skip

_STRINGS: dict[str, Function] = {
    "contains_string": lambda text, part: part in text,
    "starts_with_string": str.startswith,
    "ends_with_string": str.endswith,
    "matches": matches,
    "matches_string": matches,
    "string_find_string": _find,
    "string_find_all_string": _found,
    "string_find_all_string_int": _found,
    "string_char_at_int": strings.char_at,
    "string_index_of_string": strings.index_of,
    "string_index_of_string_int": strings.index_of,
    "string_last_index_of_string": strings.last_index_of,
    "string_last_index_of_string_int": strings.last_index_before,
    "string_lower_ascii": strings.lower,
    "string_upper_ascii": strings.upper,
    "string_replace_string_string": strings.replace,
    "string_replace_string_string_int": strings.replace,
    "string_split_string": strings.split,
    "string_split_string_int": strings.split,
    "string_substring_int": strings.substring,
    "string_substring_int_int": strings.substring_range,
    "string_trim": strings.trim,
    "strings_quote": strings.quoted,
    "list_join": strings.join,
    "list_join_string": strings.join,
    **dict.fromkeys(("size_bytes", "bytes_size", "size_string", "string_size"), len),
}

_LISTS: dict[str, Function] = {
    **dict.fromkeys(("size_list", "list_size", "size_map", "map_size"), len),
    "in_map": _in_map,
    "list_slice": lists.piece,
    "lists_range": lists.numbers,
    "list_reverse": lambda items: items[::-1],
    "list_first": lists.first,
    "list_last": lists.last,
    "@mapInsert_map_key_value": _inserted,
    "@mapInsert_map_map": _inserted_all,
}

_OPTIONALS: dict[str, Function] = {
    "optional_of": Optional,
    "optional_ofNonZeroValue": _non_zero,
    "optional_none": lambda: ABSENT,
    "optional_value": Optional.get,
    "optional_hasValue": lambda value: value.present,
    "optional_unwrap": lists.unwrapped,
    "optional_unwrapOpt": lists.unwrapped,
}

_KUBERNETES: dict[str, Function] = {
    "is_ip": net.is_ip,
    "is_cidr": net.is_cidr,
    "ip_family": _family,
    "ip_is_canonical": net.is_canonical,
    "ip_is_unspecified": lambda ip: ip.number == 0,
    "ip_is_loopback": net.is_loopback,
    "ip_is_link_local_multicast": net.is_link_local_multicast,
    "ip_is_link_local_unicast": net.is_link_local_unicast,
    "ip_is_global_unicast": net.is_global_unicast,
    "cidr_contains_ip_string": _contains_ip_text,
    "cidr_contains_ip_ip": net.Cidr.contains,
    "cidr_contains_cidr_string": lambda cidr, text: _within(cidr, net.parse_cidr(text)),
    "cidr_contains_cidr": lambda cidr, other: _within(cidr, other),
    "cidr_ip": lambda cidr: cidr.ip,
    "cidr_prefix_length": lambda cidr: cidr.length,
    "cidr_masked": net.Cidr.masked,
    "string_to_url": net.url,
    "is_url_string": lambda text: not net.problem(text),
    "url_get_scheme": lambda url: url.scheme,
    "url_get_host": lambda url: url.host,
    "url_get_hostname": lambda url: url.hostname,
    "url_get_port": lambda url: url.port,
    "url_get_escaped_path": lambda url: url.escaped_path,
    "url_get_query": net.Url.parameters,
    "string_to_quantity": quantity.parse,
    "is_quantity_string": quantity.is_quantity,
    "quantity_sign": quantity.sign,
    "quantity_is_greater_than": lambda a, b: quantity.compare(a, b) > 0,
    "quantity_is_less_than": lambda a, b: quantity.compare(a, b) < 0,
    "quantity_compare_to": quantity.compare,
    "quantity_get_float": quantity.approximate,
    "quantity_get_int": _quantity_integer,
    "quantity_is_integer": lambda value: value.integer() is not None,
    "quantity_add": quantity.add,
    "quantity_add_int": lambda a, b: quantity.add(a, quantity.integer(b)),
    "quantity_sub": lambda a, b: quantity.add(a, b, -1),
    "quantity_sub_int": lambda a, b: quantity.add(a, quantity.integer(b), -1),
    "string_to_semver": semver.parse,
    "string_bool_to_semver": lambda text, loose: semver.normalized(text) if loose else semver.parse(text),
    "is_semver_string": semver.is_semver,
    "is_semver_string_bool": lambda text, loose: semver.is_semver(text, loose=loose),
    "semver_is_greater_than": lambda a, b: semver.compare(a, b) > 0,
    "semver_is_less_than": lambda a, b: semver.compare(a, b) < 0,
    "semver_compare_to": semver.compare,
    "semver_major": lambda version: version.numbers[0],
    "semver_minor": lambda version: version.numbers[1],
    "semver_patch": lambda version: version.numbers[2],
    "format-validate": _validated,
    "format-named": _named,
    **{f"format.{name}": (lambda value: lambda: value)(fmt) for name, fmt in FORMATS.items()},
}


OVERLOADS: dict[str, Function] = {
    **_ARITHMETIC,
    **_CONVERSIONS,
    **_STRINGS,
    **_LISTS,
    **_OPTIONALS,
    **_KUBERNETES,
    **_time_parts(),
    **_sums(),
}
"""Every overload that is a plain function of its arguments."""

TRAVERSING: dict[str, Function] = {
    "add_list": lists.add_lists,
    "string_format": formatted,
    "in_list": lambda traversal, value, items: traversal.contains(items, value),
    "list_a_index_of_int": lists.index_of,
    "list_a_last_index_of_int": lists.last_index_of,
    "list_flatten": lists.flatten,
    "list_flatten_int": lists.flatten,
    "list_distinct": lists.distinct,
    "list_sets_contains_list": lists.sets_contain,
    "list_sets_equivalent_list": lists.sets_equivalent,
    "list_sets_intersects_list": lists.sets_intersect,
    **_for_elements(),
}
"""The overloads that look into nested values."""
