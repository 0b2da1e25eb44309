"""Which functions there are and with which types: CEL's standard library and the extensions of Kubernetes 1.36.

One overload a line: the function, the id of the overload (costs and the compiler go by it), its signature;
a type before the dot is the receiver. Single capital letters are type parameters. The table was made from
the declarations of Kubernetes' own environment, see `tests/unit/cel/oracle`.
"""

from dataclasses import dataclass

from tink.cel.types import (
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
    ListType,
    MapType,
    ObjectType,
    Opaque,
    Type,
    TypeType,
    TypeVar,
    text_of,
)

_TABLE = """
!_ logical_not (bool) -> bool
-_ negate_double (double) -> double
-_ negate_int64 (int) -> int
@in in_list (A, list(A)) -> bool
@in in_map (A, map(A, B)) -> bool
@not_strictly_false not_strictly_false (bool) -> bool
_!=_ not_equals (A, A) -> bool
_%_ modulo_int64 (int, int) -> int
_%_ modulo_uint64 (uint, uint) -> uint
_&&_ logical_and (bool, bool) -> bool
_*_ multiply_double (double, double) -> double
_*_ multiply_int64 (int, int) -> int
_*_ multiply_uint64 (uint, uint) -> uint
_+_ add_bytes (bytes, bytes) -> bytes
_+_ add_double (double, double) -> double
_+_ add_duration_duration (duration, duration) -> duration
_+_ add_duration_timestamp (duration, timestamp) -> timestamp
_+_ add_timestamp_duration (timestamp, duration) -> timestamp
_+_ add_int64 (int, int) -> int
_+_ add_list (list(A), list(A)) -> list(A)
_+_ add_string (string, string) -> string
_+_ add_uint64 (uint, uint) -> uint
_-_ subtract_double (double, double) -> double
_-_ subtract_duration_duration (duration, duration) -> duration
_-_ subtract_int64 (int, int) -> int
_-_ subtract_timestamp_duration (timestamp, duration) -> timestamp
_-_ subtract_timestamp_timestamp (timestamp, timestamp) -> duration
_-_ subtract_uint64 (uint, uint) -> uint
_/_ divide_double (double, double) -> double
_/_ divide_int64 (int, int) -> int
_/_ divide_uint64 (uint, uint) -> uint
_==_ equals (A, A) -> bool
_?._ select_optional_field (dyn, string) -> optional_type(V)
_?_:_ conditional (bool, A, A) -> A
_[?_] list_optindex_optional_int (list(V), int) -> optional_type(V)
_[?_] optional_list_optindex_optional_int (optional_type(list(V)), int) -> optional_type(V)
_[?_] map_optindex_optional_value (map(K, V), K) -> optional_type(V)
_[?_] optional_map_optindex_optional_value (optional_type(map(K, V)), K) -> optional_type(V)
_[_] index_list (list(A), int) -> A
_[_] index_map (map(A, B), A) -> B
_[_] optional_list_index_int (optional_type(list(V)), int) -> optional_type(V)
_[_] optional_map_index_value (optional_type(map(K, V)), K) -> optional_type(V)
_||_ logical_or (bool, bool) -> bool
add quantity_add kubernetes.Quantity.(kubernetes.Quantity) -> kubernetes.Quantity
add quantity_add_int kubernetes.Quantity.(int) -> kubernetes.Quantity
asApproximateFloat quantity_get_float kubernetes.Quantity.() -> double
asInteger quantity_get_int kubernetes.Quantity.() -> int
bool bool_to_bool (bool) -> bool
bool string_to_bool (string) -> bool
bytes bytes_to_bytes (bytes) -> bytes
bytes string_to_bytes (string) -> bytes
cel.@mapInsert @mapInsert_map_key_value (map(K, V), K, V) -> map(K, V)
cel.@mapInsert @mapInsert_map_map (map(K, V), map(K, V)) -> map(K, V)
charAt string_char_at_int string.(int) -> string
cidr string_to_cidr (string) -> net.CIDR
compareTo quantity_compare_to kubernetes.Quantity.(kubernetes.Quantity) -> int
compareTo semver_compare_to kubernetes.Semver.(kubernetes.Semver) -> int
contains contains_string string.(string) -> bool
containsCIDR cidr_contains_cidr_string net.CIDR.(string) -> bool
containsCIDR cidr_contains_cidr net.CIDR.(net.CIDR) -> bool
containsIP cidr_contains_ip_string net.CIDR.(string) -> bool
containsIP cidr_contains_ip_ip net.CIDR.(net.IP) -> bool
distinct list_distinct list(T).() -> list(T)
double double_to_double (double) -> double
double int64_to_double (int) -> double
double string_to_double (string) -> double
double uint64_to_double (uint) -> double
duration duration_to_duration (duration) -> duration
duration int64_to_duration (int) -> duration
duration string_to_duration (string) -> duration
dyn to_dyn (A) -> dyn
endsWith ends_with_string string.(string) -> bool
family ip_family net.IP.() -> int
find string_find_string string.(string) -> string
findAll string_find_all_string string.(string) -> list(string)
findAll string_find_all_string_int string.(string, int) -> list(string)
first list_first list(V).() -> optional_type(V)
flatten list_flatten list(list(T)).() -> list(T)
flatten list_flatten_int list(dyn).(int) -> list(dyn)
format string_format string.(list(dyn)) -> string
format.named format-named (string) -> optional_type(kubernetes.NamedFormat)
getDate timestamp_to_day_of_month_1_based timestamp.() -> int
getDate timestamp_to_day_of_month_1_based_with_tz timestamp.(string) -> int
getDayOfMonth timestamp_to_day_of_month timestamp.() -> int
getDayOfMonth timestamp_to_day_of_month_with_tz timestamp.(string) -> int
getDayOfWeek timestamp_to_day_of_week timestamp.() -> int
getDayOfWeek timestamp_to_day_of_week_with_tz timestamp.(string) -> int
getDayOfYear timestamp_to_day_of_year timestamp.() -> int
getDayOfYear timestamp_to_day_of_year_with_tz timestamp.(string) -> int
getEscapedPath url_get_escaped_path kubernetes.URL.() -> string
getFullYear timestamp_to_year timestamp.() -> int
getFullYear timestamp_to_year_with_tz timestamp.(string) -> int
getHost url_get_host kubernetes.URL.() -> string
getHostname url_get_hostname kubernetes.URL.() -> string
getHours timestamp_to_hours timestamp.() -> int
getHours timestamp_to_hours_with_tz timestamp.(string) -> int
getHours duration_to_hours duration.() -> int
getMilliseconds timestamp_to_milliseconds timestamp.() -> int
getMilliseconds timestamp_to_milliseconds_with_tz timestamp.(string) -> int
getMilliseconds duration_to_milliseconds duration.() -> int
getMinutes timestamp_to_minutes timestamp.() -> int
getMinutes timestamp_to_minutes_with_tz timestamp.(string) -> int
getMinutes duration_to_minutes duration.() -> int
getMonth timestamp_to_month timestamp.() -> int
getMonth timestamp_to_month_with_tz timestamp.(string) -> int
getPort url_get_port kubernetes.URL.() -> string
getQuery url_get_query kubernetes.URL.() -> map(string, list(string))
getScheme url_get_scheme kubernetes.URL.() -> string
getSeconds timestamp_to_seconds timestamp.() -> int
getSeconds timestamp_to_seconds_tz timestamp.(string) -> int
getSeconds duration_to_seconds duration.() -> int
hasValue optional_hasValue optional_type(V).() -> bool
indexOf list_a_index_of_int list(A).(A) -> int
indexOf string_index_of_string string.(string) -> int
indexOf string_index_of_string_int string.(string, int) -> int
int int64_to_int64 (int) -> int
int double_to_int64 (double) -> int
int duration_to_int64 (duration) -> int
int string_to_int64 (string) -> int
int timestamp_to_int64 (timestamp) -> int
int uint64_to_int64 (uint) -> int
ip string_to_ip (string) -> net.IP
ip cidr_ip net.CIDR.() -> net.IP
ip.isCanonical ip_is_canonical (string) -> bool
isCIDR is_cidr (string) -> bool
isGlobalUnicast ip_is_global_unicast net.IP.() -> bool
isGreaterThan quantity_is_greater_than kubernetes.Quantity.(kubernetes.Quantity) -> bool
isGreaterThan semver_is_greater_than kubernetes.Semver.(kubernetes.Semver) -> bool
isIP is_ip (string) -> bool
isInteger quantity_is_integer kubernetes.Quantity.() -> bool
isLessThan quantity_is_less_than kubernetes.Quantity.(kubernetes.Quantity) -> bool
isLessThan semver_is_less_than kubernetes.Semver.(kubernetes.Semver) -> bool
isLinkLocalMulticast ip_is_link_local_multicast net.IP.() -> bool
isLinkLocalUnicast ip_is_link_local_unicast net.IP.() -> bool
isLoopback ip_is_loopback net.IP.() -> bool
isQuantity is_quantity_string (string) -> bool
isSemver is_semver_string (string) -> bool
isSemver is_semver_string_bool (string, bool) -> bool
isURL is_url_string (string) -> bool
isUnspecified ip_is_unspecified net.IP.() -> bool
join list_join list(string).() -> string
join list_join_string list(string).(string) -> string
last list_last list(V).() -> optional_type(V)
lastIndexOf list_a_last_index_of_int list(A).(A) -> int
lastIndexOf string_last_index_of_string string.(string) -> int
lastIndexOf string_last_index_of_string_int string.(string, int) -> int
lists.range lists_range (int) -> list(int)
lowerAscii string_lower_ascii string.() -> string
major semver_major kubernetes.Semver.() -> int
masked cidr_masked net.CIDR.() -> net.CIDR
matches matches (string, string) -> bool
matches matches_string string.(string) -> bool
minor semver_minor kubernetes.Semver.() -> int
optional.none optional_none () -> optional_type(V)
optional.of optional_of (V) -> optional_type(V)
optional.ofNonZeroValue optional_ofNonZeroValue (V) -> optional_type(V)
optional.unwrap optional_unwrap (list(optional_type(V))) -> list(V)
or optional_or_optional optional_type(V).(optional_type(V)) -> optional_type(V)
orValue optional_orValue_value optional_type(V).(V) -> V
patch semver_patch kubernetes.Semver.() -> int
prefixLength cidr_prefix_length net.CIDR.() -> int
quantity string_to_quantity (string) -> kubernetes.Quantity
replace string_replace_string_string string.(string, string) -> string
replace string_replace_string_string_int string.(string, string, int) -> string
reverse list_reverse list(T).() -> list(T)
semver string_to_semver (string) -> kubernetes.Semver
semver string_bool_to_semver (string, bool) -> kubernetes.Semver
sets.contains list_sets_contains_list (list(T), list(T)) -> bool
sets.equivalent list_sets_equivalent_list (list(T), list(T)) -> bool
sets.intersects list_sets_intersects_list (list(T), list(T)) -> bool
sign quantity_sign (kubernetes.Quantity) -> int
size size_bytes (bytes) -> int
size bytes_size bytes.() -> int
size size_list (list(A)) -> int
size list_size list(A).() -> int
size size_map (map(A, B)) -> int
size map_size map(A, B).() -> int
size size_string (string) -> int
size string_size string.() -> int
slice list_slice list(T).(int, int) -> list(T)
split string_split_string string.(string) -> list(string)
split string_split_string_int string.(string, int) -> list(string)
startsWith starts_with_string string.(string) -> bool
string string_to_string (string) -> string
string bool_to_string (bool) -> string
string bytes_to_string (bytes) -> string
string double_to_string (double) -> string
string duration_to_string (duration) -> string
string int64_to_string (int) -> string
string timestamp_to_string (timestamp) -> string
string uint64_to_string (uint) -> string
string ip_to_string (net.IP) -> string
string cidr_to_string (net.CIDR) -> string
strings.quote strings_quote (string) -> string
sub quantity_sub kubernetes.Quantity.(kubernetes.Quantity) -> kubernetes.Quantity
sub quantity_sub_int kubernetes.Quantity.(int) -> kubernetes.Quantity
substring string_substring_int string.(int) -> string
substring string_substring_int_int string.(int, int) -> string
timestamp timestamp_to_timestamp (timestamp) -> timestamp
timestamp int64_to_timestamp (int) -> timestamp
timestamp string_to_timestamp (string) -> timestamp
trim string_trim string.() -> string
type type (A) -> type(A)
uint uint64_to_uint64 (uint) -> uint
uint double_to_uint64 (double) -> uint
uint int64_to_uint64 (int) -> uint
uint string_to_uint64 (string) -> uint
unwrapOpt optional_unwrapOpt list(optional_type(V)).() -> list(V)
upperAscii string_upper_ascii string.() -> string
url string_to_url (string) -> kubernetes.URL
validate format-validate kubernetes.NamedFormat.(string) -> optional_type(list(string))
value optional_value optional_type(V).() -> V
"""

