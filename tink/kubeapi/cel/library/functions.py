"""The functions of CEL as Kubernetes 1.36 offers them: one table of overloads, each with its types, code and price.

The rows follow the declarations of Kubernetes' own environment (see `tests/unit/kubeapi/cel/oracle`). A signature is
written like `string.(int) -> string`; a type before the dot is the receiver, and single capital letters are type
parameters. The checker reads the types, the compiler the implementation and the charge, the estimator the estimate.
"""

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tink.kubeapi.cel import costs, values
from tink.kubeapi.cel.costs import UNIT, Charge, Price
from tink.kubeapi.cel.errors import EvaluationError
from tink.kubeapi.cel.frame import Traversal
from tink.kubeapi.cel.library import conversions, lists, net, quantity, semver, strings
from tink.kubeapi.cel.library.conversions import signed, unsigned
from tink.kubeapi.cel.library.named_formats import FORMATS, NamedFormat
from tink.kubeapi.cel.library.regex import PatternError, find_all, pattern_tester
from tink.kubeapi.cel.types import (
    BOOL,
    BYTES,
    DOUBLE,
    DURATION,
    DYN,
    INT,
    NULL,
    STRING,
    TIMESTAMP,
    UINT,
    CelType,
    ListType,
    MapType,
    ObjectType,
    Opaque,
    TypeType,
    TypeVar,
    runtime_name,
)
from tink.kubeapi.cel.values import ABSENT, Duration, Optional, TypeValue, UInt

IP, CIDR = Opaque("net.IP"), Opaque("net.CIDR")

_NAMED: dict[str, CelType] = {
    **{t.name: t for t in (BOOL, INT, UINT, DOUBLE, STRING, BYTES, DYN, DURATION, TIMESTAMP)},
    **{name: ObjectType(f"kubernetes.{name}", {}) for name in ("URL", "Quantity", "Semver", "NamedFormat")},
    "IP": IP,
    "CIDR": CIDR,
}
"""The types that signatures in the table name."""

TYPE_NAMES = {
    runtime_name(t): t
    for t in (
        *(BOOL, BYTES, DOUBLE, DURATION, INT, NULL, STRING, TIMESTAMP, UINT),
        *(ListType(DYN), MapType(DYN, DYN), TypeType(), Opaque("optional_type"), IP, CIDR),
    )
}
"""The types that expressions can name as values."""

Implementation = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Overload:
    """One overload of a function.

    `args` are the types of the parameters; the first one is the receiver if the overload is a `member`. `variables`
    are the type parameters. `run` is the implementation, or None for operators that the compiler handles itself.
    `run` takes a `Traversal` before its arguments if it `walks` through nested values.
    """

    id: str
    member: bool
    args: tuple[CelType, ...]
    result: CelType
    variables: tuple[str, ...]
    run: Implementation | None
    price: Price
    walks: bool


# Reading signatures


def _split(text: str) -> list[str]:
    """Split a signature at the commas outside of brackets."""
    # A comma is inside if a bracket closes after it before another one opens: no signature has `map(K, list(V))` here.
    return re.split(r", (?![^()]*\))", text) if text else []


def _type(text: str) -> CelType:
    head, bracket, rest = text.partition("(")
    if not bracket:
        return _NAMED[text] if text in _NAMED else TypeVar(text)
    params = [_type(part) for part in _split(rest[:-1])]
    if head == "list":
        return ListType(params[0])
    if head == "map":
        return MapType(params[0], params[1])
    return TypeType(tuple(params)) if head == "type" else Opaque(head, tuple(params))


def _variables(t: CelType) -> set[str]:
    return {t.name} if isinstance(t, TypeVar) else set().union(*map(_variables, t.params))


Row = tuple[str, Overload]


def _row(
    function: str,
    ident: str,
    signature: str,
    run: Implementation | None = None,
    price: Price = UNIT,
    *,
    walks: bool = False,
) -> Row:
    """Return a row of the table: the name of a function and one of its overloads."""
    given, _, result = signature.rpartition(" -> ")
    receiver, _, inner = given.partition(".(") if not given.startswith("(") else ("", "", given[1:])
    args = [_type(part) for part in ([receiver] if receiver else []) + _split(inner[:-1])]
    names = set().union(*map(_variables, [*args, _type(result)]))
    return function, Overload(
        ident, bool(receiver), tuple(args), _type(result), tuple(sorted(names)), run, price, walks
    )