URL = ObjectType("kubernetes.URL", {})
QUANTITY = ObjectType("kubernetes.Quantity", {})
SEMVER = ObjectType("kubernetes.Semver", {})
FORMAT = ObjectType("kubernetes.NamedFormat", {})
IP = Opaque("net.IP")
CIDR = Opaque("net.CIDR")

FORMAT_NAMES = (
    "byte", "date", "datetime", "dns1035Label", "dns1035LabelPrefix", "dns1123Label", "dns1123LabelPrefix",
    "dns1123Subdomain", "dns1123SubdomainPrefix", "labelValue", "qualifiedName", "uri", "uuid",
)  # fmt: skip

_NAMED: dict[str, Type] = {
    "bool": BOOL,
    "int": INT,
    "uint": UINT,
    "double": DOUBLE,
    "string": STRING,
    "bytes": BYTES,
    "dyn": DYN,
    "duration": DURATION,
    "timestamp": TIMESTAMP,
    "kubernetes.URL": URL,
    "kubernetes.Quantity": QUANTITY,
    "kubernetes.Semver": SEMVER,
    "kubernetes.NamedFormat": FORMAT,
    "net.IP": IP,
    "net.CIDR": CIDR,
}

TYPE_NAMES: dict[str, Type] = {
    "bool": BOOL,
    "bytes": BYTES,
    "double": DOUBLE,
    "google.protobuf.Duration": DURATION,
    "int": INT,
    "list": ListType(DYN),
    "map": MapType(DYN, DYN),
    "null_type": NULL,
    "string": STRING,
    "google.protobuf.Timestamp": TIMESTAMP,
    "type": TypeType(),
    "uint": UINT,
    "optional_type": Opaque("optional_type"),
    "net.IP": IP,
    "net.CIDR": CIDR,
}
"""Names of types that expressions can use as values."""


@dataclass(frozen=True, slots=True)
class Overload:
    """One signature of a function. For a `member` the first argument is the receiver."""

    id: str
    member: bool
    args: tuple[Type, ...]
    result: Type
    variables: tuple[str, ...]


def _split(text: str) -> list[str]:
    """The parts between the commas that stand in no bracket."""
    parts, depth, start = [], 0, 0
    for at, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if char == "," and not depth:
            parts.append(text[start:at].strip())
            start = at + 1
    tail = text[start:].strip()
    return [*parts, tail] if tail else parts


def _type(text: str) -> Type:
    head, bracket, rest = text.partition("(")
    if not bracket:
        return _NAMED[text] if text in _NAMED else TypeVar(text)
    params = [_type(part) for part in _split(rest[:-1])]
    if head == "list":
        return ListType(params[0])
    if head == "map":
        return MapType(params[0], params[1])
    if head == "type":
        return TypeType(params[0])
    return Opaque(head, tuple(params))


def _names(t: Type) -> set[str]:
    return {t.name} if isinstance(t, TypeVar) else set().union(*map(_names, t.params)) if t.params else set()


def _overload(ident: str, args: list[Type], result: Type, *, member: bool) -> Overload:
    names = set().union(_names(result), *map(_names, args))
    return Overload(ident, member, tuple(args), result, tuple(sorted(names)))