# Implementations of one or two lines; the longer ones are in the modules beside this one.


def _identity(value: Any) -> Any:
    return value


def _no_duration(_: int) -> Duration:
    # The check accepts it and the evaluation fails, in Kubernetes as well.
    raise EvaluationError("type conversion error from 'int' to 'google.protobuf.Duration'")


def _parses(parse: Callable[..., Any]) -> Callable[..., bool]:
    """Return a function that tests if a function parses its arguments."""

    def test(*args: Any) -> bool:
        try:
            parse(*args)
        except EvaluationError:
            return False
        return True

    return test


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
    """Return True if a text has a match of a pattern that is known only at evaluation."""
    try:
        return pattern_tester(pattern)(text)
    except PatternError as error:
        raise EvaluationError(str(error)) from None


def _found(text: str, pattern: str, limit: int = -1) -> list[str]:
    try:
        return find_all(pattern, text, limit)
    except PatternError as error:
        raise EvaluationError(f"Illegal regex: {error}") from None


def _validated(fmt: NamedFormat, text: str) -> Optional:
    problems = fmt.check(text)
    return Optional(problems) if problems else ABSENT


def insert_entry(into: dict[Any, Any], key: Any, value: Any) -> dict[Any, Any]:
    """Add an entry to a map, in place. Raises EvaluationError if the map has the key already."""
    if key in into:
        raise EvaluationError(f"insert failed: key {values.shown(key)} already exists")
    into[key] = value
    return into


def insert_all(into: dict[Any, Any], more: dict[Any, Any]) -> dict[Any, Any]:
    """Add the entries of another map to a map, in place. Raises EvaluationError like `insert_entry`."""
    for key, value in more.items():
        insert_entry(into, key, value)
    return into


def _quantity_integer(value: quantity.Quantity) -> int:
    found = value.integer()
    if found is None:
        raise EvaluationError("cannot convert value to integer")
    return found


def _sorted(traversal: Traversal, items: list[Any]) -> list[Any]:
    return lists.sort_by(traversal, items, items)


def _in_map(value: Any, items: dict[Any, Any]) -> bool:
    try:
        return value in items
    except TypeError:
        return False


def _contains_ip_text(cidr: net.Cidr, text: str) -> bool:
    if not net.is_ip(text):
        raise values.no_overload()  # Kubernetes does not report the address here
    return cidr.contains(net.parse_ip(text))


def _within(cidr: net.Cidr, other: net.Cidr) -> bool:
    return cidr.length <= other.length and cidr.contains(other.ip)


# The table