def _declared() -> dict[str, list[Overload]]:
    table: dict[str, list[Overload]] = {}
    for line in _TABLE.strip().splitlines():
        name, ident, signature = line.split(None, 2)
        given, _, result = signature.rpartition(" -> ")
        head, _, inner = given.partition(".(") if not given.startswith("(") else ("", "", given[1:])
        args = [_type(part) for part in _split(inner[:-1])]
        member = bool(head)
        table.setdefault(name, []).append(
            _overload(ident, [_type(head), *args] if member else args, _type(result), member=member)
        )
    return table


_COMPARED = (("less", "_<_"), ("less_equals", "_<=_"), ("greater", "_>_"), ("greater_equals", "_>=_"))
_NUMERIC = (("int64", INT), ("uint64", UINT), ("double", DOUBLE))


def _comparisons(table: dict[str, list[Overload]]) -> None:
    """Every order operator over the numbers in every pairing, and over the other types with themselves."""
    for word, function in _COMPARED:
        overloads = [_overload(f"{word}_bool", [BOOL, BOOL], BOOL, member=False)]
        for left_name, left in _NUMERIC:
            for right_name, right in sorted(_NUMERIC, key=lambda pair: pair[0] != left_name):
                suffix = left_name if left is right else f"{left_name}_{right_name}"
                overloads.append(_overload(f"{word}_{suffix}", [left, right], BOOL, member=False))
        for t in (STRING, BYTES, TIMESTAMP, DURATION):
            overloads.append(_overload(f"{word}_{t.name}", [t, t], BOOL, member=False))
        table[function] = overloads