# fmt: off
_OPERATORS: tuple[Row, ...] = (
    _row("!_", "logical_not", "(bool) -> bool"),
    _row("-_", "negate_double", "(double) -> double", lambda value: -value),
    _row("-_", "negate_int64", "(int) -> int", lambda value: signed(-value)),
    _row("@in", "in_list", "(A, list(A)) -> bool",
         lambda traversal, value, items: traversal.contains(items, value), costs.IN_LIST, walks=True),
    _row("@in", "in_map", "(A, map(A, B)) -> bool", _in_map),
    _row("@not_strictly_false", "not_strictly_false", "(bool) -> bool"),
    _row("_!=_", "not_equals", "(A, A) -> bool", price=costs.NOT_EQUALS),
    _row("_%_", "modulo_int64", "(int, int) -> int", _modulo),
    _row("_%_", "modulo_uint64", "(uint, uint) -> uint", lambda a, b: UInt(int(a) % int(_divisor(b, "modulus")))),
    _row("_&&_", "logical_and", "(bool, bool) -> bool"),
    _row("_*_", "multiply_double", "(double, double) -> double", lambda a, b: a * b),
    _row("_*_", "multiply_int64", "(int, int) -> int", lambda a, b: signed(a * b)),
    _row("_*_", "multiply_uint64", "(uint, uint) -> uint", lambda a, b: unsigned(int(a) * int(b))),
    _row("_+_", "add_bytes", "(bytes, bytes) -> bytes", lambda a, b: a + b, costs.CONCATENATION),
    _row("_+_", "add_double", "(double, double) -> double", lambda a, b: a + b),
    _row("_+_", "add_duration_duration", "(duration, duration) -> duration", conversions.add),
    _row("_+_", "add_duration_timestamp", "(duration, timestamp) -> timestamp", conversions.add),
    _row("_+_", "add_timestamp_duration", "(timestamp, duration) -> timestamp", conversions.add),
    _row("_+_", "add_int64", "(int, int) -> int", lists.add),
    _row("_+_", "add_list", "(list(A), list(A)) -> list(A)", lists.add_lists, costs.ADD_LISTS, walks=True),
    _row("_+_", "add_string", "(string, string) -> string", lambda a, b: a + b, costs.CONCATENATION),
    _row("_+_", "add_uint64", "(uint, uint) -> uint", lists.add),
    _row("_-_", "subtract_double", "(double, double) -> double", lambda a, b: a - b),
    _row("_-_", "subtract_duration_duration", "(duration, duration) -> duration", conversions.subtract),
    _row("_-_", "subtract_int64", "(int, int) -> int", lambda a, b: signed(a - b)),
    _row("_-_", "subtract_timestamp_duration", "(timestamp, duration) -> timestamp", conversions.subtract),
    _row("_-_", "subtract_timestamp_timestamp", "(timestamp, timestamp) -> duration", conversions.subtract),
    _row("_-_", "subtract_uint64", "(uint, uint) -> uint", lambda a, b: unsigned(int(a) - int(b))),
    _row("_/_", "divide_double", "(double, double) -> double", _double_divided),
    _row("_/_", "divide_int64", "(int, int) -> int", _divided),
    _row("_/_", "divide_uint64", "(uint, uint) -> uint", lambda a, b: UInt(int(a) // int(_divisor(b, "division")))),
    _row("_==_", "equals", "(A, A) -> bool", price=costs.EQUALS),
    _row("_?._", "select_optional_field", "(dyn, string) -> optional_type(V)"),
    _row("_?_:_", "conditional", "(bool, A, A) -> A"),
    _row("_[?_]", "list_optindex_optional_int", "(list(V), int) -> optional_type(V)"),
    _row("_[?_]", "optional_list_optindex_optional_int", "(optional_type(list(V)), int) -> optional_type(V)"),
    _row("_[?_]", "map_optindex_optional_value", "(map(K, V), K) -> optional_type(V)"),
    _row("_[?_]", "optional_map_optindex_optional_value", "(optional_type(map(K, V)), K) -> optional_type(V)"),
    _row("_[_]", "index_list", "(list(A), int) -> A"),
    _row("_[_]", "index_map", "(map(A, B), A) -> B"),
    _row("_[_]", "optional_list_index_int", "(optional_type(list(V)), int) -> optional_type(V)"),
    _row("_[_]", "optional_map_index_value", "(optional_type(map(K, V)), K) -> optional_type(V)"),
    _row("_||_", "logical_or", "(bool, bool) -> bool"),
)

_CONVERSIONS: tuple[Row, ...] = (
    _row("bool", "bool_to_bool", "(bool) -> bool", _identity),
    _row("bool", "string_to_bool", "(string) -> bool", conversions.string_to_bool),
    _row("bytes", "bytes_to_bytes", "(bytes) -> bytes", _identity),
    _row("bytes", "string_to_bytes", "(string) -> bytes",
         lambda text: text.encode("utf-8", "surrogatepass"), costs.TO_BYTES),
    _row("double", "double_to_double", "(double) -> double", _identity),
    _row("double", "int64_to_double", "(int) -> double", float),
    _row("double", "string_to_double", "(string) -> double", conversions.string_to_double),
    _row("double", "uint64_to_double", "(uint) -> double", float),
    _row("duration", "duration_to_duration", "(duration) -> duration", _identity),
    _row("duration", "int64_to_duration", "(int) -> duration", _no_duration),
    _row("duration", "string_to_duration", "(string) -> duration", conversions.parse_duration),
    _row("dyn", "to_dyn", "(A) -> dyn", _identity),
    _row("int", "int64_to_int64", "(int) -> int", _identity),
    _row("int", "double_to_int64", "(double) -> int", conversions.double_to_int),
    _row("int", "duration_to_int64", "(duration) -> int", lambda value: value.ns),
    _row("int", "string_to_int64", "(string) -> int", conversions.string_to_int),
    _row("int", "timestamp_to_int64", "(timestamp) -> int", lambda value: value.ns // conversions.NANO),
    _row("int", "uint64_to_int64", "(uint) -> int", lambda value: signed(int(value))),
    _row("string", "string_to_string", "(string) -> string", _identity),
    _row("string", "bool_to_string", "(bool) -> string", conversions.to_text),
    _row("string", "bytes_to_string", "(bytes) -> string", conversions.bytes_to_string, costs.FROM_BYTES),
    _row("string", "double_to_string", "(double) -> string", conversions.to_text),
    _row("string", "duration_to_string", "(duration) -> string", conversions.to_text),
    _row("string", "int64_to_string", "(int) -> string", conversions.to_text),
    _row("string", "timestamp_to_string", "(timestamp) -> string", conversions.to_text),
    _row("string", "uint64_to_string", "(uint) -> string", conversions.to_text),
    _row("string", "ip_to_string", "(IP) -> string", str),
    _row("string", "cidr_to_string", "(CIDR) -> string", str),
    _row("timestamp", "timestamp_to_timestamp", "(timestamp) -> timestamp", _identity),
    _row("timestamp", "int64_to_timestamp", "(int) -> timestamp",
         lambda value: conversions.checked(value * conversions.NANO)),
    _row("timestamp", "string_to_timestamp", "(string) -> timestamp", conversions.parse_timestamp),
    _row("type", "type", "(A) -> type(A)", lambda value: TypeValue(values.type_name(value))),
    _row("uint", "uint64_to_uint64", "(uint) -> uint", _identity),
    _row("uint", "double_to_uint64", "(double) -> uint", conversions.double_to_uint),
    _row("uint", "int64_to_uint64", "(int) -> uint", unsigned),
    _row("uint", "string_to_uint64", "(string) -> uint", conversions.string_to_uint),
)

_STRINGS_AND_LISTS: tuple[Row, ...] = (
    _row("cel.@mapInsert", "@mapInsert_map_key_value", "(map(K, V), K, V) -> map(K, V)", insert_entry),
    _row("cel.@mapInsert", "@mapInsert_map_map", "(map(K, V), map(K, V)) -> map(K, V)", insert_all),
    _row("charAt", "string_char_at_int", "string.(int) -> string", strings.char_at),
    _row("contains", "contains_string", "string.(string) -> bool", lambda text, part: part in text, costs.CONTAINS),
    _row("distinct", "list_distinct", "list(T).() -> list(T)", lists.distinct, costs.DISTINCT, walks=True),
    _row("endsWith", "ends_with_string", "string.(string) -> bool", str.endswith, costs.AFFIX),
    _row("find", "string_find_string", "string.(string) -> string",
         lambda text, pattern: next(iter(_found(text, pattern, 1)), ""), costs.FIND),
    _row("findAll", "string_find_all_string", "string.(string) -> list(string)", _found, costs.FIND),
    _row("findAll", "string_find_all_string_int", "string.(string, int) -> list(string)", _found, costs.FIND),
    _row("first", "list_first", "list(V).() -> optional_type(V)",
         lambda items: Optional(items[0]) if items else ABSENT),
    _row("flatten", "list_flatten", "list(list(T)).() -> list(T)", lists.flatten, costs.FLATTEN, walks=True),
    _row("flatten", "list_flatten_int", "list(dyn).(int) -> list(dyn)", lists.flatten, costs.FLATTEN, walks=True),
    _row("format", "string_format", "string.(list(dyn)) -> string", strings.formatted, costs.SCAN, walks=True),
    _row("indexOf", "list_a_index_of_int", "list(A).(A) -> int", lists.index_of, costs.TRAVERSAL, walks=True),
    _row("indexOf", "string_index_of_string", "string.(string) -> int", strings.index_of, costs.TRAVERSAL),
    _row("indexOf", "string_index_of_string_int", "string.(string, int) -> int", strings.index_of, costs.TRAVERSAL),
    _row("join", "list_join", "list(string).() -> string", strings.join, costs.JOIN),
    _row("join", "list_join_string", "list(string).(string) -> string", strings.join, costs.JOIN),
    _row("last", "list_last", "list(V).() -> optional_type(V)", lambda items: Optional(items[-1]) if items else ABSENT),
    _row("lastIndexOf", "list_a_last_index_of_int", "list(A).(A) -> int",
         lists.last_index_of, costs.TRAVERSAL, walks=True),
    _row("lastIndexOf", "string_last_index_of_string", "string.(string) -> int",
         strings.last_index_of, costs.TRAVERSAL ),
    _row("lastIndexOf", "string_last_index_of_string_int", "string.(string, int) -> int",
         strings.last_index_of, costs.TRAVERSAL),
    _row("lists.range", "lists_range", "(int) -> list(int)", lists.numbers, costs.RANGE),
    _row("lowerAscii", "string_lower_ascii", "string.() -> string", strings.lower, costs.SCAN_SIZED),
    _row("matches", "matches", "(string, string) -> bool", matches),
    _row("matches", "matches_string", "string.(string) -> bool", matches, costs.MATCH),
    _row("replace", "string_replace_string_string", "string.(string, string) -> string",
         strings.replace, costs.REPLACE ),
    _row("replace", "string_replace_string_string_int", "string.(string, string, int) -> string",
         strings.replace, costs.REPLACE),
    _row("reverse", "list_reverse", "list(T).() -> list(T)", lambda items: items[::-1], costs.REVERSE),
    _row("sets.contains", "list_sets_contains_list", "(list(T), list(T)) -> bool",
         lists.sets_contain, costs.SETS, walks=True),
    _row("sets.equivalent", "list_sets_equivalent_list", "(list(T), list(T)) -> bool",
         lists.sets_equivalent, costs.SETS_EQUIVALENT, walks=True),
    _row("sets.intersects", "list_sets_intersects_list", "(list(T), list(T)) -> bool",
         lists.sets_intersect, costs.SETS, walks=True),
    _row("size", "size_bytes", "(bytes) -> int", len),
    _row("size", "bytes_size", "bytes.() -> int", len),
    _row("size", "size_list", "(list(A)) -> int", len),
    _row("size", "list_size", "list(A).() -> int", len),
    _row("size", "size_map", "(map(A, B)) -> int", len),
    _row("size", "map_size", "map(A, B).() -> int", len),
    _row("size", "size_string", "(string) -> int", len),
    _row("size", "string_size", "string.() -> int", len),
    _row("slice", "list_slice", "list(T).(int, int) -> list(T)", lists.slice_of, costs.SLICE),
    _row("split", "string_split_string", "string.(string) -> list(string)", strings.split, costs.SPLIT),
    _row("split", "string_split_string_int", "string.(string, int) -> list(string)", strings.split, costs.SPLIT),
    _row("startsWith", "starts_with_string", "string.(string) -> bool", str.startswith, costs.AFFIX),
    _row("strings.quote", "strings_quote", "(string) -> string", strings.quoted, costs.QUOTE),
    _row("substring", "string_substring_int", "string.(int) -> string", strings.substring, costs.SCAN_SIZED),
    _row("substring", "string_substring_int_int", "string.(int, int) -> string",
         strings.substring, costs.SCAN_SIZED),
    _row("trim", "string_trim", "string.() -> string", strings.trim, costs.SCAN_SIZED),
    _row("upperAscii", "string_upper_ascii", "string.() -> string", strings.upper, costs.SCAN_SIZED),
)

_OPTIONALS: tuple[Row, ...] = (
    _row("hasValue", "optional_hasValue", "optional_type(V).() -> bool", lambda value: value.present),
    _row("optional.none", "optional_none", "() -> optional_type(V)", lambda: ABSENT),
    _row("optional.of", "optional_of", "(V) -> optional_type(V)", Optional),
    _row("optional.ofNonZeroValue", "optional_ofNonZeroValue", "(V) -> optional_type(V)",
         lambda value: ABSENT if values.is_zero(value) else Optional(value)),
    _row("optional.unwrap", "optional_unwrap", "(list(optional_type(V))) -> list(V)", lists.unwrapped),
    _row("or", "optional_or_optional", "optional_type(V).(optional_type(V)) -> optional_type(V)"),
    _row("orValue", "optional_orValue_value", "optional_type(V).(V) -> V"),
    _row("unwrapOpt", "optional_unwrapOpt", "list(optional_type(V)).() -> list(V)", lists.unwrapped),
    _row("value", "optional_value", "optional_type(V).() -> V", Optional.get),
)

_KUBERNETES: tuple[Row, ...] = (
    _row("add", "quantity_add", "Quantity.(Quantity) -> Quantity", quantity.add),
    _row("add", "quantity_add_int", "Quantity.(int) -> Quantity", lambda a, b: quantity.add(a, quantity.integer(b))),
    _row("asApproximateFloat", "quantity_get_float", "Quantity.() -> double", quantity.approximate),
    _row("asInteger", "quantity_get_int", "Quantity.() -> int", _quantity_integer),
    _row("cidr", "string_to_cidr", "(string) -> CIDR", net.parse_cidr, costs.SCAN),
    _row("compareTo", "quantity_compare_to", "Quantity.(Quantity) -> int", quantity.compare),
    _row("compareTo", "semver_compare_to", "Semver.(Semver) -> int", semver.compare),
    _row("containsCIDR", "cidr_contains_cidr_string", "CIDR.(string) -> bool",
         lambda cidr, text: _within(cidr, net.parse_cidr(text)), costs.CIDR_HAS_CIDR_TEXT),
    _row("containsCIDR", "cidr_contains_cidr", "CIDR.(CIDR) -> bool", _within, costs.CIDR_HAS_CIDR),
    _row("containsIP", "cidr_contains_ip_string", "CIDR.(string) -> bool", _contains_ip_text, costs.CIDR_HAS_IP_TEXT),
    _row("containsIP", "cidr_contains_ip_ip", "CIDR.(IP) -> bool", net.Cidr.contains, costs.CIDR_HAS_IP),
    _row("family", "ip_family", "IP.() -> int", lambda ip: 4 if ip.bits == 32 else 6),
    _row("format.named", "format-named", "(string) -> optional_type(NamedFormat)",
         lambda name: Optional(FORMATS[name]) if name in FORMATS else ABSENT),
    _row("getEscapedPath", "url_get_escaped_path", "URL.() -> string", lambda url: url.escaped_path),
    _row("getHost", "url_get_host", "URL.() -> string", lambda url: url.host),
    _row("getHostname", "url_get_hostname", "URL.() -> string", lambda url: url.host_and_port()[0]),
    _row("getPort", "url_get_port", "URL.() -> string", lambda url: url.host_and_port()[1]),
    _row("getQuery", "url_get_query", "URL.() -> map(string, list(string))", net.Url.parameters),
    _row("getScheme", "url_get_scheme", "URL.() -> string", lambda url: url.scheme),
    _row("ip", "string_to_ip", "(string) -> IP", net.parse_ip, costs.SCAN),
    _row("ip", "cidr_ip", "CIDR.() -> IP", lambda cidr: cidr.ip),
    _row("ip.isCanonical", "ip_is_canonical", "(string) -> bool",
         lambda text: str(net.parse_ip(text)) == text, costs.SCAN_TWICE),
    _row("isCIDR", "is_cidr", "(string) -> bool", _parses(net.parse_cidr), costs.SCAN),
    _row("isGlobalUnicast", "ip_is_global_unicast", "IP.() -> bool", net.is_global_unicast),
    _row("isGreaterThan", "quantity_is_greater_than", "Quantity.(Quantity) -> bool",
         lambda a, b: quantity.compare(a, b) > 0),
    _row("isGreaterThan", "semver_is_greater_than", "Semver.(Semver) -> bool", lambda a, b: semver.compare(a, b) > 0),
    _row("isIP", "is_ip", "(string) -> bool", net.is_ip, costs.SCAN),
    _row("isInteger", "quantity_is_integer", "Quantity.() -> bool", lambda value: value.integer() is not None),
    _row("isLessThan", "quantity_is_less_than", "Quantity.(Quantity) -> bool", lambda a, b: quantity.compare(a, b) < 0),
    _row("isLessThan", "semver_is_less_than", "Semver.(Semver) -> bool", lambda a, b: semver.compare(a, b) < 0),
    _row("isLinkLocalMulticast", "ip_is_link_local_multicast", "IP.() -> bool", net.is_link_local_multicast),
    _row("isLinkLocalUnicast", "ip_is_link_local_unicast", "IP.() -> bool", net.is_link_local_unicast),
    _row("isLoopback", "ip_is_loopback", "IP.() -> bool", net.is_loopback),
    _row("isQuantity", "is_quantity_string", "(string) -> bool", _parses(quantity.parse), costs.SCAN),
    _row("isSemver", "is_semver_string", "(string) -> bool", _parses(semver.parse), costs.SCAN),
    _row("isSemver", "is_semver_string_bool", "(string, bool) -> bool", _parses(semver.parse), costs.SCAN),
    _row("isURL", "is_url_string", "(string) -> bool", lambda text: not net.problem(text)),
    _row("isUnspecified", "ip_is_unspecified", "IP.() -> bool", lambda ip: ip.number == 0),
    _row("major", "semver_major", "Semver.() -> int", lambda version: version.numbers[0]),
    _row("masked", "cidr_masked", "CIDR.() -> CIDR", net.Cidr.masked),
    _row("minor", "semver_minor", "Semver.() -> int", lambda version: version.numbers[1]),
    _row("patch", "semver_patch", "Semver.() -> int", lambda version: version.numbers[2]),
    _row("prefixLength", "cidr_prefix_length", "CIDR.() -> int", lambda cidr: cidr.length),
    _row("quantity", "string_to_quantity", "(string) -> Quantity", quantity.parse, costs.SCAN),
    _row("semver", "string_to_semver", "(string) -> Semver", semver.parse, costs.SCAN),
    _row("semver", "string_bool_to_semver", "(string, bool) -> Semver", semver.parse, costs.SCAN),
    _row("sign", "quantity_sign", "(Quantity) -> int", quantity.sign),
    _row("sub", "quantity_sub", "Quantity.(Quantity) -> Quantity", lambda a, b: quantity.add(a, b, -1)),
    _row("sub", "quantity_sub_int", "Quantity.(int) -> Quantity",
         lambda a, b: quantity.add(a, quantity.integer(b), -1) ),
    _row("url", "string_to_url", "(string) -> URL", net.url, costs.SCAN_SIZED),
    _row("validate", "format-validate", "NamedFormat.(string) -> optional_type(list(string))",
         _validated, costs.VALIDATE ),
)
# fmt: on


def _rows_of_times() -> list[Row]:
    """Return the functions that read a part of a timestamp, in UTC or in a time zone, or the length of a duration."""
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
    rows: list[Row] = []
    for name, ident in ids.items():
        part = functools.partial(conversions.part, name)
        with_zone = f"timestamp_to_{ident}{'_tz' if name == 'getSeconds' else '_with_tz'}"
        rows.append(_row(name, f"timestamp_to_{ident}", "timestamp.() -> int", part))
        rows.append(_row(name, with_zone, "timestamp.(string) -> int", part))
        if name in ("getHours", "getMinutes", "getSeconds", "getMilliseconds"):
            rows.append(_row(name, f"duration_to_{ident}", "duration.() -> int", part))
    return rows


def _rows_of_comparisons() -> list[Row]:
    """Return `<`, `<=`, `>` and `>=`: between numbers of any two types, and between values of one other type."""
    rows: list[Row] = []
    numbers = {"int64": "int", "uint64": "uint", "double": "double"}
    for word, function in (("less", "_<_"), ("less_equals", "_<=_"), ("greater", "_>_"), ("greater_equals", "_>=_")):
        rows.append(_row(function, f"{word}_bool", "(bool, bool) -> bool"))
        for left in numbers:
            for right in sorted(numbers, key=lambda name: name != left):
                suffix = left if left == right else f"{left}_{right}"
                rows.append(_row(function, f"{word}_{suffix}", f"({numbers[left]}, {numbers[right]}) -> bool"))
        for name in ("string", "bytes", "timestamp", "duration"):
            price = costs.ORDER if name in ("string", "bytes") else UNIT
            rows.append(_row(function, f"{word}_{name}", f"({name}, {name}) -> bool", price=price))
    return rows


def _rows_of_elements() -> list[Row]:
    """Return the list functions that exist once for each type of element."""
    rows: list[Row] = []
    zeros: dict[str, Any] = {"int": 0, "uint": UInt(0), "double": 0.0, "duration": Duration(0)}
    for name in ("int", "uint", "double", "bool", "duration", "timestamp", "string", "bytes"):
        items = f"list({name})"
        # cel-go names the overloads of its own extension by the protobuf type.
        long = f"google.protobuf.{name.title()}" if name in ("duration", "timestamp") else name
        texts = name in ("string", "bytes")
        greatest, least = functools.partial(lists.extreme, "max", 1), functools.partial(lists.extreme, "min", -1)
        by_keys = f"list(T).({items}) -> list(T)"
        sort, sort_by = (costs.SORT_TEXTS, costs.SORT_BY_TEXTS) if texts else (costs.SORT, costs.SORT_BY)
        for function, ident, signature, run, price in (
            ("isSorted", f"{name}_is_sorted_bool", f"{items}.() -> bool", lists.is_sorted, costs.TRAVERSAL),
            ("max", f"{name}_max_{name}", f"{items}.() -> {name}", greatest, costs.TRAVERSAL),
            ("min", f"{name}_min_{name}", f"{items}.() -> {name}", least, costs.TRAVERSAL),
            ("sort", f"{long}_sort", f"{items}.() -> {items}", _sorted, sort),
            ("@sortByAssociatedKeys", f"{long}_sortByAssociatedKeys", by_keys, lists.sort_by, sort_by),
        ):
            rows.append(_row(function, f"list_{ident}", signature, run, price, walks=True))
        if name in zeros:
            total = functools.partial(lists.total, zero=zeros[name])
            rows.append(_row("sum", f"list_{name}_sum_{name}", f"{items}.() -> {name}", total, costs.TRAVERSAL))
    return rows


FUNCTIONS: dict[str, list[Overload]] = {}
for _function, _overload in (
    *_OPERATORS,
    *_CONVERSIONS,
    *_STRINGS_AND_LISTS,
    *_OPTIONALS,
    *_KUBERNETES,
    *_rows_of_times(),
    *_rows_of_comparisons(),
    *_rows_of_elements(),
    *[
        _row(f"format.{name}", f"format.{name}", "() -> NamedFormat", functools.partial(FORMATS.get, name))
        for name in FORMATS
    ],
):
    FUNCTIONS.setdefault(_function, []).append(_overload)
"""The overloads of each function, in the order in which the checker tries them."""

OVERLOADS: dict[str, Overload] = {o.id: o for overloads in FUNCTIONS.values() for o in overloads}
"""Every overload by its id."""

_UNDECIDED: dict[str, Charge | None] = {
    "_+_": costs.charge_sum_of_any,
    "containsIP": costs.CIDR_HAS_IP.charge,
    "containsCIDR": costs.CIDR_HAS_CIDR.charge,
    "sort": None,
    "@sortByAssociatedKeys": None,
}
"""The charges of calls whose overload is chosen at evaluation, where the overloads' charges differ."""


def charge_for(function: str, overloads: list[str]) -> Charge | None:
    """Return the charge for a call with these possible overloads; None means that it always costs 1."""
    if len(overloads) > 1 and function in _UNDECIDED:
        return _UNDECIDED[function]
    charges = {OVERLOADS[ident].price.charge for ident in overloads}
    return charges.pop() if len(charges) == 1 else None