def _list_functions(table: dict[str, list[Overload]]) -> None:
    """The functions that exist once for each type of element."""
    ordered = (INT, UINT, DOUBLE, BOOL, DURATION, TIMESTAMP, STRING, BYTES)
    item = TypeVar("T")
    for t in ordered:
        name, elements = text_of(t), ListType(t)
        long = f"google.protobuf.{name.title()}" if t in (DURATION, TIMESTAMP) else name
        rows = [
            ("isSorted", f"list_{name}_is_sorted_bool", [elements], BOOL),
            ("max", f"list_{name}_max_{name}", [elements], t),
            ("min", f"list_{name}_min_{name}", [elements], t),
            ("sort", f"list_{long}_sort", [elements], elements),
            ("@sortByAssociatedKeys", f"list_{long}_sortByAssociatedKeys", [ListType(item), elements], ListType(item)),
        ]
        if t in (INT, UINT, DOUBLE, DURATION):
            rows.append(("sum", f"list_{name}_sum_{name}", [elements], t))
        for function, ident, args, result in rows:
            table.setdefault(function, []).append(_overload(ident, list(args), result, member=True))


def _all() -> dict[str, list[Overload]]:
    table = _declared()
    _comparisons(table)
    _list_functions(table)
    for name in FORMAT_NAMES:
        table[f"format.{name}"] = [_overload(f"format.{name}", [], FORMAT, member=False)]
    return table


FUNCTIONS = _all()
"""Every function with its overloads, in the order in which they are tried."""
